"""What a CQL statement means: names and types bound, a plan of operators."""
