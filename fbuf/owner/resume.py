"""Ending the open episodes of a loaded buffer."""

from __future__ import annotations

from typing import Any, get_args

from fbuf.checks import values
from fbuf.ops import lost_next
from fbuf.ops.end_episode import cut_episodes
from fbuf.ops.load import MORE_ENDS, Episodes
from fbuf.owner.owner import Asked, owner_of


def check(function: str, episodes: Any) -> None:
    """Refuse a value other than the two words."""
    values.choice(function, "episodes", episodes, get_args(Episodes))


def resumed(buffer: Any, episodes: Episodes, where: str) -> Any:
    """Return a loaded buffer ready to continue; a state is consumed.

    Environments that were not restored begin episodes: no stored row continues in one of them.

    Args:
        buffer: The buffer.
        episodes: As for `fbuf.load`.
        where: The function that was called, for warnings.
    """
    owner = owner_of(buffer, Asked(where))
    owner.require("end_episode")
    if episodes == "end":
        owner.change(cut_episodes)
    lost_next.of_states(where, owner.whole(), MORE_ENDS)
    return owner.buffer
