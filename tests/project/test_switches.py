"""A training with a buffer, under switches of JAX's own: see also `switches.py`."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

SAMPLERS = {
    "prioritized": fbuf.Prioritized(normalize="buffer"),
    "window": fbuf.Uniform(window=2),
    "stratified": fbuf.Prioritized(draws="stratified"),
    "mixture": fbuf.Mixture(0.5),
    "shuffled": fbuf.Shuffled(),
}
QUICK = [("prioritized", "strict")]
ITEM = {"x": jnp.zeros(2, jnp.float32), "reward": jnp.zeros((), jnp.float32)}
SWITCHES = {
    "strict": lambda: together(
        jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict")
    ),
    "infs": lambda: together(jax.disable_jit(), jax.debug_nans(True), jax.debug_infs(True)),
}


@contextlib.contextmanager
def together(*contexts: Any) -> Any:
    """All of some contexts."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def step(state: Any, key: Any) -> Any:
    """Add, draw, update and remove."""
    rows = jax.tree.map(lambda leaf: jnp.ones((3, *leaf.shape), leaf.dtype), ITEM)
    ends = jnp.array([False, True, False])
    state = fbuf.add(state, rows, next_observation=rows["x"], terminated=ends, donate=False)
    number = 0 if state.sampler.without_replacement else None
    batch = fbuf.sample(state, key, 4, step=number, view=fbuf.Transition())
    if state.sampler.keeps_priorities:
        state = fbuf.update_priority(state, batch.ids, jnp.zeros(4, jnp.float32), donate=False)
        state = fbuf.update_priority(state, batch.ids, jnp.ones(4, jnp.float32), donate=False)
    state = fbuf.end_episode(fbuf.remove(state, batch.ids, donate=False), donate=False)
    return state, batch, fbuf.stats(state, detailed=True)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sampler", "switch"),
    [
        pytest.param(sampler, switch, marks=() if (sampler, switch) in QUICK else pytest.mark.sweep)
        for sampler in SAMPLERS
        for switch in SWITCHES
    ],
)
def test_a_step_is_the_same(sampler: str, switch: str) -> None:
    state = fbuf.init(ITEM, 8, sampler=SAMPLERS[sampler], next_of="x")
    number = 0 if state.sampler.without_replacement else None
    key = jax.random.key(0)
    expected = step(state, key)
    if switch == "infs":
        jax.clear_caches()  # what is compiled is not looked into
    with SWITCHES[switch]():
        nothing = fbuf.sample(state, key, 4, step=number)
        found = step(state, key)
    assert not np.asarray(nothing.mask).any()
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5)


@pytest.mark.sweep
def test_other_functions_compute_no_infinity() -> None:
    """Every operation runs by itself here, and JAX looks at each result."""
    state = fbuf.init(ITEM, 8, sampler=fbuf.Uniform())
    rows = jax.tree.map(lambda leaf: jnp.ones((3, *leaf.shape), leaf.dtype), ITEM)
    full, key = fbuf.add(state, rows, donate=False), jax.random.key(0)
    with SWITCHES["infs"]():
        mixed = fbuf.sample_mixed([(state, 0.5), (full, 0.5)], key, 4)
        priority = fbuf.sequence_priority(jnp.ones((2, 3)), jnp.ones((2, 3), bool))
        thin = fbuf.thin(mixed.sample, key, 2, jnp.ones(4))
    np.testing.assert_array_equal(mixed.sample.weight, [0, 0, 1, 1])
    np.testing.assert_allclose(priority, [1, 1])
    np.testing.assert_array_equal(thin.weight, [1, 1])
