"""Fresh rows first: plain Python beside the buffer."""

from __future__ import annotations

import functools
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats as scipy_stats
from support import own, restored
from support.fresh import Fresh
from support.pair import WINDOWS, Pair, ShardedPair, priorities_of

import fbuf
from fbuf import sharded

ONE, THREE, APART, MANY = (None, 6, True), (3, 4, True), (3, 4, False), (7, 4, False)
EXACT = fbuf.Prioritized(alpha=1.0, eps=0.0)
PER_WINDOW = fbuf.Prioritized(alpha=1.0, eps=0.0, window=2, normalize="buffer")
SHORT = fbuf.Uniform(window=3, strict=False)
SHORT_BY_PRIORITY = fbuf.Prioritized(1.0, eps=0.0, window=4, strict=False, stride=2)
SHORT_FIRST = fbuf.Uniform(window=3, strict=False, first_only=True)
BATCH = 8


class FreshPair(Fresh, Pair):
    """A buffer, its oracle, and the list of what waits."""

    def __init__(self, shape, sampler, autoreset="same_step", **options):
        super().__init__(shape, sampler, autoreset, **options)
        self.per = priorities_of(self.first.sampler)
        if self.per:
            self.oracle.alpha, self.oracle.eps = self.per.alpha, self.per.eps
            self.oracle.windows = tuple(getattr(self.per, name) for name in WINDOWS)

    def draw(self, seed, beta=0.7):
        before = fbuf.stats(self.state)
        self.state, batch = DRAW(self.state, jax.random.key(seed), BATCH, beta=beta)
        self.agree(batch, before, beta)


class FreshShards(FreshPair, ShardedPair):
    """The same over four shards on two devices."""

    def draw(self, seed, beta=0.7):
        before = OVER_SHARDS.stats(self.state)
        self.state, batch = OVER_SHARDS.draw(self.state, jax.random.key(seed), BATCH, beta=beta)
        self.agree(self.plain(batch), before, beta)


DRAW = jax.jit(fbuf.draw, static_argnums=2)


class OVER_SHARDS:
    draw = staticmethod(jax.jit(sharded.draw, static_argnums=2))
    stats = staticmethod(jax.jit(sharded.stats))


SWEEP = pytest.mark.sweep
STRIDED = fbuf.Prioritized(1.0, eps=0.0, window=2, stride=2)
CASES = [
    (ONE, fbuf.FreshFirst(PER_WINDOW), "same_step", (3, 9)),
    (APART, fbuf.FreshFirst(SHORT, most=2), "next_step", (3, 9)),
    (THREE, fbuf.FreshFirst(fbuf.Uniform(window=2), every=2), "same_step", (3, 9)),
    (APART, fbuf.FreshFirst(fbuf.Uniform(window=2)), "same_step", (1, 9)),
    (THREE, fbuf.FreshFirst(SHORT, most=4), "same_step", (1, 9)),
    (APART, fbuf.Limited(fbuf.FreshFirst(SHORT, most=1), max_age=3), "same_step", (1, 9)),
    pytest.param((None, 17, True), fbuf.FreshFirst(), "same_step", (6, 37), marks=SWEEP),
    pytest.param(ONE, fbuf.FreshFirst(SHORT, every=3), "next_step", (3, 9), marks=SWEEP),
    pytest.param(
        APART, fbuf.FreshFirst(STRIDED, every=4, most=2), "same_step", (3, 9), marks=SWEEP
    ),
    pytest.param(THREE, fbuf.FreshFirst(most=1), "next_step", (3, 9), marks=SWEEP),
    pytest.param(THREE, fbuf.FreshFirst(EXACT), "disabled", (3, 9), marks=SWEEP),
    pytest.param(APART, fbuf.FreshFirst(EXACT), "same_step", (1, 3), marks=SWEEP),
    pytest.param(
        ONE, fbuf.FreshFirst(fbuf.Uniform(window=3, stride=2)), "next_step", (3, 9), marks=SWEEP
    ),
    pytest.param(THREE, fbuf.FreshFirst(fbuf.Uniform(window=2)), "next_step", (1, 3), marks=SWEEP),
    pytest.param(ONE, fbuf.FreshFirst(SHORT), "same_step", (3, 9), marks=SWEEP),
    pytest.param(APART, fbuf.FreshFirst(SHORT, most=3), "same_step", (1, 2), marks=SWEEP),
    pytest.param(MANY, fbuf.FreshFirst(most=7), "next_step", (1, 9), marks=SWEEP),
    pytest.param(MANY, fbuf.FreshFirst(SHORT, most=5), "disabled", (2, 4), marks=SWEEP),
    pytest.param(THREE, fbuf.FreshFirst(SHORT_FIRST), "next_step", (1, 9), marks=SWEEP),
    pytest.param(APART, fbuf.FreshFirst(SHORT_BY_PRIORITY), "same_step", (1, 7), marks=SWEEP),
    pytest.param(
        APART, fbuf.FreshFirst(SHORT_BY_PRIORITY, every=4), "next_step", (1, 7), marks=SWEEP
    ),
    pytest.param(
        ONE, fbuf.Limited(fbuf.FreshFirst(most=3), max_age=4), "same_step", (1, 9), marks=SWEEP
    ),
    pytest.param(
        THREE,
        fbuf.Limited(fbuf.FreshFirst(fbuf.Uniform(window=2), most=3), max_age=2),
        "next_step",
        (1, 9),
        marks=SWEEP,
    ),
    pytest.param(
        ONE, fbuf.FreshFirst(fbuf.Uniform(first_only=True)), "same_step", (3, 9), marks=SWEEP
    ),
]


