"""One priority for a sequence, of those of its steps."""

from __future__ import annotations

import functools
from typing import Any

import chex
import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf import _check


def sequence_priority(
    priority: chex.Array, learn: chex.Array, *, eta: chex.Array | float = 0.9
) -> jax.Array:
    """Reduce priorities given per step to one for the sequence: `eta * max + (1 - eta) * mean`.

    The mean alone would hide one large error among many small ones, the largest alone would draw
    a sequence for a single step of it.

    Args:
        priority: Real `[..., T]`, at least 0: the magnitude of the error at each step.
        learn: bool `[..., T]`; the steps that count, such as `learn` of `fbuf.SequenceSteps`. The
            others may hold anything, also NaN.
        eta: From 0 (the mean) to 1 (the largest). May be a traced scalar, which is not checked.

    Returns:
        float32 `[...]`, for `fbuf.update_priority`. It is 0 where there is no step to learn from,
        and NaN where a step to learn from has a priority that is NaN or negative: such an entry is
        skipped by `fbuf.update_priority`, which reports BAD_PRIORITY.

    Raises:
        ValueError: When traced, if the shapes differ or have no axis of steps, or if `eta` is not
            one number from 0 to 1.
        TypeError: When traced, if `priority` is not real, `learn` is not bool, or `eta` is not a
            number.

    Cost: O(B T).

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> error = jnp.array([[9.0, 1.0, 3.0], [9.0, 2.0, 0.0]])
        >>> learn = jnp.array([[False, True, True], [False, True, False]])
        >>> fbuf.sequence_priority(error, learn, eta=0.5)
        Array([2.5, 2. ], dtype=float32)

    References:
        Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning,
        ICLR 2019.
    """
    _check.no_list("sequence_priority", "learn", learn)
    steps = jnp.shape(learn)
    if not steps:
        raise ValueError(
            "fbuf.sequence_priority: learn must be of shape [..., T], a bool for each step, got a "
            "scalar"
        )
    if jnp.result_type(learn) != jnp.bool_:
        raise TypeError(
            f"fbuf.sequence_priority: learn must be bool, got {jnp.result_type(learn)} of shape "
            f"{steps}; cast it with .astype(bool)"
        )
    priority = _check.priorities("sequence_priority", priority, steps, "learn")
    return _reduced(priority, jnp.asarray(learn), _share(eta))


def _share(eta: Any) -> jax.Array:
    """A number from 0 to 1 as float32, or a traced one, which nobody can look at."""
    if isinstance(eta, bool) or not isinstance(
        eta, int | float | np.ndarray | np.generic | jax.Array
    ):
        raise TypeError(
            f"fbuf.sequence_priority: eta must be a number or a scalar array, got {eta!r}"
        )
    dtype = jnp.result_type(eta)
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    if jnp.shape(eta) != () or not real:
        raise ValueError(
            f"fbuf.sequence_priority: eta must be one real number, got {dtype} of shape "
            f"{jnp.shape(eta)}; it holds for all sequences"
        )
    if not isinstance(eta, jax.core.Tracer) and not 0 <= float(eta) <= 1:
        raise ValueError(
            f"fbuf.sequence_priority: eta must be from 0 to 1, got {float(eta)}; 0.9 is usual"
        )
    return jnp.asarray(eta).astype(jnp.float32)


@functools.partial(jax.jit, inline=True)
def _reduced(priority: jax.Array, learn: jax.Array, eta: jax.Array) -> jax.Array:
    # A sign given by mistake would otherwise come out as a small priority, and nobody notice.
    priority = jnp.where(priority < 0, jnp.nan, priority)
    # Also the largest of none, or of what is not to count: no priority is below 0.
    priority = jnp.where(learn, priority, 0)
    count = jnp.maximum(learn.sum(axis=-1), 1).astype(jnp.float32)
    mean = priority.sum(axis=-1) / count
    return eta * priority.max(axis=-1, initial=0) + (1 - eta) * mean
