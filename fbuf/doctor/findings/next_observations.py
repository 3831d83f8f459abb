"""Next observations that are no next observations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fbuf.doctor.chunks import chunks
from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.storage.ring import ENDS, REMOVED, TRUNCATED

PAIRS = (
    ("observation", "next_observation"),
    ("observations", "next_observations"),
    ("obs", "next_obs"),
    ("observation", "next.observation"),
    ("obs", "next.obs"),
    ("state", "next_state"),
)
"""Names of an observation and of the next one."""

_FEW, _MANY = 16, 512
"""The least rows that say something, and the most to compare."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    names = list(leaves)
    for observation, following in PAIRS:
        if observation in leaves and following in leaves:
            pair = names.index(observation), names.index(following)
            if leaves[observation].shape == leaves[following].shape:
                yield from _compared(found, pair, observation, following, leaves)


def _compared(
    found: Found, pair: tuple[int, int], observation: str, following: str, leaves: Mapping[str, Leaf]
) -> Iterator[Finding]:
    """Compare the next observations of some rows with observations."""
    if found.sampler.places or leaves[observation].alike:
        return
    own = _counts(found, pair, lambda flags: flags & ENDS == 0, steps=0)
    if own[1] >= _FEW and own[0] == own[1]:
        yield Finding(
            "error",
            "next_observation_is_observation",
            f"The field {following!r} equals {observation!r} of the same row, in each of "
            f"{own[1]:,} rows that were compared.",
            "Store the observation after the step. A simulator may write the next observation "
            "into the array that you keep: copy it before the step.",
        )
        return
    after = _counts(found, pair, lambda flags: flags & TRUNCATED > 0, steps=1)
    if after[1] >= _FEW and after[0] > after[1] // 2:
        yield Finding(
            "error",
            "next_observation_after_reset",
            f"After a truncated row {following!r} is the first observation of the next episode, in "
            f"{after[0]:,} of {after[1]:,} rows that were compared: values are passed back from "
            "another episode.",
            "Store the last observation before the reset. Gymnasium's vector environments have it "
            'in info["final_obs"]; the collectors of fbuf_adapters do it for you.',
        )


def _counts(found: Found, pair: tuple[int, int], wanted: Any, *, steps: int) -> tuple[int, int]:
    """Count the wanted rows whose next observation is the observation some steps later.

    Returns:
        How many are equal, and how many were compared.
    """
    equal = compared = 0
    for part, lanes in zip(found.parts, found.lanes, strict=True):
        rows = [_followed(lane.slots, lane.flags, wanted(lane.flags), steps) for lane in lanes]
        first, second = (np.concatenate(side) for side in zip(*rows, strict=True))
        some = np.unique(np.linspace(0, first.size - 1, min(first.size, _MANY)).astype(np.int64))
        if not some.size:
            continue
        following = [read for _, (read,) in chunks(part, [pair[1]], first[some])]
        observed = [read for _, (read,) in chunks(part, [pair[0]], second[some])]
        for one, other in zip(following, observed, strict=True):
            same = one.reshape(len(one), -1) == other.reshape(len(other), -1)
            equal, compared = equal + int(same.all(axis=1).sum()), compared + len(one)
    return equal, compared


def _followed(
    slots: np.ndarray[Any, Any], flags: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], steps: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the slots of the wanted rows of a lane, and of the rows some steps later."""
    live = flags & REMOVED == 0
    count = max(slots.size - steps, 0)
    kept = np.flatnonzero(wanted[:count] & live[:count] & live[steps:])
    return slots[kept], slots[kept + steps]


