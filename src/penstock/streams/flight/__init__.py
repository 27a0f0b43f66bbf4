"""A stream on another machine, over Arrow Flight."""
