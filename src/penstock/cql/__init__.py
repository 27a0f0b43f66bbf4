"""CQL: continuous queries over streams, in the language of Arasu, Babu and Widom (STREAM)."""
