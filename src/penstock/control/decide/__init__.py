"""One decision of a load manager: what it is shown, and what of its answer is carried out."""
