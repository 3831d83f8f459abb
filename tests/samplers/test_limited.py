"""Limits of uses, ages and versions: plain Python beside the buffer."""

from __future__ import annotations

import collections
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats as scipy_stats
from support import meshes, own, restored
from support.pair import Pair, ShardedPair, priorities_of

import fbuf
from fbuf import sharded
from fbuf.xla.duplicates import earlier_of_each

ONE, THREE, APART = (None, 6, True), (3, 5, True), (3, 5, False)
EXACT = fbuf.Prioritized(alpha=1.0, eps=0.0)
PER_WINDOW = fbuf.Prioritized(alpha=1.0, eps=0.0, window=2)
ITEM = {"number": jnp.int32(0), "version": jnp.int32(0)}
BATCH = 8
SWEEP = pytest.mark.sweep
LIKELY = jax.jit(fbuf.probability)


def version_at_first(number):
    """The version of a row: it grows, but not in order."""
    number = np.asarray(number)
    return number // 6 + np.array([0, 0, -1, 0, 1])[number % 5]


def items(numbers):
    numbers = np.asarray(numbers)
    return {
        "number": numbers.astype(np.int32),
        "version": version_at_first(numbers).astype(np.int32),
    }


def calls(module):
    """The functions of a module, compiled."""
    compiled = {
        name: jax.jit(getattr(module, name)) for name in ("expire", "write", "uses", "stats")
    }
    for name in ("draw", "sample"):
        compiled[name] = jax.jit(getattr(module, name), static_argnums=2)
    return types.SimpleNamespace(**compiled)


