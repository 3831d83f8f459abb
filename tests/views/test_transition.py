"""Next observations: every row has the one its step led to, at every boundary, stored once."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import programs
from support.few import few
from support.oracle import told
from support.pair import Pair

import fbuf
from fbuf.adapter_api import HostTransitions

GAMMA = 0.5
ITEM = {"observation": {"at": jnp.int32(0), "image": jnp.zeros(300)}, "reward": jnp.zeros(())}


def item_of(number):
    """The row of this number, or what is seen where a row has led to."""
    number = np.asarray(number)
    image = np.broadcast_to(number[..., None], (*number.shape, 300))
    observation = {"at": number.astype(np.int32), "image": image.astype(np.float32)}
    return {"observation": observation, "reward": (number % 7).astype(np.float32)}


class Kept(Pair):
    """A pair that knows which rows ended an episode, in order, and what they led to."""

    def __init__(self, shape, autoreset="same_step", ends=6):
        super().__init__(
            shape, None, autoreset, ITEM, item_of, next_of="observation", max_ends=ends
        )
        self.ended, self.led_to, self.lost = [], {}, False

    def add(self, steps, rng, often=0.0):
        before = [len(rows) for rows in self.oracle.lanes]
        super().add(steps, rng, often)
        new = [
            (at, lane, row)
            for lane, rows in enumerate(self.oracle.lanes)
            for at, row in enumerate(rows[before[lane] :])
        ]
        # With one head the order of all lanes counts, and all lanes have as many rows.
        for _, _, row in sorted(new, key=lambda entry: entry[:2]):
            self.led_to[row.number] = -row.number if row.end else row.number + self.oracle.envs
            self.ended += [row.number] if row.end else []

    def end(self, rng):
        opened = [
            rows[-1] for rows in self.oracle.lanes if rows and not (rows[-1].end or rows[-1].dummy)
        ]
        super().end(rng)
        self.ended += [row.number for row in opened if row.end]

    def clear(self):
        super().clear()
        self.lost = False

    def expected(self, row):
        """The observation after a row, None if it has been lost."""
        if row.end:
            ring, ended = self.state.ring, self.ended
            room = self.state.next_obs.owner.shape[0] - self.oracle.envs
            if not ring.lockstep:  # a ring for each lane
                room //= self.oracle.envs
                ended = [n for n in ended if (n - row.number) % self.oracle.envs == 0]
            if row.number not in ended[-room:]:
                return None
        return self.led_to[row.number]


def check_transitions(pair):
    slots = pair.oracle.stored()
    made = programs.read(fbuf.Transition(), pair.state, slots)
    lost = False
    for at, slot in enumerate(slots):
        row = pair.oracle.at(slot)
        led_to, data = pair.expected(row), jax.tree.map(lambda x, at=at: x[at], made.data)
        assert data.item["observation"]["at"] == row.number
        assert made.known[at] == (led_to is not None)
        if led_to is None:
            lost, led_to = True, row.number
        jax.tree.map(
            np.testing.assert_array_equal, data.next_observation, item_of(led_to)["observation"]
        )
    pair.lost |= lost
    assert told(pair.state.fault) == fbuf.Fault.LOST_NEXT * pair.lost
    if pair.state.ring.heads == 1:
        check_on_the_host(pair.state, np.array(slots, int), made)


def check_on_the_host(state, slots, made):
    """NumPy takes the same rows; a row that comes after the newest one is told apart."""
    rows, newest = HostTransitions(state), int(state.ring.head[0]) - 1
    ages = (newest - slots) % state.capacity
    known, count = np.asarray(made.known), len(slots)
    wanted = jax.tree.map(np.asarray, (made.data.item, made.data.next_observation))
    for ahead in (0, 1, state.capacity + 3):
        taken = rows.take(np.concatenate([ages + ahead, np.arange(ahead)]), ahead)
        assert taken.ahead.tolist() == list(range(count, count + ahead))
        assert taken.unknown[taken.unknown < count].tolist() == np.flatnonzero(~known).tolist()
        terminated = np.asarray(made.flags) & 1
        np.testing.assert_array_equal(taken.terminated[:count], terminated)
        item = jax.tree.map(taken.leaves.__getitem__, rows.item)
        following = jax.tree.map(taken.following.__getitem__, rows.observation)
        jax.tree.map(
            lambda one, two: np.testing.assert_array_equal(one[:count], two), item, wanted[0]
        )
        jax.tree.map(
            lambda one, two: np.testing.assert_array_equal(one[:count], two),
            following,
            wanted[1],
        )


def check_n_steps(pair, n):
    slots = pair.oracle.stored()
    made = programs.read(fbuf.NStep(n, gamma=GAMMA, next_of="observation"), pair.state, slots)
    for at, slot in enumerate(slots):
        rows = pair.oracle.ahead(slot, n)
        led_to, data = pair.expected(rows[-1]), jax.tree.map(lambda x, at=at: x[at], made.data)
        assert made.known[at] == (led_to is not None)
        if led_to is None:  # nothing counts, and the next observation is the row's own
            assert (data.reward, data.steps, data.discount) == (0, 1, 0)
            led_to = rows[0].number
        else:
            assert data.reward == sum(GAMMA**k * (row.number % 7) for k, row in enumerate(rows))
            assert data.steps == len(rows)
            assert data.discount == (0 if rows[-1].terminated else GAMMA ** len(rows))
        jax.tree.map(
            np.testing.assert_array_equal, data.next_observation, item_of(led_to)["observation"]
        )


SWEEP = pytest.mark.sweep


@pytest.mark.parametrize(
    ("shape", "autoreset", "ends"),
    [
        pytest.param((None, 9, True), "same_step", 9, marks=SWEEP),
        pytest.param((3, 6, True), "next_step", 2, marks=SWEEP),
        ((3, 6, False), "same_step", 2),
        pytest.param((None, 9, True), "same_step", 2, marks=SWEEP),
        pytest.param((3, 6, True), "same_step", 18, marks=SWEEP),
        pytest.param((3, 6, False), "same_step", 18, marks=SWEEP),
        pytest.param((None, 1, True), "same_step", 1, marks=SWEEP),
    ],
)
def test_every_row_has_what_its_step_led_to(shape, autoreset, ends):
    for seed in range(12):
        rng, often = np.random.default_rng(seed), (0.15, 0.6, 0.0)[seed % 3]
        pair = Kept(shape, autoreset, ends)
        for _ in range(rng.integers(2, 11)):
            turn = rng.choice(
                ["few", "many", "remove", "end", "clear"], p=[0.4, 0.2, 0.2, 0.15, 0.05]
            )
            if turn in ("few", "many"):
                pair.add(5 if turn == "few" else 14, rng, often)
            elif turn == "clear":
                pair.clear()
            else:
                getattr(pair, turn)(rng)
            if pair.oracle.stored():
                check_transitions(pair)
        if pair.oracle.stored():
            check_n_steps(pair, min(3, shape[1]))


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


@SWEEP
def test_hindsight_has_it_too():
    row = {"observation": jnp.int32(0), "goal": jnp.int32(0), "at": jnp.int32(0), "reward": 0.0}
    state = fbuf.init(row, 8, next_of="observation")
    numbers = jnp.arange(5, dtype=jnp.int32)
    rows = {"observation": numbers, "goal": numbers, "at": numbers, "reward": jnp.zeros(5)}
    ends = jnp.array([0, 1, 0, 0, 0], bool)
    led_to = jnp.where(ends, -9, numbers + 1)
    state = fbuf.add(state, rows, next_observation=led_to, truncated=ends)
    view = fbuf.Hindsight(
        jnp.equal, strategy="final", ratio=1.0, achieved="at", next_of="observation"
    )
    data = fbuf.sample(state, jax.random.key(0), 64, view=view).data
    at = np.asarray(data.item["at"])
    np.testing.assert_array_equal(data.next_observation, np.where(at == 1, -9, at + 1))
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


@SWEEP
@pytest.mark.parametrize(
    "view", [fbuf.Transition(fields=("reward",)), fbuf.NStep(2, gamma=GAMMA, next_of="observation")]
)
def test_the_same_in_every_way(view):
    pair = Kept((3, 6, True))
    for seed in range(3):
        pair.add(14, np.random.default_rng(seed), 0.2)
    draw = functools.partial(fbuf.sample, batch_size=8, view=view)
    programs.every_way(draw, pair.state, jax.random.split(jax.random.key(1), 2))


def test_images_take_half_the_memory():
    frame = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)
    twice = fbuf.nbytes({"observation": frame, "next_observation": frame}, 100_000)
    once = fbuf.nbytes({"observation": frame}, 100_000, next_of="observation")
    assert once < 0.54 * twice


@pytest.mark.sweep
@pytest.mark.parametrize("lockstep", [pytest.param(True, marks=SWEEP), False])
def test_short_episodes_in_a_small_buffer_lose_no_end(lockstep):
    rng, lanes, steps = np.random.default_rng(0), 8, 64
    shape = (lanes, steps)
    item = {"observation": jnp.zeros(4)}
    state = fbuf.init(item, 512, num_envs=lanes, lockstep=lockstep, next_of="observation")
    for _ in range(5):
        observation = jnp.asarray(rng.normal(size=(*shape, 4)), jnp.float32)
        ended = rng.random(shape) < 1 / 10
        state = fbuf.add(
            state, {"observation": observation}, terminated=ended, next_observation=observation
        )
    fbuf.raise_on_fault(state, ignore=fbuf.Fault.BROKEN_EPISODE)  # no row follows another here
    assert fbuf.rows(state, view=fbuf.Transition()).mask.all()


@pytest.mark.parametrize("width", [1, 16, 1000, 10_000])
def test_the_room_for_ends_is_cheap(width):
    item = {"observation": jax.ShapeDtypeStruct((width,), jnp.float32)}
    for capacity in (160, 10_000, 1_000_000):
        takes = functools.partial(fbuf.nbytes, item, capacity)
        default = takes(next_of="observation")
        more = default - takes(next_of="observation", max_ends=capacity // 16)
        assert 0 <= more <= 2**20
        # A quarter of an observation for each row at most, and that of the newest row.
        assert default - takes() <= capacity * (width + 5) + 4 * width + 100


def test_what_cannot_be_right_is_refused():
    item = {"observation": jnp.zeros(3), "reward": 0.0}
    rows = {"observation": jnp.zeros((2, 3)), "reward": jnp.zeros(2)}
    with pytest.raises(ValueError, match="next_of names 'obs', but the items"):
        fbuf.init(item, 8, next_of="obs")
    with pytest.raises(ValueError, match="max_ends must be from 1 to 8"):
        fbuf.init(item, 8, next_of="observation", max_ends=9)
    with pytest.raises(ValueError, match="next_of is None"):
        fbuf.init(item, 8, max_ends=9)
    state = fbuf.init(item, 8, next_of="observation")
    for led_to, match in (
        (None, "next_observation is missing"),
        ((), "next_observation must have the tree"),
        (jnp.zeros((2, 4)), r"next_observation must be \(3,\) for one item"),
        (jnp.zeros((3, 3)), r"must have the leading shape of items, \(2,\)"),
        (jnp.zeros((2, 3), jnp.int32), "next_observation must be float32"),
        (np.zeros((2, 3)), "next_observation is float64"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            fbuf.add(state, rows, next_observation=led_to)
    for view in (fbuf.Transition("reward"), fbuf.NStep(2, gamma=0.9, next_of="reward")):
        with pytest.raises(ValueError, match="made with next_of='observation'; use"):
            fbuf.sample(state, jax.random.key(0), 2, view=view)
    plain = fbuf.init(item, 8)
    with pytest.raises(ValueError, match="made without next_of"):
        fbuf.sample(plain, jax.random.key(0), 2, view=fbuf.Transition())
    with pytest.raises(ValueError, match="make the buffer with next_of"):
        fbuf.add(plain, rows, next_observation=rows["observation"])


# --- a row that does not follow ------------------------------------------------------------------

OPTIONS = {
    "one lane": {},
    "lanes": {"num_envs": 2},
    "apart": {"num_envs": 2, "lockstep": False},
}


def walk(state, first, count=1, **given):
    """Add steps of a walk that begins at a number; the lanes are 100 apart."""
    at = np.arange(first, first + count, dtype=np.float32)
    if state.ring.num_envs:
        at = at + 100 * np.arange(2, dtype=np.float32)[:, None]
    observation = np.repeat(at[..., None], 3, axis=-1)
    return fbuf.add(
        state, {"observation": observation}, next_observation=observation + 1, donate=False, **given
    )


def broken(state):
    return bool(int(state.fault) & fbuf.Fault.BROKEN_EPISODE)


def walking(**options):
    return fbuf.init({"observation": jnp.zeros(3)}, 8, next_of="observation", **options)


@pytest.mark.parametrize("lanes", few(OPTIONS, "apart"))
def test_a_row_that_does_not_follow_is_a_fault(lanes):
    state = walking(**OPTIONS[lanes])
    for first, count in ((0, 1), (1, 1), (2, 3), (5, 20), (25, 1), (26, 2)):
        state = walk(state, first, count)
        assert not broken(state), first
    assert broken(walk(state, 40))
    assert broken(walk(state, 27))
    assert not broken(walk(fbuf.end_episode(state, donate=False), 40))
    assert not broken(walk(fbuf.clear(state, donate=False), 40))
    shape = (2, 1) if OPTIONS[lanes] else (1,)
    ended = walk(state, 28, terminated=jnp.ones(shape, bool))
    assert not broken(walk(ended, 40))
    assert not broken(walk(walk(ended, 40), 41))


def test_a_jump_within_a_batch_is_one_too():
    steps = np.repeat(np.array([[0], [1], [2], [7], [8]], np.float32), 3, axis=1)
    for end, is_broken in ((None, True), (2, False), (3, True)):
        truncated = jnp.zeros(5, bool) if end is None else jnp.arange(5) == end
        state = fbuf.add(
            walking(), {"observation": steps}, next_observation=steps + 1, truncated=truncated
        )
        assert broken(state) is is_broken


def test_a_row_that_a_mask_leaves_out_is_not_followed():
    state = walk(walking(), 0, 3, mask=jnp.array([True, False, True]))
    assert broken(state)
    state = walk(walking(), 0, 3, mask=jnp.array([True, True, False]))
    assert not broken(walk(state, 2))


def test_a_row_that_is_not_written_follows_nothing():
    """Its place is that of the last slot, and the newest row lies just before."""
    state = walk(walking(), 0, 7)
    assert not broken(walk(state, 50, mask=jnp.array([False])))
    assert not broken(walk(walk(state, 50, mask=jnp.array([False])), 7))


@pytest.mark.sweep
def test_an_end_of_long_ago_says_nothing_of_the_row_before():
    """The slot comes around: its newest row is another one, which has ended its episode."""
    state = walk(walking(max_ends=8), 0)
    state = fbuf.end_episode(state)
    for number in range(7):
        state = walk(state, 10 * number, terminated=jnp.ones(1, bool))
    state = walk(state, 500)  # open, in the slot of the first row
    for number in range(8):
        end = jnp.ones(1, bool)
        state = walk(state, 501 if number == 0 else 10 * number, terminated=end)
    assert not broken(walk(state, 900))


def test_nan_follows_nan_and_no_number():
    nan = jnp.full((1, 3), jnp.nan)
    state = fbuf.add(walking(), {"observation": nan}, next_observation=nan)
    assert not broken(fbuf.add(state, {"observation": nan}, next_observation=nan, donate=False))
    assert broken(walk(state, 0))


def removed_at_6():
    state = walk(walking(), 0, 6)
    return fbuf.remove(state, fbuf.newest_ids(state, 1))


def test_no_window_goes_on_from_removed_rows():
    for position in (6, 50):
        assert not broken(walk(removed_at_6(), position))


@pytest.mark.sweep
def test_moved_and_removed_rows_are_no_fault():
    state = removed_at_6()
    for made in (fbuf.resize(state, 16), fbuf.extend(walk(walking(), 50, 2), state)):
        assert not broken(made)
        assert not broken(walk(fbuf.end_episode(made), 90))


@pytest.mark.parametrize(
    ("shape", "region"),
    [
        ((64, 64, 3), np.s_[..., 1]),
        pytest.param((84, 84), np.s_[:, 1:28], marks=SWEEP),
        pytest.param((84, 84, 1), np.s_[:, 57:83], marks=SWEEP),
        ((10, 10, 4), np.s_[3, 4, 1]),
        pytest.param((12, 100), np.s_[:, ::2], marks=SWEEP),
    ],
)
def test_a_reset_that_changes_a_part_of_an_image_is_seen(shape, region):
    image = np.zeros(shape, np.uint8)
    other = image.copy()
    other[region] = 255
    state = fbuf.init({"observation": image}, 8, next_of="observation")
    state = fbuf.add(state, {"observation": image}, next_observation=image)
    same = fbuf.add(state, {"observation": image}, next_observation=image, donate=False)
    assert not broken(same)
    assert broken(fbuf.add(state, {"observation": other}, next_observation=other))


@pytest.mark.parametrize(
    ("told", "stored", "is_broken"),
    [
        (np.float32([1, -8.7e-8, 0]), np.float32([1, 0, 0]), False),  # sin(pi)
        (np.float32([5e-5, 2e-5, 1e-7]).astype(np.float16), [5e-5, 2e-5, 1e-7], False),
        (jnp.float32([0.123, 3.3, 1e-9]).astype(jnp.bfloat16), [0.123, 3.3, 1e-9], False),
        (np.float32([1, 0.001, 0]), np.float32([1, 0, 0]), True),
        (np.float32([1, 2, 3]), np.float32([1, 2.02, 3]), True),
        (np.float32([np.inf, 2, 3]), np.float32([np.inf, 2, 3]), False),
        (np.float32([np.inf, 2, 3]), np.float32([np.inf, 2.1, 3]), True),
        (np.float32([np.inf, 2, 3]), np.float32([1, 2, 3]), True),
    ],
)
def test_a_rounding_is_no_jump(told, stored, is_broken):
    told, stored = (jnp.asarray(leaf, jnp.float32) for leaf in (told, stored))
    state = fbuf.add(walking(), {"observation": told}, next_observation=told)
    assert broken(fbuf.add(state, {"observation": stored}, next_observation=stored)) is is_broken


@pytest.mark.parametrize("view", [fbuf.NStep(2, gamma=0.9), fbuf.Transition()])
def test_where_no_next_observation_is_kept_the_remedy_is_said(view):
    item = {"observation": jnp.zeros(2), "reward": jnp.float32(0)}
    state = fbuf.add(fbuf.init(item, 8), {"observation": jnp.ones((4, 2)), "reward": jnp.ones(4)})
    with pytest.raises(ValueError, match=r'fbuf\.init\(.*next_of="?\'?observation'):
        fbuf.sample(state, jax.random.key(0), 4, view=view)
