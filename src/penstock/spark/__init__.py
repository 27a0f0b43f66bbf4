"""The part of Penstock that talks to Spark, and nothing else."""
