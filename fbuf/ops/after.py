"""Ordering the read of a batch before the next change of the buffer."""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.core

from fbuf.dispatch import read_before_write
from fbuf.dispatch.call import refuse_consumed, require_state
from fbuf.dispatch.intact import one_buffer
from fbuf.sharded_state import ShardedSample, ShardedState
from fbuf.state import Batch, State
from fbuf.storage.store import Item


@overload
def after(state: State[Item], batch: Any) -> State[Item]: ...
@overload
def after(state: ShardedState[Item], batch: Any) -> ShardedState[Item]: ...
def after(state: Any, batch: Any) -> Any:
    """Make the next write to a buffer wait until a batch is read.

    Call it in a compiled step that samples first, and then changes rows other than the drawn ones.
    Such a step adds rows, ends episodes, or updates, writes or removes rows of other ids.

        batch = fbuf.sample(state, key, 256)
        state = fbuf.add(fbuf.after(state, batch), rows)

    Without this call, XLA does not know that rows are read before they are overwritten, and may
    copy the whole storage at every step. Outside `jit` the call changes nothing.

    Args:
        state: The buffer; never consumed.
        batch: The result of `fbuf.sample`, `fbuf.read` or `fbuf.sample_mixed`, or arrays that were
            computed from all of it.

    Returns:
        The same state.

    Raises:
        TypeError: If `batch` holds no array.
        RuntimeError: If `state` has been consumed.

    Cost: O(1), of a batch O(B).

    Over a mesh: the same.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> @jax.jit
        ... def step(state, key):
        ...     batch = fbuf.sample(state, key, 2)
        ...     state = fbuf.after(state, batch)
        ...     return fbuf.add(state, jnp.ones(1)), batch.data.sum()
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> state, total = step(state, jax.random.key(0))
        >>> int(fbuf.size(state))
        4
    """
    if not isinstance(state, ShardedState):
        require_state("after", state, over_mesh=True)
        one_buffer("after", state)
    # The ids of a batch are known once all of it has been read.
    reads = batch.ids.slot if isinstance(batch, Batch | ShardedSample) else batch
    leaves = jax.tree.leaves(reads)
    if not leaves:
        raise TypeError(
            "fbuf.after: batch must be what was read of the buffer, got "
            f"{type(batch).__name__} without arrays; give the batch"
        )
    if any(isinstance(leaf, jax.core.Tracer) for leaf in (state.fault, *leaves)):
        return read_before_write.waiting(state, reads)
    refuse_consumed("after", state)  # from Python all calls are in order
    return state
