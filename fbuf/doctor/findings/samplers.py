"""Rows that are drawn late or never, by the counts of samplers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.doctor.text import count
from fbuf.samplers.grouped import Grouped
from fbuf.samplers.limited import Limited
from fbuf.samplers.protocol.nested import nested

_FEW = 100
"""The fewest rows for a finding on these counts."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    del leaves
    of, rows = found.figures["sampler figures"], found.figures["rows"]
    if of.get("missed"):
        yield Finding(
            "warning",
            "fresh_rows_missed",
            f"{count(of['missed'], 'fresh row')} {'was' if of['missed'] == 1 else 'were'} "
            "overwritten before a batch had them.",
            "Draw at least as many rows as you add, with state, batch = fbuf.draw(...), and keep "
            "the state. Or raise most in fbuf.FreshFirst.",
        )
    if rows >= _FEW and of.get("fresh", 0) >= 0.5 * rows:
        yield Finding(
            "warning",
            "fresh_rows_wait",
            f"{of['fresh']:,} of {rows:,} rows were in no batch yet.",
            "Draw at least as many rows as you add, with state, batch = fbuf.draw(...), and keep "
            "the state. Before the first learning step this is as it should be.",
        )
    state = found.parts[0].state
    for sampler, _ in nested(state.sampler, state.index, state.ring):
        if isinstance(sampler, Grouped):
            yield from _groups(sampler, of, rows)
        if isinstance(sampler, Limited) and sampler.max_age is None and rows >= _FEW:
            yield from _live(of["live"], rows)


def _groups(sampler: Grouped, of: Mapping[str, object], rows: int) -> Iterator[Finding]:
    """Look at the sizes of groups."""
    counts, without = of["groups"], of["without_group"]
    assert isinstance(counts, list)
    assert isinstance(without, int)
    shares = sampler.shares or (1.0,) * sampler.groups
    empty = [group for group, size in enumerate(counts) if not size and shares[group]]
    if empty and len(empty) < len(counts) and rows >= _FEW:
        named = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        yield Finding(
            "warning",
            "groups_empty",
            f"{len(empty):,} of {count(len(counts), 'group')} have nothing to draw: {named}.",
            f"Look at the field {sampler.field!r} of new rows; groups are numbered from 0. Until "
            "these groups have rows, the others share their draws.",
        )
    if rows >= _FEW and without >= 0.5 * rows and without < rows:
        yield Finding(
            "warning",
            "rows_without_group",
            f"{without:,} of {rows:,} rows have no group, and are never drawn.",
            f"Give the field {sampler.field!r} a group from 0 to {sampler.groups - 1}, later with "
            "fbuf.write if it is not known at first.",
        )


def _live(live: int, rows: int) -> Iterator[Finding]:
    """Look at the number of drawable rows."""
    if 0 < live < 0.05 * rows:
        yield Finding(
            "warning",
            "few_rows_live",
            f"Only {live:,} of {rows:,} rows may still be drawn: fbuf.Limited has retired the "
            "others.",
            "Learn less often for each added row, or raise max_uses or the version of fbuf.expire.",
        )
