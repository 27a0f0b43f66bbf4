"""The control plane: cycle, run directory, replay. Knows plants and policies by their protocols; no Spark."""
