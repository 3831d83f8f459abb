"""Making one priority for a sequence from the priorities of its steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.dispatch.call import operation


def _share(function: str, argument: str, value: Any) -> Any:
    """Return a number from 0 to 1, or a traced number, which is not checked."""
    if value is None:
        raise TypeError(f"fbuf.{function}: {argument} must be a number, got None")
    return check.scalar(function, argument, value, 1)


@operation(state_type=None, checks={"eta": _share})
def sequence_priority(priority: Array, loss_mask: Array, *, eta: Array | float = 0.9) -> jax.Array:
    """Make one priority of a sequence from its steps: `eta * max + (1 - eta) * mean`.

    The mean alone would hide one large error among many small ones. The largest alone would draw a
    whole sequence for the sake of one step.

    Args:
        priority: Real `[..., T]`, at least 0: the size of the error at each step, without its sign.
        loss_mask: bool `[..., T]`: the steps that count, as in `fbuf.SequenceSteps`. The other
            steps may hold any value, also NaN.
        eta: From 0 (the mean) to 1 (the largest). A traced scalar is not checked.

    Returns:
        float32 `[...]`, for `fbuf.update_priority`. It is 0 where `loss_mask` is False throughout.
        It is NaN where a step that counts has a priority that is NaN or negative;
        `fbuf.update_priority` skips that entry, and reports BAD_PRIORITY.

    Raises:
        ValueError: When traced, if the shapes differ or have no axis of steps, or if `eta` is not
            one number from 0 to 1.
        TypeError: When traced, if `priority` is not real, `loss_mask` is not bool, or `eta` is
            not a number.

    Cost: O(B T).

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> error = jnp.array([[9.0, 1.0, 3.0], [9.0, 2.0, 0.0]])
        >>> loss_mask = jnp.array([[False, True, True], [False, True, False]])
        >>> fbuf.sequence_priority(error, loss_mask, eta=0.5)
        Array([2.5, 2. ], dtype=float32)

    References:
        Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning,
        ICLR 2019.
    """
    check.no_list("sequence_priority", "loss_mask", loss_mask)
    steps = jnp.shape(loss_mask)
    if not steps:
        raise ValueError(
            "fbuf.sequence_priority: loss_mask must have shape [..., T], a bool for each step, "
            "got a scalar"
        )
    if jnp.result_type(loss_mask) != jnp.bool_:
        raise TypeError(
            f"fbuf.sequence_priority: loss_mask must be bool, got {check.describe(loss_mask)}; "
            "cast it with .astype(bool)"
        )
    check.no_list("sequence_priority", "priority", priority)
    given = jnp.shape(priority)
    if given[:-1] == steps[:-1] and given and given[-1] < steps[-1]:
        raise ValueError(
            f"fbuf.sequence_priority: priority has {given[-1]} steps and loss_mask {steps[-1]}; "
            "take those steps of the mask that the errors are of, without the burn-in and the "
            "step behind the last: loss_mask[..., burn_in : burn_in + length]"
        )
    priority = parse.priorities("sequence_priority", priority, steps, "loss_mask")
    loss_mask, eta = jnp.asarray(loss_mask), jnp.asarray(eta).astype(jnp.float32)
    # A negative number, given by mistake, becomes NaN: it must not make a small priority silently.
    priority = jnp.where(priority < 0, jnp.sqrt(priority), priority)
    # Masked steps count as 0: no priority is below 0.
    priority = jnp.where(loss_mask, priority, 0)
    count = jnp.maximum(loss_mask.sum(axis=-1), 1).astype(jnp.float32)
    mean = priority.sum(axis=-1) / count
    return eta * priority.max(axis=-1, initial=0) + (1 - eta) * mean
