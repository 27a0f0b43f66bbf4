"""What a result is worth: SIC, fairness, estimates and errors. Pure arithmetic, one idea a file."""
