"""Analysis of plans: windows, families, estimates, selectivities, and explanations in words."""
