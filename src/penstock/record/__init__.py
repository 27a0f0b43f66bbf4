"""Run directories: what a control plane decided, and the replay of it."""
