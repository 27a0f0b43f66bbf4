"""Words that every package may use: observations, decisions, errors, durations."""
