"""Hindsight: goals come from where they may, each as often as it should, and rewards are right."""

from __future__ import annotations

import collections
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from support import inside, meshes, programs, restored
from support.oracle import Oracle
from support.pair import APART, FLAT, TOGETHER, Pair, ShardedPair
from test_views import GOAL, ITEM, every, item_of, played

import fbuf
from fbuf import sharded
from fbuf.host import HostStore
from fbuf.samplers.chance.geometric import geometric, thresholds
from fbuf.views import any_row

SWEEP = pytest.mark.sweep
ALL = 10**6
DRAWS = 120_000


def reward_fn(achieved, goal):
    """Tells which two goals it was given, and in which order."""
    return 256.0 * achieved["level"].astype(jnp.float32) + goal["place"][0]


def likely(history, slot, view, live=None):
    """Return the probability of each row to be the goal of a relabelled row, by its number."""
    shares = ((view.strategy, 1),) if isinstance(view.strategy, str) else view.strategy
    total, found = sum(share for _, share in shares), collections.defaultdict(float)
    ahead = [row.number for row in history.ahead(slot, ALL)]
    before = [row.number for row in history.back(slot, ALL)[:-1]]
    far = ahead[min(view.nearest, len(ahead) - 1) :]
    each = [1 / len(far)] * len(far)
    if view.discount is not None:
        d = view.discount
        each = [(1 - d) * d**n for n in range(len(far) - 1)] + [d ** (len(far) - 1)]
    rows = {"final": ahead[-1:], "current": ahead[:1], "episode": before + ahead}
    for word, share in shares:
        if word == "random":
            rows[word] = live or [history.at(stored).number for stored in history.stored()]
        if word != "future":
            far, each = rows[word], [1 / len(rows[word])] * len(rows[word])
        for number, chance in zip(far, each, strict=True):
            found[number] += share / total * chance
    return {number: chance for number, chance in found.items() if chance}


@pytest.mark.parametrize(
    ("strategy", "shape", "autoreset"),
    [
        ("future", TOGETHER, "next_step"),
        ("current", APART, "next_step"),
        *(
            pytest.param(*case, marks=SWEEP)
            for case in (
                ("episode", APART, "same_step"),
                ("episode", FLAT, "same_step"),
                ("final", FLAT, "same_step"),
                ("future", FLAT, "next_step"),
                ("future", APART, "same_step"),
                ("episode", TOGETHER, "next_step"),
                ("final", TOGETHER, "next_step"),
                ("final", APART, "next_step"),
                ("random", APART, "same_step"),
                ("random", TOGETHER, "next_step"),
            )
        ),
    ],
)
def test_goals_are_of_the_same_episode(strategy, shape, autoreset):
    view, chosen = fbuf.Hindsight(reward_fn, strategy=strategy, ratio=0.75), []
    key = jax.random.key(7)
    for oracle, slot, reading in every(view, shape, autoreset, key, count=120):
        row, item = oracle.at(slot), reading.data.item
        expected = item_of(row.number)
        chosen.append(bool(reading.data.relabelled))
        if chosen[-1]:
            source = item["goal"]["level"]
            assert int(source) in likely(oracle, slot, view)
            expected["goal"] = item_of(source)["achieved_goal"]
            expected["reward"] = np.float32(256 * row.number + source + 0.5)
        jax.tree.map(np.testing.assert_array_equal, item, expected)
        assert reading.flags & 3 == row.terminated + 2 * row.truncated
    assert 0 < np.mean(chosen) < 1


