"""The command `fbuf`: what a checkpoint holds, whether it is whole, and how large a buffer is."""
