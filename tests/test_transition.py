"""Next observations: every row has the one its step led to, at every boundary, stored once."""

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

GAMMA = 0.5
ITEM = {"observation": {"at": jnp.int32(0), "image": jnp.zeros(300)}, "reward": jnp.zeros(())}


def observed(number):
    """What is seen at a time of this number."""
    number = np.asarray(number)
    image = np.broadcast_to(number[..., None], (*number.shape, 300))
    return {"at": number.astype(np.int32), "image": image.astype(np.float32)}


class Played:
    """A buffer and its history. The rows of a lane count up; the last of an episode leads to -n."""

    def __init__(self, envs, length, autoreset, lockstep, ends):
        self.count = envs or 1
        self.lanes = Lanes(self.count, length, autoreset)
        self.last = [lane for lane in range(self.count)]  # the number of each lane's next row
        self.ended = []  # the numbers of all rows that ended an episode, in order
        self.lockstep = lockstep
        self.state = fbuf.init(
            ITEM,
            length * self.count,
            num_envs=envs,
            autoreset=autoreset,
            lockstep=lockstep,
            next_of="observation",
            max_ends=ends,
        )

    def add(self, steps, often, rng):
        envs, shape = self.state.ring.num_envs, (steps, self.count)
        mask = np.ones(shape, bool)
        if not self.state.ring.lockstep or envs is None:
            mask = rng.random(shape) < 0.7
        ends, terminated = rng.random((2, *shape)) < [[[often]], [[0.5]]]
        numbers = np.zeros(shape, int)
        for step, lane in zip(*np.nonzero(mask), strict=True):
            numbers[step, lane] = self.last[lane]
            self.last[lane] += self.count
        before = [len(rows) for rows in self.lanes.lanes]
        self.lanes.add(numbers, ends, terminated, mask)
        places = before
        for _, lane in zip(*np.nonzero(mask), strict=True):
            row = self.lanes.lanes[lane][places[lane]]
            places[lane] += 1
            self.ended += [row.item] if row.end else []
        rows = {"observation": observed(numbers), "reward": (numbers % 7).astype(np.float32)}
        led_to = observed(np.where(ends, -numbers, numbers + self.count))
        options = {"terminated": ends & terminated, "truncated": ends & ~terminated}
        if not self.state.ring.lockstep or envs is None:
            options["mask"] = mask
        everything = rows, led_to, options
        if envs is None:
            everything = jax.tree.map(lambda x: x[:, 0], everything)
        rows, led_to, options = jax.tree.map(jnp.asarray, everything)
        major = envs is not None
        self.state = functions()[0](
            self.state, rows, next_observation=led_to, **options, time_major=major
        )

    def remove(self, rng):
        stored = self.lanes.stored()
        if stored:
            slots = rng.choice(stored, 2).tolist()
            self.lanes.remove(slots)
            ids = fbuf._ring.name(self.state.ring, jnp.int32(slots), jnp.ones(2, bool))
            self.state = functions()[1](self.state, ids)

    def end_episode(self, rng):
        lanes = rng.random(self.count) < 0.5
        for lane, rows in enumerate(self.lanes.lanes):
            if lanes[lane] and rows and not (rows[-1].end or rows[-1].dummy):
                self.ended.append(rows[-1].item)
                rows[-1].kept = rows[-1].item + self.count  # what it had led to already
        self.lanes.end_episode(lanes)
        mask = jnp.asarray(lanes if self.state.ring.num_envs else lanes[0])
        self.state = functions()[2](self.state, mask)

    def led_to(self, row):
        """What a row led to, None if that has been lost."""
        if not row.end:
            return row.item + self.count
        room, ended = self.state.nexts.owner.shape[0] - self.count, self.ended
        if not self.lockstep:  # a ring for each lane
            room //= self.count
            ended = [item for item in ended if item % self.count == row.item % self.count]
        return getattr(row, "kept", -row.item) if row.item in ended[-room:] else None


@functools.cache
def functions():
    add = jax.jit(fbuf.add, static_argnames="time_major")
    return add, jax.jit(fbuf.remove), jax.jit(fbuf.end_episode)


@functools.cache
def reading(view):
    return jax.jit(lambda state, slots: view.read(state, slots, jax.random.key(0)))


