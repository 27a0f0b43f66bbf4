"""Commands that need no Spark."""
