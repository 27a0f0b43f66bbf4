"""A simulated stream engine in virtual time: operators, queues, a processor."""
