"""Status and reports as tables."""
