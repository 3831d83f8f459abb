"""Ids that name no row: whatever takes ids ignores them, in a branch and outside of one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import programs

import fbuf


def full():
    state = fbuf.init({"x": jnp.float32(0)}, 4, sampler=fbuf.Prioritized())
    return programs.add(state, {"x": jnp.arange(1.0, 5.0)})


def test_a_branch_that_draws_nothing_changes_nothing():
    def learn(state):
        batch = fbuf.sample(state, jax.random.key(0), 3)
        return batch.ids, 10 * batch.data["x"]

    def step(state, due):
        ids, error = jax.lax.cond(due, learn, lambda _: (fbuf.no_ids(3), jnp.ones(3)), state)
        return fbuf.update_priority(state, ids, error)

    state, step = full(), jax.jit(step)
    for due, same in ((False, True), (True, False)):
        for before, after in zip(*map(jax.tree.leaves, (state, step(state, due))), strict=True):
            same &= bool(np.array_equal(before, after))
        assert same is not due


def test_whatever_takes_ids_ignores_them():
    state, none = full(), fbuf.no_ids(2)
    assert none.slot.tolist() == [-1, -1]
    found = fbuf.read(state, none)
    assert not found.mask.any()
    assert not found.data["x"].any()
    assert fbuf.probability(state, none).tolist() == [0, 0]
    for changed in (
        fbuf.update_priority(state, none, jnp.ones(2), donate=False),
        fbuf.write(state, none, {"x": jnp.full(2, 9.0)}, donate=False),
        fbuf.remove(state, none, donate=False),
    ):
        assert int(fbuf.size(changed)) == 4
        assert fbuf.rows(changed).data["x"].tolist() == [1, 2, 3, 4]
        fbuf.raise_on_fault(changed)


@pytest.mark.parametrize(
    ("count", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_a_count_that_is_none_is_refused(count, error):
    with pytest.raises(error, match=r"fbuf\.no_ids: count must be"):
        fbuf.no_ids(count)


def test_a_traced_count_is_refused():
    with pytest.raises(TypeError, match="count is traced"):
        jax.jit(lambda count: fbuf.no_ids(count))(2)
