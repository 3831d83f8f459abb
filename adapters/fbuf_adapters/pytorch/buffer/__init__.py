"""The parts of the buffer: its state, the rows that come and go, copies and checkpoints."""
