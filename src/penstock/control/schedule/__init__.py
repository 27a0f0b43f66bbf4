"""Whose turn it is, how long a turn is, and which share of the time a class has."""
