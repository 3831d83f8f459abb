"""Windows: a mask leaves no gap in them, and they are as likely as they should be."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats
from support import inside, meshes, programs
from support.oracle import Oracle

import fbuf
from fbuf import sharded


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(fbuf.Uniform(), marks=pytest.mark.sweep),
        pytest.param(fbuf.Uniform(window=3), marks=pytest.mark.sweep),
        fbuf.Prioritized(window=3),
    ],
    ids=str,
)
def test_a_mask_leaves_no_gap_in_a_window(sampler):
    """With a mask, the rows that are left are as if they alone had been added."""
    rng = np.random.default_rng(0)
    for _ in range(12):
        masked = alone = fbuf.init(jnp.int32(0), 5, sampler=sampler, autoreset="next_step")
        for turn in range(4):
            mask, ends = rng.random((2, 7)) < [[0.5], [0.3]]
            items = np.arange(7, dtype=np.int32) + 10 * turn
            masked = programs.add(masked, items, terminated=ends, mask=mask)
            for item, end in zip(items[mask], ends[mask], strict=True):
                alone = programs.add(alone, item[None], terminated=end[None])
        there = int(alone.ring.stored[0])
        np.testing.assert_array_equal(masked.ring.cursor, alone.ring.cursor)
        np.testing.assert_array_equal(masked.ring.flags[:there], alone.ring.flags[:there])
        jax.tree.map(np.testing.assert_array_equal, masked.ring.open, alone.ring.open)
        for name, figure in fbuf.stats(masked).items():
            # A fault is of a moment: one row after the other has more of them.
            assert figure == fbuf.stats(alone)[name] or name == "fault", name


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", [fbuf.Uniform(window=3), fbuf.Prioritized(window=3)], ids=str)
def test_two_rows_of_a_window_removed_at_once_take_out_one_start(sampler):
    state = fbuf.add(fbuf.init(jnp.int32(0), 8, sampler=sampler), jnp.arange(8, dtype=jnp.int32))
    state = fbuf.remove(state, inside.names(state, [1, 2]))
    assert int(fbuf.stats(state)["num_starts"]) == 3  # of 6 these: 3, 4, 5


@pytest.mark.sweep
@pytest.mark.parametrize("by", ["start", "episode"])
def test_the_oldest_row_that_is_removed_takes_no_newest_one_with_it(by):
    """Around the seam the newest row lies before it, here the first of an episode."""
    state = fbuf.init(jnp.int32(0), 6, sampler=fbuf.Uniform(window=3, strict=False, by=by))
    rows = jnp.arange(9, dtype=jnp.int32)
    state = fbuf.add(state, rows, terminated=(rows == 4) | (rows == 7))
    assert int(fbuf.stats(state)["num_starts"]) == 2  # rows 5 and 8 begin episodes
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([3])))
    assert int(fbuf.stats(state)["num_starts"]) == 2


@pytest.mark.parametrize("count", [7])
def test_of_more_rows_than_there_is_room_for_each_slot_counts_once(count):
    state = fbuf.init(jnp.int32(0), 6)
    for _ in range(2):
        state = fbuf.add(state, jnp.arange(count, dtype=jnp.int32))
        np.testing.assert_array_equal(inside.marks(state.index.starts.bits), np.ones(6, bool))
    state = fbuf.remove(state, fbuf.newest_ids(state, 1))
    assert int(inside.marks(state.index.starts.bits).sum()) == 5


SAMPLERS = [
    fbuf.Uniform(window=3),
    fbuf.Uniform(window=3, by="episode"),
    fbuf.Prioritized(alpha=1.0, eps=0.0, window=3),
]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sampler", "lockstep"),
    [
        (SAMPLERS[0], False),
        (SAMPLERS[1], True),
        (SAMPLERS[2], True),
    ],
    ids=str,
)
def test_draws_are_as_likely_as_they_should_be(sampler, lockstep):
    """A full ring that has gone around, with removed rows, and 200,000 draws."""
    state = fbuf.init(jnp.int32(0), 60, num_envs=3, sampler=sampler, lockstep=lockstep)
    lanes = Oracle(20, 3)
    rng = np.random.default_rng(0)
    for number in range(4):
        items = np.arange(27, dtype=np.int32).reshape(9, 3) + 27 * number
        ends, priority = rng.random((9, 3)) < 0.15, rng.random((9, 3)).astype(np.float32)
        # In the first lane an episode goes around the seam, and another one follows.
        ends[:, 0] = (number == 3) & (np.arange(9) == 3)
        options = {"terminated": ends, "time_major": True}
        if isinstance(sampler, fbuf.Prioritized):
            options["priority"] = priority
        lanes.add(items, ends, priority=priority)
        state = programs.add(state, items, **options)
    slots = [7, 31]
    lanes.remove([(slot, lanes.at(slot).generation) for slot in slots])
    state = fbuf.remove(state, inside.names(state, slots))
    keys = jax.random.split(jax.random.key(0), 100)
    _, drawn = lax.scan(lambda c, k: (c, fbuf.sample(state, k, 2000).ids.slot), 0, keys)
    counts = np.bincount(np.asarray(drawn).reshape(-1), minlength=60)
    runs, starts = lanes.runs(3), lanes.starts(3)
    likely = lanes.evenly(starts)
    if isinstance(sampler, fbuf.Prioritized):
        likely = lanes.by_priority(starts)
    elif sampler.by == "episode":
        likely = lanes.by_episode(3)
    share = np.array([likely.get(slot, 0) for slot in range(60)])
    expected = share * 200_000
    assert len({len(run) for run in runs}) > 2  # episodes of different lengths
    around = [run for run in runs if run[0] > run[-1]]
    assert any({slot % 3 for slot in run} == {0} for run in around)
    assert sum(run[0] % 3 == 0 for run in runs) == 2
    assert counts[share == 0].sum() == 0
    assert stats.chisquare(counts[share > 0], expected[share > 0]).pvalue > 1e-4


def test_what_cannot_be_right_is_refused():
    for options, match in (
        ({"window": 0}, "window must be from 1"),
        ({"window": 2.0}, "window must be an int"),
        ({"stride": -1}, "stride must be from 1"),
        ({"first_only": "last"}, "first_only must be True or False"),
        ({"by": "row"}, "by must be one of 'start', 'episode'"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            fbuf.Uniform(**options)
    item = jnp.zeros(())
    for sampler, envs, match in (
        (fbuf.Uniform(window=5), 3, "longer than a lane, which has 4 rows"),
        (fbuf.Uniform(stride=3), 3, "must divide the length of a lane, 4 rows"),
        (fbuf.Uniform(), 5, r"capacity must be a multiple of num_envs \(5\).*take 10"),
        (fbuf.Uniform(), 0, "num_envs must be from 1 to 12"),
    ):
        with pytest.raises(ValueError, match=match):
            fbuf.init(item, 12, num_envs=envs, sampler=sampler)
    with pytest.raises(ValueError, match="autoreset must be one of"):
        fbuf.init(item, 12, autoreset="never")
    with pytest.raises(ValueError, match="num_envs is None"):
        fbuf.init(item, 12, lockstep=False)
    lanes = fbuf.init(item, 12, num_envs=3)
    for items, options, match in (
        (jnp.zeros(()), {}, r"\(3,\) for one step of all environments, or \(3, T\)"),
        (jnp.zeros((4,)), {}, r"\(3,\) for one step"),
        (jnp.zeros((2, 3)), {}, r"\(3, T\) for T"),
        (jnp.zeros((3, 2)), {"time_major": True}, r"\(T, 3\) for T"),
        (jnp.zeros((3, 2)), {"terminated": jnp.zeros((2, 3), bool)}, r"shape \(3, 2\)"),
        (jnp.zeros((3,)), {"mask": jnp.ones(3, bool)}, "step together"),
    ):
        with pytest.raises(ValueError, match=match):
            fbuf.add(lanes, items, **options)
    for mask, match in ((jnp.ones(2, bool), r"of shape \(3,\)"), (jnp.ones(3), "must be bool")):
        with pytest.raises((ValueError, TypeError), match=match):
            fbuf.end_episode(lanes, mask=mask)
    with pytest.raises(ValueError, match="time_major is for buffers made with num_envs"):
        fbuf.add(fbuf.init(item, 4), jnp.zeros(3), time_major=True)


# --- nothing to draw -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler",
    [
        fbuf.Uniform(window=5),
        pytest.param(fbuf.Uniform(window=5, by="episode"), marks=pytest.mark.sweep),
        pytest.param(fbuf.Prioritized(window=5), marks=pytest.mark.sweep),
        pytest.param(fbuf.Shuffled(window=5), marks=pytest.mark.sweep),
    ],
)
def test_a_full_buffer_that_has_nothing_to_draw_says_so(sampler):
    state = fbuf.init(jnp.zeros(()), 16, sampler=sampler)
    for first in range(0, 32, 4):
        assert int(state.fault) == (fbuf.Fault.NOTHING_TO_DRAW if first >= 16 else 0)
        state = fbuf.add(state, jnp.zeros(4), terminated=(jnp.arange(4) + first) % 3 == 2)
    with pytest.raises(RuntimeError, match=r"window is 5 steps, and the longest .* has 3; take a"):
        fbuf.raise_on_fault(state)
    long = fbuf.init(jnp.zeros(()), 16, sampler=sampler)
    for _ in range(8):
        long = fbuf.add(long, jnp.zeros(4))
    fbuf.raise_on_fault(long)


def test_so_it_does_without_a_priority_above_zero():
    state = fbuf.init(jnp.zeros(()), 4, sampler=fbuf.Prioritized(eps=0.0))
    state = fbuf.add(state, jnp.zeros(4), priority=jnp.zeros(4))
    with pytest.raises(RuntimeError, match="all priorities are 0"):
        fbuf.raise_on_fault(state)


@pytest.mark.first(1)
@pytest.mark.parametrize("of_a_mesh", [False, True])
def test_so_it_does_when_rows_have_lost_their_priorities_or_are_gone(of_a_mesh):
    of, options = (sharded, {"mesh": meshes.mesh(1)}) if of_a_mesh else (fbuf, {})
    state = of.init(jnp.zeros(()), 4, sampler=fbuf.Prioritized(eps=0.0), **options)
    state = of.add(state, jnp.zeros(4))
    ids = of.sample(state, jax.random.key(0), 64).ids
    without = of.update_priority(state, ids, jnp.zeros(64), donate=False)
    for empty in (without, of.remove(state, ids, donate=False)):
        with pytest.raises(RuntimeError, match="all priorities are 0"):
            of.raise_on_fault(empty)
        of.raise_on_fault(empty, ignore=fbuf.Fault.NOTHING_TO_DRAW)
    of.raise_on_fault(state)


def test_it_is_no_error_once_there_is_something_to_draw_again():
    state = fbuf.init(jnp.zeros(()), 12, sampler=fbuf.Uniform(window=8))
    told = []
    for step in range(40):
        state = fbuf.add(state, jnp.zeros(()), terminated=step % 8 == 7)
        if int(state.fault) & fbuf.Fault.NOTHING_TO_DRAW and fbuf.can_sample(state):
            fbuf.raise_on_fault(state)
            told.append(step)
    assert told


def test_of_several_buffers_each_has_something_to_draw_again():
    one = fbuf.init(jnp.zeros(()), 4, sampler=fbuf.Prioritized(eps=0.0))
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), one)
    later = jax.jit(jax.vmap(lambda s, p: fbuf.add(s, jnp.zeros(4), priority=p)))
    many = later(many, jnp.zeros((2, 4)))
    none, last = jnp.zeros(4), jnp.array([0.0, 0.0, 0.0, 1.0])
    fbuf.raise_on_fault(later(many, jnp.stack([last, last])))
    with pytest.raises(RuntimeError, match="all priorities are 0"):
        fbuf.raise_on_fault(later(many, jnp.stack([last, none])))


def test_an_episode_is_counted_from_its_first_row_over_two_adds():
    state = fbuf.init(jnp.zeros(()), 12, sampler=fbuf.Uniform(window=2, first_only=True))
    for rows in (range(3), range(3, 10)):
        n = jnp.asarray([*rows], jnp.float32)
        state = fbuf.add(state, n, terminated=jnp.isin(n, jnp.array([1.0, 5.0, 9.0])))
    drawn = fbuf.sample(state, jax.random.key(0), 64)
    assert set(drawn.data.tolist()) == {0.0, 2.0, 6.0}


def test_an_environment_that_fills_its_part_in_vain_says_so():
    state = fbuf.init(jnp.zeros(()), 16, num_envs=2, lockstep=False, sampler=fbuf.Uniform(window=3))
    for step in range(16):
        ends = jnp.array([step % 2 == 1, False])
        state = fbuf.add(state, jnp.zeros(2), mask=jnp.array([True, False]), terminated=ends)
    with pytest.raises(RuntimeError, match=r"there is nothing to draw.*NOTHING_TO_DRAW"):
        fbuf.raise_on_fault(state)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 4},
        {"window": 5},
        pytest.param({"window": 5, "strict": False}, marks=pytest.mark.sweep),
        pytest.param({"first_only": True}, marks=pytest.mark.sweep),
        pytest.param({"window": 3, "normalize": "buffer"}, marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_new_rows_inherit_no_priority_that_no_draw_reaches(options):
    """Such a row is never updated, so its priority would pass from row to row for ever."""
    state = fbuf.init(jnp.int32(0), 32, sampler=fbuf.Prioritized(1.0, eps=0.0, **options))
    rows = np.arange(16, dtype=np.int32)
    state = programs.add(state, rows, terminated=rows % 8 == 7, priority=jnp.full(16, 100.0))
    assert float(fbuf.stats(state)["new_priority"]) == 100
    for _ in range(6):
        for key in range(16):  # each row that may be drawn is, and gets 1
            ids = programs.sample(state, jax.random.key(key), 64).ids
            state = programs.update_priority(state, ids, jnp.ones(64))
        assert float(fbuf.stats(state)["new_priority"]) == 1
        state = programs.add(state, rows, terminated=rows % 8 == 7)
    assert float(fbuf.probability(state, fbuf.newest_ids(state, 32)).max()) <= 1 / 4
