"""One priority for a sequence: equal to a loop over its steps, and bad ones do not pass."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf


def looped(priority, learn, eta):
    """The definition, in float64."""
    found = []
    for row, steps in zip(
        priority.reshape(-1, priority.shape[-1]), learn.reshape(-1, learn.shape[-1]), strict=True
    ):
        chosen = [float(p) for p, step in zip(row, steps, strict=True) if step]
        mean = sum(chosen) / len(chosen) if chosen else 0.0
        found.append(eta * max(chosen, default=0.0) + (1 - eta) * mean)
    return np.array(found).reshape(priority.shape[:-1])


def cases(shape):
    rng = np.random.default_rng(0)
    return rng.exponential(size=shape).astype(np.float32), rng.random(shape) < 0.4


@pytest.mark.parametrize("shape", [(7,), (1,), (40, 1), (40, 7), (3, 5, 7)])
@pytest.mark.parametrize("eta", [0, 0.3, 0.9, 1.0, np.float64(0.5)])
def test_equals_a_loop(shape, eta):
    priority, learn = cases(shape)
    expected = looped(priority, learn, float(eta))
    for way in (fbuf.sequence_priority, jax.jit(fbuf.sequence_priority)):
        got = way(jnp.asarray(priority), jnp.asarray(learn), eta=eta)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_under_vmap_and_with_a_traced_eta():
    priority, learn = cases((3, 5, 7))
    etas = jnp.array([0.0, 0.5, 1.0])
    got = jax.vmap(lambda p, s, e: fbuf.sequence_priority(p, s, eta=e))(priority, learn, etas)
    for row, eta in enumerate(etas):
        np.testing.assert_allclose(
            got[row], looped(priority[row], learn[row], float(eta)), rtol=1e-6
        )


def test_the_default_is_that_of_the_paper():
    got = fbuf.sequence_priority(jnp.array([1.0, 3.0]), jnp.ones(2, bool))
    np.testing.assert_allclose(got, 0.9 * 3 + 0.1 * 2, rtol=1e-6)


def test_no_step_to_learn_from():
    nothing = jnp.zeros((2, 3), bool)
    got = fbuf.sequence_priority(jnp.full((2, 3), jnp.nan), nothing)
    np.testing.assert_array_equal(got, [0, 0])
    np.testing.assert_array_equal(
        fbuf.sequence_priority(jnp.zeros((2, 0)), jnp.zeros((2, 0), bool)), [0, 0]
    )


@pytest.mark.on_cpu
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.float16, jnp.bfloat16])
def test_real_dtypes_become_float32_before_they_are_summed(dtype):
    # 300 steps of 200 are more than uint8 and float16 hold, and bfloat16 would round the sum.
    got = fbuf.sequence_priority(jnp.full(300, 200, dtype), jnp.ones(300, bool), eta=0.0)
    assert got.dtype == jnp.float32
    assert float(got) == 200


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("eta", [0.0, 0.9, 1.0])
def test_a_bad_priority_spoils_its_own_sequence_and_no_other(bad, eta):
    priority = jnp.array([[bad, 1.0, 2.0], [3.0, bad, 3.0], [3.0, 3.0, 3.0]])
    learn = jnp.array([[False, True, True], [True, True, False], [True, True, True]])
    got = fbuf.sequence_priority(priority, learn, eta=eta)
    np.testing.assert_allclose(got[0], eta * 2 + (1 - eta) * 1.5, rtol=1e-6)
    assert not np.isfinite(got[1])
    np.testing.assert_allclose(got[2], 3, rtol=1e-6)


@pytest.mark.sweep
def test_what_update_priority_makes_of_it():
    sampler = fbuf.Prioritized(alpha=1.0, eps=0.0)
    state = fbuf.init(jnp.int32(0), capacity=4, sampler=sampler)
    state = fbuf.add(state, jnp.arange(2, dtype=jnp.int32))
    view = fbuf.Sequence(length=2, boundary="pad")
    batch = fbuf.sample(state, jax.random.key(0), 32, view=view)
    # The second row has no step behind it; whatever lies there does not count.
    error = jnp.where(batch.data.item == 1, 3.0, jnp.where(batch.data.valid, 1.0, jnp.nan))
    good = fbuf.update_priority(
        state, batch.ids, fbuf.sequence_priority(error, batch.data.loss_mask, eta=0.5), donate=False
    )
    assert int(good.fault) == 0
    after = fbuf.sample(good, jax.random.key(1), 32, view=view)
    weight = np.where(after.data.item[:, 0] == 0, 0.5 * 3 + 0.5 * 2, 3.0)
    np.testing.assert_allclose(after.probability, weight / 5.5, rtol=1e-6)
    bad = fbuf.update_priority(
        state, batch.ids, fbuf.sequence_priority(-error, batch.data.loss_mask), donate=False
    )
    assert fbuf.Fault(int(bad.fault)) == fbuf.Fault.BAD_PRIORITY
    again = fbuf.sample(bad, jax.random.key(1), 32)
    np.testing.assert_allclose(again.probability, 0.5)


GOOD = jnp.ones((4, 3)), jnp.ones((4, 3), bool)


@pytest.mark.parametrize(
    ("priority", "learn", "eta", "error", "message"),
    [
        (*GOOD, 1.5, ValueError, "eta must be from 0 to 1, got 1.5"),
        (*GOOD, -0.1, ValueError, "eta must be from 0 to 1"),
        (*GOOD, jnp.nan, ValueError, "eta must be from 0 to 1, got nan"),
        (*GOOD, jnp.float32(2), ValueError, "eta must be from 0 to 1, got 2.0"),
        (
            *GOOD,
            jnp.ones(4),
            ValueError,
            r"eta must be one real number for the whole batch, got float32 of shape \(4,",
        ),
        (*GOOD, 1j, TypeError, "eta must be a number or a scalar array, got 1j"),
        (*GOOD, True, TypeError, "eta must be a number or a scalar array, got True"),
        (*GOOD, "most", TypeError, "eta must be a number or a scalar array, got 'most'"),
        (
            GOOD[0][0],
            GOOD[1],
            0.9,
            ValueError,
            r"priority must be of shape \(4, 3\), like loss_mask",
        ),
        (
            GOOD[0],
            GOOD[1][:, 0],
            0.9,
            ValueError,
            r"priority must be of shape \(4,\), like loss_mask",
        ),
        (
            GOOD[0][:, :2],
            GOOD[1],
            0.9,
            ValueError,
            r"priority has 2 steps and loss_mask 3; take.*loss_mask\[\.\.\., burn_in",
        ),
        (1.0, True, 0.9, ValueError, r"loss_mask must have shape \[..., T\]"),
        (
            GOOD[0],
            GOOD[0],
            0.9,
            TypeError,
            r"loss_mask must be bool, got float32 of shape \(4, 3\)",
        ),
        (GOOD[1], GOOD[1], 0.9, TypeError, "priority must be real, got bool"),
        ([1.0], GOOD[1], 0.9, TypeError, "priority must be an array, got a list"),
        (GOOD[0], [True], 0.9, TypeError, "loss_mask must be an array, got a list"),
    ],
)
def test_what_is_refused(priority, learn, eta, error, message):
    with pytest.raises(error, match=r"fbuf\.sequence_priority: " + message):
        fbuf.sequence_priority(priority, learn, eta=eta)
