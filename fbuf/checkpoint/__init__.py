"""Checkpoints on disk: what a directory holds, and in which order it is written."""
