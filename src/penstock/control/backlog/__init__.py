"""What waits for a query, as headers and, where a shedder needs them, as values of rows."""
