"""Storage: where rows lie, and which of them are there."""
