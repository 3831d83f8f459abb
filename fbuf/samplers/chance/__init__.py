"""Random numbers, and what draws are made of: ranks, shares, weights."""
