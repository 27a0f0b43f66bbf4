"""Shed lanes: shed rows that are kept for later, how far they were backfilled, and their windows."""
