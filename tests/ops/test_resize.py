"""Another capacity: what is kept is as if the buffer had always had it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import oracle

import fbuf

SWEEP = pytest.mark.sweep
EXACT = {"alpha": 1.0, "eps": 0.0}
RESIZED = {}


@functools.partial(jax.jit, static_argnames="following")
def seen(state, following=False):
    """All rows, how likely each is, and what each led to."""
    batch = fbuf.rows(state)
    led_to = fbuf.rows(state, view=fbuf.Transition()) if following else None
    return batch, led_to, fbuf.probability(state, batch.ids)


def snapshot(state, following):
    """Return the observed values of each row, by its number."""
    batch, led_to, likely = jax.tree.map(np.asarray, seen(state, following))
    found = {}
    for at in zip(*np.nonzero(batch.mask), strict=True):
        told = [bool(batch.terminated[at]), bool(batch.truncated[at]), float(likely[at])]
        if following and led_to.mask[at]:
            told.append(int(led_to.data.next_observation[at]))
        found[int(batch.data["n"][at])] = told
    return found


class Pair:
    """Two buffers of different capacities, and the same history."""

    def __init__(self, capacities, envs, sampler, autoreset, lockstep, next_of, seed):
        item = {"n": jnp.int32(0), "obs": jnp.int32(0)}
        self.states = [
            fbuf.init(
                item, capacity, num_envs=envs, sampler=sampler, autoreset=autoreset,
                lockstep=lockstep, next_of="obs" if next_of else None,
                max_ends=capacity if next_of else None,
            )
            for capacity in capacities
        ]  # fmt: skip
        self.lanes, self.lockstep, self.next_of = envs or 1, lockstep, next_of
        self.keeps = sampler.keeps_priorities
        self.shape = (envs,) if envs else ()
        self.rng, self.number = np.random.default_rng(seed), 0

    def both(self, change):
        self.states = [change(state) for state in self.states]

    def step(self):
        """A step of all environments, or of some."""
        rng, lanes, given = self.rng, self.lanes, {}
        n = (self.number + np.arange(lanes, dtype=np.int32)).reshape(self.shape)
        self.number += lanes
        ends = rng.random(lanes)
        given["terminated"] = (ends < 0.15).reshape(self.shape)
        given["truncated"] = (ends > 0.9).reshape(self.shape)
        if self.next_of:
            given["next_observation"] = n + 1000
        if self.keeps:
            given["priority"] = rng.integers(1, 9, lanes).astype(np.float32).reshape(self.shape)
        if not self.lockstep:
            given["mask"] = (rng.random(lanes) < 0.7).reshape(self.shape)
        self.both(lambda state: fbuf.add(state, {"n": n, "obs": n + 500}, **given))

    def change(self):
        """Something is done to rows that both have."""
        what = self.rng.choice(["remove", "priority", "end", "nothing"])
        if what == "end":
            mask = (self.rng.random(self.lanes) < 0.5).reshape(self.shape)
            self.both(lambda state: fbuf.end_episode(state, mask=mask))
        if what not in ("remove", "priority") or (what == "priority" and not self.keeps):
            return
        common = set.intersection(*(set(snapshot(s, False)) for s in self.states))
        if not common:
            return
        chosen = self.rng.choice(sorted(common))
        new = np.float32(self.rng.integers(1, 9))

        def changed(state):
            batch = fbuf.rows(state)
            there = np.asarray(batch.mask & (batch.data["n"] == chosen))
            if what == "remove":
                return fbuf.remove(state, batch.ids, mask=there)
            return fbuf.update_priority(state, batch.ids, np.full(there.shape, new), mask=there)

        self.both(changed)


def agree(one, other, following):
    """Both have the same rows, each as likely, and know the same of them."""
    one, other = snapshot(one, following), snapshot(other, following)
    assert one.keys() == other.keys()
    for n, told in one.items():
        assert told[:2] + told[3:] == other[n][:2] + other[n][3:], n
        assert told[2] == pytest.approx(other[n][2], rel=1e-5), n


CASES = [  # environments, sampler, autoreset, in lockstep, next observations
    (None, fbuf.Prioritized(**EXACT), "same_step", True, True),
    (3, fbuf.Prioritized(window=2, **EXACT), "next_step", False, True),
    (3, fbuf.Uniform(window=3, by="episode"), "next_step", True, False),
    (None, fbuf.Uniform(), "same_step", True, False),
    (None, fbuf.Uniform(window=2, first_only=True), "next_step", True, True),
    (None, fbuf.Uniform(window=3, strict=False), "same_step", True, False),
    (3, fbuf.Prioritized(window=3, strict=False, **EXACT), "same_step", False, False),
    (3, fbuf.Shuffled(window=2), "same_step", True, True),
    (3, fbuf.Uniform(window=2, by="episode", first_only=True), "next_step", False, False),
    (3, fbuf.Mixture(0.5, prioritized=0.5, recent=0.0, priorities=fbuf.Prioritized(
        window=2, new_priority="largest_ever")), "same_step", False, False),
    (None, fbuf.Prioritized(window=2, normalize="buffer", first_only=True), "next_step", True,
     False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("envs", "sampler", "autoreset", "lockstep", "next_of"),
    [pytest.param(*case, marks=[SWEEP] * (n != 5)) for n, case in enumerate(CASES)],
)
def test_smaller_is_as_if_it_had_always_been(envs, sampler, autoreset, lockstep, next_of):
    """At several moments of a history, and the history goes on."""
    lanes = envs or 1
    large, small = 9 * lanes, 5 * lanes
    for seed in range(3):
        pair = Pair((large, small), envs, sampler, autoreset, lockstep, next_of, seed)
        for turn in range(24):
            pair.step()
            pair.change()
            if turn in (2, 5, 11):
                resized = fbuf.resize(pair.states[0], small)
                assert jax.tree.structure(resized) == jax.tree.structure(pair.states[1])
                if turn == 11:
                    pair.states[0] = resized
                agree(resized, pair.states[1], next_of)
            if turn > 11:
                agree(*pair.states, next_of)
        assert not oracle.told(pair.states[0].fault)


@SWEEP
@pytest.mark.parametrize(
    ("envs", "sampler", "autoreset", "lockstep", "next_of"),
    CASES,
)
def test_larger_holds_all_and_more(envs, sampler, autoreset, lockstep, next_of):
    """Grown before the ring comes around, it is as one that was as large from the first."""
    lanes = envs or 1
    small, large = 5 * lanes, 9 * lanes
    pair = Pair((small, large), envs, sampler, autoreset, lockstep, next_of, seed=3)
    for turn in range(26):
        if turn == 4:
            pair.states[0] = fbuf.resize(pair.states[0], large)
        if turn >= 4:
            agree(*pair.states, next_of)
        pair.step()
        pair.change()


@SWEEP
@pytest.mark.parametrize(
    ("envs", "sampler", "autoreset", "lockstep", "next_of"),
    CASES,
)
def test_a_full_one_grows_and_shrinks(envs, sampler, autoreset, lockstep, next_of):
    """No window is drawn that was not, and its oldest row is never a first step by mistake."""
    lanes = envs or 1
    size = 5 * lanes
    pair = Pair((size, size), envs, sampler, autoreset, lockstep, next_of, seed=4)
    for _ in range(13):
        pair.step()
        pair.change()
    grown = fbuf.resize(pair.states[0], 9 * lanes)
    again = fbuf.resize(fbuf.resize(grown, 7 * lanes), size)
    before = snapshot(pair.states[0], next_of)
    for state in (grown, again):
        after = snapshot(state, next_of)
        assert after.keys() == before.keys()
        for n, told in after.items():
            assert told[:2] + told[3:] == before[n][:2] + before[n][3:]
            assert before[n][2] > 0 or told[2] == 0
    pair.states[0] = again
    for _ in range(8):  # then nothing is left of what was not known
        pair.step()
    if lockstep:
        agree(*pair.states, next_of)


@pytest.mark.parametrize(
    "capacity", [3, pytest.param(6, marks=SWEEP), pytest.param(12, marks=SWEEP)]
)
def test_ids_from_before_are_stale(capacity):
    state = fbuf.init({"n": jnp.int32(0)}, 6)
    for _ in range(3):
        state = fbuf.add(state, {"n": jnp.arange(4, dtype=jnp.int32)})
        ids = fbuf.rows(state).ids
        resized = fbuf.resize(state, capacity)
        fields = {"n": jnp.full(ids.slot.shape, -1, jnp.int32)}
        touched = fbuf.write(resized, ids, fields, donate=False)
        assert int(touched.fault) & (fbuf.Fault.STALE_ID | fbuf.Fault.ID_OUT_OF_RANGE)
        assert (fbuf.rows(touched).data["n"] >= 0).all()
        assert not fbuf.read(fbuf.resize(resized, 6), ids).mask.any()


@SWEEP
def test_faults_and_an_empty_buffer():
    state = fbuf.init({"obs": jnp.zeros(3)}, 8, sampler=fbuf.Prioritized())
    empty = fbuf.resize(state, 16)
    assert (int(fbuf.size(empty)), empty.capacity) == (0, 16)
    assert not fbuf.can_sample(empty)
    state = fbuf.add(state, {"obs": jnp.zeros((2, 3))}, priority=jnp.array([1.0, jnp.nan]))
    resized = fbuf.resize(state, 4)
    assert int(resized.fault) == fbuf.Fault.BAD_PRIORITY
    state = fbuf.add(state, {"obs": jnp.ones((2, 3))})  # it has not been consumed
    assert int(fbuf.size(state)) == 4


@SWEEP
def test_more_ends_than_there_is_room_for():
    state = fbuf.init({"obs": jnp.int32(0)}, 32, next_of="obs", max_ends=8)
    obs = jnp.arange(8, dtype=jnp.int32)
    state = fbuf.add(state, {"obs": obs}, next_observation=obs + 1, terminated=obs >= 0)
    assert not state.fault
    small = fbuf.resize(state, 8)
    assert int(small.fault) == fbuf.Fault.LOST_NEXT
    assert int(fbuf.rows(small, view=fbuf.Transition()).mask.sum()) == 2


def test_room_for_more_ends_alone():
    """Also where the ring of ends has gone round, and in the middle of an episode."""
    state = fbuf.init({"obs": jnp.int32(0)}, 8, next_of="obs", max_ends=2)
    obs = jnp.arange(8, dtype=jnp.int32)
    ends = jnp.isin(obs, jnp.array([0, 4, 6]))
    state = fbuf.add(state, {"obs": obs}, next_observation=100 + obs, truncated=ends)
    assert int(state.fault) & fbuf.Fault.LOST_NEXT
    state = fbuf.resize(state, 8, max_ends=5)
    more = jnp.arange(107, 110, dtype=jnp.int32)
    state = fbuf.add(state, {"obs": more}, next_observation=100 + more, terminated=more > 0)
    data = fbuf.rows(state, view=fbuf.Transition()).data
    pairs = zip(data.item["obs"].tolist(), data.next_observation.tolist(), strict=True)
    wanted = {3: 4, 4: 104, 5: 6, 6: 106, 7: 107, 107: 207, 108: 208, 109: 209}
    assert dict(pairs) == wanted
    with pytest.raises(ValueError, match="max_ends must be"):
        fbuf.resize(state, 8, max_ends=9)
    with pytest.raises(ValueError, match="made with next_of"):
        fbuf.resize(fbuf.init(jnp.int32(0), 8), 8, max_ends=1)


@SWEEP
def test_inside_jit_and_vmap():
    rows = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)

    @jax.jit
    @jax.vmap
    def newest(rows):
        state = fbuf.add(fbuf.init(jnp.int32(0), 6, sampler=fbuf.Prioritized()), rows)
        return fbuf.rows(fbuf.resize(state, 4)).data

    np.testing.assert_array_equal(newest(rows), rows[:, 2:])


@pytest.mark.parametrize(
    ("capacity", "error", "text"),
    [
        (0, ValueError, "capacity"),
        (2.5, TypeError, "capacity"),
        (7, ValueError, "take 6"),
        (3, ValueError, "longer than a lane"),
    ],
)
def test_misuse(capacity, error, text):
    state = fbuf.init(jnp.int32(0), 12, num_envs=3, sampler=fbuf.Uniform(window=2))
    with pytest.raises(error, match=text):
        fbuf.resize(state, capacity)
    with pytest.raises(TypeError, match="state must be"):
        fbuf.resize({}, 3)
    fbuf.add(state, jnp.zeros(3, jnp.int32))
    with pytest.raises(RuntimeError, match="state was consumed"):
        fbuf.resize(state, 6)


@pytest.mark.sweep
@pytest.mark.parametrize("capacity", [3, pytest.param(8, marks=SWEEP)])
def test_the_oldest_row_is_no_first_step_if_its_episode_began_before(capacity):
    """Also where the new ring has room left, so that nothing seems to have been overwritten."""
    state = fbuf.add(fbuf.init(jnp.int32(0), 4), jnp.arange(6, dtype=jnp.int32))
    state = fbuf.resize(state, capacity)
    view = fbuf.Sequence(2, boundary="pad")
    assert not fbuf.rows(state, view=view).data.is_first.any()
