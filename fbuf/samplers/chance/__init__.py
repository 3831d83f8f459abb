"""Random numbers, and the parts of a draw: ranks, shares, weights."""
