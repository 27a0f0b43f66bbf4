"""A stream in files of one machine: the log that comes with Penstock."""
