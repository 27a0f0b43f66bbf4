"""A stream in files of one machine: the log that Penstock brings along."""
