"""Making a buffer over a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import jaxlib.version
from jax.sharding import Mesh

from fbuf.checks import sizes
from fbuf.checks import values as check
from fbuf.dispatch import flax, parse
from fbuf.mesh.state import ShardedState
from fbuf.ops.init import init as plain_init
from fbuf.ops.init import of_ring
from fbuf.samplers.planned import PlannedSampler
from fbuf.samplers.protocol import Sampler
from fbuf.samplers.uniform import Uniform
from fbuf.storage import ring as rings
from fbuf.storage.episodes import Autoreset
from fbuf.storage.store import Item

MOST_SHARDS = 2**16
"""More would not be counted right (`fbuf.samplers.wide`)."""


def init(
    item: Item,
    capacity: int,
    *,
    mesh: Mesh,
    axis: str | None = None,
    shards: int | None = None,
    num_envs: int | None = None,
    sampler: Sampler = Uniform(),
    autoreset: Autoreset = "same_step",
    lockstep: bool = True,
    next_of: str | None = None,
    max_ends: int | None = None,
) -> ShardedState[Item]:
    """Make an empty buffer over a mesh: one buffer, whose rows lie on many devices.

    It is cut into shards, and each device has as many. Batches depend on the number of shards, and
    not on that of devices. So choose more shards than devices if you may go on with more devices
    later: 8 shards fit 1, 2, 4 and 8 devices.

    Args:
        item: As for `fbuf.init`.
        capacity: How many rows to keep, in all shards together; a multiple of `shards`, and of
            `num_envs`. Up to 2**31 - 17 a shard.
        mesh: The mesh, such as `jax.make_mesh((8,), ("data",))`. In several processes the same
            one, of all devices.
        axis: The axis of the mesh along which the shards lie. None if it has only one. Along the
            others every device has a copy.
        shards: How many shards, a multiple of the devices along the axis. None is one for each.
        num_envs: How many environments there are, in all shards together; a multiple of `shards`.
            Shard `s` has those from `s * num_envs / shards` on. None as for `fbuf.init`: then of
            every batch of rows each shard gets an equal part.
        sampler: As for `fbuf.init`, any but `fbuf.Fifo`.
        autoreset: As for `fbuf.init`.
        lockstep: As for `fbuf.init`.
        next_of: As for `fbuf.init`.
        max_ends: As for `fbuf.init`, in all shards together.

    Returns:
        An empty buffer. Its arrays lie on the mesh.

    Raises:
        MemoryError: If a device of this process has no room for its shards.
        ValueError: If an argument is out of range, does not divide, or the mesh has no such axis.
            With jaxlib 0.11.2 also if a leaf of the item has no elements.
        TypeError: As `fbuf.init`; also if `mesh` is no mesh, or the sampler cannot draw over
            shards.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> fbuf.sharded.init({"x": jnp.zeros(4)}, 1000, mesh=mesh, shards=8).capacity
        1000
    """
    flax.register(ShardedState)
    axis = axis_of("sharded.init", mesh, axis)
    if axis in jax.sharding.get_abstract_mesh().manual_axes:
        raise ValueError(
            f"fbuf.sharded.init: this is inside shard_map over {axis!r}; make the buffer outside, "
            "and give it to shard_map with in_specs=fbuf.sharded.specs(state)"
        )
    devices = mesh.shape[axis]
    shards = devices if shards is None else shards
    shards = check.integer("sharded.init", "shards", shards, MOST_SHARDS)
    if shards % devices:
        raise ValueError(
            f"fbuf.sharded.init: shards must be a multiple of the {devices} devices along "
            f"{axis!r}, got {shards}; take {-(-shards // devices) * devices}"
        )
    most = check.LARGEST_CAPACITY * shards
    capacity = check.integer("sharded.init", "capacity", capacity, most)
    _divides("capacity", capacity, shards)
    if num_envs is not None:
        _divides("num_envs", check.integer("sharded.init", "num_envs", num_envs), shards)
        if capacity % num_envs:
            raise ValueError(
                f"fbuf.sharded.init: capacity must be a multiple of num_envs ({num_envs}), got "
                f"{capacity}; take {max(capacity // num_envs, 1) * num_envs}"
            )
    if max_ends is not None:
        max_ends = -(-check.integer("sharded.init", "max_ends", max_ends) // shards)
    _plans(sampler, capacity)
    envs = None if num_envs is None else num_envs // shards
    each = capacity // shards

    def make() -> Any:
        # Everything else is looked at by the one who makes plain buffers.
        plain = plain_init(
            item,
            each,
            num_envs=envs,
            sampler=sampler,
            autoreset=autoreset,
            lockstep=lockstep,
            next_of=next_of,
            max_ends=max_ends,
        )
        follow = plain.ring.open is not None
        ring = rings.empty(each, envs, lockstep, autoreset, follow, shards)
        specs = parse.item_specs("sharded.init", item)
        return of_ring(specs, ring, sampler, next_of, max_ends)

    one = jax.eval_shape(make)
    _refuse_empty(one.storage.item)
    check_room("sharded.init", mesh, sizes.nbytes(one) * (shards // devices))
    here = shards // devices

    def block() -> Any:
        """The shards of one device."""
        return jax.tree.map(lambda leaf: jnp.concatenate([jnp.atleast_1d(leaf)] * here), make())

    made = jax.shard_map(block, mesh=mesh, in_specs=(), out_specs=jax.P(axis))
    # Shapes and dtypes alone: inside `jax.set_mesh` they would also say how they lie on it.
    leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(one)]
    return ShardedState(jax.jit(made)(), mesh, axis, shards, tuple(leaves))


def axis_of(function: str, mesh: Mesh, axis: str | None) -> str:
    """The axis along which the shards lie."""
    check.instance(function, "mesh", mesh, Mesh, 'jax.make_mesh((8,), ("data",))')
    names: tuple[str, ...] = mesh.axis_names
    if axis is None and len(names) == 1:
        return names[0]
    if axis is None or axis not in names:
        raise ValueError(
            f"fbuf.{function}: axis must be one of the axes of the mesh, {names}, got {axis!r}"
        )
    return axis


def _divides(argument: str, value: int, shards: int) -> None:
    if value % shards:
        fits = max(value // shards, 1) * shards
        raise ValueError(
            f"fbuf.sharded.init: {argument} must be a multiple of the {shards} shards, which are "
            f"all alike, got {value}; take {fits}"
        )


def _refuse_empty(item: Any) -> None:
    """Refuse what would end the process: the compiler crashes on it."""
    if jaxlib.version.__version__ != "0.11.2":
        return
    for path, leaf in jax.tree.leaves_with_path(item):
        if not leaf.size:
            raise ValueError(
                f"fbuf.sharded.init: item{jax.tree_util.keystr(path)} has no elements, and jaxlib "
                "0.11.2 crashes on such arrays over a mesh; leave the field out, or install "
                "another version"
            )


def _plans(sampler: Any, capacity: int) -> None:
    """Refuse a sampler that cannot draw from several buffers as from one."""
    check.instance("sharded.init", "sampler", sampler, Sampler, "fbuf.Uniform()")
    if not isinstance(sampler, PlannedSampler):
        raise TypeError(
            f"fbuf.sharded.init: {type(sampler).__name__} cannot draw from several shards as from "
            "one buffer; take fbuf.Uniform, fbuf.Prioritized, fbuf.Shuffled or fbuf.Mixture, or "
            "derive your sampler from fbuf.samplers.PlannedSampler"
        )
    if sampler.without_replacement and capacity > check.LARGEST_INT:
        raise ValueError(
            f"fbuf.sharded.init: {type(sampler).__name__} counts the rows of an epoch in int32; "
            f"capacity must be at most {check.LARGEST_INT}, got {capacity}"
        )


def check_room(function: str, mesh: Mesh, asked: int) -> None:
    """Refuse what the devices of this process have no room for: so many bytes on each."""
    with jax.transfer_guard("allow"):
        probe = jnp.zeros(())
    if isinstance(probe, jax.core.Tracer):
        return  # nothing is made here
    of_host = sum(device.platform == "cpu" for device in mesh.local_devices)
    for device in mesh.local_devices:
        free = sizes.free(device)
        if free is not None and device.platform == "cpu":
            free //= of_host  # they share the memory of the host
        if free is not None and asked > free:
            raise MemoryError(
                f"fbuf.{function}: the shards of one device take {sizes.in_words(asked)}, and "
                f"{device} has {sizes.in_words(free)} free; make the capacity smaller, or take "
                "more devices"
            )