def history(pair, sizes, seed, often, resize=None):
    """Operations at random, a batch behind each."""
    rng = np.random.default_rng(seed)
    pair.draw(seed)
    for turn in range(16):
        pair.step(rng, sizes, often, odd=True)
        if turn % 3 != 2:
            pair.draw(100 * seed + turn)
        if resize is not None:
            resize(pair, rng)


@pytest.mark.first(3)
@pytest.mark.parametrize(("shape", "sampler", "autoreset", "sizes"), CASES)
def test_fresh_starts_come_first_and_once(shape, sampler, autoreset, sizes, request):
    quick = request.node.get_closest_marker("sweep") is None
    for seed in range(3 if quick else 25):
        pair = FreshPair(shape, sampler, autoreset)
        history(pair, sizes, seed, (0.1, 0.5, 0.9)[seed % 3])


def test_a_batch_without_fresh_starts_serves_none():
    """Keep what was served last, though a batch serves no start: few histories tell."""
    sampler = fbuf.FreshFirst(STRIDED, every=4, most=2)
    history(FreshPair(APART, sampler, "same_step"), (3, 9), 16, 0.5)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize(
    ("shape", "sampler", "autoreset", "seeds"),
    [
        ((8, 4, True), fbuf.FreshFirst(EXACT), "next_step", 3),
        *(
            pytest.param(*case, 20, marks=SWEEP)
            for case in (
                ((8, 4, True), fbuf.FreshFirst(EXACT), "next_step"),
                ((4, 6, False), fbuf.FreshFirst(fbuf.Uniform(window=2), most=5), "same_step"),
                ((8, 4, True), fbuf.FreshFirst(fbuf.Uniform(window=2), most=1), "same_step"),
                ((4, 6, False), fbuf.FreshFirst(fbuf.Uniform(window=2), every=2), "same_step"),
            )
        ),
    ],
)
def test_fresh_starts_of_all_shards(shape, sampler, autoreset, seeds):
    for seed in range(seeds):
        pair = FreshShards(shape, sampler, autoreset)
        history(pair, (3, 9), seed, (0.1, 0.5, 0.9)[seed % 3])


def moves(path, shape, sampler, autoreset, capacities):
    """Save and load, merge with rows that another such buffer has drawn from, or resize."""

    def move(pair, rng):
        kinds = {"load": 0.15, "end": 0.1, "extend": 0.2, "resize": 0.1, "none": 0.45}
        kind = rng.choice(list(kinds), p=list(kinds.values()))
        if kind in ("load", "end"):
            folder = tempfile.mkdtemp(dir=path)  # some buffers descend from no save
            fbuf.save(folder, pair.state)
            loaded = fbuf.load(folder, episodes="end") if kind == "end" else restored.load(folder)
            pair.load(loaded.state, ends=kind == "end")
        elif kind == "extend":
            other = FreshPair(shape, sampler, autoreset)
            other.last = [10_000 * len(pair.seen) + 1_000 + n for n in other.last]
            for _ in range(3):
                other.step(rng, (3, 9), 0.4)
                other.draw(int(rng.integers(99)))
            pair.extend(other)
        elif kind == "resize" and capacities:
            pair.resize(int(rng.choice(capacities)))

    return move


