"""Retrace: targets of action values from steps of another policy."""

from __future__ import annotations

import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.dispatch.call import operation
from fbuf.targets.backward import backward, shifted
from fbuf.targets.ratio import ratio
from fbuf.targets.results import Targets
from fbuf.targets.steps import CHECKS, Layout, Steps


@operation(state_type=None, prefix="targets.", checks=CHECKS)
def retrace(
    batch: Steps,
    reward: Array,
    value: Array,
    next_value: Array | None = None,
    *,
    q: Array,
    log_prob: Array,
    behavior_log_prob: Array,
    gamma: Array | float,
    lambda_: Array | float = 1.0,
) -> Targets:
    """Return Retrace targets for the action values of an older policy's actions.

    With `c = lambda_ * min(1, ratio)` the target is
    `G[t] = r[t] + gamma * (v[t + 1] + c[t + 1] * (G[t + 1] - q[t + 1]))`. The sum stops, and
    bootstraps, as that of `fbuf.targets.lambda_returns`.

    Args:
        batch: As for `fbuf.targets.lambda_returns`.
        reward: As for `fbuf.targets.lambda_returns`.
        value: Real, like `reward`: the mean of the action values of each step's observation, by the
            learner's policy. For discrete actions that is `(probability * all_q).sum(-1)`. For
            continuous ones take the action value of a drawn action.
        next_value: The same mean for the next observation, as for `fbuf.targets.lambda_returns`.
        q: Real, like `reward`: the action value of the action that was taken. As a rule it is of
            the target network, like `value`.
        log_prob: As for `fbuf.targets.vtrace`.
        behavior_log_prob: As for `fbuf.targets.vtrace`.
        gamma: As for `fbuf.targets.lambda_returns`.
        lambda_: As for `fbuf.targets.lambda_returns`.

    Returns:
        Targets of `q`, and a mask of the steps for the loss. An unknown target is `q`.

    Raises:
        ValueError: As `fbuf.targets.lambda_returns`.
        TypeError: As `fbuf.targets.lambda_returns`.

    Cost: O(B T), in a loop over steps.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> item = {"reward": 0.0, "log_prob": 0.0}
        >>> state = fbuf.init(item, capacity=4, sampler=fbuf.Uniform(window=3))
        >>> state = fbuf.add(state, {"reward": jnp.ones(3), "log_prob": jnp.zeros(3)})
        >>> view = fbuf.Sequence(2, bootstrap=1)
        >>> batch = fbuf.sample(state, jax.random.key(0), 1, view=view)
        >>> item, v = batch.data.item, jnp.array([[5.0, 6.0, 7.0]])
        >>> found = fbuf.targets.retrace(
        ...     batch, item["reward"], v, q=v + 1, log_prob=item["log_prob"],
        ...     behavior_log_prob=item["log_prob"], gamma=0.5,
        ... )
        >>> found.target, found.mask
        (Array([[2.75, 4.5 , 8.  ]], dtype=float32), Array([[ True,  True, False]], dtype=bool))

    References:
        Munos et al., Safe and Efficient Off-Policy Reinforcement Learning, arXiv:1606.02647.
    """
    layout = Layout("targets.retrace", batch)
    path = layout.path(reward, value, next_value, gamma, lambda_)
    taken = layout.numbers("q", q)
    kept = path.lambda_ * jnp.minimum(ratio(layout, path.known, log_prob, behavior_log_prob), 1)
    kept = jnp.where(path.linked, path.gamma * shifted(kept), 0)
    error = backward(path.surprise(taken), kept)
    return Targets(layout.back(taken + error), layout.back(path.learn))
