"""Importance weights of prioritised draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import programs

import fbuf

PRIORITIES = np.array([1e-30, 3e-4, 1.0, 2.0, 7.0, 1e30], np.float32)


@jax.jit
def both(state, keys, beta):
    """Batches weighed by the sampler's own exponent, and by one that is traced."""
    draw = lambda beta: jax.vmap(lambda key: fbuf.sample(state, key, 64, beta=beta))(keys)
    return draw(None), draw(beta)


@pytest.mark.sweep
@pytest.mark.parametrize("normalize", ["batch", "buffer"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 0.5, 1.0])
def test_weights_are_relative_probabilities_raised(beta, normalize):
    """With a static exponent, some of which need no logarithm, and with a traced one."""
    sampler = fbuf.Prioritized(alpha=1.0, beta=beta, eps=0.0, normalize=normalize)
    state = fbuf.init(jnp.int32(0), 8, sampler=sampler)
    keys = jax.random.split(jax.random.key(0), 20)
    for sample in both(state, keys, beta):
        assert not np.asarray(sample.weight).any()
    for priorities in (PRIORITIES[1:5], PRIORITIES):
        state = fbuf.init(jnp.int32(0), 8, sampler=sampler)
        count = np.arange(6) < len(priorities)
        rows, given = jnp.arange(6), np.resize(priorities, 6)
        state = programs.add(state, rows, priority=given, mask=count)
        for sample in both(state, keys, beta):
            drawn = priorities[np.asarray(sample.data)].astype(np.float64)
            least = drawn.min(1, keepdims=True) if normalize == "batch" else priorities.min()
            np.testing.assert_allclose(
                sample.weight, (least / drawn) ** beta, rtol=2e-5, atol=1e-38
            )


@pytest.mark.sweep
@pytest.mark.parametrize(("beta", "expected"), [(0.4, True), (0.5, False)])
def test_some_exponents_need_no_logarithm(beta, expected):
    state = fbuf.init(jnp.int32(0), 8, sampler=fbuf.Prioritized(beta=beta))
    draw = jax.jit(lambda state, key: fbuf.sample(state, key, 4))
    program = programs.built(draw, state, jax.random.key(0))
    assert (" log(" in program.as_text()) == expected
