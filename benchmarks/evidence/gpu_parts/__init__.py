"""Measure where the time of a buffer on a GPU goes; `__main__` says how."""
