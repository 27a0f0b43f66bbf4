"""Runs a pipeline: builds its queries, watches them, sums up."""
