"""The state of a buffer, and the batches read of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Generic

import jax
import jax.core
import numpy as np

from fbuf._pytree import pytree
from fbuf.checks.uncompared import Uncompared
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.storage import shown
from fbuf.storage.ids import ArrayT, Ids
from fbuf.storage.next_obs import NextObs
from fbuf.storage.ring import Ring
from fbuf.storage.store import Item, Storage


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class State(Uncompared, Generic[Item]):
    """A replay buffer: one immutable pytree, made by `fbuf.init`.

    Carry it through `jit`, `scan`, `vmap` and `shard_map` like any other pytree, and save it like
    one. Read its fields if you like, but change them only through the functions of `fbuf`: they
    keep the fields consistent with each other.

    Attributes:
        storage: The rows, packed. `fbuf.rows(state)` shows them as the item's own tree.
        ring: The place of the next row, and the flags of each row.
        next_obs: The next observations that no following row has; None unless the buffer was made
            with `next_of`.
        index: The sampler's own pytree, with which it draws in less than O(capacity).
        fault: uint32 bits of `fbuf.Fault`. A bit that is set stays set until `fbuf.clear`.
        sampler: The rule which rows may be drawn, and how likely each is; static.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init({"observation": jnp.zeros(4), "reward": jnp.zeros(())}, capacity=100)
        >>> state, state.capacity
        (State(Uniform, 0 of 100 rows), 100)
    """

    storage: Storage[Item]
    """The rows, packed. `fbuf.rows(state)` shows them as the item's own tree."""
    ring: Ring
    """The place of the next row, and the flags of each row."""
    next_obs: NextObs | None
    """The next observations that no following row has."""
    index: Any
    """The sampler's own pytree, with which it draws in less than O(capacity)."""
    fault: jax.Array
    """uint32 bits of `fbuf.Fault`. A bit that is set stays set until `fbuf.clear`."""
    sampler: Sampler = dataclasses.field(metadata={"static": True})
    """The rule which rows may be drawn, and how likely each is."""

    @property
    def capacity(self) -> int:
        """The most rows that the buffer can hold."""
        return self.ring.capacity

    if not TYPE_CHECKING:  # there every name would do

        def __getattr__(self, name):
            """Make the fields of a state that has only its arrays; see `dispatch.flat_state`."""
            if "_held" not in self.__dict__ or name not in _FIELDS:
                raise AttributeError(
                    f"'State' object has no attribute {name!r}", name=name, obj=self
                )
            arrays, form = self.__dict__["_held"]
            self.__dict__.update(form.fields(arrays))
            return self.__dict__[name]

    def __dir__(self) -> list[str]:
        """Return all names, also of fields that are not made yet."""
        return sorted({*super().__dir__(), *_FIELDS})

    def __getstate__(self) -> dict[str, Any]:
        """Return what to copy or pickle: the fields."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __repr__(self) -> str:
        """Return one line: the sampler, rows of capacity, environments."""
        return f"State({', '.join(_described(self))})"


_FIELDS = tuple(field.name for field in dataclasses.fields(State))


def _described(state: State[Any]) -> list[str]:
    cursor: Any = state.ring.cursor
    if not isinstance(cursor, jax.Array | np.ndarray):
        return [type(state.sampler).__name__]  # of something else than arrays: a tree of specs
    traced = isinstance(cursor, jax.core.Tracer)
    if not traced and isinstance(cursor, jax.Array) and cursor.is_deleted():
        return ["consumed"]
    rows = "?"
    if not traced and cursor.ndim == 2:
        removed = state.ring.removed
        rows = str(int(jax.device_get(cursor)[2].sum()) - (0 if removed is None else int(removed)))
    words = [type(state.sampler).__name__, f"{rows} of {state.capacity} rows"]
    if state.ring.num_envs is not None:
        words.append(f"{state.ring.num_envs} environments")
    if cursor.ndim > 2:
        words.append(f"a batch of {cursor.shape[:-2]} buffers")
    return words


@pytree(eq=False)
class Batch(Uncompared, Generic[Item, ArrayT]):
    """Rows that were read by `fbuf.read` or `fbuf.rows`, in any order. `B` is the number of rows.

    Attributes:
        data: The result of the view. With `fbuf.Item()` it is the item's own tree, leaves
            `[B, ...]`.
        ids: The ids of the rows, for `update_priority`, `write`, `remove` and `read`.
        mask: `[B]` bool. False where there is no row, or where a next observation is lost (see
            `fbuf.Transition`). The data means nothing there.
        terminated: `[B]` bool: the episode ended by itself at this row.
        truncated: `[B]` bool: the episode was cut off after this row.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> batch = fbuf.read(state, fbuf.newest_ids(state, 2))
        >>> batch.data, batch.mask
        (Array([1., 2.], dtype=float32), Array([ True,  True], dtype=bool))
    """

    __repr__ = shown.batch_repr

    data: Item
    """The result of the view."""
    ids: Ids[ArrayT]
    """The ids of the rows, for `update_priority`, `write`, `remove` and `read`."""
    mask: ArrayT
    """`[B]` bool. False where there is no row, or where a next observation is lost."""
    terminated: ArrayT
    """`[B]` bool: the episode ended by itself at this row."""
    truncated: ArrayT
    """`[B]` bool: the episode was cut off after this row."""


@pytree(eq=False)
class Rollout(Batch[Item, ArrayT]):
    """Rows in the order of time: the `fbuf.Batch` that `fbuf.rollout` and `fbuf.pop` return.

    Along the axis of `T` each row follows the row before it in its lane. So `fbuf.targets` takes a
    rollout.

    Attributes:
        data: The items of the rows, leaves `[T, ...]`, or `[num_envs, T, ...]`.
        ids: As in `fbuf.Batch`.
        mask: As in `fbuf.Batch`.
        terminated: As in `fbuf.Batch`.
        truncated: As in `fbuf.Batch`.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> batch = fbuf.rollout(state)
        >>> type(batch).__name__, batch.data
        ('Rollout', Array([0., 1., 2., 0.], dtype=float32))
    """

    __repr__ = shown.batch_repr

    @classmethod
    def of(cls, batch: Batch[Item, ArrayT]) -> Rollout[Item, ArrayT]:
        """Return the rows of a batch, which are known to follow one another."""
        return cls(batch.data, batch.ids, batch.mask, batch.terminated, batch.truncated)


@pytree(eq=False)
class Sample(Batch[Item, ArrayT]):
    """A batch drawn by `fbuf.sample`. `B` is the batch size; shapes never depend on values.

    Attributes:
        data: As in `fbuf.Batch`.
        ids: As in `fbuf.Batch`.
        mask: As in `fbuf.Batch`; also False where there was nothing to draw.
        terminated: As in `fbuf.Batch`.
        truncated: As in `fbuf.Batch`.
        probability: `[B]` float32: the probability that one draw is this row.
        weight: `[B]` float32 importance weights, at most 1 (those of `fbuf.thin` may be larger); 0
            where `mask` is False.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> sample = fbuf.sample(state, jax.random.key(0), 2)
        >>> sample.data.shape, sample.weight
        ((2,), Array([1., 1.], dtype=float32))
    """

    __repr__ = shown.batch_repr

    probability: ArrayT
    """`[B]` float32: the probability that one draw is this row."""
    weight: ArrayT
    """`[B]` float32 importance weights, at most 1 (those of `fbuf.thin` may be larger)."""
