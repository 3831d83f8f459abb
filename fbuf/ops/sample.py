"""Drawing a batch."""

from __future__ import annotations

import dataclasses
from typing import Any, overload

import jax
import jax.numpy as jnp

from fbuf._arrays import Array, PRNGKey
from fbuf.checks import values as check
from fbuf.dispatch.call import operation_of_both
from fbuf.ops.read import is_view, recorded
from fbuf.samplers.chance import random_bits, weights
from fbuf.samplers.protocol.sampler import Ask, Draw, Sampler, Step
from fbuf.sharded_state import ShardedSample, ShardedState
from fbuf.state import Batch, Sample, State
from fbuf.views.gather import gather
from fbuf.views.item import Item
from fbuf.views.protocol import Data, View


def is_key(function: str, argument: str, value: Any) -> Any:
    """Return a random key, unconsumed; refuse any other value."""
    check.key(function, value)
    return value


def is_step(function: str, argument: str, value: Any) -> Any:
    """Return the number of a batch, or the pair of an epoch and a place in it."""
    if not isinstance(value, tuple):
        return check.count(function, argument, value)
    pair: tuple[Any, ...] = value
    if len(pair) != 2 or None in pair:
        raise ValueError(
            f"fbuf.{function}: {argument} must be one integer, or two: (epoch, first); got {pair}"
        )
    return tuple(check.count(function, argument, number) for number in pair)


CHECKS = {"batch_size": check.integer, "key": is_key, "view": is_view, "beta": check.scalar}


@overload
def sample(
    state: State[Any],
    key: PRNGKey,
    batch_size: int,
    *,
    view: View[Data] = Item(),
    beta: Array | float | None = None,
    step: Array | int | tuple[Array | int, Array | int] | None = None,
    count: Array | int | None = None,
) -> Sample[Data]: ...
@overload
def sample(
    state: ShardedState[Any],
    key: PRNGKey,
    batch_size: int,
    *,
    view: View[Data] = Item(),
    beta: Array | float | None = None,
    step: Array | int | tuple[Array | int, Array | int] | None = None,
) -> ShardedSample[Data]: ...
@operation_of_both(
    static=("batch_size", "view"),
    checks=CHECKS | {"step": is_step, "count": check.count},
    typed=("key",),
)
def sample(
    state: State[Any],
    key: PRNGKey,
    batch_size: int,
    *,
    view: View[Data] = Item(),
    beta: Array | float | None = None,
    step: Array | int | tuple[Array | int, Array | int] | None = None,
    count: Array | int | None = None,
) -> Sample[Data]:
    """Draw a batch; the state does not change.

    The same state and key give the same batch, under `jit` or not and on any number of devices.

    Args:
        state: The buffer; never consumed.
        key: A key of `jax.random`. Use a key once only.
        batch_size: `B`, a static int of at least 1; it may be larger than the capacity.
        view: The view of each drawn row; static.
        beta: A number of at least 0, may be traced. It replaces the sampler's `beta` in the
            importance weights. A traced one that is negative, infinite or NaN counts as 0.
        step: For `fbuf.Shuffled`: the number of the batch, counted from 0; may be traced. Or a pair
            `(epoch, first)`: the `batch_size` rows of this epoch from this place on, both counted
            from 0. So batches of several sizes can share an epoch. A traced number below 0 is not
            refused: epochs before 0 have orders of their own, and a `first` below 0 masks the
            batch.
        count: The number of rows to draw, an integer of at least 0; may be traced, so one program
            serves batches of many sizes. Rows behind `count` are masked, with weights 0. The
            weights are those of a batch of `count`. None, or more than `batch_size`, is all.

    Returns:
        The batch. If there is nothing to draw (see `fbuf.can_sample`), its `mask` is False, its
        weights are 0, and its ids name no row. It is safe to use: a loss multiplied by `weight` is
        0, and `update_priority` ignores such ids.

    Raises:
        ValueError: If `beta`, `step` or `count` is out of range. When traced, if `batch_size` is.
            Also if `fbuf.Shuffled` gets no `step` or another sampler gets one, if the sampler is
            `fbuf.Fifo`, or if the view does not fit the buffer.
        TypeError: If `key` is no key of `jax.random`. When traced, if `batch_size` is not a Python
            int, or `view` is not a view.
        RuntimeError: If `state` has been consumed.

    Cost: O(B) if every row is as likely; O(B log N) by priority, with a window, by episode, or
    after a removal. The reads of the view come on top.

    Over a mesh: each draw is from the rows of all shards, and the batch is a
    `fbuf.sharded.ShardedSample`. The `batch_size` counts the draws of all devices together, and is
    a multiple of the devices along the axis. The leaves of the batch are sharded along the axis.
    Inside `shard_map` they are the part of this device, which is drawn from all rows, too. The
    arguments `key`, `beta` and `step` are the same in all processes. Else all rows are masked, and
    `batch.fault` is `fbuf.Fault.CALLS_DIFFER`. There is no `count`. With one shard it is the batch
    of one buffer. A device plans all `B` draws, and looks up its own ones. It takes an `all_reduce`
    of some words a shard, and an `all_to_all` of rows a round; `docs/know/scale_costs.md` has the
    bytes. If the sampler limits uses or versions, each shard looks up all candidates, and there is
    one more `all_reduce` of 8 bytes a draw.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"x": jnp.zeros(2)}, capacity=100)
        >>> state = fbuf.add(state, {"x": jnp.ones((10, 2))})
        >>> batch = fbuf.sample(state, jax.random.key(0), 32)
        >>> batch.data["x"].shape, bool(batch.mask.all())
        ((32, 2), True)

    References:
        Lin, Self-Improving Reactive Agents, Machine Learning 8, 1992 (uniform);
        Schaul et al., arXiv:1511.05952 (prioritised).
    """
    require_step("sample", state.sampler, step)
    refuse_noting("sample", state.sampler)
    return drawn(state, key, beta, step, batch_size, view, count)[0]


