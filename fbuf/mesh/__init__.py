"""One buffer over a mesh of devices: the functions of `fbuf.sharded`."""
