"""Whole episodes are removed, and no row of another one."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.programs import built

import fbuf
from fbuf.storage.episode_order import in_order

SWEEP = pytest.mark.sweep
SHAPES = {  # environments, the length of a lane, whether they step together
    "one": (None, 23, True),
    "together": (3, 9, True),
    "apart": (3, 9, False),
}
SAMPLERS = {
    "uniform": fbuf.Uniform(window=2),
    "prioritized": fbuf.Prioritized(),
    "by episode": fbuf.Uniform(window=2, by="episode"),
}


@functools.partial(jax.jit, static_argnames="episodes")
def removed(state, ids, mask=None, episodes=False):
    return fbuf.remove(state, ids, mask=mask, episodes=episodes)


def history(shape, sampler, autoreset, steps, seed):
    """A buffer of random episodes; of each lane the slots of its episodes, and of no dummy."""
    envs, length, lockstep = SHAPES[shape]
    lanes, rng = envs or 1, np.random.default_rng(seed)
    state = fbuf.init(
        jnp.int32(0), lanes * length, num_envs=envs, lockstep=lockstep, autoreset=autoreset,
        sampler=SAMPLERS[sampler],
    )  # fmt: skip
    given = (lanes,) if envs else ()
    written, episode = np.zeros(lanes, int), np.zeros(lanes, int)
    resets, slots = np.zeros(lanes, bool), [{} for _ in range(lanes)]
    for _ in range(steps):
        ends, mask = rng.random(lanes) < 0.3, np.ones(lanes, bool)
        if not lockstep:
            mask = rng.random(lanes) < 0.7
        state = fbuf.add(
            state, jnp.zeros(given, jnp.int32), terminated=ends.reshape(given),
            mask=mask.reshape(given) if not lockstep else None,
        )  # fmt: skip
        for lane in np.flatnonzero(mask):
            slot = written[lane] % length * lanes + lane
            slots[lane].pop(slot, None)
            dummy = resets[lane]
            if not dummy:
                slots[lane][slot] = episode[lane]
            resets[lane] = autoreset == "next_step" and ends[lane] and not dummy
            episode[lane] += ends[lane] and not dummy
            written[lane] += 1
    return state, {slot: (n, e) for n, of in enumerate(slots) for slot, e in of.items()}


CASES = [
    pytest.param("one", "uniform", "same_step", marks=SWEEP),
    pytest.param("together", "prioritized", "next_step", marks=SWEEP),
    ("apart", "by episode", "next_step"),
    pytest.param("apart", "prioritized", "same_step", marks=SWEEP),
    pytest.param("one", "by episode", "next_step", marks=SWEEP),
    pytest.param("together", "by episode", "same_step", marks=SWEEP),
]


@pytest.mark.parametrize(("shape", "sampler", "autoreset"), CASES)
def test_the_rows_of_an_episode_go_and_no_other(shape, sampler, autoreset):
    """Before and after the ring is full; the same as if all their ids were given."""
    rng = np.random.default_rng(7)
    for steps in (5, 17, 40):
        state, episodes = history(shape, sampler, autoreset, steps, seed=steps)
        chosen = rng.choice(list(episodes), 3)
        ids = fbuf.ids_at(state, jnp.asarray([*chosen, chosen[0]], jnp.int32))
        mask = jnp.array([True, True, False, True])
        wanted = {episodes[slot] for slot in chosen[:2]}
        rest = {slot for slot, of in episodes.items() if of not in wanted}
        found = removed(state, ids, mask, episodes=True)
        every = fbuf.ids_at(found, jnp.arange(state.capacity, dtype=jnp.int32))
        assert set(np.flatnonzero(every.slot >= 0)) == rest
        gone = np.array([slot in episodes and slot not in rest for slot in range(state.capacity)])
        named = fbuf.ids_at(state, jnp.arange(state.capacity, dtype=jnp.int32))
        one_by_one = removed(state, named, jnp.asarray(gone))
        jax.tree.map(np.testing.assert_array_equal, found, one_by_one)
        # Later rows are of the same episode, and none is a start whose window was cut.
        again = removed(found, ids, mask, episodes=True)
        assert int(again.fault) == fbuf.Fault.STALE_ID
        jax.tree.map(np.testing.assert_array_equal, again.ring, found.ring)


@SWEEP
def test_more_rows_than_are_removed_at_a_time():
    state = fbuf.init(jnp.int32(0), 5000, sampler=fbuf.Prioritized())
    rows = jnp.arange(4500, dtype=jnp.int32)
    state = fbuf.add(state, rows, terminated=(rows == 9) | (rows == 4099))
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([2000])), episodes=True)
    assert int(fbuf.size(state)) == 10 + 400
    batch = fbuf.rows(state)
    left = np.asarray(batch.data)[np.asarray(batch.mask)]
    np.testing.assert_array_equal(left, [*range(10), *range(4100, 4500)])
    assert float(fbuf.stats(state)["priority_total"]) == pytest.approx(410)


@SWEEP
def test_an_empty_buffer_and_ids_of_no_row():
    state = fbuf.init(jnp.int32(0), 8)
    none = fbuf.Ids(jnp.array([-1]), jnp.array([0]))
    state = fbuf.remove(state, none, episodes=True)
    state = fbuf.add(state, jnp.arange(5, dtype=jnp.int32))
    state = fbuf.remove(state, none, episodes=True)
    assert int(fbuf.size(state)) == 5
    batch = fbuf.sample(state, jax.random.key(0), 2)
    state = fbuf.remove(state, batch.ids, mask=False, episodes=True)
    assert int(fbuf.size(state)) == 5
    assert int(state.fault) == 0


@SWEEP
def test_under_vmap():
    rows = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)
    ends = jnp.array([[0, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0]], bool)

    def remaining(rows, ends, slot):
        state = fbuf.add(fbuf.init(jnp.int32(0), 8), rows, terminated=ends)
        state = fbuf.remove(state, fbuf.ids_at(state, slot[None]), episodes=True)
        return fbuf.size(state)

    left = jax.jit(jax.vmap(remaining))(rows, ends, jnp.array([3, 5]))
    np.testing.assert_array_equal(left, [3, 4])


@SWEEP
def test_no_row_is_copied():
    state = fbuf.init(jnp.zeros(250), 4096, sampler=fbuf.Prioritized(window=2))
    ids = fbuf.newest_ids(state, 3)
    remove = functools.partial(fbuf.remove, episodes=True)
    program = built(jax.jit(remove, donate_argnums=0), state, ids)
    assert program.memory_analysis().temp_size_in_bytes < 200 * 4096


@pytest.mark.sweep
def test_no_slot_comes_twice_where_a_lane_has_no_row():
    state = fbuf.init(jnp.int32(0), 9, num_envs=3, lockstep=False)
    mask = jnp.array([True, False, True])
    state = fbuf.add(state, jnp.zeros(3, jnp.int32), mask=mask)
    assert sorted(np.asarray(in_order(state.ring)).ravel().tolist()) == list(range(9))
