"""Commands around CQL."""
