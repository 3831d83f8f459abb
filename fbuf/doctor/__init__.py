"""Reports on a buffer: its figures, what in them is suspicious, and a picture."""
