"""Processes rows of a lane later, and revises the results."""
