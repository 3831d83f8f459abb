"""Reports on a buffer: its figures, suspicious findings, and a picture."""
