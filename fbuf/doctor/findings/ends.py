"""Ends of episodes: missing, at every row, or of the wrong kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fbuf.doctor.finding import Finding
from fbuf.doctor.findings.next_observations import has_next
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.doctor.text import count
from fbuf.storage.ring import ENDS, TERMINATED, TRUNCATED, UNFINISHED

_FEW = 64
"""The fewest rows, or steps of an environment, for a finding on flags."""

_LONG = 1000
"""The usual largest length of an episode, in steps."""

_ONE = 10_000
"""The fewest steps of an environment in one episode that are suspicious."""

_SHORT = 10
"""Shorter episodes have no time limit."""

_ALL = 0.9
"""The suspicious share of terminated rows."""

_FIELDS = frozenset(
    {"done", "dones", "terminal", "terminals", "terminated", "truncated", "timeout"}
)
"""Names of fields that flag the end of an episode."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    if found.sampler.places:
        return
    flags = found.flags
    terminated = int((flags & TERMINATED > 0).sum())
    ends = int(((flags & ENDS > 0) & (flags & UNFINISHED == 0)).sum())  # ends by the task
    if flags.size >= _FEW and terminated >= _ALL * flags.size:
        yield Finding(
            "warning",
            "all_terminated",
            f"{terminated:,} of {flags.size:,} rows are terminated: their targets are the rewards "
            "alone, and no value is passed back.",
            "Give terminated=True for the last step of an episode only. Look whether you give "
            "the mask or discount, which is 1 - terminated. In a bandit this is as it should be.",
        )
    elif _all_truncated(found, leaves):
        yield Finding(
            "warning",
            "all_truncated",
            f"Nearly all of {flags.size:,} rows are truncated: each is an episode of its own, and "
            "no window or n-step return goes on.",
            "Give truncated=True for the last step of an episode only. Look whether you give the "
            "mask, which is its opposite. If rows are in no order, all is well.",
        )
    elif not ends:
        yield from _none(found, leaves)
    elif _longest(found) >= _ONE and _one_episode_each(found):
        yield _no_ends(_longest(found), "No row but the newest ends an episode")
    elif not terminated:
        yield from _only_truncated(found)
    elif not (flags & TRUNCATED > 0).any():
        yield from _limit(found)
    else:
        yield from _swapped(found)
    yield from _cut(found, ends)


def _longest(found: Found) -> int:
    """Return the rows of the fullest lane."""
    return max(lane.slots.size for lanes in found.lanes for lane in lanes)


def _one_episode_each(found: Found) -> bool:
    """Tell whether each lane is one episode, as after loading a data set without ends."""
    return all(lane.episodes.first.size <= 1 for lanes in found.lanes for lane in lanes)


