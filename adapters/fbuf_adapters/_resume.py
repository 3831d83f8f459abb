"""The episodes that were open when a buffer was saved, once it is loaded."""

from __future__ import annotations

from typing import Any, Literal

import fbuf
from fbuf.checks import values

Episodes = Literal["end", "keep"]


def check(function: str, episodes: Any) -> None:
    """Refuse what is none of the two."""
    values.choice(function, "episodes", episodes, ("end", "keep"))


def resumed(buffer: Any, episodes: Episodes) -> Any:
    """A buffer as a run goes on with it: a state, which is consumed, or a `HostStore`.

    Environments that were not restored begin episodes: no row from before goes on in one of them.
    """
    if episodes == "keep":
        return buffer
    if isinstance(buffer, fbuf.State):
        return fbuf.end_episode(buffer)
    buffer.end_episode()
    return buffer


def load(path: Any, *, episodes: Episodes, **options: Any) -> fbuf.Checkpoint:
    """Read a checkpoint into a buffer on the device, as a run goes on with it."""
    found = fbuf.load(path, **options)
    return found._replace(state=resumed(found.state, episodes))
