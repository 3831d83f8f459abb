"""Drawing a small batch from a large one, in proportion to errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from fbuf._arrays import Array, PRNGKey
from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.dispatch.call import operation
from fbuf.ops.sample import is_key
from fbuf.samplers.chance import random_bits
from fbuf.state import Sample
from fbuf.storage.ids import only
from fbuf.storage.masks import select
from fbuf.trees import sum_tree
from fbuf.views.protocol import Data
from fbuf.views.sequence import SequenceSteps
from fbuf.xla.explicit import on_automatic_axes

SampleT = TypeVar("SampleT", bound=Any)

_SMALLEST = 2.0**-64
"""Errors below this share of the largest one count as 0. Their weights could be infinite."""


def _is_sample(function: str, argument: str, value: Any) -> Any:
    """Return a sample of one buffer; refuse any other value."""
    if isinstance(value, Sample):
        return value
    name = type(value).__name__
    remedy = "give what fbuf.sample returns"
    if name == "ShardedSample":
        remedy = "over a mesh use fbuf.sharded.thin"
    elif name == "MixedSample":
        remedy = "thin a batch of each buffer, as fbuf.sample returns it"
    raise TypeError(f"fbuf.{function}: {argument} must be a fbuf.Sample, got {name}; {remedy}")


@operation(
    state_type=None,
    static=("count",),
    checks={"batch": _is_sample, "key": is_key, "count": check.integer},
    typed=("batch", "key"),
)
@on_automatic_axes
def thin(batch: Sample[Data], key: PRNGKey, count: int, error: Array) -> Sample[Data]:
    """Draw some rows of a large batch, with replacement, in proportion to their errors.

    This is large batch experience replay (LaBER). Draw a large batch, and compute the errors of
    today's network for all of it. Then learn from a few of its rows. A stored priority is as old as
    the last draw of its row; these errors are not.

    Args:
        batch: A batch of `B` rows, of any sampler and any view without `time_major`.
        key: A key of `jax.random`. Use a key once only.
        count: The number of rows to draw, a static int of at least 1. The paper draws a quarter
            of `B`.
        error: Real `[B]`, at least 0: how much the gradient of each row counts, as a rule the size
            of its TD error. It needs no power. For sequences see `fbuf.sequence_priority`.

    Returns:
        A batch of `count` rows, cut alike in all its parts. Let `n` rows of `batch` count, and `p`
        be the share of a row's error in their sum. Let `x` be a value of each row that is 0 where
        the error is.

        The `weight` is that of the row in `batch`, divided by `n * p`. The mean of `weight * x` is
        an unbiased estimate of the mean of `batch.weight * x` over the `n` rows. A weight may be
        above 1.

        The `probability` is that of the row in `batch`, times `n * p`. The mean of
        `x / probability` is an unbiased estimate of the sum of `x` over the buffer. It says how
        likely a row is to be drawn and to stay, and may be above 1.

        A row of error 0 counts in `n`, and is never drawn; an error below 2**-64 of the largest
        counts as 0. If all errors are 0, each row is as likely. A row whose `mask` is False does
        not count, nor does one whose error is negative, infinite or NaN. If no row counts, the
        result is masked, its weights are 0, and its ids name no row.

    Raises:
        ValueError: When traced, if `count` is below 1, or if `error` is not `[B]`. Also if a leaf
            of `data` does not begin with `B`, as with `time_major`. Also if there are as many rows
            as steps, and no `fbuf.SequenceSteps` in `data` says which come first.
        TypeError: If `key` is no key of `jax.random`. When traced, if `batch` is no `fbuf.Sample`,
            or if `error` is not real.

    Cost: O(B) for the errors, and O(count log B) for the draws, beside the copies of the rows.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=8), jnp.arange(4.0))
        >>> large = fbuf.sample(state, jax.random.key(0), 64)
        >>> small = fbuf.thin(large, jax.random.key(1), 4, error=large.data)
        >>> bool((small.data > 0).all()), small.ids.slot.shape
        (True, (4,))

    References:
        Lahire et al., Large Batch Experience Replay, ICML 2022, arXiv:2110.01528. These are the
        weights of its LaBER-mean.
    """
    size = batch.ids.slot.shape[0]
    check_axes("thin", batch, size)
    error = parse.priorities("thin", error, (size,), "batch.ids.slot", "error")
    rows = drawn_rows(error, batch.mask, key, count)
    cut = jax.tree.map(lambda leaf: jnp.take(leaf, rows.numbers, axis=0, mode="clip"), batch)
    return reweighed(dataclasses.replace(cut, ids=only(cut.ids, rows.mask)), rows)


class DrawnRows(NamedTuple):
    """Rows drawn from a batch.

    Attributes:
        numbers: int32 `[count]`; the place of each row in the batch.
        times: float32 `[count]`; `n * p`: above 1 for a row that is drawn more often than others.
        mask: bool `[count]`; False where no row counts.
    """

    numbers: jax.Array
    times: jax.Array
    mask: jax.Array


def drawn_rows(error: jax.Array, mask: jax.Array, key: jax.Array, count: int) -> DrawnRows:
    """Draw rows of a batch in proportion to their errors; rows outside `mask` do not count."""
    counts = mask & (error >= 0) & (error <= float(jnp.finfo(jnp.float32).max))
    numbers, share = _drawn(jnp.where(counts, error, 0), counts, key, count)
    there = jnp.broadcast_to(share.max() > 0, (count,))
    of_all = jnp.sum(counts, dtype=jnp.int32).astype(jnp.float32)
    return DrawnRows(numbers, jnp.where(there, share * of_all, 1), there)


def reweighed(cut: SampleT, rows: DrawnRows) -> SampleT:
    """Return the drawn rows of a batch with their weights; masked rows lose their ids."""
    mask = rows.mask
    parts: dict[str, Any] = {
        "mask": mask,
        "terminated": select(mask, cut.terminated),
        "truncated": select(mask, cut.truncated),
        "probability": jnp.where(mask, cut.probability * rows.times, 0),
        "weight": jnp.where(mask, cut.weight / rows.times, 0),
    }
    return dataclasses.replace(cut, **parts)


def _drawn(
    error: jax.Array, counts: jax.Array, key: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Draw rows in proportion to their errors, uniformly where all are 0.

    Returns:
        The rows, int32 `[count]`, and the share of each in the sum; 0 where no row counts.
    """
    value = error * _scale(error.max())
    value = jnp.where(value >= _SMALLEST, value, 0)
    value = jnp.where(value.max() > 0, value, counts.astype(jnp.float32))
    tree = sum_tree.of(value)
    total = sum_tree.total(tree)
    uniforms = random_bits.uniforms_of_rows(key, sum_tree.picks(tree), count, total)
    rows, drawn = sum_tree.draw(tree, uniforms)
    return rows, jnp.where(total > 0, drawn / jnp.where(total > 0, total, 1), 0)


