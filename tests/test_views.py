"""Views: what they make of every row equals a loop over the lane it is in."""

from __future__ import annotations

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from lanes import Lanes

import fbuf

GAMMA = 0.75
APART = "apart"
"""In place of a number of environments: three that do not step together."""
ITEM = {
    "observation": jnp.int32(0),
    "next_observation": jnp.zeros(2),
    "reward": jnp.zeros(()),
    "image": jax.ShapeDtypeStruct((40, 40), jnp.float32),
}


def item_of(number):
    """The row of this number."""
    number = np.asarray(number)
    wide = np.broadcast_to(number[..., None, None], (*number.shape, 40, 40))
    return {
        "observation": number.astype(np.int32),
        "next_observation": np.stack([number + 0.5, -number], -1).astype(np.float32),
        "reward": (number % 17 - 5).astype(np.float32),
        "image": wide.astype(np.float32),
    }


class History(Lanes):
    """Lanes, and what can be read from a row of them."""

    def ahead(self, slot, steps, cross=False):
        """The rows from a slot on, as far as a view may read."""
        rows, at = self.place(slot)
        found = []
        for row in rows[at:]:
            if row.dummy and cross:
                continue
            if row.removed or row.dummy or len(found) == steps:
                break
            found.append(row)
            if row.end and not cross:
                break
        return found

    def back(self, slot, steps):
        """The rows up to a slot, no further back than its episode, the newest last."""
        rows, at = self.place(slot)
        found = [rows[at]]
        oldest = max(0, len(rows) - self.length)
        while len(found) < steps and at > oldest:
            at -= 1
            if rows[at].end or rows[at].removed or rows[at].dummy:
                break
            found.insert(0, rows[at])
        return found


@functools.cache
def functions():
    add = jax.jit(fbuf.add, static_argnames="time_major")
    key = jax.random.key(0)
    read = jax.jit(lambda view, state, slots: view.read(state, slots, key), static_argnums=0)
    return add, jax.jit(fbuf.remove), read


def played(envs, length, autoreset, seed, often, sampler=None, spec=ITEM, make=item_of):
    """A buffer that has been played with, and its history."""
    rng, count = np.random.default_rng(seed), 3 if envs == APART else envs or 1
    state = fbuf.init(
        spec,
        length * count,
        num_envs=count if envs else None,
        lockstep=envs != APART,
        autoreset=autoreset,
        sampler=sampler or fbuf.Uniform(),
    )
    history, number = History(count, length, autoreset), 0
    add, remove, _ = functions()
    for _ in range(rng.integers(1, 9)):
        shape = (int(rng.choice([1, 3, 8])), count)
        numbers = np.arange(number, number + shape[0] * count).reshape(shape)
        number += numbers.size
        ends, terminated = rng.random((2, *shape)) < [[[often]], [[0.5]]]
        mask = rng.random(shape) < 0.7 if envs == APART else None
        history.add(numbers, ends, terminated, mask)
        given_ = (make(numbers), ends & terminated, ends & ~terminated, mask)
        if envs is None:
            given_ = jax.tree.map(lambda x: x[:, 0], given_)
        items, terminated, truncated, mask = jax.tree.map(jnp.asarray, given_)
        options = {"terminated": terminated, "truncated": truncated, "mask": mask}
        state = add(state, items, **options, time_major=envs is not None)
        if rng.random() < 0.4 and history.stored():
            slots = rng.choice(history.stored(), 2)
            history.remove(slots)
            slots = jnp.asarray(slots, jnp.int32)
            state = remove(state, fbuf._ring.name(state.ring, slots, jnp.ones(2, bool)))
    return state, history


CASES = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.15, 0.6]))
SHAPES = [(None, 9), (3, 8), (APART, 8)]
BOTH = pytest.mark.parametrize("autoreset", ["same_step", "next_step"])