AGED = fbuf.Limited(fbuf.FreshFirst(SHORT, most=3), max_age=3)
MOVED = [
    (APART, APART, fbuf.FreshFirst(SHORT, most=3), "same_step", (), 4),
    *(
        pytest.param(*case, 12, marks=SWEEP)
        for case in (
            (ONE, ONE, fbuf.FreshFirst(PER_WINDOW, most=5), "same_step", (6, 9)),
            (THREE, THREE, fbuf.FreshFirst(SHORT, most=3), "next_step", (4, 7)),
            (APART, THREE, fbuf.FreshFirst(SHORT_FIRST, most=3), "same_step", (4, 7)),
            (ONE, APART, fbuf.FreshFirst(SHORT, most=3), "same_step", (6,)),
            (ONE, THREE, fbuf.FreshFirst(fbuf.Uniform(window=2), most=3), "next_step", (5, 6)),
            (APART, APART, AGED, "same_step", (4, 7)),
            (ONE, THREE, AGED, "next_step", (6, 7)),
        )
    ),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("shape", "its", "sampler", "autoreset", "capacities", "seeds"), MOVED)
def test_what_waits_goes_through_loads_and_merges(
    tmp_path, shape, its, sampler, autoreset, capacities, seeds
):
    for seed in range(seeds):
        move = moves(tmp_path, its, sampler, autoreset, capacities)
        history(FreshPair(shape, sampler, autoreset), (3, 9), seed, 0.3, move)


RESIZED = [
    pytest.param(shape, sampler, seeds, marks=[SWEEP] * (seeds > 3))
    for shape in ((None, 9, True), (3, 6, True), (3, 6, False))
    for sampler in (fbuf.Uniform(), PER_WINDOW, SHORT)
    for seeds in ((3, 8) if shape == (3, 6, True) and sampler is SHORT else (8,))
]


@pytest.mark.sweep
@pytest.mark.parametrize(("shape", "sampler", "seeds"), RESIZED)
def test_what_waits_is_kept_by_a_resize_at_any_time(shape, sampler, seeds):
    def resized(pair, rng):
        if rng.random() < 0.25:
            pair.resize(int(rng.choice([4, shape[1], 12])))

    for seed in range(seeds):
        history(FreshPair(shape, fbuf.FreshFirst(sampler)), (3, 9), seed, 0.3, resized)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(fbuf.Uniform(), marks=SWEEP),
        pytest.param(fbuf.Uniform(window=3), marks=SWEEP),
        SHORT,
    ],
)
def test_a_resize_serves_no_row_again(sampler):
    """Chunks of rows are moved: a window may lie in two of them."""
    rows = 9000
    state = fbuf.init(jnp.int32(0), 10_000, sampler=fbuf.FreshFirst(sampler, most=8190))
    numbers = jnp.arange(rows, dtype=jnp.int32)
    state = fbuf.add(state, numbers, truncated=numbers % 100 == 99)
    expected = int(fbuf.stats(state)["fresh"])
    state, _ = fbuf.draw(state, jax.random.key(0), 8192)
    other = fbuf.resize(state, 9500)
    waiting = int(fbuf.stats(state)["fresh"])
    assert waiting == expected - min(expected, 8190) == int(fbuf.stats(other)["fresh"])
    _, rest = fbuf.draw(other, jax.random.key(1), 8192)
    _, kept = fbuf.draw(state, jax.random.key(1), 8192)
    np.testing.assert_array_equal(rest.data[:waiting], kept.data[:waiting])


