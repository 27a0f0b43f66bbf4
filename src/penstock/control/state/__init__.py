"""What the control plane knows of classes, queries, readers and shared streams."""
