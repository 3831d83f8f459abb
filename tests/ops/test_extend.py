"""Adding another buffer: what is there afterwards is what the oracle has."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.few import few
from support.recorded import EXACT, ITEM, Recorded, agrees

import fbuf

SWEEP = pytest.mark.sweep
PRIORITIES = fbuf.Prioritized(**EXACT)

CASES = [  # environments, the other's, sampler, autoreset, in lockstep, next observations
    pytest.param(3, 3, fbuf.Prioritized(window=2, **EXACT), "next_step", False, True, marks=SWEEP),
    pytest.param(None, 3, fbuf.Prioritized(window=2, first_only=True, **EXACT), "next_step", False,
                 True, marks=SWEEP),
    pytest.param(None, None, PRIORITIES, "same_step", True, True, marks=SWEEP),
    pytest.param(3, 3, fbuf.Uniform(window=3, by="episode"), "next_step", True, False, marks=SWEEP),
    pytest.param(None, 2, fbuf.Uniform(window=2, by="episode"), "same_step", True, True,
                 marks=SWEEP),
    pytest.param(None, None, fbuf.Uniform(window=2, first_only=True), "next_step", True, True,
                 marks=SWEEP),
    pytest.param(None, 3, fbuf.Uniform(window=3, strict=False), "same_step", False, False,
                 marks=SWEEP),
    pytest.param(3, 3, fbuf.Prioritized(window=3, strict=False, **EXACT), "same_step", False,
                 False, marks=SWEEP),
    pytest.param(3, 3, fbuf.Shuffled(window=2), "same_step", True, True, marks=SWEEP),
    (1, None, fbuf.Uniform(), "same_step", True, True),
    pytest.param(2, 2, fbuf.Mixture(0.5, prioritized=0.5, recent=0.0, priorities=fbuf.Prioritized(
        window=2, **EXACT)), "same_step", False, False, marks=SWEEP),
]  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize(("envs", "others", "sampler", "autoreset", "lockstep", "next_of"), CASES)
@pytest.mark.parametrize("lengths", [(9, 5), pytest.param((4, 9), marks=SWEEP)])
def test_it_has_the_rows_of_both(
    envs, others, sampler, autoreset, lockstep, next_of, lengths, request
):
    """Histories have any length, and both buffers go on afterwards."""
    together = lockstep if envs else True
    swept = request.node.get_closest_marker("sweep") is not None
    steps = [(6, 4), (13, 12), (0, 3), (4, 0), (7, 13)]
    for seed, (own, its) in enumerate(steps if swept else steps[1:2]):
        one = Recorded(lengths[0], envs, sampler, seed, autoreset, together, next_of)
        other = Recorded(
            lengths[1], others, sampler, seed + 50, autoreset, lockstep, next_of, first=10_000
        )  # fmt: skip
        one.steps(own)
        other.steps(its)
        one.state = fbuf.extend(one.state, other.state)
        one.oracle.extend(other.oracle)
        agrees(one.state, one.oracle, next_of)
        agrees(other.state, other.oracle, next_of)  # it is as it was
        for _ in range(3 if swept else 1):
            one.steps(2)
            agrees(one.state, one.oracle, next_of)
        again = fbuf.resize(one.state, (lengths[0] + 6) * one.lanes)
        assert int(fbuf.size(again)) == int(fbuf.size(one.state))


def rows(state):
    batch = fbuf.rows(state)
    return np.asarray(batch.data["n"])[np.asarray(batch.mask)].tolist()


def numbered(first, count, capacity=8, **options):
    n = jnp.arange(first, first + count, dtype=jnp.int32)
    return fbuf.add(fbuf.init(ITEM, capacity, **options), {"n": n, "obs": n})


@pytest.mark.sweep
def test_an_empty_one_changes_nothing_and_the_same_one_twice():
    state, empty = numbered(0, 3), fbuf.init(ITEM, 4)
    same = fbuf.extend(state, empty)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(state), jax.tree.leaves(same))
    assert rows(fbuf.extend(empty, state)) == [0, 1, 2]
    assert rows(fbuf.extend(state, state)) == [0, 1, 2, 0, 1, 2]
    assert rows(state) == [0, 1, 2]  # neither is consumed
    ids = fbuf.newest_ids(state, 3)
    assert fbuf.read(fbuf.extend(state, numbered(3, 5)), ids).data["n"].tolist() == [0, 1, 2]


@pytest.mark.sweep
def test_inside_jit_and_vmap():
    def both(first):
        n = first + jnp.arange(6, dtype=jnp.int32)
        state = fbuf.add(fbuf.init(ITEM, 8), {"n": n, "obs": n})
        return fbuf.rows(fbuf.extend(state, numbered(20, 3))).data["n"]

    first = jnp.int32([0, 100])
    got = jax.jit(jax.vmap(both))(first)
    assert got.tolist() == [[f + n for n in range(1, 6)] + [20, 21, 22] for f in (0, 100)]


@SWEEP
def test_samplers_that_store_other_priorities():
    """Rows of them get the default; and so do those of a sampler that keeps none."""
    own = fbuf.add(
        fbuf.init(ITEM, 8, sampler=PRIORITIES), {"n": jnp.int32(0), "obs": jnp.int32(0)}, priority=4
    )
    given = jnp.arange(1, 3, dtype=jnp.float32)
    n = jnp.arange(2, dtype=jnp.int32)
    for sampler, expected in (
        (PRIORITIES, [4, 1, 2]),
        (fbuf.Prioritized(**EXACT, beta=1.0, window=2, new_priority="largest_ever"), [4, 1, 2]),
        (fbuf.Prioritized(0.5, eps=0.0), [4, 4, 4]),
        (fbuf.Uniform(window=2), [4, 4, 4]),
    ):
        other = fbuf.init(ITEM, 4, sampler=sampler)
        priority = {"priority": given} if sampler.keeps_priorities else {}
        other = fbuf.add(other, {"n": n, "obs": n}, **priority)
        both = fbuf.extend(own, other)
        got = fbuf.probability(both, fbuf.newest_ids(both, 3))
        np.testing.assert_allclose(got, np.array(expected) / sum(expected), rtol=1e-6)


@pytest.mark.sweep
def test_the_largest_ever_is_that_of_both():
    sampler = fbuf.Prioritized(**EXACT, new_priority="largest_ever")
    low, high = (numbered(0, 0 + 1, sampler=sampler) for _ in range(2))
    empty = fbuf.init(ITEM, 8, sampler=sampler)
    row = {"n": jnp.int32(0), "obs": jnp.int32(0)}
    low, high = fbuf.add(empty, row, priority=0.25, donate=False), fbuf.add(high, row, priority=9)
    for one, other, largest in ((low, high, 9), (high, low, 9), (empty, low, 0.25)):
        assert float(fbuf.stats(fbuf.extend(one, other))["new_priority"]) == largest
    other = fbuf.init(ITEM, 8, sampler=fbuf.Prioritized(**EXACT))  # which keeps it not
    for largest in (0.25, 50.0):
        known = fbuf.add(other, row, priority=largest, donate=False)
        assert float(fbuf.stats(fbuf.extend(empty, known))["new_priority"]) == largest


@SWEEP
def test_a_queue_of_environments_that_reset_in_the_next_step_goes_on():
    queue = fbuf.init(jnp.int32(0), 8, sampler=fbuf.Fifo(), autoreset="next_step")
    both = fbuf.extend(queue, fbuf.add(fbuf.init(jnp.int32(0), 8), jnp.int32(1)))
    both, batch = fbuf.pop(fbuf.add(both, jnp.int32(2)), 3)
    assert batch.data[batch.mask].tolist() == [1, 2]


@SWEEP
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_queue_takes_what_nobody_has_read(overwrite):
    queue = fbuf.Fifo(overwrite=overwrite)
    state, _ = fbuf.pop(numbered(0, 5, sampler=queue), 2)
    other, _ = fbuf.pop(numbered(10, 6, sampler=queue), 4)
    both = fbuf.extend(state, other)
    assert (int(fbuf.unread(both)), int(both.fault)) == (5, 0)
    full = fbuf.extend(both, numbered(20, 4))
    new, batch = fbuf.pop(full, 8)
    got = batch.data["n"].tolist()
    if overwrite:
        assert got == [3, 4, 14, 15, 20, 21, 22, 23]
        assert fbuf.Fault(int(new.fault)) == fbuf.Fault.LOST_UNREAD
    else:
        assert got == [2, 3, 4, 14, 15, 20, 21, 22]
        assert fbuf.Fault(int(new.fault)) == fbuf.Fault.FULL
        assert batch.truncated.tolist() == [False, False, True, False, True, False, False, True]
    drawn = fbuf.extend(numbered(0, 1, capacity=16), other)
    assert rows(drawn) == [0, 10, 11, 12, 13, 14, 15]  # those that were read, too


@pytest.mark.sweep
def test_lost_ends_stay_lost_and_faults_add_up():
    obs = jnp.arange(6, dtype=jnp.int32)

    def made(max_ends):
        state = fbuf.init(ITEM, 8, next_of="obs", max_ends=max_ends)
        items = {"n": obs, "obs": obs}
        return fbuf.add(state, items, next_observation=obs + 1, terminated=obs % 2 == 1)

    known = lambda state: np.asarray(fbuf.rows(state, view=fbuf.Transition()).mask).sum()
    whole, lossy = made(8), made(2)
    assert (known(whole), known(lossy)) == (6, 5)
    both = fbuf.extend(fbuf.resize(whole, 16), lossy)
    assert (known(both), fbuf.Fault(int(both.fault))) == (11, fbuf.Fault.LOST_NEXT)


# --- demonstrations into a buffer of several environments -----------------------------------------

KINDS = {  # environments, in lockstep, autoreset
    "together": (3, True, "same_step"),
    "apart": (3, False, "same_step"),
    "resets": (2, True, "next_step"),
    "resets, apart": (4, False, "next_step"),
}


def demonstrations(lengths, **options):
    """Episodes of so many rows; a row is 100 times its episode, and its step."""
    n = np.concatenate([100 * e + np.arange(size) for e, size in enumerate(lengths)])
    last = np.cumsum(lengths) - 1
    ends = np.isin(np.arange(n.size), last)
    state = fbuf.init(ITEM, n.size, next_of="obs", max_ends=n.size, **options)
    n = n.astype(np.int32)
    return fbuf.add(
        state, {"n": n, "obs": n}, next_observation=n + 1, terminated=ends & (n // 100 % 2 == 0),
        truncated=ends & (n // 100 % 2 == 1),
    )  # fmt: skip


def whole_episodes(state, lengths):
    """All rows once, in windows that begin and end within an episode, with what each led to."""
    batch = fbuf.rows(state, view=fbuf.Transition())
    mask = np.asarray(batch.mask)
    n = np.asarray(batch.data.item["n"])[mask]
    expected = [100 * e + s for e, size in enumerate(lengths) for s in range(size)]
    assert sorted(n[n < 10_000].tolist()) == expected
    np.testing.assert_array_equal(np.asarray(batch.data.next_observation)[mask], n + 1)
    ended = np.asarray(batch.terminated | batch.truncated)[mask]
    is_last = np.isin(n, [100 * e + size - 1 for e, size in enumerate(lengths)])
    np.testing.assert_array_equal(ended[n < 10_000], is_last[n < 10_000])
    found = set()
    for seed in range(4):
        drawn = fbuf.sample(state, jax.random.key(seed), 256, view=fbuf.Sequence(2))
        assert drawn.mask.all()
        one, two = np.asarray(drawn.data.item["n"]).T
        np.testing.assert_array_equal(two, one + 1)
        found |= set(one[one < 10_000].tolist())
    assert found == {step for step in expected if step + 1 in expected}


@pytest.mark.parametrize("kind", few(KINDS, "together"))
@pytest.mark.parametrize("lengths", few(["4 2 5 3 3 6 2", "30 2 2", "9", "1 1 1 8"], "30 2 2"))
@pytest.mark.parametrize("behind", few([False, True], True))
def test_episodes_are_dealt_out_to_any_environments(kind, lengths, behind):
    """And the environments go on to collect, in episodes of their own."""
    lengths = list(map(int, lengths.split()))
    envs, lockstep, autoreset = KINDS[kind]
    state = fbuf.init(
        ITEM, envs * 64, num_envs=envs, lockstep=lockstep, autoreset=autoreset, next_of="obs",
        sampler=fbuf.Uniform(window=2),
    )  # fmt: skip
    if behind:  # they come behind rows, of which some are of open episodes
        rows = jnp.broadcast_to(jnp.arange(20_000, 20_003, dtype=jnp.int32), (envs, 3))
        state = fbuf.add(state, {"n": rows, "obs": rows}, next_observation=rows + 1)
    state = fbuf.extend(state, demonstrations(lengths))
    state = fbuf.end_episode(state)  # what is open where no episode went goes on
    whole_episodes(state, lengths)
    each = np.bincount(np.asarray(fbuf.rows(state).ids.slot)[lanes_of(state, 10_000)] % envs)
    assert each.max() - sum(lengths) / envs <= max(lengths)
    for turn in range(4):
        rows = jnp.full(envs, 10_000 + turn, jnp.int32)
        state = fbuf.add(state, {"n": rows, "obs": rows}, next_observation=rows + 1)
    whole_episodes(state, lengths)
    assert not int(state.fault)


def lanes_of(state, most):
    batch = fbuf.rows(state)
    return np.asarray(batch.mask) & (np.asarray(batch.data["n"]) < most)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_priorities_go_along_and_the_newest_stay(kind):
    envs, lockstep, autoreset = KINDS[kind]
    sampler = fbuf.Prioritized(**EXACT)
    demos = demonstrations([4, 3, 5, 2], sampler=sampler)
    ids = fbuf.newest_ids(demos, 14)
    demos = fbuf.update_priority(demos, ids, jnp.arange(1.0, 15.0))
    options = {"num_envs": envs, "lockstep": lockstep, "autoreset": autoreset, "next_of": "obs"}
    state = fbuf.extend(fbuf.init(ITEM, envs * 16, sampler=sampler, **options), demos)
    batch = fbuf.rows(state)
    there = np.asarray(batch.mask)
    order = np.argsort(np.asarray(batch.data["n"])[there])
    likely = np.asarray(fbuf.probability(state, batch.ids))[there][order]
    np.testing.assert_allclose(likely, np.arange(1, 15) / 105, rtol=1e-5)
    small = fbuf.extend(fbuf.init(ITEM, envs * 2, sampler=sampler, **options), demos)
    kept = np.asarray(fbuf.rows(small).data["n"])[np.asarray(fbuf.rows(small).mask)]
    assert len(kept) <= envs * 2
    assert 301 in kept  # the newest of all
    assert not np.asarray(fbuf.sample(small, jax.random.key(0), 8).data["n"]).max() > 301


def test_who_was_to_be_reset_still_is():
    state = fbuf.init(ITEM, 32, num_envs=2, autoreset="next_step", next_of="obs")
    add = lambda state, n, ends: fbuf.add(
        state, {"n": jnp.full(2, n, jnp.int32), "obs": jnp.full(2, n, jnp.int32)},
        next_observation=jnp.full(2, n + 1, jnp.int32), terminated=jnp.array(ends),
    )  # fmt: skip
    state = add(state, 900, [True, False])
    state = fbuf.extend(state, demonstrations([2, 3]))
    before = int(fbuf.size(state))
    state = add(state, 901, [False, False])  # the first one is a dummy
    assert int(fbuf.size(state)) == before + 1


def test_environments_of_another_number_and_other_resets():
    one, other = (fbuf.init(ITEM, 60, num_envs=n, lockstep=n == 3) for n in (3, 2))
    rows = jnp.arange(20, dtype=jnp.int32).reshape(2, 10)
    ends = jnp.broadcast_to(jnp.arange(10) == 4, (2, 10))
    both = fbuf.extend(one, fbuf.add(other, {"n": rows, "obs": rows}, terminated=ends))
    found = np.asarray(fbuf.rows(both).data["n"])[np.asarray(fbuf.rows(both).mask)]
    assert sorted(found.tolist()) == list(range(20))
    assert int(fbuf.size(both)) == 20


def two(**options):
    return fbuf.init(ITEM, 12, **options)


MISUSE = [
    (lambda: fbuf.extend({}, two()), TypeError,
     "fbuf.extend: state must be a fbuf.State, got dict"),
    (lambda: fbuf.extend(two(), [1]), TypeError,
     "fbuf.extend: other must be a fbuf.State, got list"),
    (lambda: fbuf.extend(two(), fbuf.init(jnp.int32(0), 4)), ValueError,
     "both buffers must hold the same item; only state has item['n'], item['obs']; only other has "
     "item"),
    (lambda: fbuf.extend(two(), fbuf.init({**ITEM, "more": {str(n): 0.0 for n in range(9)}}, 4)),
     ValueError, "the same item; only other has item['more']['0'], item['more']['1'], item['more']"
     "['2'], item['more']['3'], item['more']['4'] and 4 more"),
    (lambda: fbuf.extend(fbuf.init((1.0, 2.0), 4), fbuf.init([1.0, 2.0], 4)), ValueError,
     "the same item, got PyTreeDef((*, *)) in state and PyTreeDef([*, *]) in other"),
    (lambda: fbuf.extend(two(), fbuf.init({**ITEM, "obs": jnp.zeros(3)}, 4)), ValueError,
     "but the leaf item['obs'] is int32[] in state and float32[3] in other"),
    (lambda: fbuf.extend(two(next_of="obs"), two()), ValueError,
     "fbuf.extend: both buffers must be made with the same next_of, got 'obs' in state and None"),
    (lambda: fbuf.extend(two(num_envs=3, sampler=fbuf.Fifo()), two(num_envs=2)), ValueError,
     "state has num_envs=3, but other has num_envs=2, and a queue takes the steps of its own "
     "environments only; make state alike, or without num_envs: then it takes the episodes of any"),
    (lambda: fbuf.extend(two(num_envs=3, sampler=fbuf.Fifo()), two()), ValueError,
     "but other has num_envs=None, and a queue"),
    (lambda: fbuf.extend(two(num_envs=3, sampler=fbuf.Fifo()), two(num_envs=3, lockstep=False)),
     ValueError, "environments step together in state (lockstep=True), but not in other, and"),
    (lambda: fbuf.extend(two(num_envs=3, sampler=fbuf.Fifo()),
                         two(num_envs=3, autoreset="next_step")),
     ValueError, "autoreset is 'same_step' in state, but 'next_step' in other, and a queue"),
    (lambda: fbuf.extend(two(sampler=fbuf.Fifo()), two(num_envs=3, sampler=fbuf.Fifo())),
     ValueError, "take them with fbuf.pop, and add them"),
    (lambda: fbuf.extend(two(), jax.tree.map(lambda leaf: leaf[None], two())), ValueError,
     "fbuf.extend: state is a batch of buffers of shape (1,); "
     "use jax.vmap(lambda state: fbuf.extend(state, ...))(state)"),
    (lambda: fbuf.extend(two(), consumed()), RuntimeError, "fbuf.extend: this state was consumed"),
    (lambda: fbuf.extend(consumed(), two()), RuntimeError, "fbuf.extend: this state was consumed"),
]  # fmt: skip


def consumed():
    state = two()
    fbuf.clear(state)
    return state


@pytest.mark.parametrize(("call", "error", "text"), MISUSE)
def test_misuse(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
