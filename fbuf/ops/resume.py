"""The episodes that were open when a buffer was saved, once it is loaded."""

from __future__ import annotations

from typing import Any, get_args

from fbuf.checks import values
from fbuf.ops.end_episode import end_episode
from fbuf.ops.load import Episodes
from fbuf.state import State


def check(function: str, episodes: Any) -> None:
    """Refuse what is none of the two."""
    values.choice(function, "episodes", episodes, get_args(Episodes))


def resumed(buffer: Any, episodes: Episodes) -> Any:
    """A buffer as a run goes on with it: a state, which is consumed, or a `HostStore`.

    Environments that were not restored begin episodes: no row from before goes on in one of them.
    """
    if episodes == "keep":
        return buffer
    if isinstance(buffer, State):
        return end_episode(buffer)
    buffer.end_episode()
    return buffer
