"""The engine: events in, instructions out; who is there, who holds a grant, what is booked."""
