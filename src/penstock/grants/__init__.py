"""Grants as they travel in Spark's offsets: which rows are decided, and which of them are kept."""
