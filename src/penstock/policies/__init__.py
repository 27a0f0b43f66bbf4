"""Pure policies: observations in, decisions out. No Spark, clock, I/O or global randomness."""
