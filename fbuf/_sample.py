"""Drawing a batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from fbuf import _check, _order, _ring
from fbuf._eager import Compiled
from fbuf._state import Sample, State
from fbuf.views._protocol import View
from fbuf.views.item import Item


def sample(
    state: State[Any],
    key: chex.PRNGKey,
    batch_size: int,
    *,
    view: View = Item(),
    beta: chex.Array | float | None = None,
    step: chex.Array | int | None = None,
) -> Sample[Any]:
    """Draw a batch; the state does not change.

    The same state and key give the same batch, under `jit` or not and on any number of devices.

    Args:
        state: The buffer; never consumed.
        key: A key of `jax.random`; consumed, so do not use it again.
        batch_size: `B`, a static int of at least 1; it may be larger than the capacity.
        view: What each drawn row is turned into; static.
        beta: At least 0, may be traced; used for the importance weights instead of the sampler's.
        step: For `fbuf.Shuffled`: which batch to draw, counted from 0; may be traced.

    Returns:
        The batch. From a buffer with nothing to draw (see `fbuf.can_sample`) it comes back with
        `mask` all False, weights 0 and ids that name no row, so that it is safe to learn from
        weighted by `weight`, and to hand its ids to `update_priority`.

    Raises:
        ValueError: When traced, if `batch_size` or `beta` is out of range.
        TypeError: When traced, if `batch_size` is not a Python int.
        RuntimeError: If `state` has been consumed.

    Cost: uniform O(B), prioritised O(B log N), and the gather of B rows.

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
    batch_size = _check.positive_int("sample", "batch_size", batch_size, 2**31 - 1)
    _check.key("sample", key)
    _check.view("sample", view)
    beta = _check.exponent("sample", "beta", beta)
    step = _check.step("sample", step)
    return _sample(False, state, key, beta, step, batch_size=batch_size, view=view)


def _draw(
    state: State[Any], key: Any, beta: Any, step: Any, *, batch_size: int, view: View
) -> Sample[Any]:
    _check.one_buffer("sample", state)
    return drawn(state, key, beta, step, batch_size, view)[0]


def drawn(
    state: State[Any], key: Any, beta: Any, step: Any, batch_size: int, view: View
) -> tuple[Sample[Any], jax.Array]:
    """A batch, and the logarithms of its weights before they were divided by the largest."""
    draw = state.sampler.draw(state.index, state.ring, key, batch_size, beta, step)
    reading = view.read(state, draw.slots, jax.random.fold_in(key, 1))
    there, weight = draw.mask, draw.weight
    if reading.known is not None:
        there &= reading.known
        weight = jnp.where(there, weight, 0)
    ids = _ring.name(state.ring, draw.slots, there)
    # Whoever changes these rows must name them: by then they have been read, and so can be
    # written in place.
    impossible = (reading.flags == 255).reshape(batch_size, -1).any(axis=1)
    if reading.others is not None:
        impossible |= (reading.others == 255).reshape(batch_size, -1).any(axis=1)
    for leaf in jax.tree.leaves(reading.data):
        impossible |= _order.never(leaf)
    mask = there.reshape(batch_size, *(1,) * (reading.flags.ndim - 1))
    sample = Sample(
        data=reading.data,
        ids=dataclasses.replace(ids, slot=_order.after(ids.slot, impossible)),
        probability=draw.probability,
        weight=weight,
        mask=there,
        terminated=mask & (reading.flags & _ring.TERMINATED > 0),
        truncated=mask & (reading.flags & _ring.TRUNCATED > 0),
    )
    return sample, draw.log_weight


_sample = Compiled("sample", _draw, static=("batch_size", "view"))
