"""Trees over the slots of a buffer."""