class LimitedPair(Pair):
    """A buffer, its oracle, and the lives of its rows, by `(lane, number of the row)`."""

    calls = calls(fbuf)

    def __init__(self, shape, sampler, autoreset="same_step", **options):
        self.uses, self.retired = collections.Counter(), set()
        self.lowest, self.moved = -(10**9), {}
        super().__init__(shape, sampler, autoreset, ITEM, items, **options)
        self.per = priorities_of(sampler.sampler)
        if self.per:
            self.oracle.alpha, self.oracle.eps = self.per.alpha, self.per.eps
        self.oracle.default = self.default

    def add(self, *args, **options):
        super().add(*args, **options)
        self.grown_old()

    def clear(self):
        super().clear()
        self.uses, self.retired = collections.Counter(), set()
        self.lowest = -(10**9)

    def resize(self, length):
        live, behind = self.live(), super().resize
        live = {self.row(slot) for slot in live}
        behind = behind(length)
        moved = lambda starts: {(lane, at - behind[lane]) for lane, at in starts}
        uses = {(lane, at - behind[lane]): n for (lane, at), n in self.uses.items()}
        self.uses = collections.Counter(uses)
        self.retired = {self.row(slot) for slot in self.starts()} - moved(live)
        self.oracle.default = self.default
        return behind

    def grown_old(self):
        """Retire what is too old, in steps or in versions."""
        for slot in self.starts():
            lane, at = self.row(slot)
            row = self.oracle.lanes[lane][at]
            if self.sampler.max_age is not None:
                age = len(self.oracle.lanes[lane]) - 1 - at
                self.retired |= {(lane, at)} if age >= self.sampler.max_age else set()
            version = self.moved.get(row.number, version_at_first(row.number))
            if self.sampler.version is not None and version < self.lowest:
                self.retired.add((lane, at))

    def default(self):
        """Return the priority of a row without one: the largest of those that may be drawn."""
        largest = max((self.oracle.at(slot).priority for slot in self.live()), default=0.0)
        return largest if largest > 0 else 1.0

    def row(self, slot):
        rows, at = self.oracle.place(slot)
        return next(n for n, lane in enumerate(self.oracle.lanes) if lane is rows), at

    def starts(self):
        given = self.sampler.sampler
        return self.oracle.starts(given.window, given.stride, given.first_only, given.strict)

    def live(self):
        return {slot for slot in self.starts() if self.row(slot) not in self.retired}

    def expire(self, rng):
        newest = max((row.number for rows in self.oracle.lanes for row in rows), default=0)
        version = max(int(version_at_first(newest)) - int(rng.integers(0, 3)), 0)
        self.lowest = max(self.lowest, version)
        self.state = self.calls.expire(self.state, jnp.int32(version))
        self.grown_old()

    def write(self, rng):
        ids = self.ids(rng, 3, odd=True)
        if not ids:
            return
        new = rng.integers(0, 6, len(ids)).astype(np.int32)
        for row, version in zip(self.oracle.named(ids), new, strict=True):
            if row is not None:
                self.moved[row.number] = version
        self.state = self.calls.write(self.state, self.named(ids), {"version": new})
        self.grown_old()

    def draw(self, seed, beta=0.7):
        live, key = self.live(), jax.random.key(seed)
        share = self.oracle.by_priority(live) if self.per else self.oracle.evenly(live)
        stats = self.calls.stats(self.state)
        assert int(stats["live"]) == len(live)
        assert "num_starts" not in stats or int(stats["num_starts"]) == len(live)
        self.agree_probability(share)
        if self.sampler.notes_draws:
            self.state, batch = self.calls.draw(self.state, key, BATCH, beta=beta)
        else:
            batch = self.calls.sample(self.state, key, BATCH, beta=beta)
        self.agree(self.plain(batch), share, beta)

    def agree_probability(self, share):
        slots = jnp.arange(self.oracle.capacity, dtype=jnp.int32)
        likely = LIKELY(self.state, fbuf.ids_at(self.state, slots))
        expected = [share.get(slot, 0) for slot in range(self.oracle.capacity)]
        np.testing.assert_allclose(likely, expected, rtol=1e-5)

    def plain(self, batch):
        return batch

    def agree(self, batch, share, beta):
        batch = jax.tree.map(np.asarray, batch)
        assert batch.mask.tolist() == sorted(batch.mask.tolist(), reverse=True)
        assert batch.mask[0] == bool(share)
        drawn = batch.ids.slot[batch.mask].tolist()
        found = np.array([share[slot] for slot in drawn])
        np.testing.assert_allclose(batch.probability[batch.mask], found, rtol=1e-5)
        assert batch.data["number"][batch.mask].tolist() == [
            self.oracle.at(slot).number for slot in drawn
        ]
        power = beta if self.per else 0
        if drawn:
            weight = (found.min() / found) ** power
            np.testing.assert_allclose(batch.weight[batch.mask], weight, rtol=1e-4)
        assert not batch.weight[~batch.mask].any()
        if self.sampler.max_uses is None:
            assert batch.mask.all() or not share
            return
        self.count(drawn)

    def count(self, drawn):
        most = self.sampler.max_uses
        for slot in drawn:
            self.uses[self.row(slot)] += 1
            assert self.uses[self.row(slot)] <= most
            if self.uses[self.row(slot)] == most:
                self.retired.add(self.row(slot))
        stored = self.oracle.stored()
        if stored:
            names = [(slot, self.oracle.at(slot).generation) for slot in stored]
            names += [(-1, 0)] * (self.oracle.capacity - len(names))
            uses = self.calls.uses(self.state, self.named(names))[: len(stored)]
            assert uses.tolist() == [self.uses[self.row(slot)] for slot in stored]


class LimitedShards(ShardedPair, LimitedPair):
    """The same over four shards on two devices."""

    calls = calls(sharded)

    def agree_probability(self, share):
        """Nobody asks for it over a mesh."""


def history(pair, sizes, seed, between=None):
    rng, often = np.random.default_rng(seed), (0.1, 0.5, 0.9)[seed % 3]
    pair.draw(seed)
    for turn in range(16):
        kind = rng.random()
        if pair.sampler.version is not None and kind < 0.15:
            pair.expire(rng)
        elif pair.sampler.version is not None and kind < 0.25:
            pair.write(rng)
        else:
            pair.step(rng, sizes, often, odd=True)
        pair.draw(100 * seed + turn)
        if between is not None:
            between(pair, rng)


