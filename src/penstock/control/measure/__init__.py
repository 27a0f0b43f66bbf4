"""What batches cost, what delays rows had, and which part of the data a result stands on."""
