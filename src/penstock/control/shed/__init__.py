"""Which rows of a class are kept: the capacity and the demand that a shedder sees, and what it chooses."""
