"""Making a buffer over a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax.sharding import Mesh

from fbuf.checks import sizes
from fbuf.checks import values as check
from fbuf.dispatch import flax, parse
from fbuf.mesh.processes import agreed_tag
from fbuf.ops.init import maker
from fbuf.samplers.protocol.planned import PlannedSampler
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.samplers.uniform import Uniform
from fbuf.sharded_state import ShardedState
from fbuf.storage import tags
from fbuf.storage.episodes import Autoreset
from fbuf.storage.store import Item

MOST_SHARDS = 2**16
"""With more shards, counts would overflow (`fbuf.samplers.chance.wide`)."""


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
    removable: bool = True,
) -> ShardedState[Item]:
    """Make an empty buffer over a mesh: one buffer, whose rows lie on many devices.

    It is divided into shards, and each device has the same number of them. Batches depend on the
    number of shards, and not on the number of devices. So choose more shards than devices if you
    may use more devices later. For example, 8 shards fit 1, 2, 4 and 8 devices.

    Args:
        item: As for `fbuf.init`.
        capacity: The number of rows to keep, in all shards together; a multiple of `shards`, and
            of `num_envs`. Up to 2**31 - 17 a shard.
        mesh: The mesh, such as `jax.make_mesh((8,), ("data",))`. In several processes the same
            one, of all devices.
        axis: The axis of the mesh along which the shards lie. None if the mesh has only one. Along
            other axes every device has a copy.
        shards: The number of shards, a multiple of the devices along the axis. None is one for
            each device.
        num_envs: The number of environments, in all shards together; a multiple of `shards`. Shard
            `s` has the environments from `s * num_envs / shards` on. None as for `fbuf.init`: then
            each shard gets an equal part of every batch of rows.
        sampler: As for `fbuf.init`, any but `fbuf.Fifo`.
        autoreset: As for `fbuf.init`.
        lockstep: As for `fbuf.init`.
        next_of: As for `fbuf.init`.
        max_ends: As for `fbuf.init`, in all shards together.
        removable: As for `fbuf.init`.

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
    name = "sharded.init"
    axis = axis_of(name, mesh, axis)
    if axis in jax.sharding.get_abstract_mesh().manual_axes:
        raise ValueError(
            f"fbuf.{name}: this is inside shard_map over {axis!r}; make the buffer outside, and "
            "give it to shard_map with in_specs=fbuf.sharded.specs(state)"
        )
    devices = mesh.shape[axis]
    shards = _shards(devices if shards is None else shards, devices, axis)
    capacity = check.integer(name, "capacity", capacity, check.LARGEST_CAPACITY * shards)
    envs = _environments(num_envs, capacity, shards)
    if max_ends is not None:
        max_ends = -(-check.integer(name, "max_ends", max_ends) // shards)
    _require_planned(sampler, capacity)
    # The other checks are those of a plain buffer.
    specs, each, here = parse.item_specs("init", item), capacity // shards, shards // devices
    options = envs, sampler, autoreset, lockstep, next_of, max_ends, shards
    make = maker(specs, each, *options, removable=removable)
    one = jax.eval_shape(lambda: make(each))
    _refuse_empty(one.storage.item)
    check_room(name, mesh, sizes.nbytes(one) * here)

    def block(tag: jax.Array) -> Any:
        """Return the shards of one device."""
        one = make(each, tag)
        return jax.tree.map(lambda leaf: jnp.concatenate([jnp.atleast_1d(leaf)] * here), one)

    tag, lies = _tags(mesh, axis)
    made = jax.shard_map(block, mesh=mesh, in_specs=lies, out_specs=jax.P(axis))
    # Shapes and dtypes alone: inside `jax.set_mesh` leaves also have a layout on the mesh.
    leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(one)]
    blocks = jax.jit(made)(tag)
    return ShardedState(blocks, mesh, axis, shards, tuple(leaves))


def _tags(mesh: Mesh, axis: str) -> tuple[jax.Array, jax.P]:
    """Return the tag for the shards of all devices, and how it lies: int32 `[devices]`, or `[]`."""
    tag, devices = tags.new(), mesh.shape[axis]
    if not isinstance(tag, int):  # inside a trace an array along an explicit axis has to lie there
        return tag, jax.P()
    whole = np.full(devices, agreed_tag(mesh), np.int32)
    sharding = jax.NamedSharding(mesh, jax.P(axis))
    with jax.transfer_guard("allow"):
        made = jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__)
    return made, sharding.spec


def _shards(shards: Any, devices: int, axis: str) -> int:
    """Return the number of shards, a multiple of the devices."""
    shards = check.integer("sharded.init", "shards", shards, MOST_SHARDS)
    if shards % devices:
        raise ValueError(
            f"fbuf.sharded.init: shards must be a multiple of the {devices} devices along "
            f"{axis!r}, got {shards}; take {-(-shards // devices) * devices}"
        )
    return shards


def _environments(num_envs: Any, capacity: int, shards: int) -> int | None:
    """Return the number of environments of a shard; refuse sizes that do not divide."""
    _divides("capacity", capacity, shards)
    if num_envs is None:
        return None
    _divides("num_envs", check.integer("sharded.init", "num_envs", num_envs), shards)
    if capacity % num_envs:
        raise ValueError(
            f"fbuf.sharded.init: capacity must be a multiple of num_envs ({num_envs}), got "
            f"{capacity}; take {max(capacity // num_envs, 1) * num_envs}"
        )
    return num_envs // shards


def axis_of(function: str, mesh: Mesh, axis: str | None) -> str:
    """Return the axis along which the shards lie."""
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
    """Refuse an empty leaf where the compiler crashes on it and ends the process."""
    if jaxlib.version.__version__ != "0.11.2":
        return
    for path, leaf in jax.tree.leaves_with_path(item):
        if not leaf.size:
            raise ValueError(
                f"fbuf.sharded.init: item{jax.tree_util.keystr(path)} has no elements, and jaxlib "
                "0.11.2 crashes on such arrays over a mesh; leave the field out, or install "
                "another version"
            )


def _require_planned(sampler: Any, capacity: int) -> None:
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
    """Refuse shards of `asked` bytes a device that do not fit the devices of this process."""
    with jax.transfer_guard("allow"):
        probe = jnp.zeros(())
    if isinstance(probe, jax.core.Tracer):
        return  # a trace takes no memory
    of_host = sum(device.platform == "cpu" for device in mesh.local_devices)
    for device in mesh.local_devices:
        free = sizes.free(device)
        if free is not None and device.platform == "cpu":
            free //= of_host  # CPU devices share host memory
        if free is not None and asked > free:
            raise MemoryError(
                f"fbuf.{function}: the shards of one device take {sizes.in_words(asked)}, and "
                f"{device} has {sizes.in_words(free)} free; make the capacity smaller, or take "
                "more devices"
            )
