"""The stream log: named streams of append-only partitions, in segments with small headers."""

from penstock.streams.layout import LogConfig
from penstock.streams.opening import create_stream, open_stream, open_writer

__all__ = ["LogConfig", "create_stream", "open_stream", "open_writer"]
