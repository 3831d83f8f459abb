"""V-trace: values and advantages of a policy from steps of another policy."""

from __future__ import annotations

import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.dispatch.call import operation
from fbuf.targets.backward import backward, shifted
from fbuf.targets.ratio import ratio
from fbuf.targets.results import Advantages
from fbuf.targets.steps import CHECKS, Layout, Steps, bound


@operation(
    state_type=None,
    prefix="targets.",
    checks={**CHECKS, "rho_bar": bound, "c_bar": bound},
)
def vtrace(
    batch: Steps,
    reward: Array,
    value: Array,
    next_value: Array | None = None,
    *,
    log_prob: Array,
    behavior_log_prob: Array,
    gamma: Array | float,
    lambda_: Array | float = 1.0,
    rho_bar: Array | float = 1.0,
    c_bar: Array | float = 1.0,
) -> Advantages:
    """Return V-trace targets and advantages for the steps of an older policy.

    With `rho = min(rho_bar, ratio)`, `c = lambda_ * min(c_bar, ratio)` and `delta[t]` as for
    `fbuf.targets.gae`, the error is `e[t] = rho[t] * delta[t] + gamma * c[t] * e[t + 1]`. The sum
    stops, and bootstraps, as that of `fbuf.targets.lambda_returns`.

    Args:
        batch: As for `fbuf.targets.lambda_returns`.
        reward: As for `fbuf.targets.lambda_returns`.
        value: As for `fbuf.targets.lambda_returns`.
        next_value: As for `fbuf.targets.lambda_returns`.
        log_prob: Real, like `reward`: the logarithm of the learner's probability, or density, of
            each action.
        behavior_log_prob: Real, like `reward`: that of the policy that took the action. Store it
            with the row.
        gamma: As for `fbuf.targets.lambda_returns`.
        lambda_: As for `fbuf.targets.lambda_returns`.
        rho_bar: The largest weight of a step's own error, at least 0; one number.
        c_bar: The largest weight of later errors, at least 0; one number.

    Returns:
        Targets of values, `value + e`. Advantages for the policy gradient, which have their weight
        in them: `rho[t] * (r[t] + gamma * (v[t + 1] + lambda_ * e[t + 1]) - v[t])`. And a mask of
        the steps for the loss.

    Raises:
        ValueError: As `fbuf.targets.lambda_returns`; also if `rho_bar` or `c_bar` is negative.
        TypeError: As `fbuf.targets.lambda_returns`.

    Cost: O(B T), in a loop over steps.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init({"reward": 0.0, "log_prob": 0.0}, capacity=2, sampler=fbuf.Fifo())
        >>> rows = {"reward": jnp.ones(2), "log_prob": jnp.log(jnp.array([0.5, 0.5]))}
        >>> state = fbuf.add(state, rows, terminated=jnp.array([False, True]))
        >>> state, batch = fbuf.pop(state, 2)
        >>> found = fbuf.targets.vtrace(
        ...     batch, batch.data["reward"], jnp.zeros(2), gamma=1.0,
        ...     log_prob=jnp.log(jnp.array([0.9, 0.25])),
        ...     behavior_log_prob=batch.data["log_prob"],
        ... )
        >>> [round(float(target), 3) for target in found.target]
        [1.5, 0.5]

    References:
        Espeholt et al., IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
        Architectures, arXiv:1802.01561.
    """
    layout = Layout("targets.vtrace", batch)
    path = layout.path(reward, value, next_value, gamma, lambda_)
    likelier = ratio(layout, path.known, log_prob, behavior_log_prob)
    rho = jnp.minimum(likelier, jnp.asarray(rho_bar).astype(jnp.float32))
    later = jnp.where(path.linked, path.gamma * path.lambda_, 0)
    kept = later * jnp.minimum(likelier, jnp.asarray(c_bar).astype(jnp.float32))
    surprise = path.surprise(path.value)
    error = backward(rho * surprise, kept)
    gained = surprise + jnp.where(path.linked, later * shifted(error), 0)
    return Advantages(
        layout.back(rho * gained), layout.back(path.value + error), layout.back(path.learn)
    )
