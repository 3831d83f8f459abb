"""Measure fbuf: `python -m benchmarks.NAME`, from the repository's root; see `make bench`."""
