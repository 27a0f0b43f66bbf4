"""A pipeline file: streams, queries, sinks, views; and its checks."""
