"""The batch sizes of the TensorDicts in a batch, where a view has moved or widened its fields."""

from __future__ import annotations

from typing import Any

import fbuf
from fbuf_adapters.pytorch.crossing._containers import Axes, Nodes, Path


def nodes_of_batch(view: Any, nodes: Nodes) -> Nodes:
    """Return the axes of the TensorDicts in a batch `[B]` of a view, of those in an item."""
    if isinstance(view, fbuf.Item):
        return nodes
    steps = (view.length + view.burn_in + view.bootstrap,) if _is_sequence(view) else ()
    found: dict[Path, Axes] = {}
    for path, axes in nodes.items():
        if (path or axes[0]) and not _is_widened(view, path):
            found["item", *path] = _behind(steps, axes)
    if isinstance(view, fbuf.NStep):
        field = tuple(view.next_observation.split("."))
        for path, axes in nodes.items():
            if path[: len(field)] == field:
                found["next_observation", *path[len(field) :]] = axes
    return found


def _is_sequence(view: Any) -> bool:
    return isinstance(view, fbuf.Sequence)


def _behind(steps: tuple[int, ...], axes: Axes) -> Axes:
    """Return axes with one more before them, for the steps of a sequence."""
    size, names = axes
    return (*steps, *size), (*[None] * len(steps), *names) if names else ()


def _is_widened(view: Any, path: Path) -> bool:
    """Tell whether a view puts an axis before those of some leaves, but not of all items."""
    names: list[str] = []
    if isinstance(view, fbuf.Window):
        # Pairs, once the view is made; before, they may be a dict.
        names = [name for name, _ in view.offsets]  # pyright: ignore
    elif isinstance(view, fbuf.Hindsight) and view.copies is not None:
        names = [view.goal, view.reward]
    parts = [tuple(name.split(".")) for name in names]
    return any(part[: len(path)] == path[: len(part)] for part in parts)
