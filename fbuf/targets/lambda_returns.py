"""Lambda returns: targets of values that mix the returns of all numbers of steps."""

from __future__ import annotations

import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.dispatch.call import operation
from fbuf.targets.backward import backward
from fbuf.targets.results import Targets
from fbuf.targets.steps import CHECKS, Layout, Steps


@operation(state_type=None, prefix="targets.", checks=CHECKS)
def lambda_returns(
    batch: Steps,
    reward: Array,
    value: Array,
    next_value: Array | None = None,
    *,
    gamma: Array | float,
    lambda_: Array | float,
) -> Targets:
    """Return `G[t] = r[t] + gamma * ((1 - lambda_) * v[t + 1] + lambda_ * G[t + 1])` at each step.

    The sum stops at the end of an episode, before a removed row, and behind the last step. There it
    bootstraps from the value of the next observation, which is 0 after a termination.

    Args:
        batch: The steps: a sample of `fbuf.Sequence` in either layout, or rows of `fbuf.rollout` or
            `fbuf.pop`. It says which steps there are, and where episodes end.
        reward: Real, in the shape of `batch.terminated`: the reward of each step, scaled or clipped
            as you like.
        value: Real, like `reward`: the critic's value of each step's observation.
        next_value: Real, like `reward`: the critic's value of the next observation of each step. It
            counts only where no step of the episode follows in the batch: at a truncation, before a
            removed row, and at the last step. Elsewhere it may hold any number. With None the
            target of such a step is not known: `mask` is False there. The step before it bootstraps
            from the step's `value`.
        gamma: The discount, from 0 to 1: a number, or one for each step like `reward`. Traced
            numbers and arrays are not checked.
        lambda_: The share of later steps, like `gamma`: 0 is one step, 1 the whole return.

    Returns:
        Targets, and a mask of the steps for the loss. Burn-in steps have a target and count in
        earlier ones, but `mask` is False there. Values of missing steps may be NaN.

    Raises:
        ValueError: When traced, if an array has another shape, or if the batch has more than two
            axes. If `gamma` or `lambda_` is out of range.
        TypeError: If `batch` is not a batch of rows that follow one another, or if an array is not
            real.

    Cost: O(B T), in a loop over steps.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> item = {"observation": 0.0, "reward": 0.0}
        >>> state = fbuf.init(item, capacity=4, next_of="observation", max_ends=4)
        >>> rows = {"observation": jnp.array([0.0, 1.0, 0.0, 1.0]), "reward": jnp.ones(4)}
        >>> following = jnp.array([1.0, 2.0, 1.0, 2.0])
        >>> ends = jnp.array([False, True, False, False])
        >>> state = fbuf.add(state, rows, truncated=ends, next_observation=following)
        >>> batch = fbuf.rollout(state, view=fbuf.Transition())
        >>> critic = lambda observation: 10 * observation
        >>> fbuf.targets.lambda_returns(
        ...     batch, batch.data.item["reward"], critic(batch.data.item["observation"]),
        ...     critic(batch.data.next_observation), gamma=0.5, lambda_=1.0,
        ... ).target
        Array([ 6.5, 11. ,  6.5, 11. ], dtype=float32)

    References:
        Sutton, Learning to Predict by the Methods of Temporal Differences, Machine Learning 3,
        1988.
    """
    layout = Layout("targets.lambda_returns", batch)
    path = layout.path(reward, value, next_value, gamma, lambda_)
    kept = jnp.where(path.linked, path.lambda_, 0)
    own = path.reward + path.gamma * (1 - kept) * path.following
    target = backward(jnp.where(path.known, own, path.value), path.gamma * kept)
    return Targets(layout.back(target), layout.back(path.learn))