def _scale(largest: jax.Array) -> jax.Array:
    """Return the power of two that scales a number to about 1, so that sums cannot overflow."""
    exponent = jax.lax.bitcast_convert_type(largest, jnp.int32) >> 23
    return jax.lax.bitcast_convert_type(jnp.clip(254 - exponent, 1, 254) << 23, jnp.float32)


def check_axes(function: str, batch: Any, size: int) -> None:
    """Refuse a batch whose rows do not come first."""
    if jnp.shape(batch.terminated) == (size, size):
        is_steps: Callable[[Any], bool] = lambda part: isinstance(part, SequenceSteps)
        parts = jax.tree.leaves(batch.data, is_leaf=is_steps)
        time_first = {part.time_major for part in parts if isinstance(part, SequenceSteps)}
        if True in time_first:
            raise ValueError(
                f"fbuf.{function}: batch has time first, [T, B, ...], and not its rows; leave "
                "time_major out of the view, and swap the axes of the result"
            )
        if not time_first:
            raise ValueError(
                f"fbuf.{function}: batch has {size} rows of {size} steps, and its data is no "
                "fbuf.SequenceSteps, so nothing says which of the two comes first; draw another "
                "number of rows, or change data after thinning"
            )
    for path, leaf in jax.tree.leaves_with_path(batch):
        if jnp.shape(leaf)[:1] != (size,):
            raise ValueError(
                f"fbuf.{function}: batch{jax.tree_util.keystr(path)} is of shape {jnp.shape(leaf)},"
                f" and not [{size}, ...], like ids; leave time_major out of the view, and turn "
                "what comes out"
            )