@functools.cache
def episodes():
    """Two lanes of 100 rows: 39 of an episode whose first ones are gone, and 61 of an open one."""
    numbers = np.arange(200).reshape(100, 2)
    ends = np.zeros((100, 2), bool)
    ends[[30, 31, 98]] = True
    state = fbuf.init(ITEM, 200, num_envs=2)
    items = jax.tree.map(jnp.asarray, item_of(np.concatenate([numbers, numbers[:60] + 200])))
    ends = jnp.asarray(np.concatenate([ends, np.zeros((60, 2), bool)]))
    return fbuf.add(state, items, truncated=ends, time_major=True)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("strategy", "slot", "numbers"),
    [
        ("future", 2 * 70, range(140, 198, 2)),
        pytest.param("future", 2 * 99 + 1, range(199, 320, 2), marks=SWEEP),
        pytest.param("episode", 2 * 70 + 1, range(121, 199, 2), marks=SWEEP),
        pytest.param("episode", 2 * 10 + 1, range(199, 320, 2), marks=SWEEP),
        pytest.param("future", 2 * 97, [194, 196], marks=SWEEP),
    ],
)
def test_every_row_that_may_be_the_goal_is_as_often(strategy, slot, numbers):
    # Step 99 is the first one of the open episode, which goes on around the ring.
    # Among those that are relabelled: whether and where must be independent.
    view = fbuf.Hindsight(reward_fn, strategy=strategy, ratio=0.5)
    slots = jnp.full(2 * DRAWS, slot, jnp.int32)
    data = programs.reading(view, episodes(), slots, jax.random.key(7)).data
    levels = np.asarray(data.item["goal"]["level"])[np.asarray(data.relabelled)]
    counts = np.bincount(levels, minlength=400)
    assert levels.size > 1e5
    assert counts[list(numbers)].sum() == levels.size
    assert stats.chisquare(counts[list(numbers)]).pvalue > 1e-4


@SWEEP
@pytest.mark.parametrize("ratio", [0, 0.1, 0.8, 1.0])
def test_the_share_that_is_relabelled(ratio):
    view = fbuf.Hindsight(reward_fn, strategy="final", ratio=ratio)
    state = episodes()
    slots = jnp.arange(DRAWS, dtype=jnp.int32) % 200
    data = programs.reading(view, state, slots, jax.random.key(3)).data
    count = int(data.relabelled.sum())
    assert abs(count - ratio * DRAWS) <= 5 * np.sqrt(DRAWS * ratio * (1 - ratio))
    kept = ~np.asarray(data.relabelled)
    stored = inside.rows(state)
    chosen = np.asarray(slots)[kept]
    for name in ("goal", "reward"):
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(np.asarray(a)[kept], np.asarray(b)[chosen]),
            data.item[name],
            stored[name],
        )
    # Neighbours are independent: as often both as the share squared says.
    both = np.mean(~kept[::2] & ~kept[1::2])
    assert abs(both - ratio**2) < 5 / np.sqrt(DRAWS / 2)


@SWEEP
def test_another_key_chooses_anew_and_the_choice_is_not_the_samplers():
    state, view = episodes(), fbuf.Hindsight(reward_fn, strategy="future", ratio=0.5)
    one, same, other = (fbuf.sample(state, jax.random.key(k), 64, view=view) for k in (0, 0, 1))
    assert (one.data.item["reward"] == same.data.item["reward"]).all()
    assert (one.data.relabelled != other.data.relabelled).any()
    plain = fbuf.sample(state, jax.random.key(0), 64)
    np.testing.assert_array_equal(plain.data["observation"], one.data.item["observation"])


@SWEEP
def test_the_same_in_every_way():
    pair, view = (
        played(TOGETHER, "next_step", 4, 0.15),
        fbuf.Hindsight(reward_fn, strategy="episode", ratio=0.5),
    )
    draw = functools.partial(fbuf.sample, batch_size=64, view=view)
    eager = programs.every_way(draw, pair.state, jax.random.split(jax.random.key(1), 2))
    assert eager.mask.all()
    assert 0 < eager.data.relabelled.mean() < 1


@pytest.mark.sweep
@pytest.mark.parametrize(
    "strategy",
    ["episode", pytest.param("future", marks=SWEEP), pytest.param("final", marks=SWEEP)],
)
def test_where_nothing_can_be_drawn_nothing_happens(strategy):
    state = fbuf.init(ITEM, 64)
    batch = fbuf.sample(
        state, jax.random.key(0), 8, view=fbuf.Hindsight(reward_fn, strategy=strategy)
    )
    assert not batch.mask.any()
    np.testing.assert_array_equal(batch.weight, 0)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("stored", "function"),
    [
        pytest.param("float32", lambda a, g: a == g, marks=SWEEP),
        ("float16", lambda a, g: (a == g).astype(jnp.int32)),
        pytest.param("int8", lambda a, g: 1, marks=SWEEP),
    ],
)
def test_the_reward_keeps_its_dtype(stored, function):
    item = {"goal": jnp.int32(3), "achieved_goal": jnp.int32(3), "reward": jnp.ones((), stored)}
    state = fbuf.add(fbuf.init(item, 8), item)
    view = fbuf.Hindsight(function, ratio=1, fields=("reward",))
    item = fbuf.sample(state, jax.random.key(0), 2, view=view).data.item
    assert list(item) == ["reward"]
    assert (item["reward"].dtype, item["reward"].tolist()) == (stored, [1, 1])