CASES = [
    (ONE, fbuf.Limited(PER_WINDOW, max_uses=3, max_age=4), "same_step", (3, 9)),
    (APART, fbuf.Limited(version="version"), "next_step", (1, 3)),
    (THREE, fbuf.Limited(max_uses=1), "next_step", (3, 9)),
    pytest.param(
        (None, 17, True), fbuf.Limited(EXACT, max_uses=2), "same_step", (6, 37), marks=SWEEP
    ),
    (THREE, fbuf.Limited(EXACT, max_age=2), "same_step", (1, 3)),
    pytest.param(THREE, fbuf.Limited(EXACT, max_age=2), "same_step", (1, 3), marks=SWEEP),
    pytest.param(APART, fbuf.Limited(max_age=3, max_uses=2), "same_step", (1, 3), marks=SWEEP),
    pytest.param(
        THREE,
        fbuf.Limited(fbuf.Uniform(window=2), version="version", max_age=4),
        "next_step",
        (1, 3),
        marks=SWEEP,
    ),
    pytest.param(
        ONE,
        fbuf.Limited(fbuf.Uniform(window=3, strict=False), max_uses=2),
        "same_step",
        (3, 9),
        marks=SWEEP,
    ),
    pytest.param(
        ONE, fbuf.Limited(EXACT, version="version", max_uses=2), "next_step", (3, 9), marks=SWEEP
    ),
]


@pytest.mark.first(1)
@pytest.mark.parametrize(("shape", "sampler", "autoreset", "sizes"), CASES)
def test_no_row_is_drawn_beyond_its_limits(shape, sampler, autoreset, sizes, request):
    quick = request.node.get_closest_marker("sweep") is None
    for seed in range(3 if quick else 25):
        history(LimitedPair(shape, sampler, autoreset), sizes, seed)


@pytest.mark.sweep
@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize(
    ("shape", "sampler", "autoreset", "seeds"),
    [
        ((8, 4, True), fbuf.Limited(PER_WINDOW, max_uses=2, version="version"), "same_step", 2),
        *(
            pytest.param(*case, 20, marks=SWEEP)
            for case in (
                ((8, 4, True), fbuf.Limited(EXACT, max_uses=2, max_age=3), "next_step"),
                ((4, 6, False), fbuf.Limited(fbuf.Uniform(window=2), max_uses=1), "same_step"),
                (
                    (8, 4, True),
                    fbuf.Limited(PER_WINDOW, max_uses=3, version="version"),
                    "same_step",
                ),
                ((4, 6, False), fbuf.Limited(version="version", max_age=4), "next_step"),
            )
        ),
    ],
)
def test_limits_hold_over_all_shards(shape, sampler, autoreset, seeds):
    for seed in range(seeds):
        history(LimitedShards(shape, sampler, autoreset), (3, 9), seed)


class LimitedOnEight(LimitedShards):
    """The same over eight shards on eight devices."""

    shards = 8

    @staticmethod
    def empty(item, capacity, **options):
        return sharded.init(item, capacity, mesh=meshes.mesh(8), shards=8, **options)

    def ids(self, rng, count=8, odd=False):
        return Pair.ids(self, rng, 8, odd)


@SWEEP
@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
@pytest.mark.parametrize(
    "sampler",
    [
        fbuf.Limited(EXACT, max_uses=2, max_age=3),
        fbuf.Limited(PER_WINDOW, max_uses=3, version="version"),
    ],
    ids=["rows", "windows"],
)
def test_limits_hold_on_eight_devices(sampler):
    for seed in range(40):
        history(LimitedOnEight((8, 4, True), sampler, "next_step"), (3, 9), seed)


