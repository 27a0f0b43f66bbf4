"""Measures what a query or a plant can process."""
