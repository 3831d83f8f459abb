"""One way to do a thing beside another: `python -m benchmarks.evidence.NAME`."""