@pytest.mark.sweep
def test_fresh_rows_of_all_shards_count_as_used():
    """The candidates that are taken keep their places: the first ones are the fresh rows."""
    sampler = fbuf.Limited(fbuf.FreshFirst(most=3), max_uses=1)
    state = sharded.init(jnp.int32(0), 16, mesh=meshes.mesh(1), shards=2, sampler=sampler)
    state = sharded.add(state, jnp.arange(12, dtype=jnp.int32))
    seen = []
    for turn in range(6):
        state, batch = sharded.draw(state, jax.random.key(turn), 4)
        found = batch.data[batch.mask].tolist()
        fresh = min(3, 12 - len(seen)) if turn < 2 else 0
        assert (batch.probability[:fresh] == 1).all()
        assert turn > 0 or (batch.probability[fresh:] < 1).all()
        assert (batch.weight[: len(found)] == 1).all()
        seen += found
    assert sorted(seen) == list(range(12))
    assert int(sharded.stats(state)["fresh"]) == 0


@pytest.mark.sweep
def test_lives_over_a_mesh_are_kept_by_save_and_load(tmp_path):
    sampler = fbuf.Limited(max_uses=1, version="version")
    state = sharded.init(ITEM, 16, mesh=meshes.mesh(1), shards=2, sampler=sampler)
    state = sharded.expire(sharded.add(state, items(np.arange(12))), 1)
    state, batch = sharded.draw(state, jax.random.key(0), 4)
    state = sharded.save(tmp_path, state)
    other = restored.sharded_load(tmp_path, mesh=meshes.mesh(1)).state
    meshes.same(sharded.stats(state), sharded.stats(other))
    assert sharded.uses(other, batch.ids).tolist() == [1, 1, 1, 1]
    one, two = (sharded.draw(of, jax.random.key(1), 8)[1] for of in (state, other))
    meshes.same(one, two)
    assert not set(one.data["number"][one.mask].tolist()) & set(batch.data["number"].tolist())


@SWEEP
def test_lives_are_kept_by_save_and_load(tmp_path):
    for seed in range(10):
        path = tmp_path / str(seed)

        def saved(pair, rng, path=path):
            if rng.random() < 0.4:
                pair.state = fbuf.save(path, pair.state)
                pair.state = restored.load(path).state

        sampler = fbuf.Limited(fbuf.Uniform(window=2), max_uses=2, version="version")
        history(LimitedPair(ONE, sampler), (3, 9), seed, saved)


RESIZED = [
    (shape, sampler)
    for sampler in (fbuf.Uniform(), PER_WINDOW)
    for shape in ((None, 9, True), (3, 6, True), (3, 6, False))
]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("shape", "sampler", "seeds"),
    [(*RESIZED[0], 2), *(pytest.param(*case, 8, marks=SWEEP) for case in RESIZED)],
)
def test_lives_are_kept_by_a_resize_at_any_time(shape, sampler, seeds):
    def resized(pair, rng):
        if rng.random() < 0.25:
            pair.resize(int(rng.choice([5, shape[1], 12])))

    for seed in range(seeds):
        sampler_ = fbuf.Limited(sampler, max_uses=2, max_age=4, version="version")
        history(LimitedPair(shape, sampler_), (3, 9), seed, resized)


@pytest.mark.first(1)
@pytest.mark.parametrize("window", [1, 2])
def test_rows_of_old_versions_stay_retired_in_a_resize(window):
    """Also those whose version was written anew since."""
    sampler = fbuf.Limited(fbuf.Uniform(window=window), version="version")
    state = fbuf.init(ITEM, 8, sampler=sampler)
    state = fbuf.add(state, items(np.arange(6)) | {"version": np.int32([1, 1, 2, 2, 3, 3])})
    state = fbuf.expire(state, 2)
    ids = fbuf.ids_at(state, jnp.arange(6, dtype=jnp.int32))
    anew = fbuf.write(state, ids, {"version": jnp.full(6, 5, jnp.int32)}, donate=False)
    for expired in (state, anew):
        assert int(fbuf.stats(fbuf.resize(expired, 12))["live"]) == 5 - window


