"""The owners of buffers: one set of methods to look at a buffer and to change it."""
