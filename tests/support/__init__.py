"""Share helpers among tests: the oracle, a buffer beside it, programs compiled once, mutants."""
