"""Beside a user's queries in the driver: `attach`, the agent, listeners."""
