"""Draws by group: plain Python beside the buffer."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats as scipy_stats
from support import restored
from support.oracle import told
from support.pair import Pair, ShardedPair

import fbuf
from fbuf import sharded
from fbuf.samplers.grouped import chosen

ONE, THREE, APART = (None, 6, True), (3, 4, True), (3, 4, False)
ITEM = {"number": jnp.int32(0), "group": jnp.int8(0)}
GROUPS, BATCH = 3, 16
SWEEP = pytest.mark.sweep


def group_at_first(number):
    """The group that a row is added with: there are rows without one, and numbers of none."""
    return np.array([0, 1, -1, 0, 2, 0, 7])[np.asarray(number) % 7]


def items(numbers):
    return {
        "number": np.asarray(numbers).astype(np.int32),
        "group": group_at_first(numbers).astype(np.int8),
    }


def grouped(**options):
    return fbuf.Grouped("group", GROUPS, **options)


SAMPLE, WRITE = jax.jit(fbuf.sample, static_argnums=2), jax.jit(fbuf.write)
SIZES, STATS = jax.jit(fbuf.group_sizes), jax.jit(fbuf.stats)
IDS, LIKELY = jax.jit(fbuf.group_ids, static_argnums=2), jax.jit(fbuf.probability)
OVER_SHARDS = jax.jit(sharded.sample, static_argnums=2), jax.jit(sharded.write)


class GroupPair(Pair):
    """A buffer and its oracle; `moved` has the groups that were written later, by number."""

    def __init__(self, shape, sampler, autoreset="same_step", **options):
        self.moved = {}
        super().__init__(shape, sampler, autoreset, ITEM, items, **options)

    def group(self, slot):
        number = self.oracle.at(slot).number
        found = int(self.moved.get(number, group_at_first(number)))
        return found if 0 <= found < GROUPS else None

    def write(self, rng):
        ids = self.ids(rng, 3, odd=True)
        if not ids:
            return
        new = rng.integers(-1, GROUPS + 1, len(ids))
        for row, group in zip(self.oracle.named(ids), new, strict=True):
            if row is not None:
                self.moved[row.number] = group
        self.state = self.written(self.named(ids), {"group": jnp.asarray(new, jnp.int8)})

    def written(self, ids, fields):
        return WRITE(self.state, ids, fields)

    def drawn(self, key, beta):
        return SAMPLE(self.state, key, BATCH, beta=beta)

    def starts(self):
        """Slots of the starts of each group."""
        given = self.sampler
        starts = self.oracle.starts(given.window, given.stride, given.first_only, given.strict)
        of = {group: [] for group in (*range(GROUPS), None)}
        for slot in sorted(starts):
            of[self.group(slot)].append(slot)
        return of

    def agree(self, rng):
        of, shares = self.starts(), self.sampler.shares or (1,) * GROUPS
        whole = sum(share for group, share in enumerate(shares) if of[group])
        expected = {
            slot: shares[group] / whole / len(of[group])
            for group in range(GROUPS)
            for slot in of[group]
            if shares[group]
        }
        beta = float(rng.choice([0.0, 0.7]))
        batch = self.drawn(jax.random.key(int(rng.integers(99))), beta)
        batch = jax.tree.map(np.asarray, batch)
        assert batch.mask.tolist() == [bool(expected)] * BATCH
        slots = batch.ids.slot.tolist()
        if expected:
            likely = np.array([expected[slot] for slot in slots])
            np.testing.assert_allclose(batch.probability, likely, rtol=1e-5)
            weight = likely**-beta
            np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=1e-4)
            assert batch.data["number"].tolist() == [self.oracle.at(slot).number for slot in slots]
        self.agree_alone(of, expected)

    def agree_alone(self, of, expected):
        """One buffer alone says the same."""
        assert told(self.state.fault) == self.oracle.fault
        assert SIZES(self.state).tolist() == [len(of[group]) for group in range(GROUPS)]
        assert int(STATS(self.state)["without_group"]) == len(of[None])
        slots = jnp.arange(self.oracle.capacity, dtype=jnp.int32)
        likely = LIKELY(self.state, fbuf.ids_at(self.state, slots))
        all_of = [expected.get(slot, 0) for slot in range(self.oracle.capacity)]
        np.testing.assert_allclose(likely, all_of, rtol=1e-5)
        for group in (0, 2, 5):
            ids = IDS(self.state, jnp.int32(group), 4, first=jnp.int32(1))
            wanted = of.get(group, [])
            if self.whole_steps or self.one_lane:  # oldest first
                wanted = sorted(wanted, key=lambda slot: self.oracle.place(slot)[1])
            wanted = wanted[1:5]
            assert ids.slot.tolist() == wanted + [-1] * (4 - len(wanted))


class GroupShards(GroupPair, ShardedPair):
    """The same over four shards on two devices."""

    def written(self, ids, fields):
        return OVER_SHARDS[1](self.state, ids, fields)

    def drawn(self, key, beta):
        batch = OVER_SHARDS[0](self.state, key, BATCH, beta=beta)
        ids = batch.ids
        slot = np.where(ids.slot < 0, ids.slot, ids.shard * self.slots_of_shard + ids.slot)
        return dataclasses.replace(batch, ids=fbuf.Ids(slot, np.asarray(ids.generation)))

    def agree_alone(self, of, expected):
        """Nothing of this can be asked over a mesh."""


def history(pair, sizes, seed, between=None):
    rng, often = np.random.default_rng(seed), (0.1, 0.5, 0.9)[seed % 3]
    pair.agree(rng)
    for _ in range(14):
        if rng.random() < 0.3:
            pair.write(rng)
        else:
            pair.step(rng, sizes, often, odd=True)
        if between is not None:
            between(pair, rng)
        pair.agree(rng)


CASES = [
    (ONE, grouped(window=2), "same_step", (3, 9)),
    (APART, grouped(shares=(1.0, 0.0, 2.5)), "next_step", (3, 9)),
    ((None, 17, True), grouped(), "same_step", (6, 37)),
    pytest.param((None, 17, True), grouped(), "same_step", (6, 37), marks=SWEEP),
    pytest.param(THREE, grouped(window=2, stride=2), "next_step", (3, 9), marks=SWEEP),
    pytest.param(THREE, grouped(window=3, strict=False), "disabled", (3, 9), marks=SWEEP),
    pytest.param(APART, grouped(first_only=True), "same_step", (1, 3), marks=SWEEP),
    pytest.param(ONE, grouped(shares=(0.0, 3.0, 1.0)), "next_step", (3, 9), marks=SWEEP),
]


@pytest.mark.first(1)
@pytest.mark.parametrize(("shape", "sampler", "autoreset", "sizes"), CASES)
def test_each_row_is_as_likely_as_its_group_makes_it(shape, sampler, autoreset, sizes, request):
    quick = request.node.get_closest_marker("sweep") is None
    for seed in range(3 if quick else 30):
        history(GroupPair(shape, sampler, autoreset), sizes, seed)


@SWEEP
@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize(
    ("shape", "sampler", "autoreset"),
    [
        ((8, 4, True), grouped(), "next_step"),
        ((4, 6, False), grouped(window=2, shares=(1.0, 2.0, 0.5)), "same_step"),
    ],
)
def test_groups_of_all_shards(shape, sampler, autoreset):
    for seed in range(20):
        history(GroupShards(shape, sampler, autoreset), (3, 9), seed)


@SWEEP
@pytest.mark.parametrize("shape", [(None, 9, True), (3, 6, True), (3, 6, False)], ids=str)
def test_groups_are_kept_by_a_resize_at_any_time(shape):
    def resized(pair, rng):
        if rng.random() < 0.25:
            pair.resize(int(rng.choice([4, shape[1], 12])))

    for seed in range(10):
        history(GroupPair(shape, grouped(window=2)), (3, 9), seed, resized)


@pytest.mark.sweep
@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_rows_of_a_group_are_drawn_alike_over_a_mesh():
    mesh = jax.make_mesh((2,), ("data",))
    state = sharded.init(ITEM, 64, mesh=mesh, shards=4, sampler=grouped())
    state = sharded.add(state, items(np.arange(48)))
    batch = sharded.sample(state, jax.random.key(7), 24_000)
    number, group = (np.asarray(batch.data[name]) for name in ("number", "group"))
    for which in range(GROUPS):
        counts = np.bincount(number[group == which], minlength=48)
        counts = counts[group_at_first(np.arange(48)) == which]
        assert scipy_stats.chisquare(counts).pvalue > 1e-4


@SWEEP
def test_groups_are_kept_by_save_and_load(tmp_path):
    for seed in range(10):
        path = tmp_path / str(seed)

        def saved(pair, rng, path=path):
            if rng.random() < 0.4:
                pair.state = fbuf.save(path, pair.state)
                pair.state = restored.load(path).state

        history(GroupPair(ONE, grouped(window=2, shares=(1.0, 2.0, 0.5))), (3, 9), seed, saved)


def test_groups_are_drawn_as_often_as_they_should():
    state = fbuf.init(ITEM, 64, sampler=grouped(shares=(1.0, 2.0, 3.0)))
    state = fbuf.add(state, items(np.arange(50)))
    batch = fbuf.sample(state, jax.random.key(5), 30_000)
    likely = np.asarray(fbuf.probability(state, fbuf.ids_at(state, jnp.arange(64))), float)
    counts, there = np.bincount(batch.data["number"], minlength=64), likely > 0
    assert counts[~there].sum() == 0
    assert scipy_stats.chisquare(counts[there], likely[there] / likely.sum() * 30_000).pvalue > 1e-4
    of_group = np.bincount(batch.data["group"], minlength=3) / 30_000
    np.testing.assert_allclose(of_group, [1 / 6, 2 / 6, 3 / 6], atol=0.012)


@pytest.mark.sweep
def test_a_resize_and_an_extend_keep_groups():
    state = fbuf.init(ITEM, 10_000, sampler=grouped(window=3))
    numbers = np.arange(9000)
    state = fbuf.add(state, items(numbers), truncated=numbers % 10 == 9)
    sizes = fbuf.group_sizes(state)
    np.testing.assert_array_equal(fbuf.group_sizes(fbuf.resize(state, 9500)), sizes)
    other = fbuf.init(ITEM, 20_000, sampler=grouped(window=3))
    np.testing.assert_array_equal(fbuf.group_sizes(fbuf.extend(other, state)), sizes)
    train, rest = fbuf.split(state, jax.random.key(0), 0.5)
    np.testing.assert_array_equal(fbuf.group_sizes(train) + fbuf.group_sizes(rest), sizes)


def test_many_groups_of_bools_and_numbers_beyond_int32():
    state = fbuf.init({"won": jnp.zeros((), bool)}, 8, sampler=fbuf.Grouped("won", 2))
    state = fbuf.add(state, {"won": jnp.array([True, False, False])})
    assert fbuf.group_sizes(state).tolist() == [2, 1]
    state = fbuf.init({"task": jnp.uint32(0)}, 8, sampler=fbuf.Grouped("task", 300))
    state = fbuf.add(state, {"task": jnp.array([299, 2**32 - 1, 300], jnp.uint32)})
    assert int(fbuf.group_sizes(state)[299]) == 1
    assert int(fbuf.stats(state)["without_group"]) == 2
    assert set(np.asarray(fbuf.sample(state, jax.random.key(0), 9).data["task"]).tolist()) == {299}


def test_a_list_of_shares_is_a_tuple():
    assert grouped(shares=[1.0, 2.0, 3.0]) == grouped(shares=(1.0, 2.0, 3.0))


@pytest.mark.first(1)
@pytest.mark.parametrize("groups", [2, 5, 3000])
def test_a_group_is_chosen_by_its_share_to_the_last_bit(groups):
    """Each word above or below the edge of a share chooses the group on its side."""
    rng = np.random.default_rng(0)
    given = rng.choice([0.0, 2.0**-31, 1.0, 3.0, 1e-3], groups) + np.eye(groups)[-1]
    shares = np.float32(given / given.sum())
    parts = [int(float(share) * 2**56) for share in shares]  # exact in float64 and in int
    ends = np.cumsum(np.array(parts, object))
    live = [group for group in range(groups) if parts[group]]
    edges = [ends[group] for group in live[:-1]]
    # The words whose product with the whole is the last one below an edge, and the one at it.
    points = [(-(-edge * 2**96 // ends[-1]) + off) for edge in edges for off in (-1, 0)]
    words = np.array([[point >> shift & 0xFFFFFFFF for point in points] for shift in (64, 32, 0)])
    found = np.asarray(chosen(jnp.asarray(shares), jnp.asarray(words, jnp.uint32)))
    expected = [group for pair in itertools.pairwise(live) for group in pair]
    assert found.tolist() == expected


@dataclasses.dataclass(frozen=True)
class BySize(fbuf.Grouped):
    """A sampler of a user: large groups are drawn more often, but not as often as their rows."""

    def group_shares(self, counts):
        return jnp.sqrt(counts.astype(jnp.float32))


def test_shares_of_users_compose_with_fresh_rows():
    state = fbuf.init(ITEM, 64, sampler=fbuf.FreshFirst(BySize("group", GROUPS), most=4))
    state = fbuf.add(state, items(np.arange(50)))
    state, batch = fbuf.draw(state, jax.random.key(0), 20_004)
    assert batch.data["number"][:4].tolist() == [0, 1, 2, 3]
    sizes = np.asarray(fbuf.group_sizes(state), float)
    share = np.sqrt(sizes) / np.sqrt(sizes).sum()
    found = np.bincount(batch.data["group"][4:], minlength=3)
    assert scipy_stats.chisquare(found, share * 20_000).pvalue > 1e-4
    rows = fbuf.read(state, fbuf.group_ids(state, 1, 8))
    assert set(np.asarray(rows.data["group"])[np.asarray(rows.mask)].tolist()) == {1}


@pytest.mark.sweep
def test_rows_on_the_host_have_groups():
    store = fbuf.host.HostStore(ITEM, 64, num_envs=2, sampler=grouped(window=2))
    plain = fbuf.init(ITEM, 64, num_envs=2, sampler=grouped(window=2))
    for turn in range(3):
        rows = items(np.arange(20).reshape(2, 10) + 100 * turn)
        store.add(rows)
        plain = fbuf.add(plain, rows)
        ids = fbuf.newest_ids(plain, 2)
        store.write(ids, {"group": jnp.full((2, 2), 2, jnp.int8)})
        plain = fbuf.write(plain, ids, {"group": jnp.full((2, 2), 2, jnp.int8)})
        batch = store.sample(jax.random.key(turn), 8)
        other = fbuf.sample(plain, jax.random.key(turn), 8)
        for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)


MISUSE = {
    "groups": (lambda: grouped().__class__("group", 0), "Grouped.*groups"),
    "shares": (lambda: grouped(shares=(1.0, 2.0)), "Grouped.*shares.*tuple of 3"),
    "set": (lambda: grouped(shares={1.0, 2.0, 3.0}), "Grouped.*shares.*tuple of 3"),
    "tiny": (lambda: grouped(shares=(1.0, 1e-10, 3.0)), "Grouped.*shares has 1e-10.*larger"),
    "zero": (lambda: grouped(shares=(0.0, 0.0, 0.0)), "Grouped.*shares.*at least one"),
    "negative": (lambda: grouped(shares=(1.0, -1.0, 0.0)), "Grouped.*shares"),
    "field": (lambda: fbuf.init(ITEM, 8, sampler=fbuf.Grouped("task", 2)), "Grouped.*'task'"),
    "float": (
        lambda: fbuf.init({"x": 0.0}, 8, sampler=fbuf.Grouped("x", 2)),
        "init.*Grouped.*'x'.*one integer.*float32",
    ),
    "several": (
        lambda: fbuf.init({"x": {"a": jnp.int32(0)}}, 8, sampler=fbuf.Grouped("x", 2)),
        "init.*Grouped.*'x'.*several arrays",
    ),
    "large": (
        lambda: fbuf.init(ITEM, 2**24, sampler=fbuf.Grouped("group", 2**10)),
        "init.*Grouped.*at most 126 groups",
    ),
    "no_groups": (
        lambda: fbuf.group_ids(fbuf.init(ITEM, 8), 0, 2),
        "group_ids.*Uniform has no groups",
    ),
    "sizes": (lambda: fbuf.group_sizes(fbuf.init(ITEM, 8)), "group_sizes.*Uniform has no groups"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_of_groups_is_refused_by_name(name):
    call, message = MISUSE[name]
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        call()
