"""What a query or a plant can process, measured."""
