"""Show why fbuf is as it is: `python -m benchmarks.evidence.NAME`, from the repository's root."""
