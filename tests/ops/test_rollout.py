"""All rows in the order of time, and epochs over them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf


@pytest.mark.sweep
def test_a_rollout_has_its_oldest_row_first():
    state = fbuf.init({"n": jnp.int32(0), "x": jnp.zeros(())}, 12, num_envs=3)
    n = np.arange(9, dtype=np.int32).reshape(3, 3)
    items = lambda n: {"n": n, "x": np.zeros(n.shape, np.float32)}
    state = fbuf.add(state, items(n), terminated=n == 4)
    batch = fbuf.rollout(state)
    assert batch.data["n"].tolist() == [[0, 1, 2, 0], [3, 4, 5, 0], [6, 7, 8, 0]]
    assert batch.mask.tolist() == [[True] * 3 + [False]] * 3
    assert batch.terminated.tolist() == [[False] * 4, [False, True, False, False], [False] * 4]
    twice = 2.0 * batch.data["n"].astype(jnp.float32)
    state = fbuf.write(state, batch.ids, {"x": jnp.where(batch.mask, twice, 0.0)})
    state = fbuf.add(state, items(n + 10))  # around the end
    batch = fbuf.rollout(state)
    assert batch.data["n"].tolist() == [[2, 10, 11, 12], [5, 13, 14, 15], [8, 16, 17, 18]]
    assert batch.data["x"][:, 0].tolist() == [4, 10, 16]
    jax.tree.map(np.testing.assert_array_equal, batch, jax.jit(fbuf.rollout)(state))


@pytest.mark.sweep
def test_a_rollout_knows_what_each_step_led_to():
    state = fbuf.init({"obs": jnp.int32(0)}, 6, num_envs=2, next_of="obs")
    obs = np.array([[0, 1, 2], [10, 11, 12]], np.int32)
    state = fbuf.add(
        state,
        {"obs": obs},
        truncated=np.array([[False] * 3, [False, True, False]]),
        next_observation=np.array([[1, 2, 3], [11, 99, 13]], np.int32),
    )
    batch = fbuf.rollout(state, view=fbuf.Transition("obs"))
    assert batch.data.next_observation.tolist() == [[1, 2, 3], [11, 99, 13]]


@pytest.mark.parametrize("steps", [pytest.param(8, marks=pytest.mark.sweep), 7])
@pytest.mark.parametrize("batch_size", [5, pytest.param(4, marks=pytest.mark.sweep)])
def test_each_epoch_over_a_rollout_covers_each_row_once(steps, batch_size):
    """Also where the batch does not divide it, and where an environment's dummies are left out."""
    state = fbuf.init(jnp.int32(0), 16, num_envs=2, autoreset="next_step", sampler=fbuf.Shuffled())
    key = jax.random.key(0)
    for turn in range(2):
        state = fbuf.clear(state)
        rows = np.arange(2 * steps, dtype=np.int32).reshape(2, steps) + 100 * turn
        ends = np.zeros((2, steps), bool)
        ends[1, 2] = True
        state = fbuf.add(state, rows, terminated=ends)
        expected = sorted(set(rows.ravel().tolist()) - {int(rows[1, 3])})
        batches = -(-len(expected) // batch_size)
        for epoch in range(3):
            seen = []
            for i in range(batches):
                batch = fbuf.sample(state, key, batch_size, step=epoch * batches + i)
                seen += batch.data[batch.mask].tolist()
            assert sorted(seen) == expected


@pytest.mark.sweep
@pytest.mark.parametrize("reset", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_environments_know_of_no_clear(reset):
    """A rollout that ends with an episode: the next one begins with the dummy of its reset."""
    state = fbuf.init(jnp.int32(0), 4, num_envs=2, autoreset="next_step")
    ends = np.array([[False, True], [False, False]])
    state = fbuf.add(state, np.arange(4, dtype=np.int32).reshape(2, 2), terminated=ends)
    state = fbuf.clear(state)
    if reset:
        state = fbuf.end_episode(state)
    state = fbuf.add(state, np.arange(4, 8, dtype=np.int32).reshape(2, 2))
    assert fbuf.rollout(state).mask.tolist() == [[reset, True], [True, True]]
