"""One buffer over a mesh of devices: what `fbuf.sharded` is made of."""
