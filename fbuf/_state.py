"""The state of a buffer, and what a draw from it returns."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Generic

import jax

from fbuf._ring import Ids, Ring
from fbuf._storage import Item, Storage

if TYPE_CHECKING:
    from fbuf._nexts import Nexts
    from fbuf.samplers._protocol import Sampler


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State(Generic[Item]):
    """A replay buffer: one immutable pytree, made by `fbuf.init`.

    Carry it through `jit`, `scan`, `vmap` and `shard_map` like any other pytree, and save it like
    one. Its fields are for reading; change them through the functions of `fbuf` only, since they
    keep the fields consistent with each other.

    Attributes:
        storage: The rows. `state.storage.rows()` shows them all as the item's own tree.
        ring: Where the next row goes, and each row's flags.
        nexts: What the following row does not have of next observations; None unless the buffer was
            made with `next_of`.
        index: What the sampler keeps to draw in less than O(capacity); its own pytree.
        fault: uint32 bits of `fbuf.Fault`, sticky.
        sampler: Which rows may be drawn and how likely; static.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init({"obs": jnp.zeros(4), "reward": jnp.zeros(())}, capacity=100)
        >>> state.storage.rows()["obs"].shape, state.capacity
        ((100, 4), 100)
    """

    storage: Storage[Item]
    ring: Ring
    nexts: Nexts | None
    index: Any
    fault: jax.Array
    sampler: Sampler = dataclasses.field(metadata={"static": True})

    @property
    def capacity(self) -> int:
        """How many rows the buffer holds at most."""
        return self.ring.capacity


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sample(Generic[Item]):
    """A batch drawn by `fbuf.sample`. `B` is the batch size; shapes never depend on values.

    Attributes:
        data: What the view made of the drawn rows; with `fbuf.Item()` the item's own tree, each
            leaf `[B, ...]`.
        ids: Which rows these are; hand them to `update_priority` and `remove`.
        probability: `[B]` float32; how likely one draw was to be this row.
        weight: `[B]` float32 importance weights, at most 1; 0 where `mask` is False.
        mask: `[B]` bool; False where there was nothing to draw, or the view could not make of a row
            what it is for, as its next observation is lost (see `fbuf.Transition`).
        terminated: `[B]` bool; the episode ended by itself at this row.
        truncated: `[B]` bool; the episode was cut off after this row.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> sample = fbuf.sample(state, jax.random.key(0), 2)
        >>> sample.data.shape, sample.weight
        ((2,), Array([1., 1.], dtype=float32))
    """

    data: Item
    ids: Ids
    probability: jax.Array
    weight: jax.Array
    mask: jax.Array
    terminated: jax.Array
    truncated: jax.Array
