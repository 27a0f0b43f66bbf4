"""Rows that were shed and are kept for later: which they are, how far they were processed, their windows."""