@SWEEP
@pytest.mark.parametrize("window", [1, 3])
def test_a_resize_keeps_uses_and_retires_again(window):
    sampler = fbuf.Limited(fbuf.Uniform(window=window), max_uses=1)
    numbers = jnp.arange(9000, dtype=jnp.int32)
    state = fbuf.add(fbuf.init(jnp.int32(0), 10_000, sampler=sampler), numbers)
    state, batch = fbuf.draw(state, jax.random.key(0), 4000)
    other = fbuf.resize(state, 9500)
    assert int(fbuf.stats(other)["live"]) == int(fbuf.stats(state)["live"])
    used = np.zeros(9000, int)
    used[np.asarray(batch.data)[np.asarray(batch.mask)]] = 1
    rows = fbuf.rows(other)
    ids = jax.tree.map(lambda leaf: leaf[rows.mask], rows.ids)
    np.testing.assert_array_equal(fbuf.uses(other, ids), used)
    _, again = fbuf.draw(other, jax.random.key(1), 4000)
    assert not used[np.asarray(again.data)[np.asarray(again.mask)]].any()


def test_draws_of_a_batch_are_made_one_after_another():
    """Each ordered pair of different rows is as likely; with priorities, as one after another."""
    for sampler, priority in ((fbuf.Uniform(), np.ones(4)), (EXACT, np.array([1.0, 2, 3, 4]))):
        state = fbuf.init(jnp.int32(0), 4, sampler=fbuf.Limited(sampler, max_uses=1))
        given = {"priority": jnp.asarray(priority, jnp.float32)} if sampler is EXACT else {}
        state = fbuf.add(state, jnp.arange(4, dtype=jnp.int32), **given)
        keys = jax.random.split(jax.random.key(2), 20_000)
        draw = jax.jit(jax.vmap(lambda key, s=state: fbuf.draw(s, key, 6)[1]))
        batch = jax.tree.map(np.asarray, draw(keys))
        assert batch.mask[:, :2].all(axis=1).mean() > 0.98
        both = batch.mask[:, :2].all(axis=1)
        pairs = batch.data[both, 0] * 4 + batch.data[both, 1]
        share = priority / priority.sum()
        # Given that a second row came at all, among twelve candidates.
        likely = np.array([
            0 if i == j else share[i] * share[j] / (1 - share[i]) * (1 - share[i] ** 11)
            for i in range(4)
            for j in range(4)
        ])  # fmt: skip
        counts = np.bincount(pairs, minlength=16)
        assert counts[likely == 0].sum() == 0
        expected = likely[likely > 0] / likely.sum() * both.sum()
        assert scipy_stats.chisquare(counts[likely > 0], expected).pvalue > 1e-4


def test_a_batch_looks_at_twice_as_many_candidates():
    sampler = fbuf.Limited(max_uses=1)
    state = fbuf.add(fbuf.init(jnp.int32(0), 64, sampler=sampler), jnp.arange(64, dtype=jnp.int32))
    keys = jax.random.split(jax.random.key(0), 50)
    masks = jax.jit(jax.vmap(lambda key: fbuf.draw(state, key, 32)[1].mask))(keys)
    assert masks.all()  # of 64 draws from 64 rows about 40 are different; of 32 about 25


def test_a_lower_version_than_before_changes_nothing():
    state = fbuf.init(ITEM, 8, sampler=fbuf.Limited(version="version"))
    state = fbuf.expire(fbuf.expire(state, 5), 2)
    state = fbuf.add(state, {"number": jnp.int32([1, 2]), "version": jnp.int32([3, 5])})
    assert set(fbuf.sample(state, jax.random.key(0), 9).data["number"].tolist()) == {2}


@pytest.mark.parametrize("batch", [7, 3000])
def test_earlier_equal_entries_are_counted(batch):
    values = np.random.default_rng(0).integers(0, 5, batch).astype(np.int32)
    seen, expected = collections.Counter(), []
    for value in values.tolist():
        expected.append(seen[value])
        seen[value] += 1
    np.testing.assert_array_equal(earlier_of_each(jnp.asarray(values)), expected)


