"""Runs a pipeline: builds its queries, watches them, and reports."""
