"""One way to do a thing beside another: `python -m benchmarks.ablations.NAME`."""
