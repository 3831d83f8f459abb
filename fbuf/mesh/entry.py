"""The way into the verbs over a mesh: that of all verbs, with checks of where arrays lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax

from fbuf.door.entry import Check, Kind, verb
from fbuf.mesh.state import ShardedState

P = ParamSpec("P")
R = TypeVar("R")


def sharded_verb(
    *,
    static: tuple[str, ...] = (),
    checks: Mapping[str, Check] | None = None,
    host_check: Callable[[Any, dict[str, Any]], None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `fbuf.door.entry.verb`, for a function whose first argument is a `ShardedState`."""
    return verb(static=static, checks=checks, host_check=host_check, kind=_KIND)


def require_sharded(function: str, state: Any) -> None:
    """A state over a mesh."""
    if not isinstance(state, ShardedState):
        raise TypeError(
            f"fbuf.{function}: state must be a fbuf.sharded.ShardedState, got "
            f"{type(state).__name__}; make one with fbuf.sharded.init"
        )


def _on_the_mesh(function: str, state: ShardedState[Any], given: dict[str, Any]) -> None:
    """Refuse arrays that were put on other devices than those of the mesh."""
    devices = set(state.mesh.devices.flat)
    for argument, value in given.items():
        for path, leaf in jax.tree.leaves_with_path(value):
            if isinstance(leaf, jax.Array) and leaf.committed:
                there = leaf.sharding.device_set
                if there != devices:
                    raise ValueError(
                        f"fbuf.{function}: {argument}{jax.tree_util.keystr(path)} lies on "
                        f"{len(there)} device(s), {_some(there)}, but the mesh of the state has "
                        f"{len(devices)}, {_some(devices)}; put it there: jax.device_put(array, "
                        f"jax.NamedSharding(state.mesh, jax.P({state.axis!r})))"
                    )


def _some(devices: set[Any]) -> str:
    """The first devices, in words."""
    names = sorted(str(device) for device in devices)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


_KIND = Kind(require_sharded, "sharded.", _on_the_mesh)
