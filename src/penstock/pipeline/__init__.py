"""Pipelines: what `penstock run` reads from a YAML file. No Spark inside."""
