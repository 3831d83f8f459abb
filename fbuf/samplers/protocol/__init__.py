"""The protocols of samplers: what `fbuf.ops` and `fbuf.mesh` ask of them."""
