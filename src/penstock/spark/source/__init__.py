"""The governed source: asks for grants, writes them into offsets, reads the rows that are kept."""
