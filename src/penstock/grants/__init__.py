"""Grants as they travel in Spark's offsets: which rows a grant decides about, and which rows it keeps."""
