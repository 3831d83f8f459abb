"""Calls of operations over a mesh, with checks of the devices of arrays."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh

from fbuf.dispatch.call import StateType
from fbuf.dispatch.intact import Expected, refuse_changed
from fbuf.sharded_state import ShardedState


def require_sharded(function: str, state: Any) -> None:
    """Refuse a value that is no `ShardedState`."""
    if not isinstance(state, ShardedState):
        _refuse(function, state)


def _refuse(function: str, state: Any) -> NoReturn:
    raise TypeError(
        f"fbuf.{function}: state must be a fbuf.sharded.ShardedState, got "
        f"{type(state).__name__}; make one with fbuf.sharded.init"
    )


def not_over_mesh(function: str, argument: str, value: Any) -> Any:
    """Refuse a value of an argument that has no meaning over a mesh."""
    if value is None or value is False:
        return value
    raise ValueError(f"fbuf.{function}: over a mesh there is no {argument}; leave it out")


def _on_the_mesh(function: str, state: ShardedState[Any], given: dict[str, Any]) -> None:
    """Refuse arrays on devices outside the mesh, or in one process alone."""
    devices = _devices(state.mesh)
    fault: Any = state.fault
    if not isinstance(fault, jax.Array) or fault.sharding.device_set != set(devices):
        raise ValueError(
            f"fbuf.{function}: the arrays of the state do not lie on its mesh; put them there: "
            "jax.device_put(state, jax.tree.map(lambda spec: jax.NamedSharding(state.mesh, spec), "
            "fbuf.sharded.specs(state)))"
        )
    several = not fault.is_fully_addressable
    for argument, value in given.items():
        same = _is_same_for_all(function, argument, state)
        for number, leaf in enumerate(jax.tree.leaves(value)):
            elsewhere = _is_elsewhere(leaf, devices)
            if elsewhere or (several and not same and _is_of_one_process(leaf)):
                path, leaf = jax.tree.leaves_with_path(value)[number]
                name = f"fbuf.{function}: {argument}{jax.tree_util.keystr(path)}"
                spec = "jax.P()" if same or not leaf.ndim else f"jax.P({state.axis!r})"
                sharding = f"jax.NamedSharding(state.mesh, {spec})"
                if elsewhere:
                    remedy = f"put it there: jax.device_put(array, {sharding})"
                    if argument == "ids":
                        remedy = (
                            "ids name rows of the buffer that gave them: if that is this one, "
                            "moved from another mesh, put them on its mesh, too: "
                            f"jax.device_put(ids, {sharding})"
                        )
                    raise ValueError(
                        f"{name} lies on {_some(_placed(leaf))}, but the mesh of the state has "
                        f"{_some(devices)}; {remedy}"
                    )
                raise ValueError(
                    f"{name} is an array of this process alone, and the mesh has devices of "
                    "several; make one of all of them: "
                    f"jax.make_array_from_process_local_data({sharding}, array)"
                )


def _is_elsewhere(leaf: Any, devices: tuple[Any, ...]) -> bool:
    """Tell whether an array lies on other devices, or on these in another order."""
    return isinstance(leaf, jax.Array) and leaf.committed and _placed(leaf) != devices


def _is_of_one_process(leaf: Any) -> bool:
    """Tell whether other processes have another part of an array, or a separate array."""
    if isinstance(leaf, jax.Array):
        return leaf.ndim > 0 and leaf.is_fully_addressable
    return isinstance(leaf, np.ndarray) and leaf.ndim > 0


def _is_same_for_all(function: str, argument: str, state: ShardedState[Any]) -> bool:
    """Tell whether all processes pass a whole argument, which is not divided among devices."""
    of_steps = state.num_envs is not None and state.blocks.ring.lockstep
    return argument == "key" or (argument == "mask" and function == "add" and of_steps)


@functools.lru_cache(maxsize=64)
def _devices(mesh: Mesh) -> tuple[Any, ...]:
    """Return the devices of a mesh, in order."""
    return tuple(mesh.devices.flat)


def _placed(array: jax.Array) -> tuple[Any, ...]:
    """Return the devices of an array, in order if it lies on a mesh."""
    sharding = array.sharding
    if isinstance(sharding, jax.NamedSharding) and isinstance(sharding.mesh, Mesh):
        return _devices(sharding.mesh)
    return tuple(sorted(sharding.device_set, key=lambda device: device.id))


def _some(devices: tuple[Any, ...]) -> str:
    """Return the number of devices and the first ones, as text."""
    first = ", ".join(map(str, devices[:3])) + (", ..." if len(devices) > 3 else "")
    return f"{len(devices)} device{'s' if len(devices) > 1 else ''} ({first})"


def _waited_for(state: ShardedState[Any], result: Any) -> None:
    """Wait for a call over CPUs of several processes, where JAX hangs with many calls in flight."""
    if _is_of_cpu_processes(state.mesh):
        jax.block_until_ready(result)


@functools.lru_cache(maxsize=64)
def _is_of_cpu_processes(mesh: Mesh) -> bool:
    devices = _devices(mesh)
    return devices[0].platform == "cpu" and len({of.process_index for of in devices}) > 1


def _intact(function: str, state: ShardedState[Any]) -> None:
    """Refuse a state whose arrays are not those of a buffer."""
    places = jax.tree.leaves_with_path(state.blocks)
    for (path, leaf), spec in zip(places, state.leaves, strict=True):
        refuse_changed(function, f".blocks{jax.tree_util.keystr(path)}", leaf, Expected(spec.dtype))


OVER_MESH = StateType(
    ShardedState, lambda state: state.blocks, _refuse, _intact, _on_the_mesh, _waited_for
)
