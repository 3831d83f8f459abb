"""Generalised advantage estimates, for policy gradients such as PPO."""

from __future__ import annotations

import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.dispatch.call import operation
from fbuf.targets.backward import backward
from fbuf.targets.results import Advantages
from fbuf.targets.steps import CHECKS, Layout, Steps


@operation(state_type=None, prefix="targets.", checks=CHECKS)
def gae(
    batch: Steps,
    reward: Array,
    value: Array,
    next_value: Array | None = None,
    *,
    gamma: Array | float,
    lambda_: Array | float,
) -> Advantages:
    """Return generalised advantages: `A[t] = delta[t] + gamma * lambda_ * A[t + 1]` at each step.

    `delta[t]` is `r[t] + gamma * v[t + 1] - v[t]`. The sum stops, and bootstraps, as that of
    `fbuf.targets.lambda_returns`.

    Args:
        batch: As for `fbuf.targets.lambda_returns`.
        reward: As for `fbuf.targets.lambda_returns`.
        value: As for `fbuf.targets.lambda_returns`.
        next_value: As for `fbuf.targets.lambda_returns`.
        gamma: As for `fbuf.targets.lambda_returns`.
        lambda_: As for `fbuf.targets.lambda_returns`.

    Returns:
        Advantages, not normalised; targets of values, which are `value + advantage`; and a mask of
        the steps for the loss.

    Raises:
        ValueError: As `fbuf.targets.lambda_returns`.
        TypeError: As `fbuf.targets.lambda_returns`.

    Cost: O(B T), in a loop over steps.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init({"reward": 0.0}, capacity=3)
        >>> ends = jnp.array([False, False, True])
        >>> state = fbuf.add(state, {"reward": jnp.ones(3)}, terminated=ends)
        >>> batch = fbuf.rollout(state)
        >>> found = fbuf.targets.gae(
        ...     batch, batch.data["reward"], jnp.zeros(3), gamma=0.5, lambda_=1.0
        ... )
        >>> found.advantage
        Array([1.75, 1.5 , 1.  ], dtype=float32)

    References:
        Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage
        Estimation, arXiv:1506.02438.
    """
    layout = Layout("targets.gae", batch)
    path = layout.path(reward, value, next_value, gamma, lambda_)
    kept = jnp.where(path.linked, path.gamma * path.lambda_, 0)
    advantage = backward(path.surprise(path.value), kept)
    return Advantages(
        layout.back(advantage), layout.back(path.value + advantage), layout.back(path.learn)
    )