def test_samplers_of_users_are_limited():
    sampler = fbuf.Limited(own.Hot(0.5), max_uses=2)
    state = fbuf.add(fbuf.init(jnp.int32(0), 16, sampler=sampler), jnp.arange(8, dtype=jnp.int32))
    seen = collections.Counter()
    for turn in range(8):
        state, batch = fbuf.draw(state, jax.random.key(turn), 6)
        seen.update(np.asarray(batch.data)[np.asarray(batch.mask)].tolist())
    assert set(seen) == set(range(8))
    assert max(seen.values()) == 2
    with pytest.raises(ValueError, match="order, episodes or slots"):
        fbuf.Limited(fbuf.Uniform(by="episode"), max_uses=2)


def test_stale_rows_that_the_search_does_not_reach_are_not_drawn():
    """The search ends behind 1,024 rows that are new enough."""
    item = {"number": jnp.int32(0), "version": jnp.int32(0)}
    state = fbuf.init(item, 3000, sampler=fbuf.Limited(version="version"))
    number = jnp.arange(2000, dtype=jnp.int32)
    state = fbuf.add(state, {"number": number, "version": jnp.where(number < 1500, 5, 1)})
    state = fbuf.expire(state, 3)
    assert int(fbuf.stats(state)["live"]) == 2000
    batch = fbuf.sample(state, jax.random.key(0), 500)
    assert int(jnp.where(batch.mask, batch.data["version"], 5).min()) == 5
    likely = np.asarray(fbuf.probability(state, fbuf.ids_at(state, number)))
    assert not likely[1500:].any()
    assert (likely[:1500] > 0).all()


@pytest.mark.sweep
def test_stale_rows_that_the_search_does_not_reach_share_in_the_probability():
    """By 4 %, as the pages say; until the rows before them are gone, and an expire finds them."""
    item = {"number": jnp.int32(0), "version": jnp.int32(0)}
    state = fbuf.init(item, 1100, sampler=fbuf.Limited(version="version"))
    number = jnp.arange(1100, dtype=jnp.int32)
    state = fbuf.add(state, {"number": number, "version": jnp.where(number < 1056, 5, 1)})
    state = fbuf.expire(state, 3)
    batch = fbuf.sample(state, jax.random.key(0), 1000)
    np.testing.assert_allclose(batch.probability * 1056, 1 - 0.04, rtol=1e-6)
    assert int(batch.data["number"].max()) < 1056
    more = {"number": number[:100], "version": jnp.full(100, 5, jnp.int32)}
    state = fbuf.expire(fbuf.add(state, more), 3)
    assert int(fbuf.stats(state)["live"]) == 1056
    batch = fbuf.sample(state, jax.random.key(0), 1000)
    np.testing.assert_allclose(batch.probability * 1056, 1, rtol=1e-6)


def test_fresh_rows_count_as_used():
    sampler = fbuf.Limited(fbuf.FreshFirst(), max_uses=1)
    state = fbuf.add(fbuf.init(jnp.int32(0), 16, sampler=sampler), jnp.arange(8, dtype=jnp.int32))
    state, first = fbuf.draw(state, jax.random.key(0), 3)
    state, second = fbuf.draw(state, jax.random.key(1), 3)
    assert first.data.tolist() + second.data.tolist() == [0, 1, 2, 3, 4, 5]
    assert (int(fbuf.stats(state)["live"]), int(fbuf.stats(state)["fresh"])) == (2, 2)


def test_rows_of_a_policy_that_is_too_old_are_not_drawn_when_they_come_late():
    sampler = fbuf.Limited(fbuf.Grouped("number", 100), version="version")
    state = fbuf.init(ITEM, 4000, sampler=sampler)
    numbers = np.arange(3000)
    rows = {"number": (numbers % 3).astype(np.int32), "version": numbers.astype(np.int32)}
    state = fbuf.expire(fbuf.add(state, rows), 2500)
    assert int(fbuf.stats(state)["live"]) == 500 == int(fbuf.group_sizes(state).sum())
    late = {"number": jnp.int32([5, 5]), "version": jnp.int32([2400, 2600])}
    state = fbuf.add(state, late)
    assert int(fbuf.group_sizes(state)[5]) == 1
    assert int(fbuf.sample(state, jax.random.key(0), 200).data["version"].min()) >= 2500