def test_what_cannot_be_right_is_refused():
    for arguments, error, match in (
        ({"reward_fn": 1.0}, TypeError, r"fbuf.Hindsight: reward_fn must be a function"),
        (
            {"strategy": "newest"},
            ValueError,
            "strategy must be one of 'future', 'final', 'episode', 'current', 'random'",
        ),
        ({"ratio": 4}, ValueError, "ratio must be from 0 to 1, got 4"),
        ({"ratio": -0.1}, ValueError, "ratio must be from 0 to 1"),
        ({"ratio": "0.8"}, TypeError, "ratio must be a Python number"),
        ({"fields": ["goal"]}, TypeError, "fields must be a tuple of names"),
    ):
        with pytest.raises(error, match=match):
            fbuf.Hindsight(**{"reward_fn": reward_fn, **arguments})

    class Unhashable:
        __hash__ = None

        def __call__(self, achieved, goal):
            return reward_fn(achieved, goal)

    with pytest.raises(TypeError, match="reward_fn must be hashable"):
        fbuf.Hindsight(Unhashable())

    item = {"goal": GOAL, "achieved_goal": GOAL, "reward": 0.0}
    item |= {"short": jnp.zeros(3), "count": jnp.int32(0)}
    state = fbuf.add(fbuf.init(item, 8), item)
    for view, match in (
        (fbuf.Hindsight(reward_fn, goal="g"), "goal names 'g', but the items"),
        (fbuf.Hindsight(reward_fn, achieved="a"), "achieved names 'a', but the items"),
        (fbuf.Hindsight(reward_fn, reward="r"), "reward names 'r', but the items"),
        (fbuf.Hindsight(reward_fn, reward="short"), "must name a field that is one real number"),
        (fbuf.Hindsight(reward_fn, fields=("x",)), "fields names 'x'"),
        (
            fbuf.Hindsight(reward_fn, achieved="short"),
            r"achieved='short' must have the tree, .* of goal='goal', .*got .*\(3,\)",
        ),
        (
            fbuf.Hindsight(reward_fn, goal="goal.level", achieved="reward"),
            "must have the tree, shapes and dtypes",
        ),
        (fbuf.Hindsight(lambda a, g: g["place"]), r"must return one number .* got .*\(2,\)"),
        (fbuf.Hindsight(lambda a, g: (1.0, 2.0)), "must return one number"),
        (
            fbuf.Hindsight(reward_fn, reward="count"),
            "returns float32, but the stored reward is int32",
        ),
        (
            fbuf.Hindsight(lambda a, g: g["place"][0].astype(jnp.complex64)),
            "returns complex64, but the stored",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            fbuf.sample(state, jax.random.key(0), 2, view=view)


# Shares, distances, any row, and copies.

OGBENCH = fbuf.Hindsight(
    reward_fn,
    strategy={"current": 0.2, "future": 0.5, "random": 0.3},
    ratio=1.0,
    discount=0.75,
    nearest=1,
)
EVERY_SHARE = fbuf.Hindsight(
    reward_fn,
    strategy={"current": 1, "future": 3, "final": 1.5, "episode": 2, "random": 2.5},
    ratio=0.8,
    discount=0.9,
    nearest=2,
    copies=3,
    fields=("goal", "reward", "observation"),
)
IN_EPISODES = fbuf.Hindsight(
    reward_fn,
    strategy={"final": 0.25, "future": 0.75},
    nearest=3,
    copies=2,
    fields=("goal", "reward", "observation"),
)


def as_likely(counts, chances):
    """The chi-square of counts, and its degrees of freedom; rare values are counted together."""
    assert not set(counts) - set(chances)
    total = sum(counts.values())
    # The counts must not say which are taken together.
    by_chance = functools.partial(sorted, key=lambda cell: cell[0])
    cells = by_chance([(chance * total, counts.get(value, 0)) for value, chance in chances.items()])
    while len(cells) > 1 and cells[0][0] < 5:
        (expected, seen), (more, others), *rest = cells
        cells = by_chance([(expected + more, seen + others), *rest])
    return sum((seen - e) ** 2 / e for e, seen in cells if e), len(cells) - 1


def check(history, view, slots, data):
    """Every row of a batch has goals that it may have, as often as it should; see `as_likely`."""
    copies = view.copies or 1
    levels = np.asarray(data.item["goal"]["level"]).reshape(-1, copies)
    places = np.asarray(data.item["goal"]["place"]).reshape(-1, copies, 2)
    rewards = np.asarray(data.item["reward"]).reshape(-1, copies)
    relabelled = np.asarray(data.relabelled).reshape(-1, copies)
    observed = np.asarray(data.item["observation"])
    live = [history.at(stored).number for stored in history.stored()]
    numbers = {slot: history.at(slot).number for slot in set(slots.tolist())}
    number = np.array([numbers[slot] for slot in slots.tolist()])
    np.testing.assert_array_equal(observed, number)
    number = np.broadcast_to(number[:, None], levels.shape)
    kept, stored = ~relabelled, item_of(number)
    np.testing.assert_array_equal(levels[kept], stored["goal"]["level"][kept])
    np.testing.assert_array_equal(rewards[kept], stored["reward"][kept])
    sources = item_of(levels)["achieved_goal"]["place"]
    np.testing.assert_array_equal(
        places, np.where(kept[..., None], stored["goal"]["place"], sources)
    )
    judged = np.float32(256 * number + levels + 0.5)
    np.testing.assert_array_equal(rewards[relabelled], judged[relabelled])
    found = np.zeros(2)
    for slot, row in numbers.items():
        chosen = levels[(number == row) & relabelled].tolist()
        found += as_likely(collections.Counter(chosen), likely(history, slot, view, live))
    count, share = relabelled.size, float(view.ratio)
    assert abs(relabelled.sum() - share * count) <= 6 * np.sqrt(count * share * (1 - share))
    return found


class Known(Pair):
    """A buffer and the oracle, at any moment made larger or smaller, or saved and loaded."""

    draw = staticmethod(programs.sample)

    def disturb(self, rng, folder):
        if rng.random() < 0.5:
            length = 36 if self.oracle.length != 36 else 24
            self.state = fbuf.resize(self.state, length * self.oracle.envs)
            old, self.oracle = self.oracle, Oracle(length, self.oracle.envs, self.oracle.autoreset)
            for lane in range(old.envs):
                lap = int(self.state.ring.lap[lane % self.state.ring.heads])
                self.oracle.laps[lane] = lap - len(old.kept(lane)[-length:]) // length
            self.oracle.extend(old)
        fbuf.save(folder, self.state, background=False)
        self.state = restored.load(folder).state
        self.seen = []

    def slots(self, ids):
        return np.asarray(ids.slot)


def of_a_store(name):
    """A method that changes a store, as a function that returns the store."""

    def change(store, *args, **options):
        getattr(store, name)(*args, **options)
        return store

    return change


class OnHost(Known):
    """The same with rows on the host."""

    operations = SimpleNamespace(
        **{name: of_a_store(name) for name in ("add", "remove", "clear", "end_episode")}
    )
    empty = staticmethod(HostStore)

    @staticmethod
    def draw(store, key, batch_size, view):
        return store.sample(key, batch_size, view=view)

    def disturb(self, rng, folder):
        self.state.save(folder)
        self.state = HostStore.open(folder, episodes="keep")[0]


class OverMesh(ShardedPair):
    """The same with eight shards on eight devices."""

    shards = 8
    draw = staticmethod(programs.compiled("sample", module=sharded))

    @staticmethod
    def empty(item, capacity, **options):
        return sharded.init(item, capacity, mesh=meshes.mesh(8), shards=8, **options)

    def ids(self, rng, count=8, odd=False):
        return Pair.ids(self, rng, 8, odd)

    def disturb(self, rng, folder):
        sharded.save(folder, self.state)
        self.state = restored.sharded_load(folder, mesh=meshes.mesh(8)).state

    def slots(self, ids):
        return np.asarray(ids.shard) * self.slots_of_shard + np.asarray(ids.slot)


def history(kind, shape, autoreset, view, seed, folder):
    """A history with all that may happen to rows; the chi-square of all that is drawn."""
    rng, found = np.random.default_rng(seed), np.zeros(2)
    pair, often = kind(shape, autoreset=autoreset, item=ITEM, make=item_of), (0.05, 0.2, 0.5)
    for turn in range(4):
        for _ in range(rng.integers(2, 5)):
            pair.step(rng, (5, 8), often[seed % 3])
        if turn == 2:
            pair.disturb(rng, folder)
            pair.add(5, rng, often[seed % 3])
        if turn and pair.oracle.stored():
            batch = pair.draw(pair.state, jax.random.key(seed + turn), 4096, view=view)
            assert batch.mask.all()
            found += check(pair.oracle, view, pair.slots(batch.ids), batch.data)
    return found


ONE_LANE, SIDE_BY_SIDE, ALONE = (None, 24, True), (3, 24, True), (3, 24, False)
KINDS = [
    (Known, ONE_LANE, "next_step", EVERY_SHARE, 30),
    (Known, SIDE_BY_SIDE, "next_step", EVERY_SHARE, 50),
    (Known, ALONE, "same_step", EVERY_SHARE, 50),
    (Known, ALONE, "same_step", IN_EPISODES, 20),
    (OnHost, SIDE_BY_SIDE, "same_step", EVERY_SHARE, 20),
    (OnHost, ALONE, "next_step", EVERY_SHARE, 20),
    (OverMesh, (8, 24, True), "next_step", EVERY_SHARE, 20),
    (OverMesh, (16, 12, False), "same_step", IN_EPISODES, 20),
]


@pytest.mark.parametrize(
    ("kind", "shape", "autoreset", "view", "count"),
    [
        (Known, ALONE, "next_step", EVERY_SHARE, 3),
        *(pytest.param(*case, id=f"kind{n}", marks=SWEEP) for n, case in enumerate(KINDS)),
    ],
)
def test_any_history_gives_the_goals_of_the_oracle(kind, shape, autoreset, view, count, tmp_path):
    """Rows are overwritten, removed, resized, saved and loaded; nothing is ever wrong."""
    if kind is OverMesh and jax.device_count() < 8:
        pytest.skip("needs eight devices")
    found = np.zeros(2)
    for seed in range(count):
        found += history(kind, shape, autoreset, view, seed, tmp_path / str(seed))
    assert found[1] > 10 * count
    assert 1e-4 < stats.chi2.sf(*found) < 1 - 1e-4


def mixed_up(lockstep):
    """Three lanes, of which one is empty where they are alone, and a third of the rows removed."""
    pair, rng = Pair((3, 40, lockstep), item=ITEM, make=item_of), np.random.default_rng(5)
    for _ in range(5):
        pair.add(8, rng, 0.05)
    if not lockstep:
        mask = np.zeros((9, 3), bool)
        mask[:, 1] = True
        numbers = np.where(mask, np.arange(27).reshape(9, 3) + 1000, 0)
        pair.clear()
        pair.oracle.add(numbers, mask=mask)
        pair.state = fbuf.add(pair.state, item_of(numbers), mask=mask, time_major=True)
    while len(pair.oracle.stored()) > (60 if lockstep else 6):
        pair.remove(rng, 4)
    return pair


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("view", "lockstep"),
    [
        (OGBENCH, True),
        (IN_EPISODES, True),
        pytest.param(OGBENCH, False, marks=SWEEP),
        pytest.param(EVERY_SHARE, True, marks=SWEEP),
    ],
)
def test_each_share_is_as_large_as_given(view, lockstep):
    pair = mixed_up(lockstep)
    slots = sorted(pair.oracle.stored(), key=lambda slot: len(pair.oracle.ahead(slot, ALL)))
    slots = jnp.resize(jnp.array([slots[-1], slots[0]], jnp.int32), DRAWS)
    data = programs.reading(view, pair.state, slots, jax.random.key(11)).data
    found = check(pair.oracle, view, np.asarray(slots), data)
    assert found[1] >= 3
    assert stats.chi2.sf(*found) > 1e-4


@pytest.mark.parametrize(
    ("turns", "block"),
    [(2, 64), *(pytest.param(*case, marks=SWEEP) for case in ((1, 32), (1, 2**11), (3, 32)))],
)
@pytest.mark.parametrize("lockstep", [True, False])
def test_any_row_is_as_likely_however_few_are_left(turns, block, lockstep, monkeypatch):
    """Some are drawn again and again, and the others found by their rank."""
    monkeypatch.setattr(any_row, "TURNS", turns)
    monkeypatch.setattr(any_row, "BLOCK", block)
    pair, key = mixed_up(lockstep), jax.random.key(2)
    words = lambda turn: jax.random.bits(jax.random.fold_in(key, turn), (2, DRAWS), "uint32")
    slots = jax.jit(lambda ring: any_row.any_rows(ring, words))(pair.state.ring)
    stored = pair.oracle.stored()
    found = as_likely(collections.Counter(slots.tolist()), dict.fromkeys(stored, 1 / len(stored)))
    assert found[1] == len(stored) - 1
    assert stats.chi2.sf(*found) > 1e-4


def test_no_row_is_left():
    pair = mixed_up(True)
    state = fbuf.remove(pair.state, fbuf.ids_at(pair.state, jnp.arange(120, dtype=jnp.int32)))
    batch = fbuf.sample(state, jax.random.key(0), 8, view=OGBENCH)
    assert not batch.mask.any()


@pytest.mark.parametrize(
    "discount",
    [0.9, *(pytest.param(d, marks=SWEEP) for d in (0, 0.25, 0.5, 0.99, 0.9999, 1 - 2.0**-26))],
)
def test_geometric_numbers(discount):
    words = jax.random.bits(jax.random.key(1), (len(thresholds(discount)), DRAWS), "uint32")
    drawn = np.asarray(geometric(words, discount))
    assert drawn.min() >= 0
    # In parts of about as much probability, so that the far end counts as well.
    q = np.arange(1, 40) / 40
    ends = np.unique(np.ceil(np.log1p(-q) / np.log(discount)).astype(int)) if discount else []
    counts = np.diff(np.searchsorted(np.sort(drawn), [0, *ends, 2**31]))
    chances = -np.diff([1.0, *(discount ** np.asarray(ends, float)), 0.0])
    assert counts.sum() == DRAWS
    if len(counts) > 1:
        assert stats.chisquare(counts, chances * DRAWS).pvalue > 1e-4
    # Exactly: the product of the probabilities of the digits is that of the number.
    digits = np.array(thresholds(discount)) / 2.0**32
    for number in (0, 1, 2, 3, 7, 100, 1000):
        bits = number >> np.arange(len(digits)) & 1
        chance = np.prod(np.where(bits, digits, 1 - digits)) * (number >> len(digits) == 0)
        np.testing.assert_allclose(chance, (1 - discount) * discount**number, atol=2.0**-28)


def test_copies_are_chosen_apart():
    """Two copies have the same goal as often as two draws would."""
    state, slot = episodes(), 2 * 97  # the goals are 194 and 196
    slots = jnp.full(DRAWS, slot, jnp.int32)
    view = fbuf.Hindsight(reward_fn, ratio=1, copies=2, fields=("goal", "reward"))
    data = programs.reading(view, state, slots, jax.random.key(5)).data
    first, second = np.asarray(data.item["goal"]["level"]).T
    counts = np.bincount((first == 196) * 2 + (second == 196), minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.sweep
def test_copies_have_the_goal_and_the_reward_alone():
    state = episodes()
    for copies in (None, 1, 4):
        axis = () if copies is None else (copies,)
        view = fbuf.Hindsight(reward_fn, copies=copies)
        batch = fbuf.sample(state, jax.random.key(0), 8, view=view)
        item = batch.data.item
        assert batch.data.relabelled.shape == item["reward"].shape == (8, *axis)
        assert item["goal"]["place"].shape == (8, *axis, 2)
        assert item["achieved_goal"]["place"].shape == (8, 2)
        assert batch.mask.shape == batch.weight.shape == batch.ids.slot.shape == (8,)
        assert batch.terminated.shape == (8,)
        ids = jax.tree.map(lambda leaf: leaf.reshape(2, 4), batch.ids)
        named = fbuf.read(state, ids, view=view, key=jax.random.key(0)).data.item
        assert named["goal"]["place"].shape == (2, 4, *axis, 2)


@SWEEP
def test_shares_in_every_way():
    pair = mixed_up(True)
    draw = functools.partial(fbuf.sample, batch_size=64, view=EVERY_SHARE)
    programs.every_way(draw, pair.state, jax.random.split(jax.random.key(1), 2))


def test_views_of_equal_shares_are_equal():
    one = fbuf.Hindsight(reward_fn, strategy={"random": 1, "future": 2})
    other = fbuf.Hindsight(reward_fn, strategy={"future": 2, "random": 1})
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.sweep
@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_any_row_over_a_mesh_is_of_all_shards():
    """Shards have different numbers of rows, some are removed; all that are left are as likely."""
    view, found = fbuf.Hindsight(reward_fn, strategy="random", ratio=1.0, copies=2), []
    meant = np.arange(32) % 8 < np.repeat([8, 2, 5, 0], 8)
    for devices in (1, 2):
        state = sharded.init(ITEM, 32, mesh=meshes.mesh(devices), shards=4)
        assert not sharded.sample(state, jax.random.key(0), 8, view=view).mask.any()
        state = sharded.add(state, item_of(np.arange(32)), mask=meant)
        gone = sharded.ShardedIds(*jnp.array([[0, 2], [3, 1], [0, 0]], jnp.int32))
        state = sharded.remove(state, gone)
        found.append(sharded.sample(state, jax.random.key(1), 8000, view=view).data)
    meshes.same(*found)
    left = sorted(set(np.flatnonzero(meant).tolist()) - {3, 17})
    of = lambda goal: tuple(float(x) for leaf in jax.tree.leaves(goal) for x in np.ravel(leaf))
    goals = {of(item_of(np.array([n]))["achieved_goal"]): n for n in left}
    reached = jax.tree.map(np.asarray, found[0].item["goal"])
    counts = collections.Counter(
        goals[of(jax.tree.map(lambda leaf, at=at: leaf[at], reached))] for at in np.ndindex(8000, 2)
    )
    assert sorted(counts) == left
    assert stats.chisquare([counts[n] for n in left]).pvalue > 1e-4


@pytest.mark.sweep
def test_some_any_rows_over_a_mesh_are_of_other_shards():
    """Each shard has an episode of its own, so a goal of another one is of any row."""
    state = sharded.init(ITEM, 32, mesh=meshes.mesh(1), shards=4, num_envs=4)
    state = sharded.add(state, item_of(np.arange(32).reshape(4, 8)))
    for first in ("future", "current"):
        view = fbuf.Hindsight(reward_fn, strategy={first: 0.5, "random": 0.5}, ratio=1.0)
        batch = sharded.sample(state, jax.random.key(0), 4000, view=view)
        goals = np.asarray(batch.data.item["goal"]["level"])
        elsewhere = (goals // 8 != np.asarray(batch.ids.shard)).mean()
        np.testing.assert_allclose(elsewhere, 0.5 * 0.75, atol=4 * 0.5 / 4000**0.5)


@pytest.mark.sweep
def test_any_row_of_one_shard_is_that_of_the_plain_buffer():
    one = sharded.init(ITEM, 32, mesh=meshes.mesh(1), shards=1)
    one = sharded.add(one, item_of(np.arange(9)))
    plain = fbuf.add(fbuf.init(ITEM, 32), item_of(np.arange(9)))
    key = jax.random.key(0)
    meshes.same(
        sharded.sample(one, key, 8, view=OGBENCH).data,
        fbuf.sample(plain, key, 8, view=OGBENCH).data,
    )


def test_shares_and_distances_that_cannot_be_right_are_refused():
    for arguments, error, match in (
        ({"strategy": {}}, TypeError, "strategy must be one word, or a dict of words"),
        ({"strategy": ("future", "random")}, TypeError, "strategy must be one word, or a dict"),
        ({"strategy": {"near": 1}}, ValueError, "each strategy must be one of 'future'"),
        ({"strategy": {"future": -1}}, ValueError, r"strategy\['future'\] must be at least 0"),
        ({"strategy": {"future": "1"}}, TypeError, r"strategy\['future'\] must be a Python number"),
        ({"strategy": {"future": 0, "final": 0}}, ValueError, "all shares of strategy are 0"),
        ({"strategy": {"future": 1e-12, "final": 1}}, ValueError, "no draw would ever take it"),
        (
            {"discount": 1},
            ValueError,
            r"discount must be at most 1 - 2\*\*-26, got 1; for the last",
        ),
        ({"discount": -0.5}, ValueError, "discount must be from 0 to 1"),
        ({"discount": "0.9"}, TypeError, "discount must be a Python number"),
        ({"discount": 0.9, "strategy": "final"}, ValueError, "discount=0.9 is for strategy"),
        ({"nearest": 1, "strategy": "episode"}, ValueError, "nearest=1 is for strategy"),
        ({"nearest": -1}, ValueError, "nearest must be from 0 to 65536"),
        ({"nearest": 1.0}, TypeError, "nearest must be an int"),
        ({"copies": 0}, ValueError, "copies must be from 1"),
        ({"copies": True}, TypeError, "copies must be an int"),
    ):
        with pytest.raises(error, match=match):
            fbuf.Hindsight(reward_fn, **arguments)
