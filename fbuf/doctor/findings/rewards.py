"""Rewards that teach nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.doctor.rewards import likely_fields
from fbuf.storage.ring import ENDS, TERMINATED

_FEW = 64
"""The fewest rows for a finding on equal rewards."""

_LARGE, _SMALL = 1e3, 1e-3
"""The range of reward sizes that needs no scaling."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    name = found.figures["reward"]
    if name is None:  # such as one for each agent
        name = next((name for name, _ in likely_fields(found.parts[0].layout)), None)
    leaf = None if name is None else leaves[name]
    if leaf is None or leaf.rows < _FEW or leaf.dtype.kind == "c":
        return
    if leaf.zero:
        yield Finding(
            "warning",
            "rewards_zero",
            f"All {leaf.rows:,} rewards ({name!r}) are 0.",
            "Look at what you store as the reward. If the task gives one so rarely, explore more, "
            "begin with demonstrations, or relabel goals with fbuf.Hindsight.",
        )
    elif leaf.alike and not leaf.not_finite and not _teaches(found, leaf.most):
        yield Finding(
            "warning",
            "rewards_constant",
            f"All {leaf.rows:,} rewards ({name!r}) are {leaf.most:g}, and no whole episode has "
            "another return.",
            "Look at what you store as the reward. If the task gives a reward for each step until "
            "it is solved, it was never solved: explore more, or relabel goals with "
            "fbuf.Hindsight.",
        )
    elif leaf.scale > _LARGE or 0 < leaf.scale < _SMALL:
        size = "large" if leaf.scale > _LARGE else "small"
        yield Finding(
            "warning",
            "reward_scale",
            f"Rewards ({name!r}) are {size}: from {leaf.least:g} to {leaf.most:g}, with a root "
            f"mean square of {leaf.scale:.3g} where they are not 0.",
            f"Multiply rewards by a constant, such as {_power(leaf.scale):g}, before you add them, "
            "so that most are between 0.01 and 10. Learning rates and clipping of TD errors are "
            "made for that.",
        )


def _teaches(found: Found, reward: float) -> bool:
    """Tell whether an agent may learn from equal rewards.

    In CartPole each step has a positive reward, so a long episode is good. In MountainCar each step
    has a negative one, so an early termination is good.
    """
    lengths, flags = found.episodes.lengths, found.flags
    if not (flags & TERMINATED > 0).any():
        return reward > 0 and bool((flags & ENDS > 0).any())
    return lengths.size == 0 or lengths.min() < lengths.max()


def _power(scale: float) -> float:
    """Return the power of ten that scales a size to about 1."""
    return 10.0 ** -round(math.log10(min(scale, 1e300)))
