"""Priorities that nobody has updated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fbuf.doctor import priorities
from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found

_FEW = 100
"""The rows below which equal priorities say nothing."""

_MOST = 0.5
"""The part of the rows with one priority that is suspicious."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    del leaves
    values, drawn = found.priorities, found.draws
    if values is None or drawn is None or values.size < _FEW:
        return
    sampler = priorities.sampler_of(found.parts[0])
    if sampler is None or sampler.alpha == 0:
        return
    each, counts = np.unique(values, return_counts=True)
    most = int(counts.argmax())
    equal, same = int(counts[most]), float(each[most])
    # Many TD errors may well be below the floor.
    if sampler.floor and np.isclose(same, sampler.floor**sampler.alpha):
        return
    if each.size == 1:
        yield Finding(
            "warning",
            "priorities_never_updated",
            f"All {values.size:,} rows have the same priority: draws are uniform.",
            "Call state = fbuf.update_priority(state, batch.ids, td_error) after each learning "
            "step, and keep the state. Before the first step this is as it should be.",
        )
    elif equal >= _MOST * values.size and most > 0:
        ages = drawn.ages[values == each[most]]
        middle = f"; half of these are older than {np.median(ages):,.0f} steps"
        age = "" if found.sampler.places else middle
        yield Finding(
            "warning",
            "priorities_stale",
            f"{equal:,} of {values.size:,} rows have the same priority, such as new rows get"
            f"{age}: they were not updated since they were added.",
            "Draw as many rows as you add, or more. Give fbuf.update_priority the ids of the batch "
            "that the TD errors come from. If you clip TD errors, raise the limit.",
        )
