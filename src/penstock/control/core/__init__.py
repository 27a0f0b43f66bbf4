"""The governor: joins readers, completes batches, gives grants, changes classes while they run."""