@pytest.mark.first(1)
@pytest.mark.parametrize("options", [{"every": 4}, {"sampler": fbuf.Uniform(window=4, stride=4)}])
def test_windows_that_do_not_overlap_wait_behind_a_resize(options):
    """They begin at other steps there, and as many are fresh."""
    sampler = fbuf.FreshFirst(**{"sampler": fbuf.Uniform(window=4)} | options)
    for rows in (20, 51, 54, 63):
        state = fbuf.init(jnp.int32(0), 32, sampler=sampler)
        state = fbuf.add(state, jnp.arange(rows, dtype=jnp.int32))
        state, _ = fbuf.draw(state, jax.random.key(0), 3)
        for capacity in (32, 64):
            found = fbuf.stats(fbuf.resize(state, capacity))
            assert int(found["fresh"]) == int(fbuf.stats(state)["fresh"]) > 0


@pytest.mark.sweep
def test_missed_rows_are_counted_and_stay_counted_in_a_resize():
    state = fbuf.init(jnp.int32(0), 4, sampler=fbuf.FreshFirst())
    state = fbuf.add(state, jnp.arange(10, dtype=jnp.int32))
    assert int(fbuf.stats(state)["missed"]) == 6
    state, _ = fbuf.draw(state, jax.random.key(0), 1)
    state = fbuf.add(state, jnp.arange(3, dtype=jnp.int32))
    assert (int(fbuf.stats(state)["missed"]), int(fbuf.stats(state)["fresh"])) == (8, 4)
    assert int(fbuf.stats(fbuf.resize(state, 8))["missed"]) == 8
    smaller = fbuf.stats(fbuf.resize(state, 3))  # the oldest of the four does not fit
    assert (int(smaller["missed"]), int(smaller["fresh"])) == (9, 3)
    assert int(fbuf.stats(fbuf.clear(state))["missed"]) == 0


def test_the_count_of_a_batch_is_what_counts_as_drawn():
    state = fbuf.init(jnp.int32(0), 16, sampler=fbuf.FreshFirst())
    state = fbuf.add(state, jnp.arange(8, dtype=jnp.int32))
    state, batch = fbuf.draw(state, jax.random.key(0), 6, count=jnp.int32(2))
    assert batch.mask.tolist() == [True] * 2 + [False] * 4
    state, batch = fbuf.draw(state, jax.random.key(0), 6)
    assert batch.data.tolist() == [2, 3, 4, 5, 6, 7]


@pytest.mark.first(1)
@pytest.mark.parametrize("other", [own.Newest(steps=3), own.Hot(0.5)], ids=["newest", "hot"])
def test_samplers_of_users_draw_the_rest(other):
    state = fbuf.init(jnp.int32(0), 16, sampler=fbuf.FreshFirst(other))
    state = fbuf.add(state, jnp.arange(8, dtype=jnp.int32))
    state, first = fbuf.draw(state, jax.random.key(0), 6)
    state, rest = fbuf.draw(state, jax.random.key(1), 600)
    assert first.data.tolist() == [0, 1, 2, 3, 4, 5]
    assert rest.data[:2].tolist() == [6, 7]
    alone = fbuf.add(fbuf.init(jnp.int32(0), 16, sampler=other), jnp.arange(8, dtype=jnp.int32))
    likely = np.asarray(fbuf.probability(alone, fbuf.ids_at(alone, jnp.arange(8))), float)
    np.testing.assert_allclose(rest.probability[2:], likely[np.asarray(rest.data[2:])], rtol=1e-6)
    counts = np.bincount(np.asarray(rest.data[2:]), minlength=8)
    there = likely > 0
    assert counts[~there].sum() == 0
    expected = likely[there] / likely.sum() * 598
    assert scipy_stats.chisquare(counts[there], expected).pvalue > 1e-4


def test_the_rest_is_as_likely_as_its_sampler_makes_it():
    state = fbuf.init(jnp.int32(0), 8, sampler=fbuf.FreshFirst(EXACT))
    priority = jnp.array([1.0, 2, 3, 4, 0, 5])
    state = fbuf.add(state, jnp.arange(6, dtype=jnp.int32), priority=priority)
    _, batch = fbuf.draw(state, jax.random.key(3), 20_006)
    assert batch.data[:6].tolist() == list(range(6))
    counts = np.bincount(np.asarray(batch.data[6:]), minlength=6)
    there = np.asarray(priority) > 0
    assert counts[4] == 0
    expected = np.asarray(priority, float)[there] / 15 * 20_000
    assert scipy_stats.chisquare(counts[there], expected).pvalue > 1e-4


