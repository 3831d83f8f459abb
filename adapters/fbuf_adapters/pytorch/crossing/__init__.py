"""The way between tensors and arrays of JAX, in both directions."""
