"""Rows in slots of choice: a reservoir, and the rows of the highest priorities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats as scipy_stats
from support import meshes

import fbuf
from fbuf import sharded
from fbuf.samplers import Given

SWEEP = pytest.mark.sweep
CAPACITY = 12
LOWEST = fbuf.EvictLowest(fbuf.Prioritized(alpha=1.0, eps=1e-3))
EVER = fbuf.EvictLowest(fbuf.Prioritized(alpha=0.5, floor=0.25, new_priority="largest_ever"))
ADD, REMOVE = jax.jit(fbuf.add), jax.jit(fbuf.remove)
SAMPLE = jax.jit(fbuf.sample, static_argnums=2)
READ, UPDATE, ROWS = jax.jit(fbuf.read), jax.jit(fbuf.update_priority), jax.jit(fbuf.rows)
PROBABILITY = jax.jit(fbuf.probability)


class OVER_SHARDS:
    add, remove = jax.jit(sharded.add), jax.jit(sharded.remove)
    update_priority = jax.jit(sharded.update_priority)
    sample = staticmethod(jax.jit(sharded.sample, static_argnums=2))


class Pair:
    """A buffer, and the rows by slot: `[number, priority, whether it was removed]`.

    A reservoir chooses at random, so its slots are looked up; all else is known beforehand.
    """

    def __init__(self, sampler, seed):
        self.rng = np.random.default_rng(seed)
        self.state = fbuf.init(jnp.int32(0), CAPACITY, sampler=sampler)
        self.sampler, self.per = sampler, getattr(sampler, "sampler", None)
        self.slots, self.number, self.names, self.ever, self.newest = {}, 0, {}, 0.0, 0

    def stored(self, priority):
        """Return the value that is stored for a priority."""
        return max(priority + self.per.eps, self.per.floor) ** self.per.alpha

    def largest(self):
        live = [value for _, value, gone in self.slots.values() if not gone]
        return self.ever if self.per.new_priority == "largest_ever" else max(live, default=0.0)

    def default(self):
        largest = self.largest()
        return largest if largest > 0 else max(self.per.floor, 1.0) ** self.per.alpha

    def add(self):
        count = int(self.rng.choice([1, 4, 20]))
        numbers = self.number + np.arange(count, dtype=np.int32)
        mask, given = self.rng.random(count) < 0.8, {}
        self.number += count
        if self.per:
            given["priority"] = self.rng.choice([0.0, 0.5, 1.0, 2.0, 3.0, np.nan], count)
            given["priority"] = given["priority"].astype(np.float32)
            default = self.default()
            for number, priority, meant in zip(numbers, given["priority"], mask, strict=True):
                good = np.isfinite(priority)
                if meant:
                    self.put(int(number), self.stored(float(priority)) if good else default)
        self.state = ADD(self.state, numbers, mask=mask, **given)
        if not self.per:
            self.look_up(numbers[mask])

    def put(self, number, value):
        free = [slot for slot in range(CAPACITY) if slot not in self.slots]
        holes = [slot for slot, row in sorted(self.slots.items()) if row[2]]
        live = {slot: row[1] for slot, row in self.slots.items() if not row[2]}
        # The next lowest one behind the newest row.
        turn = lambda slot: (live[slot], (slot - self.newest - 1) % CAPACITY)
        slot = (free or holes or [min(live, key=turn)])[0]
        if not free and not holes and value < live[slot]:
            return
        self.slots[slot], self.newest = [number, value, False], slot
        self.ever = max(self.ever, value)

    def look_up(self, new):
        """Take over where the rows of a reservoir are: each was there, or is new."""
        found = self.state.storage.read(jnp.arange(CAPACITY)).tolist()
        for slot in range(int(self.state.ring.stored[0])):
            if slot not in self.slots or self.slots[slot][0] != found[slot]:
                assert found[slot] in new
                self.slots[slot] = [found[slot], 1.0, False]
        numbers = [row[0] for row in self.slots.values()]
        assert len(set(numbers)) == len(numbers)

    def remove(self):
        live = self.live()
        if live:
            slots = self.rng.choice(live, 3)
            ids = fbuf.ids_at(self.state, jnp.asarray(slots, jnp.int32))
            self.state = REMOVE(self.state, ids)
            for slot in slots:
                self.slots[slot][2] = True

    def update(self):
        live = self.live()
        if live and self.per:
            slots = self.rng.choice(live, 3)
            new = self.rng.choice([0.25, 1.5, 7.0], 3).astype(np.float32)
            ids = fbuf.ids_at(self.state, jnp.asarray(slots, jnp.int32))
            self.state = UPDATE(self.state, ids, new)
            for slot, priority in zip(slots, new, strict=True):
                self.slots[slot][1] = self.stored(float(priority))
                self.ever = max(self.ever, self.slots[slot][1])

    def clear(self):
        self.state = fbuf.clear(self.state)
        self.slots, self.ever, self.newest = {}, 0.0, 0

    def live(self):
        return [slot for slot, row in sorted(self.slots.items()) if not row[2]]

    def step(self):
        kinds = ["add", "remove", "update", "clear"]
        getattr(self, self.rng.choice(kinds, p=[0.55, 0.2, 0.2, 0.05]))()

    def agree(self):
        live = self.live()
        assert int(fbuf.size(self.state)) == len(live)
        rows = jax.tree.map(np.asarray, ROWS(self.state))
        assert rows.data[rows.mask].tolist() == [self.slots[slot][0] for slot in live]
        # A name is good until its row is replaced or removed.
        ids = jax.tree.map(np.asarray, fbuf.ids_at(self.state, jnp.arange(CAPACITY)))
        for slot in live:
            name = slot, int(ids.generation[slot])
            assert self.names.setdefault(name, self.slots[slot][0]) == self.slots[slot][0]
        names = list(self.names)[-60:]
        padded = np.array(names + [(-1, 0)] * (60 - len(names)), np.int32).T
        read = READ(self.state, fbuf.Ids(*map(jnp.asarray, padded)))
        for at, (slot, generation) in enumerate(names):
            number = self.names[slot, generation]
            there = slot in live and self.slots[slot][0] == number
            assert bool(read.mask[at]) == there
            assert not there or int(read.data[at]) == number
        self.agree_draws(live)

    def agree_draws(self, live):
        values = {slot: self.slots[slot][1] for slot in live}
        total = sum(values.values())
        expected = [values.get(slot, 0) / max(total, 1e-9) for slot in range(CAPACITY)]
        ids = fbuf.ids_at(self.state, jnp.arange(CAPACITY))
        np.testing.assert_allclose(PROBABILITY(self.state, ids), expected, rtol=1e-5)
        batch = SAMPLE(self.state, jax.random.key(int(self.rng.integers(99))), 16)
        batch = jax.tree.map(np.asarray, batch)
        assert batch.mask.all() == batch.mask.any() == bool(live)
        if live:
            assert batch.data.tolist() == [self.slots[slot][0] for slot in batch.ids.slot]
            np.testing.assert_allclose(
                batch.probability, np.array(expected)[batch.ids.slot], rtol=1e-5
            )


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.first(1)
@pytest.mark.parametrize("sampler", [fbuf.Reservoir(3), LOWEST, EVER], ids=["any", "low", "ever"])
@pytest.mark.parametrize("seeds", [3, pytest.param(70, marks=SWEEP)])
def test_rows_are_where_the_sampler_puts_them(sampler, seeds):
    for seed in range(seeds):
        pair = Pair(sampler, seed)
        pair.agree()
        for _ in range(14):
            pair.step()
            pair.agree()


class Shards:
    """A buffer over several shards, and the rows of each shard by slot."""

    def __init__(self, sampler, seed, shards, devices):
        self.rng, self.sampler = np.random.default_rng(seed), sampler
        self.pairs = [Pair(sampler, seed + shard) for shard in range(shards)]
        self.state = sharded.init(
            jnp.int32(0),
            shards * CAPACITY,
            mesh=meshes.mesh(devices),
            shards=shards,
            sampler=sampler,
        )
        self.number, self.added = 0, np.zeros(shards)

    def add(self):
        shape = len(self.pairs), int(self.rng.choice([1, 4, 20]))
        numbers = self.number + np.arange(np.prod(shape), dtype=np.int32)
        self.number += len(numbers)
        # Shards get different numbers of rows.
        mask = self.rng.random(shape) < np.resize([0.9, 0.5, 0.8, 0.2], (len(self.pairs), 1))
        priority = self.rng.choice([0.0, 0.5, 1.0, 2.0, 3.0, np.nan], len(numbers))
        priority = priority.astype(np.float32)
        given = {"priority": priority} if self.pairs[0].per else {}
        if given:
            self.place(numbers.reshape(shape), priority.reshape(shape), mask)
        self.state = OVER_SHARDS.add(self.state, numbers, mask=mask.ravel(), **given)
        self.added += mask.sum(axis=1)
        self.look()
        if not given:
            for pair, new, meant in zip(self.pairs, numbers.reshape(shape), mask, strict=True):
                pair.look_up(new[meant])

    def place(self, numbers, priority, mask):
        default = max(pair.largest() for pair in self.pairs)
        default = default if default > 0 else self.pairs[0].default()
        for shard, pair in enumerate(self.pairs):
            for number, value, meant in zip(
                numbers[shard], priority[shard], mask[shard], strict=True
            ):
                if meant:
                    stored = pair.stored(float(value)) if np.isfinite(value) else default
                    pair.put(int(number), stored)

    def look(self):
        for pair, part in zip(self.pairs, meshes.parts(self.state), strict=True):
            pair.state = part

    def ids(self):
        """Name as many live rows as shards, some of them twice; none if no shard has one."""
        live = [(shard, slot) for shard, pair in enumerate(self.pairs) for slot in pair.live()]
        if not live:
            return [], None
        rows = [live[at] for at in self.rng.integers(len(live), size=len(self.pairs))]
        names = [self.pairs[s].state.ring.writes[slot] for s, slot in rows]
        shard, slot = np.array(rows, np.int32).T
        return rows, sharded.ShardedIds(shard, slot, np.array(names, np.int32))

    def remove(self):
        rows, ids = self.ids()
        if rows:
            self.state = OVER_SHARDS.remove(self.state, ids)
            for shard, slot in rows:
                self.pairs[shard].slots[slot][2] = True
            self.look()

    def update(self):
        rows, ids = self.ids()
        if rows and self.pairs[0].per:
            new = self.rng.choice([0.25, 1.5, 7.0], len(rows)).astype(np.float32)
            self.state = OVER_SHARDS.update_priority(self.state, ids, new)
            for (shard, slot), priority in zip(rows, new, strict=True):
                pair = self.pairs[shard]
                pair.slots[slot][1] = value = pair.stored(float(priority))
                pair.ever = max(pair.ever, value)
            self.look()

    def clear(self):
        self.state, self.added = sharded.clear(self.state), np.zeros_like(self.added)
        for pair in self.pairs:
            pair.slots, pair.ever, pair.newest = {}, 0.0, 0
        self.look()

    def agree(self):
        self.look()
        masses = []
        for shard, pair in enumerate(self.pairs):
            pair.agree()
            stands = 1 if pair.per else self.added[shard] / max(len(pair.slots), 1)
            masses.append({slot: pair.slots[slot][1] * stands for slot in pair.live()})
        total = sum(sum(mass.values()) for mass in masses)
        key = jax.random.key(int(self.rng.integers(99)))
        batch = jax.tree.map(np.asarray, OVER_SHARDS.sample(self.state, key, 16))
        assert batch.mask.all() == batch.mask.any() == (total > 0)
        for at in np.flatnonzero(batch.mask):
            shard, slot = int(batch.ids.shard[at]), int(batch.ids.slot[at])
            assert batch.data[at] == self.pairs[shard].slots[slot][0]
            np.testing.assert_allclose(
                batch.probability[at], masses[shard][slot] / total, rtol=1e-5
            )


@pytest.mark.first(1)
@pytest.mark.parametrize("sampler", [fbuf.Reservoir(3), LOWEST, EVER], ids=["any", "low", "ever"])
@pytest.mark.parametrize(
    ("seeds", "number", "devices"),
    [(1, 4, 2), pytest.param(25, 4, 2, marks=SWEEP), pytest.param(25, 8, 8, marks=SWEEP)],
)
def test_each_shard_places_its_own_rows(sampler, seeds, number, devices):
    if jax.device_count() < devices:
        pytest.skip(f"needs {devices} devices")
    for seed in range(seeds):
        shards = Shards(sampler, seed, number, devices)
        shards.agree()
        for _ in range(10):
            kinds = ["add", "remove", "update", "clear"]
            getattr(shards, shards.rng.choice(kinds, p=[0.55, 0.2, 0.2, 0.05]))()
            shards.agree()


@pytest.mark.sweep
def test_shards_of_different_numbers_of_rows_are_drawn_by_these():
    state = sharded.init(jnp.int32(0), 32, mesh=meshes.mesh(1), shards=4, sampler=fbuf.Reservoir())
    added = np.array([40, 20, 8, 4])
    mask = np.arange(40)[None] < added[:, None]
    state = sharded.add(state, np.arange(160, dtype=np.int32), mask=mask.ravel())
    batch = jax.tree.map(np.asarray, sharded.sample(state, jax.random.key(5), 30_000))
    stored = np.minimum(added, 8)
    np.testing.assert_allclose(
        batch.probability, (added / stored)[batch.ids.shard] / added.sum(), rtol=1e-5
    )
    counts = np.zeros((4, 8))
    np.add.at(counts, (batch.ids.shard, batch.ids.slot), 1)
    there = np.arange(8)[None] < stored[:, None]
    expected = np.broadcast_to((added / stored)[:, None], (4, 8))[there] / added.sum() * 30_000
    assert counts[~there].sum() == 0
    assert scipy_stats.chisquare(counts[there], expected).pvalue > 1e-4


def test_the_lowest_of_all_shards_is_said():
    state = sharded.init(jnp.int32(0), 8, mesh=meshes.mesh(1), shards=2, sampler=LOWEST)
    priority = jnp.array([5.0, 3.0, 2.0, 9.0])
    state = sharded.add(state, jnp.arange(4, dtype=jnp.int32), priority=priority)
    np.testing.assert_allclose(sharded.stats(state)["lowest"], 2.001, rtol=1e-6)


def test_shards_do_not_keep_the_same_places():
    state = sharded.init(jnp.int32(0), 16, mesh=meshes.mesh(1), shards=2, sampler=fbuf.Reservoir())
    for turn in range(4):
        rows = np.tile(np.arange(20, dtype=np.int32), 2) + 20 * turn
        state = sharded.add(state, rows)
    one, two = (part.storage.read(jnp.arange(8)).tolist() for part in meshes.parts(state))
    assert one != two


@pytest.mark.sweep
def test_shards_choose_apart():
    """A row is kept in one shard whatever another one keeps; each as often."""
    size, runs, sampler = 6, 4000, fbuf.Reservoir(1)

    def kept(lap, shard):
        state = fbuf.init(jnp.int32(0), size, sampler=sampler)
        ring = state.ring
        ring = ring.__class__(**(vars(ring) | {"cursor": ring.cursor.at[1].set(lap)}))
        state = state.__class__(**(state.__getstate__() | {"ring": ring}))
        for first in range(0, 40, 10):
            index = sampler.of_shard(state.index, shard)
            state = state.__class__(**(state.__getstate__() | {"index": index}))
            state = fbuf.add(state, jnp.int32(first) + jnp.arange(10, dtype=jnp.int32))
        return state.storage.read(jnp.arange(size, dtype=jnp.int32))

    laps = jnp.arange(runs, dtype=jnp.int32)
    has = [
        (np.asarray(jax.jit(jax.vmap(kept, (0, None)))(laps, jnp.int32(n))) == 17).any(1)
        for n in range(2)
    ]
    share, spread = size / 40, (size / 40 * (1 - size / 40) / runs) ** 0.5
    for one in has:
        np.testing.assert_allclose(one.mean(), share, atol=4 * spread)
    both = (has[0] & has[1]).mean()
    np.testing.assert_allclose(both, share**2, atol=4 * (share**2 / runs) ** 0.5)


@pytest.mark.parametrize("sampler", [fbuf.Reservoir(5), LOWEST], ids=["any", "low"])
def test_a_loaded_buffer_goes_on_in_the_same_way(tmp_path, sampler):
    one, two = Pair(sampler, 0), Pair(sampler, 0)
    for turn in range(6):
        for pair in (one, two):
            pair.add()
        if turn == 2:
            one.remove()
            two.remove()
        two.state = fbuf.save(tmp_path, two.state)
        two.state = fbuf.load(tmp_path).state
        assert not fbuf.rows(two.state).truncated.any()
    same(ROWS(one.state), ROWS(two.state))


@pytest.mark.parametrize("sizes", [(10,) * 4, pytest.param((3, 20, 9, 8), marks=SWEEP)])
def test_every_row_ever_added_is_as_likely_to_be_there(sizes):
    """Over the keys of many laps: each row, alone and in pairs."""
    size = 6

    def kept(lap):
        state = fbuf.init(jnp.int32(0), size, sampler=fbuf.Reservoir(1))
        ring = state.ring
        ring = ring.__class__(**(vars(ring) | {"cursor": ring.cursor.at[1].set(lap)}))
        state = state.__class__(**(state.__getstate__() | {"ring": ring}))
        if len(set(sizes)) == 1:
            rows = jnp.arange(40, dtype=jnp.int32).reshape(len(sizes), -1)
            state = jax.lax.scan(lambda state, rows: (fbuf.add(state, rows), 0), state, rows)[0]
        else:
            for first, count in zip(np.cumsum(sizes) - sizes, sizes, strict=True):
                state = fbuf.add(state, jnp.int32(first) + jnp.arange(count, dtype=jnp.int32))
        return state.storage.read(jnp.arange(size, dtype=jnp.int32))

    runs = 6000
    rows = np.asarray(jax.jit(jax.vmap(kept))(jnp.arange(runs, dtype=jnp.int32)))
    counts = np.bincount(rows.reshape(-1), minlength=40)
    # The rows of a run are drawn without replacement: their counts vary less than independent ones.
    spread = ((counts - runs * size / 40) ** 2).sum() / (runs * size / 40) / (1 - size / 40)
    assert 1e-4 < scipy_stats.chi2.sf(spread, 39) < 1 - 1e-4
    both = ((rows == 3).any(1) & (rows == 37).any(1)).mean()
    np.testing.assert_allclose(both, 6 * 5 / (40 * 39), atol=4 * (0.02 / runs) ** 0.5)


def test_more_rows_than_a_word_counts():
    state = fbuf.init(jnp.int32(0), 4, sampler=fbuf.Reservoir())
    state = fbuf.add(state, jnp.arange(4, dtype=jnp.int32))
    index = state.index.__class__(state.index.rows, jnp.array([3, 2**32 - 2], jnp.uint32))
    state = state.__class__(**(state.__getstate__() | {"index": index}))
    state = fbuf.add(state, jnp.arange(100, 105, dtype=jnp.int32))
    assert state.index.added.tolist() == [4, 3]
    assert fbuf.rows(state).data.tolist() == [0, 1, 2, 3]


@pytest.mark.sweep
def test_a_choice_among_more_rows_than_a_word_counts():
    """Among 2**40 rows, about one in 64 runs gives one of 4,096 rows one of so many slots."""
    ring = jax.eval_shape(lambda: fbuf.init(jnp.int8(0), 2**22, sampler=fbuf.Reservoir()).ring)
    ring = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), ring)
    index = fbuf.Reservoir().init(ring)
    index = index.__class__(index.rows, jnp.array([2**8, 0], jnp.uint32))
    slots = fbuf.Reservoir().place(index, ring, jnp.ones(4096, bool), Given(None))[1]
    assert (slots == 2**22).all()


def test_bad_priorities_are_faults_where_rows_are_kept():
    state = fbuf.init(jnp.int32(0), 2, sampler=LOWEST)
    rows = jnp.arange(2, dtype=jnp.int32)
    state = fbuf.add(state, rows, priority=jnp.array([2.0, 1.0]))
    assert int(state.fault) == 0
    state = fbuf.add(state, rows, priority=jnp.array([0.5, 0.5]))
    assert int(state.fault) == 0
    assert fbuf.rows(state).truncated.tolist() == [False, False]
    state = fbuf.add(state, rows, priority=jnp.array([jnp.nan, 1.0]))
    assert fbuf.Fault(int(state.fault)) == fbuf.Fault.BAD_PRIORITY


@pytest.mark.sweep
def test_a_population_keeps_its_own_rows():
    def run(offset, sampler):
        state = fbuf.init(jnp.int32(0), 6, sampler=sampler)
        for turn in range(4):
            rows = jnp.arange(5, dtype=jnp.int32) + 5 * turn + offset
            given = {"priority": (rows % 7).astype(jnp.float32)} if sampler is LOWEST else {}
            state = fbuf.add(state, rows, **given)
        return fbuf.rows(state).data, fbuf.sample(state, jax.random.key(0), 4).data

    for sampler in (fbuf.Reservoir(), LOWEST):
        many = jax.jit(jax.vmap(lambda offset, s=sampler: run(offset, s)))(100 * jnp.arange(3))
        for member in range(3):
            alone = run(100 * member, sampler)
            for a, b in zip(alone, many, strict=True):
                np.testing.assert_array_equal(a, b[member])


@pytest.mark.sweep
def test_rows_on_the_host_are_placed_alike():
    for sampler in (fbuf.Reservoir(), LOWEST):
        store = fbuf.host.HostStore(jnp.int32(0), 6, sampler=sampler)
        plain = fbuf.init(jnp.int32(0), 6, sampler=sampler)
        for turn in range(4):
            rows = np.arange(5, dtype=np.int32) + 5 * turn
            given = {"priority": (rows % 7).astype(np.float32)} if sampler is LOWEST else {}
            store.add(rows, **given)
            plain = fbuf.add(plain, rows, **given)
        key = jax.random.key(1)
        same(store.sample(key, 8), fbuf.sample(plain, key, 8))
        same(store.rows(), fbuf.rows(plain))
        with pytest.raises(ValueError, match="no order of time"):
            store.rollout()


def filled(sampler=fbuf.Reservoir()):
    state = fbuf.init({"x": jnp.zeros(2)}, 8, sampler=sampler)
    return fbuf.add(state, {"x": jnp.ones((3, 2))})


MISUSE = {
    "envs": (lambda: fbuf.init(0, 8, num_envs=2, sampler=fbuf.Reservoir()), "leave num_envs out"),
    "next_of": (
        lambda: fbuf.init({"x": 0}, 8, next_of="x", sampler=fbuf.Reservoir()),
        "leave next_of out",
    ),
    "resets": (
        lambda: fbuf.init(0, 8, autoreset="next_step", sampler=LOWEST),
        "EvictLowest knows no steps",
    ),
    "view": (
        lambda: fbuf.sample(filled(), jax.random.key(0), 2, view=fbuf.Sequence(2)),
        "Sequence.*Reservoir lie in no order.*fbuf.Item",
    ),
    "neighbours": (
        lambda: fbuf.neighbours(filled(), fbuf.ids_at(filled(), jnp.arange(2)), (0, 1)),
        "neighbours.*no order",
    ),
    "newest": (lambda: fbuf.newest_ids(filled(), 2), "newest_ids.*no order"),
    "rollout": (lambda: fbuf.rollout(filled()), "rollout.*no order"),
    "resize": (lambda: fbuf.resize(filled(), 16), "resize.*no order"),
    "extend": (
        lambda: fbuf.extend(fbuf.init({"x": jnp.zeros(2)}, 8), filled()),
        "extend.*no order",
    ),
    "split": (lambda: fbuf.split(filled(), None, 0.5), "split.*no order"),
    "episodes": (
        lambda: fbuf.remove(filled(), fbuf.ids_at(filled(), jnp.arange(1)), episodes=True),
        "remove.*no order",
    ),
    "priority": (
        lambda: fbuf.add(filled(), {"x": jnp.ones((3, 2))}, priority=jnp.ones(3)),
        "add.*Reservoir keeps no priorities",
    ),
    "seed": (lambda: fbuf.Reservoir(-1), "Reservoir.*seed"),
    "zero": (lambda: fbuf.EvictLowest(fbuf.Prioritized(eps=0.0)), "EvictLowest.*eps or a floor"),
    "window": (lambda: fbuf.EvictLowest(fbuf.Prioritized(window=2)), "EvictLowest.*window"),
    "uniform": (lambda: fbuf.EvictLowest(fbuf.Uniform()), "EvictLowest.*Prioritized"),
    "fresh": (lambda: fbuf.FreshFirst(fbuf.Reservoir()), "FreshFirst.*Reservoir"),
    "limited": (lambda: fbuf.Limited(LOWEST, max_uses=2), "Limited.*EvictLowest"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_of_placed_rows_is_refused_by_name(name):
    call, message = MISUSE[name]
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        call()


@pytest.mark.first(1)
@pytest.mark.parametrize("sampler", [fbuf.Reservoir(), LOWEST], ids=["any", "low"])
def test_rows_are_carried_over_as_the_message_says(sampler):
    state = fbuf.init(jnp.int32(0), 8, sampler=sampler)
    state = fbuf.add(state, jnp.arange(5, dtype=jnp.int32))
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([2])))
    with pytest.raises(ValueError, match=r"fbuf\.add\(other, rows\.data, mask=rows\.mask\)"):
        fbuf.resize(state, 16)
    rows = fbuf.rows(state)
    other = fbuf.add(fbuf.init(jnp.int32(0), 16), rows.data, mask=rows.mask)
    found = fbuf.rows(other)
    assert found.data[found.mask].tolist() == [0, 1, 3, 4]
