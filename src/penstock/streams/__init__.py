"""The stream log: named streams of append-only partitions, in segments with small headers."""

from penstock.streams.opening import open_stream

__all__ = ["open_stream"]
