"""Kinds of streams: what a kind is, how it is found, and the kind that only leads elsewhere."""