@pytest.mark.sweep
def test_a_population_draws_as_each_member_does():
    samplers = fbuf.FreshFirst(fbuf.Uniform(window=2))

    def run(seed):
        state = fbuf.init(jnp.int32(0), 12, sampler=samplers)

        def step(state, key):
            rows = jax.random.randint(key, (3,), 0, 99, jnp.int32)
            state, batch = fbuf.draw(fbuf.add(state, rows), key, 4)
            return state, (batch.data, batch.probability, fbuf.stats(state)["fresh"])

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(seed), 8))[1]

    many = jax.jit(jax.vmap(run))(jnp.arange(3))
    for seed in range(3):
        one = jax.jit(run)(seed)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
            np.testing.assert_allclose(a, b[seed], rtol=1e-6)


@functools.cache
def host_store():
    return fbuf.host.HostStore(jnp.int32(0), 16, sampler=fbuf.FreshFirst(fbuf.Uniform(window=2)))


def test_rows_on_the_host_are_served_once():
    store = host_store()
    plain = fbuf.init(jnp.int32(0), 16, sampler=fbuf.FreshFirst(fbuf.Uniform(window=2)))
    for turn in range(6):
        rows = np.arange(5 * turn, 5 * turn + 5, dtype=np.int32)
        store.add(rows)
        plain = fbuf.add(plain, rows)
        for seed in range(2):
            key = jax.random.key(seed)
            batch = store.draw(key, 4)
            plain, other = fbuf.draw(plain, key, 4)
            for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(other), strict=True):
                np.testing.assert_array_equal(a, b)
    assert int(store.stats()["fresh"]) == int(fbuf.stats(plain)["fresh"])
    with pytest.raises(ValueError, match="which notes it"):
        store.sample(jax.random.key(0), 4)
    with pytest.raises(ValueError, match="which notes it"):
        store.batches(jax.random.key(0), 4)


def test_the_oldest_rows_of_an_environment_come_first():
    """It holds also where its head has passed the end, and where others have newer rows."""
    state = fbuf.init(jnp.int32(0), 8, num_envs=2, lockstep=False, sampler=fbuf.FreshFirst())
    rows = jnp.arange(6, dtype=jnp.int32)
    items = jnp.stack([rows, 100 + rows], axis=1)
    mask = jnp.stack([rows >= 0, rows < 2], axis=1)
    state = fbuf.add(state, items, mask=mask, time_major=True)
    state, batch = fbuf.draw(state, jax.random.key(0), 2)
    assert batch.data.tolist() == [2, 3]
    state, batch = fbuf.draw(state, jax.random.key(1), 4)
    # Rows behind which their environments have written as many are of one age.
    assert batch.data.tolist() == [4, 100, 5, 101]
    assert int(fbuf.stats(state)["missed"]) == 2


def test_a_window_that_may_be_short_waits_for_its_last_row_or_the_end():
    """A flag ends the episode, or `end_episode`."""
    sampler = fbuf.FreshFirst(fbuf.Uniform(window=3, strict=False))
    state = fbuf.init(jnp.int32(0), 16, sampler=sampler)
    waiting = lambda state: int(fbuf.stats(state)["fresh"])
    for number in range(4):
        state = fbuf.add(state, jnp.int32(number))
        assert waiting(state) == (number >= 2)
        state, batch = fbuf.draw(state, jax.random.key(number), 1)
        if number >= 2:
            assert batch.data.tolist() == [number - 2]
    state = fbuf.end_episode(state)
    assert waiting(state) == 0
    state = fbuf.add(state, jnp.int32(4))
    assert waiting(state) == 0
    state = fbuf.end_episode(state)
    assert waiting(state) == 1
    state, batch = fbuf.draw(state, jax.random.key(9), 1)
    assert batch.data.tolist() == [4]
    state = fbuf.add(state, jnp.int32([5, 6]), truncated=jnp.array([False, True]))
    assert waiting(state) == 1


