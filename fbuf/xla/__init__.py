"""Code for XLA alone: order of reads and writes, loops over a batch, rows of an array."""
