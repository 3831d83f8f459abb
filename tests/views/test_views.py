"""Views: what they make of every row equals a loop over the lane it is in."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from support import inside, programs
from support.pair import APART, FLAT, TOGETHER, Pair

import fbuf
from fbuf.samplers import random_bits

GAMMA = 0.75
GOAL = {"place": jnp.zeros(2), "level": jnp.int32(0)}
ITEM = {
    "observation": jnp.int32(0),
    "next_observation": jnp.zeros(2),
    "reward": jnp.zeros(()),
    "image": jax.ShapeDtypeStruct((40, 40), jnp.float32),
    "goal": GOAL,
    "achieved_goal": GOAL,
}


def item_of(number):
    """The row of this number: no goal is like what any row achieves."""
    number = np.asarray(number)
    half = (number + 0.5).astype(np.float32)
    wide = np.broadcast_to(number[..., None, None], (*number.shape, 40, 40))
    return {
        "observation": number.astype(np.int32),
        "next_observation": np.stack([number + 0.5, -number], -1).astype(np.float32),
        "reward": (number % 17 - 5).astype(np.float32),
        "image": wide.astype(np.float32),
        "goal": {"place": np.stack([-half, half], -1), "level": -1 - number.astype(np.int32)},
        "achieved_goal": {
            "place": np.stack([half, 2 * half], -1),
            "level": number.astype(np.int32),
        },
    }


HISTORIES = [(seed, (0.0, 0.15, 0.6)[seed % 3]) for seed in range(9)]
"""Seeds, and how often episodes end."""
SHAPES = [
    (TOGETHER, "next_step"),
    (APART, "same_step"),
    pytest.param(FLAT, "same_step", marks=pytest.mark.sweep),
    pytest.param(FLAT, "next_step", marks=pytest.mark.sweep),
    pytest.param(TOGETHER, "same_step", marks=pytest.mark.sweep),
    pytest.param(APART, "next_step", marks=pytest.mark.sweep),
]
EVERY = pytest.mark.parametrize(("shape", "autoreset"), SHAPES)
ONE = pytest.mark.parametrize(("shape", "autoreset"), SHAPES[:1])


@functools.cache
def played(shape, autoreset, seed, often):
    """A buffer that has been played with, and its history; for all views the same ones."""
    pair, rng = (
        Pair(shape, autoreset=autoreset, item=ITEM, make=item_of),
        np.random.default_rng(seed),
    )
    for _ in range(rng.integers(2, 9)):
        pair.add(int(rng.choice([1, 8])), rng, often)
        if rng.random() < 0.4:
            pair.remove(rng, 2)
    if not pair.oracle.stored():
        pair.add(8, rng, often)
    return pair


def every(view, shape, autoreset, key=None, count=None):
    """Yield the oracle, the slot and the reading of every row of every history."""
    for history in HISTORIES:
        pair = played(shape, autoreset, *history)
        slots = pair.oracle.stored()
        if not slots:
            continue
        slots = np.resize(slots, count or len(slots)).tolist()
        reading = programs.read(view, pair.state, slots, key)
        for at, slot in enumerate(slots):
            yield pair.oracle, slot, jax.tree.map(lambda x, at=at: x[at], reading)


def check_n_step(view, shape, autoreset, key=None):
    fewest, most = view.n if view.is_random else (view.n, view.n)
    drawn = set()
    for oracle, slot, reading in every(view, shape, autoreset, key):
        rows, data = oracle.ahead(slot, most), reading.data
        assert min(fewest, len(rows)) <= data.steps <= len(rows)
        drawn.add(int(data.steps))
        rows = rows[: int(data.steps)]
        rewards = [item_of(row.number)["reward"] for row in rows]
        expected = sum(GAMMA**k * float(r) for k, r in enumerate(rewards))
        np.testing.assert_allclose(data.reward, expected, rtol=1e-5, atol=1e-5)
        assert data.discount == (0 if rows[-1].terminated else np.float32(GAMMA) ** len(rows))
        np.testing.assert_array_equal(
            data.next_observation, item_of(rows[-1].number)["next_observation"]
        )
        assert data.item["observation"] == rows[0].number
        assert reading.flags & 3 == rows[-1].terminated + 2 * rows[-1].truncated
    assert set(range(fewest, most + 1)) <= drawn


@EVERY
def test_n_step(shape, autoreset):
    check_n_step(fbuf.NStep(3, gamma=GAMMA), shape, autoreset)


@ONE
@pytest.mark.parametrize("n", [1, 9])
def test_n_step_of_one_and_of_a_whole_lane(shape, autoreset, n):
    check_n_step(fbuf.NStep(n, gamma=GAMMA), shape, autoreset)


@EVERY
@pytest.mark.parametrize("n", [(2, 4), pytest.param((1, 1), marks=pytest.mark.sweep)], ids=str)
def test_n_step_of_a_drawn_n(shape, autoreset, n):
    check_n_step(fbuf.NStep(n, gamma=GAMMA), shape, autoreset, jax.random.key(5))


def test_every_n_is_as_often_whatever_the_row():
    """By chi-square, 60,000 draws of 16 rows; another key draws other numbers."""
    sampler, view = fbuf.Uniform(window=5), fbuf.NStep((2, 5), gamma=GAMMA)
    state = fbuf.init({"reward": 0.0, "next_observation": 0.0}, 20, sampler=sampler)
    rows = {"reward": jnp.ones(20), "next_observation": jnp.arange(20.0)}
    state = fbuf.add(state, rows)
    batches = [programs.sample(state, jax.random.key(k), 60_000, view=view) for k in (1, 2, 1)]
    batch = batches[0]
    counts = np.zeros((20, 6), int)
    np.add.at(counts, (np.asarray(batch.ids.slot), np.asarray(batch.data.steps)), 1)
    assert counts[:16, 2:].sum() == 60_000
    assert stats.chisquare(counts[:16, 2:].ravel()).pvalue > 1e-4
    np.testing.assert_array_equal(
        batch.data.next_observation, batch.ids.slot + batch.data.steps - 1
    )
    expected = GAMMA ** np.asarray(batch.data.steps)
    np.testing.assert_allclose(batch.data.discount, expected, rtol=1e-6)
    assert (batches[1].data.steps != batch.data.steps).any()
    np.testing.assert_array_equal(batches[2].data.steps, batch.data.steps)
    plain = programs.sample(state, jax.random.key(1), 60_000, view=fbuf.Item())
    np.testing.assert_array_equal(plain.ids.slot, batch.ids.slot)


def test_a_drawn_n_needs_a_key():
    view = fbuf.NStep((1, 2), gamma=GAMMA)
    state = fbuf.init({"reward": 0.0, "next_observation": 0.0}, 4)
    rows = {"reward": jnp.ones(4), "next_observation": jnp.ones(4)}
    state = fbuf.add(state, rows, terminated=jnp.array([0, 0, 0, 1], bool))
    ids = fbuf.newest_ids(state, 4)
    for ask in (
        lambda: fbuf.read(state, ids, view=view),
        lambda: fbuf.rollout(state, view=view),
        lambda: fbuf.rows(state, view=view),
    ):
        with pytest.raises(ValueError, match="NStep is random"):
            ask()
    assert fbuf.read(state, ids, view=view, key=jax.random.key(0)).data.discount[-1] == 0
    assert fbuf.rows(state, view=fbuf.NStep(2, gamma=GAMMA)).data.steps[0] == 2


@EVERY
@pytest.mark.parametrize("boundary", [pytest.param("pad", marks=pytest.mark.sweep), "cross"])
def test_sequence(shape, autoreset, boundary):
    view = fbuf.Sequence(3, burn_in=2, bootstrap=1, boundary=boundary, state="next_observation")
    for oracle, slot, reading in every(view, shape, autoreset):
        rows = oracle.ahead(slot, 6, cross=boundary == "cross")
        lane, place = oracle.place(slot)
        data = reading.data
        there = [k < len(rows) for k in range(6)]
        assert data.valid.tolist() == there
        assert data.loss_mask.tolist() == [t and 2 <= k < 5 for k, t in enumerate(there)]
        flags = [row.terminated + 2 * row.truncated for row in rows] + [0] * (6 - len(rows))
        assert (reading.flags & 3).tolist() == flags
        for k in range(6):
            expected = item_of(rows[k].number if there[k] else 0)
            for name in ("observation", "next_observation", "reward", "image"):
                zero = np.zeros_like(expected[name])
                given = expected[name] if there[k] else zero
                np.testing.assert_array_equal(data.item[name][k], given)
            number = next(n for n, row in enumerate(lane) if row is rows[k]) if there[k] else 0
            before = lane[number - 1] if number else None
            known = number > 0 and (k > 0 or place > len(lane) - oracle.length)
            if there[k] and known:
                assert data.is_first[k] == (before.end or before.dummy)
            elif there[k]:  # the oldest row: known to be a first one only while nothing has gone
                assert data.is_first[k] == (len(lane) < oracle.length)
            else:
                assert not data.is_first[k]
        np.testing.assert_array_equal(data.state, item_of(rows[0].number)["next_observation"])


def check_frame_stack(view, shape, autoreset):
    for oracle, slot, reading in every(view, shape, autoreset):
        rows = oracle.back(slot, view.k)
        rows = [rows[0]] * (view.k - len(rows)) + rows
        expected = item_of(rows[-1].number)
        frames = [item_of(row.number)[view.field] for row in rows]
        expected[view.field] = np.stack(frames, -1)
        jax.tree.map(np.testing.assert_array_equal, reading.data, expected)


@EVERY
def test_frame_stack(shape, autoreset):
    check_frame_stack(fbuf.FrameStack(4, field="image"), shape, autoreset)


@ONE
@pytest.mark.parametrize("k", [1, 9])
def test_frame_stack_of_one_and_of_a_whole_lane(shape, autoreset, k):
    check_frame_stack(fbuf.FrameStack(k), shape, autoreset)


OFFSETS = {"image": (-4, 0), "reward": range(4), "goal.place": (4, -1, 4), "achieved_goal": (-3,)}


def check_window(view, shape, autoreset):
    for oracle, slot, reading in every(view, shape, autoreset):
        rows = oracle.back(slot, 9)
        now = len(rows) - 1
        rows += oracle.ahead(slot, 9)[1:]
        data, expected = reading.data, item_of(rows[now].number)
        parts = lambda tree: {"goal.place": tree["goal"]["place"], **tree}
        for name, offsets in view.offsets:
            there = [0 <= now + n < len(rows) for n in offsets]
            assert data.valid[name].tolist() == there
            nearest = [rows[min(max(now + n, 0), len(rows) - 1)] for n in offsets]
            steps = [parts(item_of(row.number))[name] for row in nearest]
            if view.pad == "zero":
                steps = [
                    jax.tree.map(lambda x, t=t: np.where(t, x, np.zeros_like(x)), step)
                    for step, t in zip(steps, there, strict=True)
                ]
            wanted = jax.tree.map(lambda *leaves: np.stack(leaves), *steps)
            if name == "goal.place":
                expected["goal"]["place"] = wanted
            else:
                expected[name] = wanted
        jax.tree.map(np.testing.assert_array_equal, data.item, expected)
        assert reading.flags & 3 == rows[now].terminated + 2 * rows[now].truncated


@EVERY
@pytest.mark.parametrize("pad", ["repeat", pytest.param("zero", marks=pytest.mark.sweep)])
def test_window(shape, autoreset, pad):
    check_window(fbuf.Window(OFFSETS, pad=pad), shape, autoreset)


@ONE
@pytest.mark.parametrize("offsets", [(0,), (2, 5), (-5, -2), (-8, 0), range(9)], ids=str)
def test_window_on_one_side_and_of_a_whole_lane(shape, autoreset, offsets):
    check_window(fbuf.Window({"reward": offsets}, pad="zero"), shape, autoreset)


def test_windows_are_equal_and_hashable():
    one = fbuf.Window({"b": range(2), "a": [0]})
    assert one == fbuf.Window({"a": (0,), "b": (0, 1)})
    assert hash(one) == hash(dataclasses.replace(one, pad="repeat"))
    assert one != dataclasses.replace(one, pad="zero")


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(fbuf.Sequence(2, burn_in=1, state="image"), marks=pytest.mark.sweep),
        pytest.param(fbuf.NStep(3, gamma=GAMMA), marks=pytest.mark.sweep),
        pytest.param(fbuf.NStep((1, 4), gamma=GAMMA), marks=pytest.mark.sweep),
        pytest.param(fbuf.FrameStack(3), marks=pytest.mark.sweep),
        pytest.param(fbuf.Window({"image": (-2, 1)}), marks=pytest.mark.sweep),
        pytest.param(fbuf.Sequence(3, boundary="stop"), marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_views_are_the_same_in_every_way(view):
    pair = Pair((3, 8, True), fbuf.Uniform(window=3), item=ITEM, make=item_of)
    for seed in range(3):
        pair.add(8, np.random.default_rng(seed), 0.15)
    draw = functools.partial(fbuf.sample, batch_size=8, view=view)
    eager = programs.every_way(draw, pair.state, jax.random.split(jax.random.key(1), 2))
    assert eager.mask.all()


def test_write_changes_the_rows_that_are_still_there(run):
    state = fbuf.init({"x": jnp.int32(0), "deep": {"v": jnp.zeros(2), "wide": jnp.zeros(600)}}, 4)
    rows = lambda n: {
        "x": jnp.arange(n, dtype=jnp.int32),
        "deep": {"v": jnp.zeros((n, 2)), "wide": jnp.zeros((n, 600))},
    }
    state = fbuf.add(state, rows(4))
    ids = fbuf.Ids(jnp.array([0, 1, 2, 2, -1, 9, 3]), jnp.zeros(7, jnp.int32))
    state = fbuf.add(state, rows(1))  # slot 0 is overwritten
    mask = jnp.array([1, 1, 1, 1, 1, 1, 0], bool)
    wide = jnp.broadcast_to(jnp.arange(7.0)[:, None], (7, 600))
    fields = {"deep.v": jnp.arange(14.0).reshape(7, 2), "deep.wide": wide}
    state = fbuf.write(state, ids, fields, mask=mask, donate=run.way == "eager")
    stored = inside.rows(state)
    assert stored["x"].tolist() == [0, 1, 2, 3]
    assert stored["deep"]["v"].tolist() == [[0, 0], [2, 3], [6, 7], [0, 0]]
    assert stored["deep"]["wide"][:, 0].tolist() == [0, 1, 3, 0]
    assert fbuf.Fault(int(state.fault)) == fbuf.Fault.STALE_ID | fbuf.Fault.ID_OUT_OF_RANGE


class Guess(fbuf.views.View):
    """Guesses slots in the way in which `Uniform` draws them."""

    is_random = True

    def request(self, reader, slots, key):
        guesses = random_bits.below(reader.bits(key, 2, slots.shape[0]), jnp.int32(100))
        return fbuf.views.Request({}, (guesses, reader.flags(slots)))

    def build(self, layout, rows, seen):
        return fbuf.views.Reading(*seen)


@pytest.mark.sweep
def test_the_key_of_a_view_is_not_that_of_the_sampler():
    state = fbuf.add(fbuf.init(jnp.int32(0), 100), jnp.arange(100, dtype=jnp.int32))
    batch = fbuf.sample(state, jax.random.key(3), 32, view=Guess())
    assert (batch.data != batch.ids.slot).any()
    same = random_bits.below(random_bits.bits(jax.random.key(3), (2, 32)), jnp.int32(100))
    np.testing.assert_array_equal(same, batch.ids.slot)


@pytest.mark.sweep
def test_what_cannot_be_right_is_refused():
    for make, match in (
        (lambda: fbuf.NStep(0, gamma=0.9), "n must be from 1"),
        (lambda: fbuf.NStep((2, 1), gamma=0.9), r"n\[1\] must be from 2"),
        (lambda: fbuf.NStep((0, 1), gamma=0.9), r"n\[0\] must be from 1"),
        (lambda: fbuf.NStep((1, 2, 3), gamma=0.9), "a pair of the fewest and the most steps"),
        (lambda: fbuf.NStep((1, 2.5), gamma=0.9), r"n\[1\] must be an int"),
        (lambda: fbuf.NStep([1, 2], gamma=0.9), "n must be an int, or a pair"),
        (lambda: fbuf.NStep(2, gamma=1.5), "gamma must be from 0 to 1"),
        (lambda: fbuf.NStep(2, gamma="0.9"), "gamma must be a Python number"),
        (lambda: fbuf.Sequence(0), "length must be from 1"),
        (lambda: fbuf.Sequence(2, burn_in=-1), "burn_in must be from 0"),
        (lambda: fbuf.Sequence(2, boundary="wrap"), "boundary must be"),
        (lambda: fbuf.FrameStack(0), "k must be from 1"),
        (lambda: fbuf.Window({}), "offsets must be a dict of fields"),
        (lambda: fbuf.Window("x"), "offsets must be a dict of fields"),
        (lambda: fbuf.Window({"x": 3}), r"offsets\['x'\] must be a sequence of ints"),
        (lambda: fbuf.Window({"x": "3"}), r"offsets\['x'\] must be a sequence of ints"),
        (lambda: fbuf.Window({"x": (0.5,)}), r"offsets\['x'\] must be an int"),
        (lambda: fbuf.Window({"x": ()}), "at least one offset"),
        (lambda: fbuf.Window({"x": (2**17,)}), "must be from -65536 to 65536"),
        (lambda: fbuf.Window({3: (1,)}), "offsets must be the name of a field"),
        (lambda: fbuf.Window({"x": (1,)}, pad="edge"), "pad must be one of"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            make()
    state = fbuf.add(fbuf.init({"x": jnp.zeros(3)}, 8), {"x": jnp.ones((8, 3))})
    for view, match in (
        (
            fbuf.NStep(2, gamma=0.9),
            r"reward names 'reward', but the items of this buffer have no such field.*"
            "give reward the name of one",
        ),
        (fbuf.NStep(2, gamma=0.9, reward="x"), "must name a field that is one real number"),
        (
            fbuf.Sequence(9, boundary="pad"),
            "9 steps, but a lane of this buffer has room for 8",
        ),
        (fbuf.NStep(9, gamma=0.9), "n is 9 steps, but a lane"),
        (fbuf.NStep((1, 9), gamma=0.9), "n is 9 steps, but a lane"),
        (fbuf.FrameStack(9, field="x"), "k is 9 steps, but a lane"),
        (fbuf.FrameStack(2, field="x", fields=("y",)), "fields leaves out 'x'"),
        (fbuf.Sequence(2, boundary="stop"), "make the buffer with window=2"),
        (fbuf.Sequence(2, state="h", boundary="pad"), "state names 'h'"),
        (fbuf.FrameStack(2), "field names 'observation'"),
        (fbuf.Window({"y": (0,)}), "offsets names 'y'"),
        (fbuf.Window({"x": (-4, 4)}), "offsets span 9 steps, but a lane"),
    ):
        with pytest.raises(ValueError, match=match):
            fbuf.sample(state, jax.random.key(0), 2, view=view)
    ids = fbuf.sample(state, jax.random.key(0), 2).ids
    for fields, error, match in (
        ({"y": jnp.ones(2)}, ValueError, "fields names 'y'"),
        ({"x": jnp.ones(2)}, ValueError, r"must be of shape \(2, 3\)"),
        ({"x": jnp.ones((2, 3), jnp.int32)}, TypeError, "must be float32"),
        ({"x": {"z": jnp.ones((2, 3))}}, ValueError, "must have the tree of the field"),
    ):
        with pytest.raises(error, match=match):
            fbuf.write(state, ids, fields, donate=False)
    deep = fbuf.init({"a": {"b": jnp.zeros(())}}, 4)
    with pytest.raises(ValueError, match=r"fields\['a.b'\] overlaps with another field"):
        fbuf.write(deep, ids, {"a": {"b": jnp.zeros(2)}, "a.b": jnp.ones(2)}, donate=False)
    for view, match in (
        (fbuf.Window({"a": (0,), "a.b": (1,)}), "overlaps with another field"),
        (fbuf.Window({"a": (0,)}, fields=("a.b",)), None),
    ):
        if match is None:
            assert set(fbuf.sample(deep, jax.random.key(0), 3, view=view).data.item) == {"a.b"}
            continue
        with pytest.raises(ValueError, match=match):
            fbuf.sample(deep, jax.random.key(0), 2, view=view)
    stack = fbuf.FrameStack(2, field="a.b", fields=("a",))  # the field is inside
    assert fbuf.sample(deep, jax.random.key(0), 3, view=stack).data["a"]["b"].shape == (3, 2)


@pytest.mark.sweep
def test_a_name_that_is_no_field_is_answered_with_the_likely_one():
    step = {"reward": jnp.zeros(1), "observation": {"camera": jnp.zeros((2, 3))}}
    state = fbuf.init({"observation": jnp.zeros(4), "next": step}, 8)
    for view, answer in (
        (fbuf.NStep(3, gamma=0.9), 'has next.reward: give reward="next.reward"'),
        (
            fbuf.NStep(3, gamma=0.9, reward="next.reward"),
            'has next.observation: give next_observation="next.observation"',
        ),
        (fbuf.Item(("reward",)), 'has next.reward: give "next.reward" there'),
        (fbuf.Item(("camera",)), 'give "next.observation.camera" there'),
        (fbuf.Item(("ward",)), "give fields the name of one of their fields"),
    ):
        with pytest.raises(ValueError, match="have no such field") as refusal:
            fbuf.sample(state, jax.random.key(0), 2, view=view)
        assert str(refusal.value).endswith(answer)
        assert (
            "; they have next.observation.camera: float32[2, 3], next.reward: float32[1], "
            "observation: float32[4]; "
        ) in str(refusal.value)


def _reached(achieved, goal):
    return jnp.where(achieved == goal, 0.0, -1.0)


@pytest.mark.first(3)
@pytest.mark.parametrize(
    "view",
    [
        fbuf.NStep(3, gamma=0.9),
        fbuf.NStep((1, 3), gamma=0.9),
        fbuf.ReturnToGo(0.9),
        fbuf.Hindsight(_reached),
        fbuf.Hindsight(_reached, copies=2),
    ],
    ids=["n", "some", "return", "goal", "goals"],
)
@pytest.mark.parametrize("host", [False, True])
def test_a_reward_may_be_a_column(view, host):
    """The sums are those of plain numbers; a relabelled reward keeps the form that it has."""

    def drawn(shape):
        place = jnp.arange(12.0)
        rows = {"reward": (place**2).reshape(12, *shape), "next_observation": place}
        rows |= {"goal": place, "achieved_goal": place}
        item = jax.tree.map(lambda leaf: leaf[0], rows)
        ends = jnp.arange(12) % 5 == 4
        if host:
            store = fbuf.host.HostStore(item, 8)
            store.add(rows, terminated=ends)
            return store.sample(jax.random.key(1), 16, view=view).data
        state = fbuf.add(fbuf.init(item, 8), rows, terminated=ends)
        return fbuf.sample(state, jax.random.key(1), 16, view=view).data

    plain, column = drawn(()), drawn((1,))
    assert column.item["reward"].shape == (*plain.item["reward"].shape, 1)
    column.item["reward"] = column.item["reward"][..., 0]
    jax.tree.map(np.testing.assert_array_equal, column, plain)


def test_a_field_without_numbers_is_written_as_any_other():
    state = fbuf.init({"n": jnp.int32(0), "none": jnp.zeros((3, 0))}, 8)
    state = fbuf.add(state, {"n": jnp.arange(4), "none": jnp.zeros((4, 3, 0))})
    fields = {"none": jnp.zeros((2, 3, 0)), "n": jnp.array([7, 8])}
    state = fbuf.write(state, fbuf.newest_ids(state, 2), fields)
    assert fbuf.rows(state).data["n"][-4:].tolist() == [0, 1, 7, 8]


def test_a_gamma_of_numpys_makes_no_return_wider():
    with jax.enable_x64(True):
        item = {"reward": jnp.float32(0), "next_observation": jnp.float32(0)}
        state = fbuf.init(item, 8, sampler=fbuf.Uniform(window=3))
        view = fbuf.NStep(3, gamma=np.float64(0.9))
        draw = lambda state, key: fbuf.sample(state, key, 2, view=view)
        data = jax.eval_shape(draw, state, jax.random.key(0)).data
        assert data.reward.dtype == data.discount.dtype == jnp.float32
