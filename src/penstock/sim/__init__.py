"""Plants in virtual time: deterministic, no JVM, seconds of wall time for minutes of stream."""
