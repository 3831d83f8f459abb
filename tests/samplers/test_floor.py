"""The floor of priorities, and the losses that go with it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import inside

import fbuf
from fbuf.checkpoint import config

LAP = fbuf.Prioritized(alpha=0.5, beta=0.0, eps=0.0, floor=1.0)
ERRORS = jnp.array([0.0, 0.5, 1.0, 4.0, 9.0])


def filled(sampler, **options):
    state = fbuf.init(jnp.int32(0), 8, sampler=sampler, **options)
    return fbuf.add(state, jnp.arange(5, dtype=jnp.int32), priority=ERRORS)


def stored(state):
    return inside.values(inside.priority_tree(state.index))


def test_a_smaller_priority_counts_as_the_floor():
    state = filled(LAP)
    np.testing.assert_allclose(stored(state)[:5], [1, 1, 1, 2, 3], rtol=1e-6)
    state = fbuf.update_priority(state, fbuf.newest_ids(state, 5), ERRORS[::-1])
    np.testing.assert_allclose(stored(state)[:5], [3, 2, 1, 1, 1], rtol=1e-6)
    assert int(state.fault) == 0


@pytest.mark.parametrize(
    ("eps", "expected"), [(0.25, [1, 1, 1.25, 4.25, 9.25]), (2.0, [2, 2.5, 3, 6, 11])]
)
def test_eps_is_added_first(eps, expected):
    state = filled(fbuf.Prioritized(1.0, eps=eps, floor=1.0))
    np.testing.assert_allclose(stored(state)[:5], expected, rtol=1e-6)


def test_a_removed_row_has_no_floor():
    state = filled(LAP)
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.int32([0, 3])))
    np.testing.assert_allclose(stored(state)[:5], [0, 1, 1, 0, 3], rtol=1e-6)
    assert set(fbuf.sample(state, jax.random.key(0), 200).data.tolist()) == {1, 2, 4}


def test_a_bad_priority_gets_no_floor():
    bad = jnp.array([jnp.nan, -1.0, jnp.inf])
    state = fbuf.update_priority(filled(LAP), fbuf.newest_ids(filled(LAP), 3), bad)
    assert int(state.fault) == fbuf.Fault.BAD_PRIORITY
    np.testing.assert_allclose(stored(state)[:5], [1, 1, 1, 2, 3], rtol=1e-6)


@pytest.mark.first(2)
@pytest.mark.parametrize(("floor", "first"), [(0.0, 1), (0.25, 1), (1.0, 1), (16.0, 4)])
@pytest.mark.parametrize("ever", [False, True])
def test_the_first_rows_are_not_below_the_floor(floor, first, ever):
    new = "largest_ever" if ever else "largest"
    sampler = fbuf.Prioritized(0.5, eps=0.0, floor=floor, new_priority=new)
    state = fbuf.init(jnp.int32(0), 8, sampler=fbuf.Mixture(priorities=sampler))
    assert float(fbuf.stats(state)["new_priority"]) == first
    state = fbuf.add(state, jnp.arange(2, dtype=jnp.int32))
    np.testing.assert_allclose(stored(state)[:2], first, rtol=1e-6)
    bad = fbuf.add(state, jnp.int32(0), priority=jnp.nan, donate=False)
    np.testing.assert_allclose(stored(bad)[2], first, rtol=1e-6)
    state = fbuf.update_priority(state, fbuf.newest_ids(state, 2), jnp.array([36.0, 1.0]))
    assert float(fbuf.stats(state)["new_priority"]) == pytest.approx(6)


def test_with_a_floor_there_is_always_something_to_draw():
    """A row of priority 0 has the floor: no fault says that there is nothing to draw."""
    nothing = fbuf.Prioritized(eps=0.0)
    for sampler, fault in ((LAP, 0), (nothing, fbuf.Fault.NOTHING_TO_DRAW)):
        assert sampler.may_draw_nothing == bool(fault)
        state = fbuf.init(jnp.int32(0), 4, sampler=sampler)
        for _ in range(3):
            state = fbuf.add(state, jnp.zeros(4, jnp.int32), priority=jnp.zeros(4))
        assert int(state.fault) == fault
        assert bool(fbuf.can_sample(state)) == (fault == 0)


@pytest.mark.first(1)
@pytest.mark.parametrize("move", ["resize", "extend", "mixture"])
def test_stored_priorities_are_taken_over_if_the_floor_is_the_same(move):
    wrap = (lambda s: fbuf.Mixture(priorities=s)) if move == "mixture" else (lambda s: s)
    state = filled(wrap(LAP))
    others = [wrap(fbuf.Prioritized(0.5, eps=0.0, floor=floor)) for floor in (1.0, 0.5, 0.0)]
    if move == "resize":
        np.testing.assert_allclose(stored(fbuf.resize(state, 6))[:5], stored(state)[:5])
        return
    same, less, none = [stored(fbuf.extend(fbuf.init(jnp.int32(0), 8, sampler=s), state))[:5]
                        for s in others]  # fmt: skip
    np.testing.assert_allclose(same, [1, 1, 1, 2, 3], rtol=1e-6)
    np.testing.assert_array_equal(less, 1)
    np.testing.assert_array_equal(none, 1)


def test_a_floor_is_saved(tmp_path):
    state = fbuf.save(tmp_path, filled(LAP))
    found = fbuf.load(tmp_path).state
    assert found.sampler == LAP
    np.testing.assert_array_equal(stored(found), stored(state))
    with pytest.raises(fbuf.CheckpointError, match=r"floor=1\.0, and sampler has 0\.0"):
        fbuf.load(tmp_path, sampler=fbuf.Prioritized(0.5, beta=0.0, eps=0.0))
    assert config.sampler_of(config.sampler_data(LAP)) == LAP


def test_pal_has_the_expected_gradient_of_lap():
    """The two losses of `docs/know/priorities.md`."""
    state = filled(LAP)
    likely = fbuf.probability(state, fbuf.newest_ids(state, 5))
    huber = lambda error: jnp.where(jnp.abs(error) < 1, error**2 / 2, jnp.abs(error))
    by_priority = likely * jax.vmap(jax.grad(huber))(ERRORS)

    def pal(error):
        size = jnp.abs(error)
        loss = jnp.where(size < 1, error**2 / 2, size**1.5 / 1.5)
        return loss.mean() / jax.lax.stop_gradient(jnp.maximum(size, 1) ** 0.5).mean()

    np.testing.assert_allclose(jax.grad(pal)(ERRORS), by_priority, rtol=1e-5)
    assert fbuf.sample(state, jax.random.key(0), 8).weight.tolist() == [1.0] * 8
