"""Pipelines, which `penstock run` reads from a YAML file."""