def read(view, played):
    """What a view makes of every row, in one compiled call."""
    slots, capacity = played.lanes.stored(), played.state.capacity
    padded = jnp.asarray((slots + [slots[0]] * capacity)[:capacity], jnp.int32)
    made = reading(view)(played.state, padded)
    return slots, jax.tree.map(lambda x: np.asarray(x)[: len(slots)], made)


def check_transitions(played):
    slots, made = read(fbuf.Transition(), played)
    lost = False
    for at, slot in enumerate(slots):
        row = played.lanes.at(slot)
        led_to, data = played.led_to(row), jax.tree.map(lambda x, at=at: x[at], made.data)
        assert data.item["observation"]["at"] == row.item
        assert made.known[at] == (led_to is not None)
        if led_to is None:
            lost = True
        else:
            jax.tree.map(np.testing.assert_array_equal, data.next, observed(led_to))
    if lost:
        assert fbuf.Fault(int(played.state.fault)) == fbuf.Fault.LOST_NEXT


def check_n_steps(played, n):
    slots, made = read(fbuf.NStep(n, GAMMA, next_of="observation"), played)
    for at, slot in enumerate(slots):
        lane, place = played.lanes.place(slot)
        rows = []
        for row in lane[place : place + n]:
            if row.removed or row.dummy:
                break
            rows.append(row)
            if row.end:
                break
        led_to, data = played.led_to(rows[-1]), jax.tree.map(lambda x, at=at: x[at], made.data)
        assert data.reward == sum(GAMMA**k * (row.item % 7) for k, row in enumerate(rows))
        assert data.steps == len(rows)
        assert data.discount == (0 if rows[-1].terminated else GAMMA ** len(rows))
        assert made.known[at] == (led_to is not None)
        if led_to is not None:
            jax.tree.map(np.testing.assert_array_equal, data.next, observed(led_to))


@pytest.mark.parametrize("ends", [40, 2])
@pytest.mark.parametrize(
    ("envs", "length", "autoreset", "lockstep"),
    [
        (None, 9, "same_step", True),
        (3, 6, "same_step", True),
        (3, 6, "next_step", True),
        (3, 6, "same_step", False),
        (None, 1, "same_step", True),
    ],
)
@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**32 - 1),
    turns=st.lists(st.sampled_from([1, 4, 14, "remove", "end"]), min_size=1, max_size=10),
    often=st.sampled_from([0.0, 0.15, 0.6]),
)
def test_every_row_has_what_its_step_led_to(
    envs, length, autoreset, lockstep, ends, seed, turns, often
):
    rng = np.random.default_rng(seed)
    played = Played(envs, length, autoreset, lockstep, min(ends, length * (envs or 1)))
    for turn in turns:
        if turn == "remove":
            played.remove(rng)
        elif turn == "end":
            played.end_episode(rng)
        else:
            played.add(turn, often, rng)
        if played.lanes.stored():
            check_transitions(played)
    if played.lanes.stored():
        check_n_steps(played, min(3, length))


def test_what_is_lost_is_masked():
    """Two ends are kept, three episodes have ended: draws of the first one come masked."""
    state = fbuf.init({"observation": jnp.int32(0)}, 8, next_of="observation", max_ends=2)
    ends = jnp.array([1, 1, 1, 0], bool)
    led_to = jnp.arange(10, 14, dtype=jnp.int32)
    state = fbuf.add(
        state,
        {"observation": jnp.arange(4, dtype=jnp.int32)},
        next_observation=led_to,
        truncated=ends,
    )
    batch = fbuf.sample(state, jax.random.key(0), 64, view=fbuf.Transition())
    first = np.asarray(batch.data.item["observation"]) == 0
    assert first.any()
    np.testing.assert_array_equal(batch.mask, ~first)
    np.testing.assert_array_equal(batch.weight, ~first)
    np.testing.assert_array_equal(np.asarray(batch.ids.slot) == -1, first)
    with pytest.raises(RuntimeError, match="larger max_ends"):
        fbuf.raise_on_fault(state)


