"""What the control plane knows of classes, queries, readers, leases and shared streams."""
