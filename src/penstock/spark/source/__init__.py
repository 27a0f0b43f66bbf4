"""The governed source: asks for grants, writes them into offsets, and reads the kept rows."""