def test_hindsight_has_it_too():
    row = {"observation": jnp.int32(0), "goal": jnp.int32(0), "at": jnp.int32(0), "reward": 0.0}
    state = fbuf.init(row, 8, next_of="observation")
    numbers = jnp.arange(5, dtype=jnp.int32)
    rows = {"observation": numbers, "goal": numbers, "at": numbers, "reward": jnp.zeros(5)}
    ends = jnp.array([0, 1, 0, 0, 0], bool)
    led_to = jnp.where(ends, -9, numbers + 1)
    state = fbuf.add(state, rows, next_observation=led_to, truncated=ends)
    view = fbuf.Hindsight(jnp.equal, "final", 1.0, achieved="at", next_of="observation")
    data = fbuf.sample(state, jax.random.key(0), 64, view=view).data
    at = np.asarray(data.item["at"])
    np.testing.assert_array_equal(data.next, np.where(at == 1, -9, at + 1))
    np.testing.assert_array_equal(data.item["goal"], np.where(at < 2, 1, 4))


def test_the_end_of_a_removed_row_is_no_loss():
    state = fbuf.init({"observation": jnp.int32(0)}, 8, next_of="observation", max_ends=1)
    row, end = {"observation": jnp.int32([1])}, jnp.ones(1, bool)
    state = fbuf.add(state, row, next_observation=jnp.int32([2]), truncated=end)
    state = fbuf.remove(state, fbuf.Ids(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32)))
    state = fbuf.add(state, row, next_observation=jnp.int32([2]), truncated=end)
    assert int(state.fault) == 0
    state = fbuf.add(state, row, next_observation=jnp.int32([2]), truncated=end)
    assert fbuf.Fault(int(state.fault)) == fbuf.Fault.LOST_NEXT


@pytest.mark.parametrize(
    "view", [fbuf.Transition(fields=("reward",)), fbuf.NStep(2, GAMMA, next_of="observation")]
)
def test_the_same_eagerly_jitted_scanned_and_under_vmap(view):
    played = Played(3, 6, "same_step", True, 6)
    for _ in range(3):
        played.add(4, 0.2, np.random.default_rng(1))
    state, keys = played.state, jax.random.split(jax.random.key(1), 4)
    draw = functools.partial(fbuf.sample, batch_size=8, view=view)
    eager = jax.tree.map(lambda *x: np.stack(x), *[draw(state, key) for key in keys])
    _, scanned = jax.lax.scan(lambda s, key: (s, draw(s, key)), state, keys)
    both = jax.tree.map(lambda x: jnp.stack([x] * 4), state)
    batched = jax.jit(jax.vmap(draw))(both, keys)
    for other in (scanned, batched):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), eager, other)


def test_images_take_half_the_memory():
    frame = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)
    twice = fbuf.nbytes({"observation": frame, "next_observation": frame}, 100_000)
    once = fbuf.nbytes({"observation": frame}, 100_000, next_of="observation")
    assert once < 0.54 * twice


def test_what_cannot_be_right_is_refused():
    item = {"observation": jnp.zeros(3), "reward": 0.0}
    rows = {"observation": jnp.zeros((2, 3)), "reward": jnp.zeros(2)}
    with pytest.raises(ValueError, match="next_of names 'obs', which the items"):
        fbuf.init(item, 8, next_of="obs")
    with pytest.raises(ValueError, match="max_ends must be from 1 to 8"):
        fbuf.init(item, 8, next_of="observation", max_ends=9)
    with pytest.raises(ValueError, match="there is no next_of"):
        fbuf.init(item, 8, max_ends=9)
    state = fbuf.init(item, 8, next_of="observation")
    for led_to, match in (
        (None, "next_observation is missing"),
        ((), "next_observation must have the tree"),
        (jnp.zeros((2, 4)), r"next_observation must be \(3,\) for one item"),
        (jnp.zeros((3, 3)), r"must begin with \(2,\)"),
        (jnp.zeros((2, 3), jnp.int32), "next_observation must be float32"),
        (np.zeros((2, 3)), "next_observation is float64"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            fbuf.add(state, rows, next_observation=led_to)
    for view in (fbuf.Transition("reward"), fbuf.NStep(2, 0.9, next_of="reward")):
        with pytest.raises(ValueError, match="made with next_of='observation'; make it with"):
            fbuf.sample(state, jax.random.key(0), 2, view=view)
    plain = fbuf.init(item, 8)
    with pytest.raises(ValueError, match="made without it"):
        fbuf.sample(plain, jax.random.key(0), 2, view=fbuf.Transition())
    with pytest.raises(ValueError, match="make the buffer with next_of"):
        fbuf.add(plain, rows, next_observation=rows["observation"])
