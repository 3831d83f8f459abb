"""The operations on a buffer. One file an operation."""
