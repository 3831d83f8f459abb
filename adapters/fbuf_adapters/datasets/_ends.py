"""The ends of episodes, from the flags of a data set and from its rows."""

from __future__ import annotations

import dataclasses

import numpy as np

from fbuf_adapters.datasets._fields import Array


@dataclasses.dataclass(frozen=True)
class Ends:
    """The ends of episodes, as a data set gives them.

    Attributes:
        terminated: bool `[rows]`.
        truncated: bool `[rows]`.
        told: Whether the data set says where episodes are cut off, even if nowhere.
        advice: The arguments to give if the data set says too little; empty if it says all.
        limit: The most steps of an episode; None if it is not known.
    """

    terminated: Array
    truncated: Array
    told: bool
    advice: str
    limit: int | None = None


def settle(ends: Ends, goes_on: Array | None) -> tuple[Array, list[str]]:
    """Find the ends of episodes, by the flags, the limit, and the rows themselves.

    A row without a continuation in the next row ends an episode, whatever the flags say.

    Args:
        ends: The ends from the data set.
        goes_on: bool `[rows]`; whether the next observation of a row is the observation of the
            following row. None if the rows do not show it.

    Returns:
        bool `[rows]`, the rows after which an episode is truncated; and warnings for the caller, as
        sentences without a full stop.
    """
    terminated, truncated = ends.terminated, ends.truncated.copy()
    doubts: list[str] = []
    if ends.limit is not None:
        # A task may continue after a terminal: then the count of its steps continues.
        anew = terminated | truncated if goes_on is None else ~goes_on
        limit = _limit(anew, ends.limit) & ~terminated
        if goes_on is not None and (over := limit & goes_on).any():
            doubts.append(
                f"{_places(over)} {ends.limit} steps were over, and the episode went on, as the "
                "next observation shows; it is cut there, but a larger max_episode_steps would "
                "be right"
            )
        truncated |= limit
        if goes_on is None and (again := terminated[:-1] & terminated[1:]).any():
            doubts.append(
                f"{_places(again)} a row that terminated is followed by another one; if episodes "
                "go on after that, as in antmaze, max_episode_steps counts from the wrong rows: "
                "write an array 'timeouts' into the file instead"
            )
    if goes_on is not None:
        jumps = ~goes_on & ~terminated & ~truncated
        jumps[-1:] = False
        if jumps.any():
            doubts.append(_of_jumps(jumps))
            truncated |= jumps
    if ends.advice and len(terminated) > 1 and (doubt := _doubt(ends, truncated, goes_on)):
        doubts.append(doubt)
    return truncated, doubts


def _doubt(ends: Ends, truncated: Array, goes_on: Array | None) -> str:
    """Return advice if ends may be missing unnoticed; otherwise an empty string."""
    ended = ends.terminated | truncated
    if not ended.any():
        return (
            f"no row of the data set ends an episode, so all {len(ended)} count as one episode; if "
            f"there are more, {ends.advice}"
        )
    if goes_on is not None or ends.told or ended.all():
        return ""
    longest = _longest(ended)
    return (
        "the data set says where episodes terminated, and not where others were cut off, so "
        f"rows {longest.start} to {longest.stop - 1} count as one episode; if there are more, "
        f"{ends.advice}"
    )


def _limit(anew: Array, limit: int) -> Array:
    """Return a mask of the rows at the limit: bool `[rows]`.

    Args:
        anew: bool `[rows]`; the rows after which the count of steps restarts.
        limit: The number of steps.
    """
    cut = np.zeros_like(anew)
    start = 0
    for end in [*(np.flatnonzero(anew) + 1).tolist(), len(anew)]:
        cut[start + limit - 1 : end : limit] = True
        start = end
    return cut


def _longest(ended: Array) -> range:
    """Return the rows of the longest episode."""
    stops = np.flatnonzero(ended) + 1
    stops = np.append(stops, len(ended)) if not ended[-1] else stops
    starts = np.append(0, stops[:-1])
    at = int(np.argmax(stops - starts))
    return range(int(starts[at]), int(stops[at]))


def _of_jumps(jumps: Array) -> str:
    order = ""
    if jumps.sum() > len(jumps) / 2:
        order = (
            "; these are most rows, so n-step returns and windows have a single step: right, if "
            "the rows are in no order; if they are in order, their next observations are wrong"
        )
    return (
        f"{_places(jumps)} the next observation is not the observation of the following row, "
        f"though no flag ends the episode; it is truncated there{order}"
    )


def _places(rows: Array) -> str:
    """Return places as text, to begin a sentence."""
    found = np.flatnonzero(rows)
    first = ", ".join(map(str, found[:3].tolist()))
    if len(found) == 1:
        return f"after row {first}"
    return f"in {len(found)} places, after rows {first}{', ...' if len(found) > 3 else ''},"
