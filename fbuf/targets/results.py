"""The results of the functions: targets, advantages, and their masks."""

from __future__ import annotations

import jax

from fbuf._pytree import pytree
from fbuf.storage import shown


@pytree
class Targets:
    """Targets of values, in the layout of the batch. No gradient flows through them.

    Attributes:
        target: float32, one for each step. Where the target is not known, it is the step's own
            value: the error is 0 there.
        mask: bool: the steps for the loss. Their target is known, and they are in the `loss_mask`
            of a sequence, or in the `mask` of a rollout.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init({"reward": 0.0}, capacity=3), {"reward": jnp.ones(3)})
        >>> batch = fbuf.rollout(state)
        >>> found = fbuf.targets.lambda_returns(
        ...     batch, batch.data["reward"], jnp.array([5.0, 6.0, 7.0]), gamma=0.5, lambda_=1.0
        ... )
        >>> found.target, found.mask
        (Array([3.25, 4.5 , 7.  ], dtype=float32), Array([ True,  True, False], dtype=bool))
    """

    __repr__ = shown.batch_repr

    target: jax.Array
    """float32, one for each step."""
    mask: jax.Array
    """bool: the steps for the loss."""


@pytree
class Advantages:
    """Advantages of actions, and targets of values. No gradient flows through them.

    Attributes:
        advantage: float32, one for each step, in the layout of the batch; 0 where not known.
        target: As in `fbuf.targets.Targets`.
        mask: As in `fbuf.targets.Targets`.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init({"reward": 0.0}, capacity=2), {"reward": jnp.ones(2)})
        >>> batch = fbuf.rollout(state)
        >>> found = fbuf.targets.gae(
        ...     batch, batch.data["reward"], jnp.array([5.0, 6.0]), gamma=0.5, lambda_=0.9
        ... )
        >>> found.advantage, found.mask
        (Array([-1.,  0.], dtype=float32), Array([ True, False], dtype=bool))
    """

    __repr__ = shown.batch_repr

    advantage: jax.Array
    """float32, one for each step, in the layout of the batch."""
    target: jax.Array
    """float32, one for each step, in the layout of the batch."""
    mask: jax.Array
    """bool: the steps for the loss."""
