"""Backfill: processes the rows of a shed lane later, and revises the results."""