def _none(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Find that no row ends an episode."""
    longest = _longest(found)
    own = [
        name
        for name, leaf in leaves.items()
        if name.split(".")[-1] in _FIELDS and not (leaf.alike or leaf.not_finite)
    ]
    kept = found.parts[0].state.next_obs
    # A row with its own next observation needs no other row.
    if own and has_next(leaves) and found.sampler.window == 1 and kept is None:
        return
    if own and longest >= _FEW:
        yield Finding(
            "warning",
            "ends_only_in_a_field",
            f"No row ends an episode for fbuf, but the field {own[0]!r} has ends: windows, n-step "
            "returns and next observations go on into the next episode.",
            "Give them to fbuf, too: fbuf.add(state, rows, terminated=..., truncated=...). If you "
            "draw single rows alone, all is well.",
        )
    elif longest >= _LONG:
        yield _no_ends(longest, "No row ends an episode")


def _no_ends(longest: int, words: str) -> Finding:
    """Return the finding of missing ends."""
    return Finding(
        "warning",
        "no_ends",
        f"{words}, in {longest:,} steps of an environment: windows, n-step returns and next "
        "observations go on across resets.",
        "Give fbuf.add, or the loader, the flags of the environment: terminated=..., "
        "truncated=.... If no other episode has ended, all is well.",
    )


def _only_truncated(found: Found) -> Iterator[Finding]:
    """Find that only time limits end episodes, though their lengths differ."""
    lengths = found.episodes.lengths
    # If a time limit ends most episodes, the task never terminates, like Pendulum. A load ends
    # some more.
    if lengths.size < 3 or (lengths == lengths.max()).sum() >= 0.5 * lengths.size:
        return
    yield Finding(
        "warning",
        "terminated_never_set",
        f"{count(lengths.size, 'whole episode')} of {lengths.min():,} to {lengths.max():,} rows "
        "are all truncated and none is terminated: values are passed back from beyond the end.",
        "Give terminated=True where the task itself ends, and truncated=True for limits of time "
        "alone.",
    )


def _limit(found: Found) -> Iterator[Finding]:
    """Find that many episodes terminate after the same number of steps: a time limit."""
    lengths = found.episodes.lengths
    if lengths.size < 5:
        return
    longest = int(lengths.max())
    same = int((lengths == longest).sum())
    if longest < _SHORT or same < max(3, 0.2 * lengths.size):
        return
    yield Finding(
        "warning",
        "time_limit_terminates",
        f"{same:,} of {lengths.size:,} whole episodes are terminated after exactly {longest:,} "
        "rows, the most there are, and truncated is never set: this looks like a limit of time.",
        "Give limits of time as truncated=True, with the last observation before the reset as "
        "next_observation. If the task itself ends then, all is well.",
    )


def _all_truncated(found: Found, leaves: Mapping[str, Leaf]) -> bool:
    """Tell whether nearly all rows are truncated, and hold no next observation."""
    flags = found.flags
    kept = found.parts[0].state.next_obs is not None
    many = (flags & TRUNCATED > 0).sum() >= _ALL * flags.size
    return flags.size >= _FEW and bool(many) and not (kept or has_next(leaves))


def _swapped(found: Found) -> Iterator[Finding]:
    """Find that episodes terminate at the same length, and are truncated before it."""
    lengths: list[int] = []
    flags: list[int] = []
    for lane in (lane for lanes in found.lanes for lane in lanes):
        first, last, whole, ended = lane.episodes
        kept = whole & ended
        lengths += (last - first + 1)[kept].tolist()
        flags += lane.flags[last[kept]].tolist()
    length, terminated = np.array(lengths), np.array(flags, np.uint8) & TERMINATED > 0
    if terminated.sum() < 3 or (~terminated).sum() < 3 or length.max() < _SHORT:
        return
    longest = length.max()
    limit, early = (length[terminated] == longest).mean(), length[~terminated]
    if limit < _ALL or (early == longest).mean() > 1 - _ALL or np.unique(early).size < 3:
        return
    yield Finding(
        "warning",
        "ends_swapped",
        f"{int(terminated.sum()):,} whole episodes terminate after {longest:,} rows, the most "
        f"there are, and {early.size:,} are truncated after {early.min():,} to {early.max():,}: "
        "terminated and truncated seem to be swapped.",
        "Give terminated=True where the task itself ends, and truncated=True for limits of time. "
        "Gymnasium returns terminated first.",
    )


def _cut(found: Found, ends: int) -> Iterator[Finding]:
    """Find that the buffer is too small for whole episodes."""
    lanes = [lane for lanes in found.lanes for lane in lanes]
    ring = found.parts[0].state.ring
    full = all(lane.slots.size == ring.lane_length for lane in lanes)
    whole = any((lane.episodes.whole & lane.episodes.ended).any() for lane in lanes)
    if found.sampler.is_queue or not (full and ends) or whole:
        return
    longest = max(int((lane.episodes.last + 1 - lane.episodes.first).max()) for lane in lanes)
    yield Finding(
        "warning",
        "returns_cut",
        f"No episode is whole: {ring.lane_length:,} rows of each environment fit, and the first "
        f"rows of all episodes are overwritten. The longest rest has {longest:,} rows.",
        "Take a larger capacity, or fewer environments. If you learn from single steps or short "
        "windows, all is well.",
    )
