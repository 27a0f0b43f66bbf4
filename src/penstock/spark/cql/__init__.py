"""CQL on Spark: plans as DataFrames."""