def read(view, state, history):
    """What a view makes of every row, in one compiled call."""
    slots = history.stored()
    padded = jnp.asarray((slots + [slots[0]] * state.capacity)[: state.capacity], jnp.int32)
    reading = functions()[2](view, state, padded)
    return slots, jax.tree.map(lambda x: np.asarray(x)[: len(slots)], reading)


@BOTH
@pytest.mark.parametrize(("envs", "length"), SHAPES)
@pytest.mark.parametrize("n", [1, 3, 8])
@settings(max_examples=15)
@given(case=CASES)
def test_n_step(envs, length, n, autoreset, case):
    state, history = played(envs, length, autoreset, *case)
    if not history.stored():
        return
    slots, reading = read(fbuf.NStep(n, GAMMA), state, history)
    for at, slot in enumerate(slots):
        rows = history.ahead(slot, n)
        data = jax.tree.map(lambda x, at=at: x[at], reading.data)
        rewards = [item_of(row.item)["reward"] for row in rows]
        expected = sum(GAMMA**k * float(r) for k, r in enumerate(rewards))
        np.testing.assert_allclose(data.reward, expected, rtol=1e-5, atol=1e-5)
        assert data.steps == len(rows)
        assert data.discount == (0 if rows[-1].terminated else np.float32(GAMMA) ** len(rows))
        np.testing.assert_array_equal(data.next, item_of(rows[-1].item)["next_observation"])
        assert data.item["observation"] == rows[0].item
        assert reading.flags[at] & 3 == rows[-1].terminated + 2 * rows[-1].truncated


@BOTH
@pytest.mark.parametrize(("envs", "length"), SHAPES)
@pytest.mark.parametrize("boundary", ["pad", "cross"])
@settings(max_examples=15)
@given(case=CASES)
def test_sequence(envs, length, boundary, autoreset, case):
    state, history = played(envs, length, autoreset, *case)
    if not history.stored():
        return
    view = fbuf.Sequence(3, burn_in=2, bootstrap=1, boundary=boundary, state="next_observation")
    slots, reading = read(view, state, history)
    for at, slot in enumerate(slots):
        rows = history.ahead(slot, 6, cross=boundary == "cross")
        lane, place = history.place(slot)
        data = jax.tree.map(lambda x, at=at: x[at], reading.data)
        there = [k < len(rows) for k in range(6)]
        assert data.there.tolist() == there
        assert data.learn.tolist() == [t and 2 <= k < 5 for k, t in enumerate(there)]
        for k in range(6):
            expected = item_of(rows[k].item if there[k] else 0)
            for name, value in expected.items():
                zero = np.zeros_like(value)
                np.testing.assert_array_equal(data.item[name][k], value if there[k] else zero)
            number = lane.index(rows[k]) if there[k] else 0
            before = lane[number - 1] if number else None
            known = number > 0 and (k > 0 or place > len(lane) - history.length)
            if there[k] and known:
                assert data.first[k] == (before.end or before.dummy)
            elif there[k]:  # the oldest row: known to be a first one only while nothing has gone
                assert data.first[k] == (len(lane) < history.length)
            else:
                assert not data.first[k]
        np.testing.assert_array_equal(data.state, item_of(rows[0].item)["next_observation"])


@BOTH
@pytest.mark.parametrize(("envs", "length"), SHAPES)
@pytest.mark.parametrize("field", ["observation", "image"])
@pytest.mark.parametrize("k", [1, 4])
@settings(max_examples=10)
@given(case=CASES)
def test_frame_stack(envs, length, field, k, autoreset, case):
    state, history = played(envs, length, autoreset, *case)
    if not history.stored():
        return
    slots, reading = read(fbuf.FrameStack(k, field), state, history)
    for at, slot in enumerate(slots):
        rows = history.back(slot, k)
        rows = [rows[0]] * (k - len(rows)) + rows
        data = jax.tree.map(lambda x, at=at: x[at], reading.data)
        expected = item_of(rows[-1].item)
        expected[field] = np.stack([item_of(row.item)[field] for row in rows], -1)
        for name, value in expected.items():
            np.testing.assert_array_equal(data[name], value)


