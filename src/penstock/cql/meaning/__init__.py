"""The meaning of CQL statements: names and types are bound, and a plan of operators is made."""
