"""Producers of a pipeline: files, traces and rates become rows of streams."""