def require_step(function: str, sampler: Sampler, step: Any) -> None:
    """Require `step` for samplers with numbered batches, and refuse it for others."""
    name = type(sampler).__name__
    if sampler.without_replacement and step is None:
        raise ValueError(
            f"fbuf.{function}: {name} needs the number of the batch; give step=i, counting from 0"
        )
    if not sampler.without_replacement and step is not None:
        raise ValueError(
            f"fbuf.{function}: {name} draws with replacement and takes no step; leave step out, or "
            "make the buffer with sampler=fbuf.Shuffled()"
        )


def refuse_noting(function: str, sampler: Sampler) -> None:
    """Refuse a sampler that remembers draws, in a function that returns no buffer."""
    if sampler.notes_draws:
        name = function.replace("sample", "draw")
        raise ValueError(
            f"fbuf.{function}: {type(sampler).__name__} remembers what was drawn, and fbuf."
            f"{function} returns no state to keep it; draw with state, batch = fbuf.{name}(state, "
            "key, batch_size)"
        )


def place_in_epoch(size: jax.Array, step: Any, batch_size: int) -> Step:
    """Return the epoch of a batch, and the place of its first row, for epochs of this size.

    A pair already is a place. A traced place below 0 has no row. It becomes one behind the last
    row, where samplers mask their draws.
    """
    if isinstance(step, tuple):
        epoch, first = step
        return epoch, jnp.where(first < 0, jnp.int32(check.LARGEST_INT), first)
    batches = (jnp.maximum(size, 1) - 1) // batch_size + 1
    return step // batches, step % batches * batch_size


def drawn(
    state: State[Any],
    key: Any,
    beta: Any,
    step: Any,
    batch_size: int,
    view: View,
    count: Any = None,
) -> tuple[Sample[Any], jax.Array]:
    """Draw a batch; also return the logarithms of its weights before their division."""
    draw, view_key = planned(state, key, beta, step, batch_size, view, count)
    # Some samplers read their index for the probabilities alone.
    reads = (draw.probability,)
    batch = gather(state, draw.slots, draw.mask, view, view_key, reads)
    return weighted(recorded(state, batch), draw), draw.log_weight


def planned(
    state: State[Any],
    key: Any,
    beta: Any,
    step: Any,
    batch_size: int,
    view: View,
    count: Any = None,
) -> tuple[Draw, Any]:
    """Plan the draws of a batch, before any row is read; also return the key of the view."""
    if step is not None:
        step = place_in_epoch(state.sampler.epoch_size(state.index, state.ring), step, batch_size)
    draw = state.sampler.draw(state.index, state.ring, Ask(key, batch_size, beta, step))
    if count is not None:
        draw = _shortened(draw, count, state.sampler.weighs_by_batch)
    return draw, random_bits.fold_in(key, 1) if view.is_random else None


def weighted(batch: Batch[Any], draw: Draw) -> Sample[Any]:
    """Return a batch with the probabilities and weights of its draws."""
    return Sample(
        data=batch.data,
        ids=batch.ids,
        mask=batch.mask,
        terminated=batch.terminated,
        truncated=batch.truncated,
        probability=draw.probability,
        weight=jnp.where(batch.mask, draw.weight, 0),
    )


def _shortened(draw: Draw, count: jax.Array, by_batch: bool) -> Draw:
    """Keep the first `count` draws, with the weights of a batch of that size."""
    mask = draw.mask & (jnp.arange(draw.mask.shape[0], dtype=jnp.int32) < count)
    weight = draw.weight
    if by_batch:
        weight = weights.renormalised(draw.log_weight, mask)
    return dataclasses.replace(
        draw, mask=mask, weight=weight, probability=jnp.where(mask, draw.probability, 0)
    )
