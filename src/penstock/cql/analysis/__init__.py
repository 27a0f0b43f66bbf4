"""What can be said of a plan: its windows, its families, its estimates, how it is explained."""
