"""The version of Penstock, for run directories and reports."""

__version__ = "0.1.0"
