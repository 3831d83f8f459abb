"""The ratio of two policies' probabilities of an action."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf.targets.steps import Layout


def ratio(layout: Layout, known: jax.Array, log_prob: Any, behavior_log_prob: Any) -> jax.Array:
    """Return the ratio at each step, time first; 0 where the step's target is not known."""
    by_learner = layout.numbers("log_prob", log_prob)
    by_actor = layout.numbers("behavior_log_prob", behavior_log_prob)
    return jnp.where(known, jnp.exp(by_learner - by_actor), 0)
