"""Broken sequences: next observations of other rows, ends at the wrong rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.doctor.stretches import Stretch
from fbuf.storage.faults import Fault
from fbuf.storage.lost_next import lost
from fbuf.storage.next_obs import alike
from fbuf.storage.ring import TERMINATED, TRUNCATED

_FEW = 16
"""The fewest rows for a finding."""

_ENDS = 5
"""The fewest ends of episodes for a finding."""

_SHIFTS = (-1, 2, 3, 4, 5)
"""The shifts to try: how far away the row of a wrong next observation may be."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    del leaves
    stretches = [of for of in found.stretches if of.observation.size]
    kept = found.parts[0].state.next_obs is not None
    if kept:
        yield from _lost(found)
    with_next = [of for of in stretches if of.following is not None]
    yield from _terminated(with_next)
    if kept:
        yield from _own_at_ends(found, with_next)
    elif with_next:
        yield from _stored(found, with_next)
    else:
        yield from _shifted_ends(stretches)


def _lost(found: Found) -> Iterator[Finding]:
    """Find ends whose next observation is not known."""
    counts = [lost(part.state.ring, part.state.next_obs) for part in found.parts]
    rows, ends = (sum(of) for of in zip(*counts, strict=True))
    if not rows or "LOST_NEXT" in found.figures["faults"]:  # which has its own finding
        return
    yield Finding(
        "warning",
        "next_observations_unknown",
        f"The next observations of {rows:,} of {ends:,} ends of episodes are not known: views "
        "that need them, such as fbuf.Transition, mask these rows in every batch.",
        "Give the loader the next observations, or look for a data set that has them. If you "
        "read no next observations, all is well.",
    )


def _same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a mask of rows that are equal up to rounding: bool `[n]`."""
    return np.asarray(alike(one, other).all(axis=1))


def _moves(stretches: Sequence[Stretch]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the size of each number, and the distances from inner rows to following rows."""
    everything = np.concatenate([of.observation for of in stretches])
    size = everything.std(axis=0)
    size[size == 0] = np.inf  # constant numbers are no evidence
    moved = [_far(of.observation[:-1], of.observation[1:], size)[of.inner] for of in stretches]
    return size, np.concatenate(moved)


