"""The stream log: named streams of append-only partitions, in segments with small headers."""
