"""Ending the open episodes of a loaded buffer."""

from __future__ import annotations

from typing import Any, get_args

from fbuf.checks import values
from fbuf.ops.end_episode import cut_episodes
from fbuf.ops.load import Episodes
from fbuf.state import State


def check(function: str, episodes: Any) -> None:
    """Refuse a value other than the two words."""
    values.choice(function, "episodes", episodes, get_args(Episodes))


def resumed(buffer: Any, episodes: Episodes) -> Any:
    """Return a loaded buffer ready to continue: a state, which is consumed, or a `HostStore`.

    Environments that were not restored begin episodes: no stored row continues in one of them.
    """
    if episodes == "keep":
        return buffer
    if isinstance(buffer, State):
        return cut_episodes(buffer)
    buffer.contents.change(cut_episodes)
    return buffer
