"""What several tests use: the oracle, a buffer beside it, programs compiled once, mutants."""
