"""Figures as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence


def lines(entries: Mapping[str, str]) -> str:
    """Return a line for each entry: its name, and beside it the text."""
    width = max(map(len, entries))
    return "\n".join(f"{name:{width}}  {text}" for name, text in entries.items())


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: names on the left, all else on the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in (head, *rows)
    )


def spread(least: float, middle: float, most: float) -> str:
    """Return the least value, the median and the largest value as text."""
    return f"{least:.6g} to {most:.6g}, median {middle:.6g}"


def indented(sentence: str) -> str:
    """Return a sentence in indented lines."""
    return textwrap.fill(sentence, 88, initial_indent="  ", subsequent_indent="  ")


def count(number: int, thing: str) -> str:
    """Return a number of things as text, such as `1 row` and `1,000 rows`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