CUT = [
    fbuf.FreshFirst(every=4),
    fbuf.FreshFirst(fbuf.Uniform(window=3, strict=False, stride=2)),
    pytest.param(fbuf.FreshFirst(fbuf.Uniform(window=2, stride=4)), marks=SWEEP),
    pytest.param(fbuf.FreshFirst(fbuf.Uniform(window=2, first_only=True)), marks=SWEEP),
    pytest.param(fbuf.FreshFirst(fbuf.Uniform(window=8)), marks=SWEEP),
    pytest.param(fbuf.Limited(fbuf.FreshFirst(), max_age=4), marks=SWEEP),
]


@pytest.mark.parametrize("sampler", CUT)
def test_figures_are_the_same_however_adds_are_cut(sampler):
    """Rows of three environments that miss some steps, by 48, by 5 and by 1 at a time."""
    rng, steps = np.random.default_rng(0), 48
    rows = np.arange(3 * steps, dtype=np.int32).reshape(steps, 3)
    given = [rows, rng.random(rows.shape) < 0.2, rng.random(rows.shape) < 0.7]
    adds = jax.jit(
        lambda state, rows, ends, mask: fbuf.add(
            state, rows, truncated=ends, mask=mask, time_major=True
        )
    )
    found = []
    for size in (steps, 5, 1):
        state = fbuf.init(jnp.int32(0), 24, num_envs=3, lockstep=False, sampler=sampler)
        for first in range(0, steps, size):
            part = [leaf[first : first + size] for leaf in given]
            filling = ((0, size - len(part[0])), (0, 0))
            state = adds(state, *[np.pad(leaf, filling) for leaf in part])
        figures = {name: int(fbuf.stats(state)[name]) for name in ("fresh", "missed", "size")}
        state, batch = fbuf.draw(state, jax.random.key(0), 24)
        found.append((figures, batch.data[: figures["fresh"]].tolist()))
    assert found[0] == found[1] == found[2]
    assert found[0][0]["missed"] > 0 or isinstance(sampler, fbuf.Limited)


def test_rows_without_a_start_are_not_missed():
    """As many are, as plain Python counts: every fourth step, and no row of a reset."""
    state = fbuf.init(jnp.int32(0), 16, sampler=fbuf.FreshFirst(every=4))
    state = fbuf.add(state, jnp.arange(64, dtype=jnp.int32))
    assert int(fbuf.stats(state)["missed"]) == 12
    state = fbuf.init(jnp.int32(0), 4, sampler=fbuf.FreshFirst(), autoreset="next_step")
    rows = jnp.arange(16, dtype=jnp.int32)
    state = fbuf.add(state, rows, truncated=rows % 4 == 0)  # rows 1, 5, 9 and 13 only reset
    assert int(fbuf.stats(state)["missed"]) == 12 - 3


@pytest.mark.sweep
def test_missed_rows_of_two_buffers_add_up():
    """Those of one count once, also where its lanes go to several shards."""

    def missing(envs, rows):
        state = fbuf.init(jnp.int32(0), 4 * envs, num_envs=envs, sampler=fbuf.FreshFirst())
        return fbuf.add(state, jnp.zeros((rows, envs), jnp.int32), time_major=True)

    one, other = missing(2, 7), missing(2, 5)
    both = fbuf.extend(fbuf.resize(one, 32), other)
    assert int(fbuf.stats(both)["missed"]) == 2 * 3 + 2 * 1
    mesh = jax.make_mesh((1,), ("data",))
    state = sharded.init(jnp.int32(0), 16, mesh=mesh, num_envs=4, sampler=fbuf.FreshFirst())
    state = sharded.add(state, jnp.zeros((7, 4), jnp.int32), time_major=True)
    for shards in (2, 1):
        state = sharded.reshard(state, shards)
        assert int(sharded.stats(state)["missed"]) == 4 * 3


def test_fresh_rows_of_another_window_are_fresh():
    """Other windows were drawn there; and its newest rows began none."""
    short = fbuf.init(jnp.int32(0), 8, sampler=fbuf.FreshFirst())
    long = fbuf.init(jnp.int32(0), 8, sampler=fbuf.FreshFirst(fbuf.Uniform(window=3)))
    long = fbuf.add(long, jnp.arange(4, dtype=jnp.int32))
    state, batch = fbuf.draw(fbuf.extend(short, long), jax.random.key(0), 4)
    assert batch.data.tolist() == [0, 1, 2, 3]
    assert int(fbuf.stats(state)["fresh"]) == 0
