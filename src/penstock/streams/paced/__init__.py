"""A stream that was written beforehand and arrives by a schedule."""