def _far(
    one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], size: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return the distances from rows to other rows."""
    return np.sqrt(np.mean(((one - other) / size) ** 2, axis=1))


def _terminated(stretches: Sequence[Stretch]) -> Iterator[Finding]:
    """Find terminated rows whose episode continues in the following row, by an ordinary step.

    A program may store the observation of the reset there, as no target needs it. But that is
    further away than a step.
    """
    if not stretches:
        return
    size, moved = _moves(stretches)
    same = compared = 0
    far: list[np.ndarray[Any, Any]] = []
    for of in stretches:
        assert of.following is not None
        ends = (of.flags & TERMINATED > 0) & of.known & of.there
        ends[:-1] &= of.there[1:]
        ends[-1:] = False
        (rows,) = np.nonzero(ends)
        goes_on = _same(of.following[rows], of.observation[rows + 1])
        same, compared = same + int(goes_on.sum()), compared + rows.size
        far.append(_far(of.observation[rows], of.observation[rows + 1], size)[goes_on])
    steps = np.concatenate(far)
    if compared < _ENDS or same <= compared // 2 or moved.size < _FEW:
        return
    usual = np.median(moved)
    if not 0 < np.median(steps) <= 2 * usual:
        return
    yield Finding(
        "warning",
        "terminated_goes_on",
        f"After {same:,} of {compared:,} terminated rows the episode goes on: the next observation "
        "is that of the following row, no further away than after any other step. The targets of "
        "these rows are their rewards alone.",
        "Give terminated=True only where the task itself ends, and reset there. A flag may be of "
        "another row, of another environment, or stand for a lost life.",
    )


def _own_at_ends(found: Found, stretches: Sequence[Stretch]) -> Iterator[Finding]:
    """Find that the next observation of ends is the observation itself.

    No target needs the next observation of a terminated row. So terminated rows count only beside
    the fault `BROKEN_EPISODE`: then other rows were added with the same mistake. The buffer keeps
    only the next observations of ends.
    """
    broken = Fault.BROKEN_EPISODE.name in found.figures["faults"]
    own = compared = stuck = 0
    for of in stretches:
        assert of.following is not None
        rows = of.ends & of.known & of.there
        if not broken:
            rows &= of.flags & TERMINATED == 0
        before = np.maximum(np.flatnonzero(rows) - 1, 0)
        stuck += int(_same(of.observation[before], of.observation[rows]).sum())
        own += int(_same(of.following[rows], of.observation[rows]).sum())
        compared += int(rows.sum())
    if own < compared or compared < (2 if broken else _ENDS):
        return
    if stuck > 0.2 * compared:  # nothing moves there
        return
    where = "ends of episodes" if broken else "truncated rows"
    yield Finding(
        "error" if broken else "warning",
        "next_observation_is_observation",
        f"The next observation of {compared:,} {where} that were compared is the observation of "
        "the same row.",
        "Give the observation after the step, also after the last one of an episode. A simulator "
        "may write the next observation into the array that you keep: copy it before the step.",
    )


def _stored(found: Found, stretches: Sequence[Stretch]) -> Iterator[Finding]:
    """Compare stored next observations with the observations of other rows."""
    moved = any(of.observation.std(axis=0).any() for of in stretches)
    equal, compared = _follows(stretches, 1)
    if compared < _FEW or not moved:
        return
    if equal >= 0.9 * compared:
        yield from _own_at_ends(found, stretches)
    if equal < 0.1 * compared:
        yield from _of_other_rows(stretches, compared)
    elif equal < 0.995 * compared and any(of.ends.any() for of in stretches):
        yield _broken(stretches, compared - equal, compared)


def _follows(stretches: Sequence[Stretch], shift: int) -> tuple[int, int]:
    """Count the inner rows whose next observation is the observation `shift` rows later."""
    equal = compared = 0
    for of in stretches:
        assert of.following is not None
        (rows,) = np.nonzero(of.inner)
        rows = rows[(rows + shift >= 0) & (rows + shift < of.flags.size)]
        same = _same(of.following[rows], of.observation[rows + shift])
        equal, compared = equal + int(same.sum()), compared + rows.size
    return equal, compared


def _of_other_rows(stretches: Sequence[Stretch], compared: int) -> Iterator[Finding]:
    """Find the rows of next observations that are not from the following row.

    Rows in no order have no next observation there. Those of n-step rows lie further on, but never
    in another episode.
    """
    for shift in _SHIFTS:
        equal, _ = _follows(stretches, shift)
        if equal < 0.8 * compared or (shift > 1 and not _crosses(stretches, shift)):
            continue
        where = f"{shift} rows later" if shift > 0 else "of the row before"
        yield _wrong(f"is the observation {where}, also in another episode", equal, compared)
        return
    for one in stretches:
        for other in stretches:
            if one is other or one.flags.size != other.flags.size:
                continue
            assert one.following is not None
            (rows,) = np.nonzero(one.inner)
            same = int(_same(one.following[rows], other.observation[rows + 1]).sum())
            if rows.size >= _FEW and same >= 0.8 * rows.size:
                words = f"is that of environment {other.env} in rows of environment {one.env}"
                yield _wrong(words, same, rows.size)
                return


def _crosses(stretches: Sequence[Stretch], shift: int) -> bool:
    """Tell whether next observations some rows later may come from another episode.

    Next observations of n steps stay in their episode. Those of a wrong index do not.
    """
    across = compared = 0
    for of in stretches:
        assert of.following is not None
        count = max(of.flags.size - shift, 0)
        passed = np.zeros(count, np.bool_)
        for step in range(shift):  # an end lies between them
            passed |= of.ends[step : step + count]
        (rows,) = np.nonzero(passed & of.there[:count])
        across += int(_same(of.following[rows], of.observation[rows + shift]).sum())
        compared += rows.size
    return compared >= 2 and across >= 0.3 * compared


def _wrong(words: str, equal: int, compared: int) -> Finding:
    return Finding(
        "error",
        "next_observation_of_another_row",
        f"The next observation {words}, in {equal:,} of {compared:,} rows that were compared.",
        "Store what the step returned in the row of that step. Look at the place where rows are "
        "put together: an index may be off by one, or an axis may be rolled.",
    )


def _broken(stretches: Sequence[Stretch], breaks: int, compared: int) -> Finding:
    """Return the finding that rows do not lead to the following row, with advice on ends."""
    near = {-1: 0, 1: 0}
    for of in stretches:
        assert of.following is not None
        (rows,) = np.nonzero(of.inner)
        rows = rows[~_same(of.following[rows], of.observation[rows + 1])]
        for step in near:
            inside = rows[(rows + step >= 0) & (rows + step < of.flags.size)]
            near[step] += int(of.ends[inside + step].sum())
    name, why = "next_observation_breaks", "an end of an episode may be missing there"
    if max(near.values()) >= 0.8 * breaks:
        step = max(near, key=lambda step: near[step])
        name = "ends_shifted"
        why = f"each is one row {'before' if step > 0 else 'behind'} a row with the flag of an end"
    return Finding(
        "warning",
        name,
        f"In {breaks:,} of {compared:,} rows within episodes the next observation is not the "
        f"observation of the following row; {why}. Windows and n-step returns go on there.",
        "Give the flags terminated and truncated with the row of the step that returned them. "
        "Normalise an observation once, before it is stored in both fields. If rows were left out "
        "or written anew, all is well.",
    )


def _shifted_ends(stretches: Sequence[Stretch]) -> Iterator[Finding]:
    """Find that observations jump, as at a reset, one row beside the ends of episodes."""
    if not stretches:
        return
    size, moved = _moves(stretches)
    if moved.size < 4 * _FEW:
        return
    high = 4 * np.median(moved)
    hits, total = {-1: 0, 0: 0, 1: 0}, 0
    for of in stretches:
        jumps = _far(of.observation[:-1], of.observation[1:], size) > high
        (rows,) = np.nonzero((of.flags & (TERMINATED | TRUNCATED) > 0) & of.there)
        rows = rows[(rows > 0) & (rows + 1 < jumps.size)]
        total += rows.size
        for step in hits:
            hits[step] += int(jumps[rows + step].sum())
    step = max((-1, 1), key=lambda step: hits[step])
    rare = (moved > high).mean() <= 0.2
    if total < _ENDS or not rare or hits[step] < 0.8 * total or hits[0] > 0.2 * total:
        return
    yield Finding(
        "warning",
        "ends_shifted",
        f"Observations jump one row {'behind' if step > 0 else 'before'} {hits[step]:,} of "
        f"{total:,} ends of episodes, and go on at the ends themselves: the flags seem to be one "
        f"row too {'early' if step > 0 else 'late'}.",
        "Give the flags terminated and truncated with the row of the step that returned them.",
    )
