"""Indices of samplers: which rows may be drawn, and how likely each is."""
