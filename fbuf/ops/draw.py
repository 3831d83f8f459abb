"""Drawing a batch from a buffer that remembers its draws."""

from __future__ import annotations

import dataclasses
from typing import overload

from fbuf._arrays import Array, PRNGKey
from fbuf.checks import values as check
from fbuf.dispatch.call import operation_of_both
from fbuf.ops.after import after
from fbuf.ops.read import recorded
from fbuf.ops.sample import CHECKS, planned, weighted
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.sharded_state import ShardedSample, ShardedState
from fbuf.state import Sample, State
from fbuf.storage.store import Item as StoredItem
from fbuf.views.gather import gather
from fbuf.views.item import Item
from fbuf.views.protocol import Data, View
from fbuf.xla.tie import tie


@overload
def draw(
    state: State[StoredItem],
    key: PRNGKey,
    batch_size: int,
    *,
    view: View[Data] = Item(),
    beta: Array | float | None = None,
    count: Array | int | None = None,
    donate: bool = True,
) -> tuple[State[StoredItem], Sample[Data]]: ...
@overload
def draw(
    state: ShardedState[StoredItem],
    key: PRNGKey,
    batch_size: int,
    *,
    view: View[Data] = Item(),
    beta: Array | float | None = None,
    donate: bool = True,
) -> tuple[ShardedState[StoredItem], ShardedSample[Data]]: ...
@operation_of_both(
    static=("batch_size", "view"), checks=CHECKS | {"count": check.count}, typed=("key",)
)
def draw(
    state: State[StoredItem],
    key: PRNGKey,
    batch_size: int,
    *,
    view: View[Data] = Item(),
    beta: Array | float | None = None,
    count: Array | int | None = None,
    donate: bool = True,
) -> tuple[State[StoredItem], Sample[Data]]:
    """Draw a batch, and record the draws in the buffer.

    It takes the place of `fbuf.sample` for a sampler such as `fbuf.FreshFirst`, whose next batch
    depends on the batches before.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        key: As for `fbuf.sample`.
        batch_size: As for `fbuf.sample`.
        view: As for `fbuf.sample`.
        beta: As for `fbuf.sample`.
        count: As for `fbuf.sample`. Rows behind `count` do not count as drawn.
        donate: As for `fbuf.add`.

    Returns:
        The buffer, and the batch, as `fbuf.sample` returns it. A row that the view masks counts as
        drawn; otherwise it would come again and again.

    Raises:
        ValueError: As `fbuf.sample`. When traced, if the sampler remembers no draws.
        TypeError: As `fbuf.sample`.
        RuntimeError: If `state` has been consumed.

    Cost: that of `fbuf.sample`, and O(log N) for each draw that is remembered.

    Over a mesh: as `fbuf.sample`. Each shard looks up all fresh draws of its own. If the calls of
    processes differ, no row of the batch counts as drawn.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=fbuf.FreshFirst())
        >>> state = fbuf.add(state, jnp.arange(4, dtype=jnp.int32))
        >>> for number in range(2):
        ...     state, batch = fbuf.draw(state, jax.random.key(number), 2)
        ...     print(batch.data)
        [0 1]
        [2 3]
    """
    require_noting("draw", state.sampler)
    drawn, view_key = planned(state, key, beta, None, batch_size, view, count)
    # Some samplers read their index for the probabilities alone.
    batch = gather(state, drawn.slots, drawn.mask, view, view_key, (drawn.probability,))
    batch = weighted(recorded(state, batch), drawn)
    # `note` writes to the places that the draws and their probabilities have read.
    slots = tie(drawn.slots, drawn.probability, drawn.log_weight)
    drawn = dataclasses.replace(drawn, slots=slots)
    index = state.sampler.note(state.index, state.ring, drawn)
    return after(dataclasses.replace(state, index=index), batch), batch


def require_noting(function: str, sampler: Sampler) -> None:
    """Refuse a sampler that remembers no draws."""
    if not sampler.notes_draws:
        name = function.replace("draw", "sample")
        raise ValueError(
            f"fbuf.{function}: {type(sampler).__name__} does not remember what was drawn; draw "
            f"with batch = fbuf.{name}(state, key, batch_size), or make the buffer with "
            "sampler=fbuf.FreshFirst(...) or fbuf.Limited(max_uses=...)"
        )
