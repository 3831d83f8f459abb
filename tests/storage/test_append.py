"""The order in which an add computes: what keeps it on one thread, and in one program for seeds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import partial_eval

import fbuf


@pytest.mark.parametrize("steps", [1, 3])
def test_the_cursor_waits_for_the_flags_of_the_slots(steps):
    """Else more than eight things are ready at once, and XLA wakes other threads on CPU."""
    state = fbuf.init(jnp.float32(0), 20, num_envs=2, sampler=fbuf.Prioritized())
    leaves, tree = jax.tree.flatten(state)
    flags = next(i for i, leaf in enumerate(leaves) if leaf is state.ring.flags)
    add = lambda *leaves: fbuf.add(tree.unflatten(leaves), jnp.zeros((2, steps))).ring.cursor
    program = jax.make_jaxpr(add)(*leaves).jaxpr
    _, read = partial_eval.dce_jaxpr(program, [True])
    assert read[flags]


def test_under_vmap_the_cursor_is_one_for_all_seeds():
    """Ends of episodes differ from seed to seed; how many rows there are does not."""

    def run(key):
        state = fbuf.init(jnp.float32(0), 4, sampler=fbuf.Prioritized())
        for part in jax.random.split(key, 6):
            ends = jax.random.bernoulli(part)
            state = fbuf.add(state, jax.random.uniform(part), terminated=ends)
        return state.ring.cursor

    keys = jax.random.split(jax.random.key(0), 3)
    cursor = jax.vmap(run, out_axes=None)(keys)  # refused if the cursors might differ
    assert cursor[:3, 0].tolist() == [2, 1, 4]