@pytest.mark.parametrize(
    "view",
    [
        fbuf.NStep(3, GAMMA),
        fbuf.Sequence(3, boundary="stop"),
        fbuf.FrameStack(3),
        fbuf.Sequence(2, burn_in=1, state="image"),
    ],
    ids=str,
)
def test_views_are_the_same_eagerly_jitted_scanned_and_under_vmap(view):
    sampler = fbuf.Uniform(window=3)
    state, _ = played(3, 8, "same_step", 5, 0.15, sampler)
    keys = jax.random.split(jax.random.key(1), 4)
    draw = functools.partial(fbuf.sample, batch_size=8, view=view)
    eager = [draw(state, key) for key in keys]
    assert all(bool(sample.mask.all()) for sample in eager)
    eager = jax.tree.map(lambda *x: np.stack(x), *eager)
    jitted = jax.tree.map(lambda *x: np.stack(x), *[jax.jit(draw)(state, key) for key in keys])
    _, scanned = jax.lax.scan(lambda s, key: (s, draw(s, key)), state, keys)
    mapped = jax.jit(jax.vmap(draw, in_axes=(None, 0)))(state, keys)
    both = jax.tree.map(lambda x: jnp.stack([x] * 4), state)
    batched = jax.jit(jax.vmap(draw))(both, keys)
    for other in (jitted, scanned, mapped, batched):
        for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_write_changes_the_rows_that_are_still_there(run):
    state = fbuf.init({"x": jnp.int32(0), "deep": {"v": jnp.zeros(2), "wide": jnp.zeros(600)}}, 4)
    rows = lambda n: {  # noqa: E731
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
    stored = state.storage.rows()
    assert stored["x"].tolist() == [0, 1, 2, 3]
    assert stored["deep"]["v"].tolist() == [[0, 0], [2, 3], [6, 7], [0, 0]]
    assert stored["deep"]["wide"][:, 0].tolist() == [0, 1, 3, 0]
    assert fbuf.Fault(int(state.fault)) == fbuf.Fault.STALE_ID | fbuf.Fault.ID_OUT_OF_RANGE


def test_what_cannot_be_right_is_refused():
    for make, match in (
        (lambda: fbuf.NStep(0, 0.9), "n must be from 1"),
        (lambda: fbuf.NStep(2, 1.5), "gamma must be from 0 to 1"),
        (lambda: fbuf.NStep(2, "0.9"), "gamma must be a Python number"),
        (lambda: fbuf.Sequence(0), "length must be from 1"),
        (lambda: fbuf.Sequence(2, burn_in=-1), "burn_in must be from 1"),
        (lambda: fbuf.Sequence(2, boundary="wrap"), "boundary must be"),
        (lambda: fbuf.FrameStack(0), "k must be from 1"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            make()
    state = fbuf.add(fbuf.init({"x": jnp.zeros(3)}, 8), {"x": jnp.ones((8, 3))})
    for view, match in (
        (fbuf.NStep(2, 0.9), "reward names 'reward', which the items of this buffer lack"),
        (fbuf.NStep(2, 0.9, reward="x"), "must be one real number in each item"),
        (fbuf.Sequence(9), "9 steps, more than a lane of this buffer has room for, 8"),
        (fbuf.NStep(9, 0.9), "n is 9 steps, more than a lane"),
        (fbuf.FrameStack(9, "x"), "k is 9 steps, more than a lane"),
        (fbuf.FrameStack(2, "x", fields=("y",)), "fields leaves out 'x'"),
        (fbuf.Sequence(2, boundary="stop"), "make the buffer with window=2"),
        (fbuf.Sequence(2, state="h"), "state names 'h'"),
        (fbuf.FrameStack(2), "field names 'observation'"),
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
    stack = fbuf.FrameStack(2, "a.b", fields=("a",))  # the field is inside
    assert fbuf.sample(deep, jax.random.key(0), 3, view=stack).data["a"]["b"].shape == (3, 2)
