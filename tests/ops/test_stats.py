"""Figures for a log."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

STATS = jax.jit(fbuf.stats, static_argnames="detailed")


def figures(state, **options):
    return {name: float(figure) for name, figure in STATS(state, **options).items()}


@pytest.mark.sweep
def test_fill_age_and_bytes():
    state = fbuf.init({"x": jnp.zeros((3, 5)), "y": jnp.int32(0)}, 12, num_envs=3)
    step = {"x": jnp.zeros((3, 3, 3, 5)), "y": jnp.zeros((3, 3), jnp.int32)}
    nothing = figures(state)
    assert (nothing["fill"], nothing["oldest"]) == (0, 0)
    state = fbuf.add(state, step)
    some = figures(state)
    assert (some["fill"], some["oldest"], some["size"]) == (0.75, 3, 9)
    state = fbuf.add(state, step)
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([4])))
    full = figures(state)
    assert (full["fill"], full["oldest"], full["size"], full["removed"]) == (1, 4, 11, 1)
    expected = fbuf.nbytes({"x": jnp.zeros((3, 5)), "y": jnp.int32(0)}, 12, num_envs=3)
    assert full["bytes"] == expected == sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def test_environments_apart_have_ages_of_their_own():
    state = fbuf.init(jnp.int32(0), 8, num_envs=2, lockstep=False)
    for stepped in ([True, False], [True, True], [True, False]):
        state = fbuf.add(state, jnp.zeros(2, jnp.int32), mask=jnp.array(stepped))
    assert (figures(state)["oldest"], figures(state)["fill"]) == (3, 0.5)


@pytest.mark.sweep
def test_ends_are_those_of_rows_that_are_there():
    state = fbuf.init(jnp.int32(0), 6)
    rows = jnp.arange(9, dtype=jnp.int32)
    state = fbuf.add(state, rows, terminated=rows % 2 == 0, truncated=rows == 7)
    assert figures(state, detailed=True)["ends"] == 4  # of rows 3 to 8 these: 4, 6, 7, 8
    state = fbuf.remove(state, fbuf.newest_ids(state, 1))
    assert figures(state, detailed=True)["ends"] == 3
    assert figures(fbuf.clear(state), detailed=True)["ends"] == 0


@pytest.mark.sweep
@pytest.mark.parametrize(
    "sampler",
    [
        *(
            pytest.param(sampler, marks=pytest.mark.sweep)
            for sampler in (
                fbuf.Uniform(),
                fbuf.Uniform(window=2),
                fbuf.Prioritized(alpha=1.0, eps=0.0),
            )
        ),
        fbuf.Prioritized(alpha=1.0, eps=0.0, window=2),
    ],
)
def test_effective_sample_size(sampler):
    state = fbuf.init(jnp.int32(0), 8, sampler=sampler)
    assert figures(state, detailed=True)["effective_sample_size"] == 0
    priority = np.array([1.0, 2.0, 0.5, 4.0, 3.0, 1.0])
    given = {"priority": jnp.asarray(priority, jnp.float32)} if sampler.keeps_priorities else {}
    state = fbuf.add(state, jnp.arange(6, dtype=jnp.int32), **given)
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([1])))
    likely = priority if sampler.keeps_priorities else np.ones(6)
    likely = np.where(np.arange(6) == 1, 0, likely)
    if sampler.window == 2:  # the last row has no following one, nor has the one before the gap
        likely[[0, 5]] = 0
    expected = likely.sum() ** 2 / (likely**2).sum()
    found = figures(state, detailed=True)["effective_sample_size"]
    assert found == pytest.approx(expected, rel=1e-5)
