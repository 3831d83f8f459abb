"""Priorities that do not distinguish rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fbuf.doctor import priorities
from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.samplers.prioritized import Prioritized

_FEW = 100
"""The fewest rows for a finding."""

_MOST = 0.5
"""The suspicious share of rows with the same priority."""


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
    # Many TD errors may lie below the floor.
    if sampler.floor and np.isclose(same, sampler.floor**sampler.alpha):
        return
    rows = values.size + drawn.zero  # rows of priority 0 differ
    if equal == rows:
        yield _all_alike(rows, same, sampler)
    elif equal >= _MOST * rows and (most > 0 or same == priorities.of_new(sampler)):
        ages = drawn.ages[values == each[most]]
        middle = f"; half of these are older than {np.median(ages):,.0f} steps"
        age = "" if found.sampler.places else middle
        yield Finding(
            "warning",
            "priorities_stale",
            f"{equal:,} of {rows:,} rows share one priority, {same:.3g}{age}. They were not "
            "updated since they were added, or their TD errors are alike.",
            "If they were not updated: draw as many rows as you add, or more, and give "
            "update_priority the ids of the batch that the TD errors come from. If you clip TD "
            "errors: raise the limit.",
        )


def _all_alike(rows: int, same: float, sampler: Prioritized) -> Finding:
    """Return the finding of equal priorities."""
    start = f"All {rows:,} rows have the same priority, {same:.3g}"
    call = (
        "Call update_priority with the ids and the TD errors of the batch after each learning "
        "step. With a state: state = fbuf.update_priority(state, batch.ids, td_error)."
    )
    if same == priorities.of_new(sampler):
        return Finding(
            "warning",
            "priorities_never_updated",
            f"{start}, which new rows get: draws are uniform.",
            f"{call} Before the first step this is as it should be.",
        )
    zero = ", that of a TD error of 0" if np.isclose(same, priorities.of_error(sampler, 0)) else ""
    return Finding(
        "warning",
        "priorities_alike",
        f"{start}{zero}: draws are uniform.",
        "Look at the TD errors that update_priority gets: all of them are 0, or are clipped to one "
        f"value. If it gets none: {call[0].lower()}{call[1:]}",
    )
