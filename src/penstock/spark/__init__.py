"""Structured Streaming under Penstock: what talks to Spark, and nothing else."""
