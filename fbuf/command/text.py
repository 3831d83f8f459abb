"""Figures as text."""

from __future__ import annotations

from collections.abc import Mapping


def lines(entries: Mapping[str, str]) -> str:
    """A line for each entry: its name, and beside it what it is."""
    width = max(map(len, entries))
    return "\n".join(f"{name:{width}}  {text}" for name, text in entries.items())


def spread(least: float, middle: float, most: float) -> str:
    """The least, the median and the most of something."""
    return f"{least:.6g} to {most:.6g}, median {middle:.6g}"
