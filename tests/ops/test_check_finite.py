"""NaN and infinities in stored rows are found, and named."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

NAN, INF = float("nan"), float("inf")


def raised(state):
    with pytest.raises(fbuf.NotFiniteError, match="rows hold NaN or an infinity") as told:
        fbuf.check_finite(state)
    sent = pickle.loads(pickle.dumps(told.value))  # by a process that looked
    assert (str(sent), sent.slots.tolist()) == (str(told.value), told.value.slots.tolist())
    return str(told.value), told.value.slots.tolist()


@pytest.mark.sweep
def test_each_field_with_the_newest_row_of_its_environment():
    item = {"obs": jnp.zeros(3), "deep": (jnp.bfloat16(0), 0.0), "n": jnp.int32(0)}
    state = fbuf.init(item, 20, num_envs=2, lockstep=False, next_of="obs")
    fbuf.check_finite(state)
    rows = {
        "obs": jnp.ones((2, 6, 3)).at[1, 4, 2].set(-INF),
        "deep": (
            jnp.ones((2, 6), jnp.bfloat16).at[0, 5].set(INF),
            jnp.ones((2, 6)).at[1, 1:3].set(NAN),
        ),
        "n": jnp.full((2, 6), 2**31 - 1, jnp.int32),
    }
    following = jnp.ones((2, 6, 3)).at[0, 3].set(NAN)
    ends = jnp.arange(12).reshape(2, 6) % 4 == 3
    state = fbuf.add(state, rows, next_observation=following, terminated=ends)
    told, slots = raised(state)
    assert "'deep.0' in 1 row, the newest of environment 0, 0 steps before its newest row" in told
    assert "'deep.1' in 2 rows, the newest of environment 1, 3 steps before" in told
    assert "'obs' in 1 row, the newest of environment 1, 1 steps before" in told
    assert "the next value of 'obs' in 1 row, the newest of environment 0, 2 steps before" in told
    assert slots == [3, 5, 6, 9, 10]
    fbuf.check_finite(fbuf.remove(state, fbuf.ids_at(state, jnp.array(slots))))


def test_rows_that_nobody_can_draw_are_not_looked_at():
    """Those that were overwritten or removed, dummies, and what is kept for them."""
    state = fbuf.init(jnp.zeros(()), 4, autoreset="next_step")
    state = fbuf.add(state, jnp.array([1.0, 2.0, NAN]), terminated=jnp.array([False, True, False]))
    fbuf.check_finite(state)  # a dummy
    state = fbuf.add(state, jnp.array([NAN, 4.0]))
    assert raised(state)[1] == [3]
    state = fbuf.add(state, jnp.arange(3.0))
    fbuf.check_finite(fbuf.add(state, jnp.arange(1.0)))
    kept = fbuf.init({"x": 0.0}, 4, next_of="x", max_ends=4)
    rows, ends = {"x": jnp.zeros(2)}, jnp.array([True, False])
    kept = fbuf.add(kept, rows, next_observation=jnp.array([NAN, NAN]), terminated=ends)
    assert raised(kept)[1] == [0, 1]
    kept = fbuf.add(kept, rows, next_observation=jnp.zeros(2))
    assert raised(kept)[1] == [0]  # the newest then has its next observation in the row behind
    fbuf.check_finite(fbuf.clear(kept))


@pytest.mark.parametrize("ends", [False, True])
def test_nor_is_what_was_kept_for_a_row_that_was_overwritten(ends):
    state = fbuf.init({"x": 0.0}, 4, next_of="x", max_ends=4)
    row = {"x": jnp.zeros(1)}
    state = fbuf.add(state, row, next_observation=jnp.array([NAN]), terminated=jnp.array([True]))
    assert raised(state)[1] == [0]
    for last in (False, False, False, ends, False):
        given = {"next_observation": jnp.zeros(1), "terminated": jnp.array([last])}
        state = fbuf.add(state, row, **given)
    fbuf.check_finite(state)


def test_many_rows_are_read_in_parts():
    state = fbuf.init({"x": jnp.zeros(2), "y": jnp.int8(0)}, 40_000)
    x = jnp.zeros((40_000, 2)).at[jnp.array([0, 20_000, 39_999]), 1].set(NAN)
    state = fbuf.add(state, {"x": x, "y": jnp.zeros(40_000, jnp.int8)})
    told, slots = raised(state)
    assert slots == [0, 20_000, 39_999]
    assert "in 3 rows, the newest 0 steps" in told


@pytest.mark.sweep
def test_floats_of_all_widths_and_no_floats():
    fbuf.check_finite(fbuf.add(fbuf.init(jnp.int32(0), 4), jnp.arange(4, dtype=jnp.int32)))
    for dtype in ("float8_e4m3fn", "float8_e5m2", "float16", "complex64"):
        state = fbuf.init({"x": jnp.zeros((), dtype)}, 4)
        state = fbuf.add(state, {"x": jnp.array([0, NAN], dtype)})
        assert raised(state)[1] == [1], dtype


def test_what_it_does_not_take():
    state = fbuf.init(jnp.zeros(()), 4)
    with pytest.raises(TypeError, match="call it outside jit"):
        jax.jit(lambda s: fbuf.check_finite(s))(state)
    with pytest.raises(ValueError, match="batch of buffers"):
        fbuf.check_finite(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state))
    with pytest.raises(TypeError, match=r"must be a fbuf\.State"):
        fbuf.check_finite({})
    fbuf.add(state, jnp.zeros(1))
    with pytest.raises(RuntimeError, match="consumed"):
        fbuf.check_finite(state)


@pytest.mark.sweep
def test_of_a_store_on_the_host(tmp_path):
    host = pytest.importorskip("fbuf.host")
    store = host.HostStore({"x": 0.0, "image": jnp.zeros(300)}, 8, next_of="x")
    image = np.zeros((5, 300), np.float32)
    image[3, 299] = np.inf
    store.add(
        {"x": np.zeros(5, np.float32), "image": image}, next_observation=np.zeros(5, np.float32)
    )
    store.save(tmp_path)
    for one in (store, host.HostStore.open(tmp_path)[0]):
        with pytest.raises(ValueError, match=r"HostStore\.check_finite: .*'image' in 1") as told:
            one.check_finite()
        assert told.value.slots.tolist() == [3]
