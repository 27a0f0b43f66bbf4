"""The demo: three classes on one Spark with far more input than it can process."""
