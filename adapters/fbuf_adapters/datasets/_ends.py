"""Where episodes end: what a data set says of it, and what its rows show."""

from __future__ import annotations

import dataclasses

import numpy as np

from fbuf_adapters.datasets._fields import Array


@dataclasses.dataclass(frozen=True)
class Ends:
    """The ends of episodes, as a data set tells them.

    Attributes:
        terminated: bool `[rows]`.
        truncated: bool `[rows]`.
        told: Whether it says where episodes are cut off, be it nowhere.
        advice: What to give, if it says less than it should; empty if the caller knows all.
        limit: How many steps an episode has at most; None if nobody says.
    """

    terminated: Array
    truncated: Array
    told: bool
    advice: str
    limit: int | None = None


@dataclasses.dataclass(frozen=True)
class Settled:
    """Where episodes end.

    Attributes:
        truncated: bool `[rows]`.
        doubts: What the caller should know of it: sentences without their end.
    """

    truncated: Array
    doubts: list[str]


def settle(ends: Ends, goes_on: Array | None) -> Settled:
    """Where episodes end, by the flags, the limit, and the rows themselves.

    A row that does not go on in the next one is the end of an episode, whatever the flags say.

    Args:
        ends: What the data set says.
        goes_on: bool `[rows]`; whether what a row's step led to is the observation of the row after
            it. None if the rows do not show it.
    """
    terminated, truncated = ends.terminated, ends.truncated.copy()
    doubts: list[str] = []
    if ends.limit is not None:
        # A task may go on after a terminal: then its steps are counted on.
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
    return Settled(truncated, doubts)


def _doubt(ends: Ends, truncated: Array, goes_on: Array | None) -> str:
    """The advice if ends may be missing that nothing shows; else empty."""
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
    """The rows at which as many steps are over: bool `[rows]`.

    Args:
        anew: bool `[rows]`; the rows after which steps are counted from 0.
        limit: How many steps.
    """
    cut = np.zeros_like(anew)
    start = 0
    for end in [*(np.flatnonzero(anew) + 1).tolist(), len(anew)]:
        cut[start + limit - 1 : end : limit] = True
        start = end
    return cut


def _longest(ended: Array) -> range:
    """The rows of the longest episode."""
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
    """Where something is so, in words that begin a sentence."""
    found = np.flatnonzero(rows)
    first = ", ".join(map(str, found[:3].tolist()))
    if len(found) == 1:
        return f"after row {first}"
    return f"in {len(found)} places, after rows {first}{', ...' if len(found) > 3 else ''},"
