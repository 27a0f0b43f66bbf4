"""What a simulated plant is given: query networks and arrivals."""
