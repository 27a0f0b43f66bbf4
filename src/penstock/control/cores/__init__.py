"""Cores that batches share: who uses them, into how many tasks a batch is divided, when another begins."""
