"""The state of a buffer over a mesh, the ids and the number of its rows, and its batches."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

import jax
import jax.core
from jax.sharding import Mesh, PartitionSpec

from fbuf.checks.uncompared import Uncompared
from fbuf.state import State
from fbuf.storage import shown
from fbuf.storage.store import Item


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class ShardedState(Uncompared, Generic[Item]):
    """One replay buffer over a mesh, made by `fbuf.sharded.init`: an immutable pytree.

    It is made of shards, each a buffer of its own. Every array of `blocks` has the arrays of all
    shards, one after the other along its first axis, and lies on the mesh along `axis`. A scalar of
    one buffer is `[num_shards]` here. The number of shards is fixed: on more or fewer devices the
    buffer is the same.

    Attributes:
        blocks: The arrays of all shards. Its static parts are those of one shard.
        mesh: The mesh; static.
        axis: The axis of the mesh along which the shards lie; static.
        num_shards: The number of shards, a multiple of the devices along the axis; static.
        leaves: The arrays of one shard, as `jax.ShapeDtypeStruct`; static.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> fbuf.sharded.init(jnp.zeros(4), 1000, mesh=mesh, shards=4)
        ShardedState(Uniform, room for 1000 rows, 4 shards on 1 device)
    """

    blocks: State[Item]
    """The arrays of all shards."""
    mesh: Mesh = dataclasses.field(metadata={"static": True})
    """The mesh; static."""
    axis: str = dataclasses.field(metadata={"static": True})
    """The axis of the mesh along which the shards lie."""
    num_shards: int = dataclasses.field(metadata={"static": True})
    """The number of shards, a multiple of the devices along the axis."""
    leaves: tuple[jax.ShapeDtypeStruct, ...] = dataclasses.field(metadata={"static": True})
    """The arrays of one shard, as `jax.ShapeDtypeStruct`."""

    @property
    def shard(self) -> State[Item]:
        """One shard, as a tree of `jax.ShapeDtypeStruct`."""
        return jax.tree.unflatten(jax.tree.structure(self.blocks), self.leaves)

    @property
    def capacity(self) -> int:
        """The most rows that all shards together can hold."""
        return self.shard.capacity * self.num_shards

    @property
    def num_envs(self) -> int | None:
        """The number of environments of all shards together."""
        each = self.blocks.ring.num_envs
        return None if each is None else each * self.num_shards

    @property
    def num_devices(self) -> int:
        """The number of devices along the axis."""
        return self.mesh.shape[self.axis]

    @property
    def shards_of_device(self) -> int:
        """The number of shards of one device."""
        return self.num_shards // self.num_devices

    @property
    def spec(self) -> PartitionSpec:
        """The layout of each array on the mesh."""
        return PartitionSpec(self.axis)

    @property
    def fault(self) -> jax.Array:
        """The fault bits of each shard: uint32 `[num_shards]`."""
        return self.blocks.fault

    def __repr__(self) -> str:
        """Return one line: the sampler, room for rows, shards, devices."""
        fault: Any = self.fault
        is_array = isinstance(fault, jax.Array) and not isinstance(fault, jax.core.Tracer)
        if is_array and fault.is_deleted():
            return "ShardedState(consumed)"
        devices = "1 device" if self.num_devices == 1 else f"{self.num_devices} devices"
        return (
            f"ShardedState({type(self.blocks.sampler).__name__}, room for {self.capacity} rows, "
            f"{self.num_shards} shards on {devices})"
        )


StateT = TypeVar("StateT", bound="State[Any] | ShardedState[Any]")
"""The type of a buffer of one device, or of one over a mesh."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ShardedIds(Uncompared):
    """Names of rows over a mesh: the shard, and the id in it.

    Attributes:
        shard: int32 in `[0, num_shards)`; -1 for no row.
        slot: int32 in `[0, capacity of a shard)`; -1 for no row.
        generation: int32; compare it for equality only.
    """

    shard: jax.Array
    """int32 in `[0, num_shards)`; -1 for no row."""
    slot: jax.Array
    """int32 in `[0, capacity of a shard)`."""
    generation: jax.Array
    """int32; compare it for equality only."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ShardedSample(Uncompared, Generic[Item]):
    """A batch that `fbuf.sample` and `fbuf.draw` draw from a buffer over a mesh.

    Its leaves lie on the mesh along the axis of the state: each device has an equal part of the `B`
    draws, in order.

    Attributes:
        data: As in `fbuf.Sample`.
        ids: The ids of the rows, for the functions that change rows.
        mask: As in `fbuf.Sample`.
        terminated: As in `fbuf.Sample`.
        truncated: As in `fbuf.Sample`.
        probability: As in `fbuf.Sample`: among all rows of all shards.
        weight: As in `fbuf.Sample`.
        fault: uint32 scalar, the same on all devices: `fbuf.Fault.CALLS_DIFFER` if processes gave
            different keys, steps or betas; the whole batch is then masked. Otherwise 0.
    """

    __repr__ = shown.batch_repr

    data: Item
    """The result of the view."""
    ids: ShardedIds
    """The ids of the rows, for the functions that change rows."""
    mask: jax.Array
    """`[B]` bool. False where there is no row, or nothing to draw."""
    terminated: jax.Array
    """`[B]` bool: the episode ended by itself at this row."""
    truncated: jax.Array
    """`[B]` bool: the episode was cut off after this row."""
    probability: jax.Array
    """`[B]` float32: the probability that one draw is this row, among all shards."""
    weight: jax.Array
    """`[B]` float32 importance weights, at most 1."""
    fault: jax.Array
    """uint32 scalar, the same on all devices."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Count:
    """A number of rows that may be 2**31 or more, as two words; `int(count)` is the number.

    Attributes:
        high: uint32 scalar; the upper 32 bits.
        low: uint32 scalar; the lower 32 bits.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> int(fbuf.sharded.Count(jnp.uint32(1), jnp.uint32(5)))
        4294967301
    """

    high: jax.Array
    """uint32 scalar; the upper 32 bits."""
    low: jax.Array
    """uint32 scalar; the lower 32 bits."""

    def __int__(self) -> int:
        """Return the number; wait until it is known."""
        return int(jax.device_get(self.high)) << 32 | int(jax.device_get(self.low))
