"""Collections within one program go on behind their own rows alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters._scanned import ScanCollector, Stepped
from support import tags

import fbuf


@pytest.fixture(autouse=True)
def _promotion_of_the_environments():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


ENVS = 2
PARAMS = jnp.int32(0)


def counted(task, envs=ENVS):
    """Environments that count episodes and steps; episodes are of 5 steps."""

    def reset(key):
        del key
        start = jnp.zeros((envs, 2), jnp.int32)
        return start, start

    def step(key, place, action):
        del key
        after = place + jnp.array([[0, 1]])
        ended = after[:, 1] == 5
        following = jnp.where(ended[:, None], jnp.array([[1, 0]]) * (place[:, :1] + 1), after)
        flags = (action.astype(jnp.float32), ended, jnp.zeros_like(ended))
        return Stepped(following, following, *flags, next_observation=after)

    def act(params, observation, key):
        del key
        return jnp.full(envs, task, jnp.int32), {"params": jnp.broadcast_to(params, (envs,))}

    return ScanCollector(reset, step, act, PARAMS, envs, jax.random.key(0), None)


def buffer(collector, **options):
    return fbuf.init(collector.item, 60 * collector._num_envs, **collector.options, **options)


def mixed(state):
    """Count the rows that do not follow the row before, which did not end there."""
    batch = fbuf.rollout(state)
    mask, place = np.asarray(batch.mask), np.asarray(batch.data["observation"])
    task, ended = np.asarray(batch.data["action"]), np.asarray(batch.terminated | batch.truncated)
    wrong = 0
    for lane in range(len(mask)):
        there = mask[lane]
        p, t, e = place[lane][there], task[lane][there], ended[lane][there]
        follows = (p[1:, 0] == p[:-1, 0]) & (p[1:, 1] == p[:-1, 1] + 1) & (t[1:] == t[:-1])
        wrong += int((~follows & ~e[:-1]).sum())
    return wrong


@pytest.mark.first(1)
@pytest.mark.parametrize("options", [{}, {"lockstep": False}, {"next_of": "observation"}], ids=str)
def test_two_collectors_by_turns(options):
    one, other = counted(0), counted(1)
    state = buffer(one, **options)
    for _ in range(3):
        state = other.collect(one.collect(state, 3), 3)
    assert mixed(state) == 0
    assert int(fbuf.size(state)) == 6 * 3 * ENVS


def test_one_collector_that_nobody_interrupts_ends_no_episode():
    for envs in (1, ENVS):  # with one environment the place is as large as the cursor
        one = counted(0, envs)
        state = buffer(one, sampler=fbuf.Prioritized())
        for _ in range(7):
            state = one.collect(state, 3)
            ids = fbuf.newest_ids(state, 1)
            state = fbuf.update_priority(state, ids, jnp.ones(ids.slot.shape))
        batch = fbuf.rollout(state)
        assert not batch.truncated.any()
        assert mixed(state) == 0


@pytest.mark.parametrize("steps", [6, 3])
def test_two_carries_in_a_scan_of_your_own(steps):
    """Each turn of the loop, traced: also with a second buffer, and then the first one again."""
    one, other = counted(0), counted(1)
    # With 6 the two never have as many rows when they change places.

    def turn(loop, _):
        mine, its, state, second = loop
        mine, state = one.scan(mine, state, PARAMS, steps=2)
        mine, second = one.scan(mine, second, PARAMS, steps=steps)
        its, state = other.scan(its, state, PARAMS, steps=1)
        return (mine, its, state, second), None

    @jax.jit
    def run(key, state, second):
        begin = one.begin(key), other.begin(key), state, second
        return jax.lax.scan(turn, begin, None, length=5)[0]

    with tags.as_users_have_them():
        buffers = buffer(one), buffer(one)
    _, _, state, second = run(jax.random.key(0), *buffers)
    assert mixed(state) == 0
    assert mixed(second) == 0


def test_many_seeds_and_others_in_some_of_them():
    one = counted(0)

    @jax.jit
    @jax.vmap
    def run(key, interrupted):
        carry, state = one.scan(one.begin(key), buffer(one), PARAMS, steps=3)
        rows = jax.tree.map(lambda s: jnp.zeros((ENVS, *s.shape), s.dtype), one.item)
        state = fbuf.add(state, rows, mask=interrupted)
        return one.scan(carry, state, PARAMS, steps=3)[1]

    states = run(jax.random.split(jax.random.key(0), 2), jnp.array([True, False]))
    cut = np.asarray(states.ring.flags) & 2
    assert (cut[0, 3 * ENVS : 4 * ENVS] == 2).all()  # the row of another one is the last
    assert not cut[1].any()


@pytest.mark.parametrize("restored", [True, False])
def test_both_go_on_from_a_checkpoint(tmp_path, restored):
    one = counted(0)
    scan = jax.jit(one.scan, static_argnames="steps")
    carry, state = scan(one.begin(jax.random.key(0)), buffer(one), PARAMS, steps=3)
    state = fbuf.save(tmp_path, state, extra=carry)
    whole = scan(carry, state, PARAMS, steps=4)[1]
    state, carry = fbuf.load(tmp_path, episodes="keep", extra=carry)
    if restored:
        carry = one.resume(carry, state)
        state = scan(carry, state, PARAMS, steps=4)[1]
        np.testing.assert_array_equal(state.ring.flags, whole.ring.flags)
        return
    state = scan(scan(carry, state, PARAMS, steps=1)[0], state, PARAMS, steps=4)[1]
    assert mixed(state) == 0  # the step of another buffer is missing here


@pytest.mark.sweep
def test_the_place_is_no_array_of_the_buffer():
    """Which the next call consumes."""
    one = counted(0, 1)
    state = one.collect(buffer(one), 2)
    fbuf.clear(state)
    assert not one._carry.left.is_deleted()
    with jax.disable_jit():
        carry, state = one.scan(one.begin(jax.random.key(0)), buffer(one), PARAMS, steps=1)
    fbuf.clear(state)
    assert not carry.left.is_deleted()
