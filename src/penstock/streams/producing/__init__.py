"""Producers: rows in, appends that are not repeated; and made-up rows."""
