"""Query networks and arrivals for simulated plants."""
