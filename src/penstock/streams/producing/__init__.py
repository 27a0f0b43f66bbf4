"""Producers, which append rows to a stream without repeating them, and synthetic rows."""
