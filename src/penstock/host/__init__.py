"""The control plane as a process: its socket, its messages and its clients."""
