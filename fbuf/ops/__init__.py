"""The operations: what can be done with a buffer. One file an operation."""
