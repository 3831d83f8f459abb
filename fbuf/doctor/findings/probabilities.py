"""Draws come from too few rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.doctor.text import count

_SHARE = 0.1
"""The share of draws from one row that counts as domination."""

_TIMES = 10
"""A dominating row is at least this many times as likely as the average row."""

_PART = 0.1
"""A smaller effective sample size, as a share of the rows, is suspicious."""

_ENOUGH = 1000
"""An effective sample size that is never suspicious."""

_FEW = 100
"""The fewest rows for a finding on the effective sample size."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    del leaves
    drawn = found.draws
    if drawn is None or not drawn.likely.size:
        return
    some, most = drawn.likely.size, int(drawn.likely.argmax())
    rows, share = some + drawn.zero, float(drawn.likely[most]) / some
    times = share * rows
    only, remedy = "", _REMEDY
    if drawn.zero:
        only = f" Only {some:,} of these can be drawn: the others have priority 0."
        remedy += " With an eps above 0 in the sampler no row is lost."
    if share >= _SHARE and times >= _TIMES:
        yield Finding(
            "warning",
            "one_row_dominates",
            f"One row takes {share:.1%} of all draws, {times:,.0f} times as many as the average of "
            f"{rows:,} rows: {found.place(int(drawn.slots[most]))}.{only}",
            remedy + " Look at the row: it is in most batches, where batch.probability is largest.",
        )
        return
    if rows >= _FEW and drawn.effective < min(_PART * rows, _ENOUGH):
        yield Finding(
            "warning",
            "effective_sample_size_small",
            f"The effective sample size is {drawn.effective:,.0f} of "
            f"{count(rows, 'row')}: batches repeat the same few.{only}",
            remedy + " With fbuf.Grouped, give small groups a smaller share.",
        )


_REMEDY = (
    "With priorities, clip the TD errors or take a smaller alpha; a share of uniform draws, "
    "fbuf.Mixture(uniform=0.5), bounds what one row can take."
)
