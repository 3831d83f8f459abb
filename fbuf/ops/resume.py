"""Ending the open episodes of a loaded buffer."""

from __future__ import annotations

from typing import Any, get_args

from fbuf.checks import values
from fbuf.ops import lost_next
from fbuf.ops.end_episode import cut_episodes
from fbuf.ops.load import MORE_ENDS, Episodes
from fbuf.state import State


def check(function: str, episodes: Any) -> None:
    """Refuse a value other than the two words."""
    values.choice(function, "episodes", episodes, get_args(Episodes))


def resumed(buffer: Any, episodes: Episodes, where: str) -> Any:
    """Return a loaded buffer ready to continue: a state, which is consumed, or a `HostStore`.

    Environments that were not restored begin episodes: no stored row continues in one of them.

    Args:
        buffer: The buffer.
        episodes: As for `fbuf.load`.
        where: The function that was called, for warnings.
    """
    if episodes == "end" and isinstance(buffer, State):
        buffer = cut_episodes(buffer)
    elif episodes == "end":
        buffer.contents.change(cut_episodes)
    index = buffer if isinstance(buffer, State) else buffer.contents.index
    lost_next.of_states(where, [index], MORE_ENDS)
    return buffer
