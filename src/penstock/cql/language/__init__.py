"""The syntax of CQL: text to statements and back."""