@pytest.mark.sweep
def test_rows_on_the_host_have_limits():
    sampler = fbuf.Limited(max_uses=1, version="version")
    store = fbuf.host.HostStore(ITEM, 16, sampler=sampler)
    plain = fbuf.init(ITEM, 16, sampler=sampler)
    for turn in range(4):
        rows = items(np.arange(5) + 5 * turn)
        store.add(rows)
        plain = fbuf.add(plain, rows)
        store.expire(turn // 2)
        plain = fbuf.expire(plain, turn // 2)
        batch = store.draw(jax.random.key(turn), 4)
        plain, other = fbuf.draw(plain, jax.random.key(turn), 4)
        for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(store.uses(batch.ids), fbuf.uses(plain, other.ids))


MISUSE = {
    "none": (lambda: fbuf.Limited(), "Limited.*no limit.*max_uses"),
    "uses": (lambda: fbuf.Limited(max_uses=0), "Limited.*max_uses"),
    "age": (
        lambda: fbuf.init(ITEM, 8, sampler=fbuf.Limited(max_age=8)),
        "init.*max_age=8.*less than a lane",
    ),
    "young": (
        lambda: fbuf.init(ITEM, 32, sampler=fbuf.Limited(fbuf.Uniform(window=8), max_age=4)),
        "init.*max_age=4.*at least the window, 8",
    ),
    "version": (
        lambda: fbuf.init({"version": 0.0}, 8, sampler=fbuf.Limited(version="version")),
        "init.*version='version'.*one integer.*float32",
    ),
    "twice": (
        lambda: fbuf.Limited(fbuf.Limited(max_age=3), max_uses=2),
        "Limited.*limited already",
    ),
    "shuffled": (lambda: fbuf.Limited(fbuf.Shuffled(), max_uses=2), "Limited.*Shuffled"),
    "fresh": (lambda: fbuf.Limited(fbuf.FreshFirst(), version="v"), "Limited.*FreshFirst.*version"),
    "inside": (lambda: fbuf.FreshFirst(fbuf.Limited(max_age=2)), "FreshFirst.*put the limits out"),
    "expire": (lambda: fbuf.expire(fbuf.init(ITEM, 8), 2), "expire.*Uniform limits no rows"),
    "no_version": (
        lambda: fbuf.expire(fbuf.init(ITEM, 8, sampler=fbuf.Limited(max_uses=1)), 2),
        "expire.*no versions",
    ),
    "uncounted": (
        lambda: fbuf.uses(
            fbuf.init(ITEM, 8, sampler=fbuf.Limited(max_age=1)),
            fbuf.Ids(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32)),
        ),
        "uses.*counts no draws",
    ),
    "mesh": (
        lambda: fbuf.sharded.init(
            ITEM,
            8,
            mesh=jax.make_mesh((1,), ("data",)),
            shards=2,
            sampler=fbuf.Limited(own.Hot(0.5), max_uses=1),
        ),
        "sharded.init.*Limited.Hot. cannot draw from",
    ),
}


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "sampler",
    [
        fbuf.Limited(fbuf.Grouped("group", 3), max_uses=2, version="version"),
        fbuf.FreshFirst(fbuf.Grouped("group", 3, window=2), every=2),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_learning_before_acting_copies_nothing(sampler):
    """Batches, labels and limits come before the next row, all in one trace."""
    row = {"x": jnp.zeros(4), "group": jnp.int32(1), "version": jnp.int32(3)}

    def step(state, key):
        state, batch = fbuf.draw(state, key, 16)
        if "version" in sampler.fields:
            state = fbuf.expire(state, batch.data["version"].max() - 1)
        state = fbuf.write(state, batch.ids, {"group": jnp.full(16, 2, jnp.int32)})
        state, batch = fbuf.draw(state, key, 16)
        return fbuf.add(state, row), batch.weight

    state = fbuf.init(row, 1 << 16, sampler=sampler)
    fbuf.check_in_place(jax.jit(step, donate_argnums=0), state, jax.random.key(0))


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_of_limits_is_refused_by_name(name):
    call, message = MISUSE[name]
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        call()
