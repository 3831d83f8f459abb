"""Rows that are read once: plain Python beside the buffer, and what else must be kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import restored
from support.oracle import told
from support.programs import built

import fbuf

SWEEP = pytest.mark.sweep
LENGTH = 7
"""Rows of a lane."""


class Lane:
    """One environment as plain Python has it. A row is a dict."""

    def __init__(self, autoreset, overwrite):
        self.autoreset, self.overwrite = autoreset, overwrite
        self.rows, self.unread, self.resets = [], 0, False

    def add(self, rows, room):
        """Whether one was left out, and whether an unread one was lost."""
        left_out = lost = False
        for number, row in enumerate(rows):
            dummy = self.resets
            self.resets = self.autoreset == "next_step" and not dummy and (row["te"] or row["tr"])
            if not self.overwrite and number >= room:
                left_out = True
                continue
            lost |= self.unread == LENGTH
            row = row | {"dummy": dummy, "removed": dummy}
            if dummy:
                row |= {"te": False, "tr": False}
            self.rows = [*self.rows, row][-LENGTH:]
            self.unread = min(self.unread + 1, LENGTH)
        if left_out:
            self.cut()
        return left_out, lost

    def cut(self):
        if self.rows and not (self.rows[-1]["te"] or self.rows[-1]["tr"] or self.rows[-1]["dummy"]):
            self.rows[-1]["tr"] = True

    def pop(self, count, keep):
        given = min(self.unread, count)
        found = self.rows[len(self.rows) - self.unread :][:given]
        self.unread -= max(given - keep, 0)
        return found


class Pair:
    """A buffer, and lanes of plain Python beside it."""

    def __init__(self, envs, lockstep, autoreset, overwrite, rng):
        self.envs, self.lockstep, self.rng = envs, lockstep, rng
        self.state = fbuf.init(
            {"n": jnp.int32(0)},
            LENGTH * (envs or 1),
            num_envs=envs,
            lockstep=lockstep,
            autoreset=autoreset,
            sampler=fbuf.Fifo(overwrite=overwrite),
            next_of="n",
            max_ends=LENGTH * (envs or 1),
        )
        self.lanes = [Lane(autoreset, overwrite) for _ in range(envs or 1)]
        self.number, self.fault, self.handed_out = 0, fbuf.Fault(0), [[] for _ in self.lanes]
        self.accepted = [[] for _ in self.lanes]

    def shaped(self, array):
        return array if self.envs else array[0]

    def add(self):
        steps, lanes = int(self.rng.choice([1, 4])), len(self.lanes)
        n = self.number + np.arange(lanes * steps, dtype=np.int32).reshape(lanes, steps)
        self.number += lanes * steps
        te, tr = self.rng.random((2, lanes, steps)) < 0.2
        if self.lockstep:
            mask = np.broadcast_to(self.rng.random(steps) < 0.8, (lanes, steps))
        else:
            mask = self.rng.random((lanes, steps)) < 0.8
        self.state = fbuf.add(
            self.state,
            {"n": self.shaped(n)},
            terminated=self.shaped(te),
            truncated=self.shaped(tr),
            next_observation=self.shaped(n + 1_000_000),
            mask=mask[0] if self.envs and self.lockstep else self.shaped(mask),
        )
        room = [LENGTH - lane.unread for lane in self.lanes]
        for at, lane in enumerate(self.lanes):
            rows = [
                {"n": n[at, t], "te": te[at, t], "tr": tr[at, t]}
                for t in range(steps) if mask[at, t]
            ]  # fmt: skip
            before = lane.unread
            left_out, lost = lane.add(rows, room[at])
            if not lost:
                self.accepted[at] += [
                    row["n"] for row in lane.rows[len(lane.rows) - lane.unread :]
                ][before:]
            self.fault |= fbuf.Fault.FULL * left_out | fbuf.Fault.LOST_UNREAD * lost

    def pop(self):
        keep = int(self.rng.choice([0, 0, 1]))
        chosen = self.rng.random(len(self.lanes)) < 0.8
        if self.lockstep:
            chosen[:] = chosen[0]
        mask = chosen if self.envs and not self.lockstep else chosen[0]
        self.state, batch = fbuf.pop(self.state, 3, keep=keep, mask=mask, view=fbuf.Transition("n"))
        batch = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(len(self.lanes), 3), batch)
        for at, lane in enumerate(self.lanes):
            unread = lane.unread
            rows = lane.pop(3, keep) if chosen[at] else []
            there = [not row["removed"] for row in rows] + [False] * (3 - len(rows))
            assert batch.mask[at].tolist() == there
            for step, row in enumerate(rows):
                if row["removed"]:
                    continue
                assert batch.data.item["n"][at, step] == row["n"]
                assert batch.terminated[at, step] == row["te"]
                assert batch.truncated[at, step] == row["tr"]
                if row["te"] or row["tr"]:
                    assert batch.data.next_observation[at, step] == row["n"] + 1_000_000
            self.handed_out[at] += [row["n"] for row in rows[: unread - lane.unread]]

    def remove(self):
        ids = fbuf.newest_ids(self.state, 2)
        self.state = fbuf.remove(self.state, ids)
        for lane in self.lanes:
            for row in lane.rows[-2:]:
                row["removed"] = True

    def end(self):
        self.state = fbuf.end_episode(self.state)
        for lane in self.lanes:
            lane.cut()
            lane.resets = False

    def agree(self):
        unread = [lane.unread for lane in self.lanes]
        found = np.broadcast_to(np.asarray(fbuf.unread(self.state)), len(unread))
        assert found.tolist() == unread
        space = np.broadcast_to(np.asarray(fbuf.space(self.state)), len(unread))
        assert space.tolist() == [LENGTH - n for n in unread]
        assert fbuf.Fault(told(self.state.fault)) == self.fault
        assert bool(fbuf.can_sample(self.state)) == (
            any(unread) and not all(row["removed"] for lane in self.lanes for row in lane.rows)
        )


CASES = [
    (3, True, "same_step", False),
    (3, False, "next_step", False),
    (3, True, "next_step", False),
    (3, True, "same_step", True),
    (None, True, "same_step", False),
    (None, True, "next_step", False),
    (3, False, "same_step", True),
    (3, False, "disabled", False),
]


@pytest.mark.parametrize(
    ("envs", "lockstep", "autoreset", "overwrite", "seeds"),
    [
        (*CASES[1], range(1)),
        *(pytest.param(*case, range(12), marks=SWEEP) for case in CASES),
    ],
)
def test_any_history(tmp_path, envs, lockstep, autoreset, overwrite, seeds):
    """With saves and loads in between: every row once, in its order, whatever else happens."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        pair = Pair(envs, lockstep, autoreset, overwrite, rng)
        operations = ["add"] * 5 + ["pop"] * 4 + ["remove", "end"]
        for _ in range(40):
            getattr(pair, rng.choice(operations))()
            pair.agree()
            if rng.random() < 0.1:
                pair.state = fbuf.save(tmp_path / str(seed), pair.state)
                pair.state = restored.load(tmp_path / str(seed)).state
        if not overwrite:
            for handed_out, accepted in zip(pair.handed_out, pair.accepted, strict=True):
                assert handed_out == accepted[: len(handed_out)]
                assert len(handed_out) > 5


def queue(**options):
    return fbuf.init(jnp.int32(0), 8, sampler=fbuf.Fifo(**options))


def numbers(first, count):
    return jnp.arange(first, first + count, dtype=jnp.int32)


def test_what_does_not_fit_is_left_out_and_said():
    state = fbuf.add(queue(), numbers(0, 6))
    state = fbuf.add(state, numbers(6, 6))
    assert fbuf.Fault(int(state.fault)) == fbuf.Fault.FULL
    state, batch = fbuf.pop(state, 8)
    assert batch.data.tolist() == list(range(8))
    # The next row does not follow the last stored one.
    assert batch.truncated.tolist() == [False] * 7 + [True]
    state = fbuf.add(state, numbers(20, 2))
    assert fbuf.pop(state, 8)[1].data[:2].tolist() == [20, 21]


def test_environments_in_lockstep_have_room_of_their_own():
    state = fbuf.init(jnp.int32(0), 24, num_envs=3, sampler=fbuf.Fifo())
    rows = numbers(0, 18).reshape(3, 6)
    state = fbuf.add(fbuf.add(state, rows), rows + 100)
    assert fbuf.Fault(int(state.fault)) == fbuf.Fault.FULL
    batch = fbuf.pop(state, 8)[1]
    expected = np.concatenate([rows, rows[:, :2] + 100], axis=1)
    np.testing.assert_array_equal(batch.data, expected)
    assert batch.mask.all()


@SWEEP
def test_an_end_that_was_left_out_still_resets():
    """The step after it is a dummy, though the row that said so was not kept."""
    state = fbuf.init(jnp.int32(0), 4, num_envs=1, autoreset="next_step", sampler=fbuf.Fifo())
    ended = jnp.array([[False] * 4 + [True]])
    state = fbuf.add(state, numbers(0, 5)[None], terminated=ended)
    state, batch = fbuf.pop(state, 4)
    assert batch.truncated[0].tolist() == [False, False, False, True]
    state = fbuf.add(state, numbers(5, 3)[None])
    batch = fbuf.pop(state, 4)[1]
    assert batch.mask[0].tolist() == [False, True, True, False]
    assert batch.data[0, 1:3].tolist() == [6, 7]


def test_the_newest_are_kept_if_that_is_asked_for():
    state = fbuf.add(queue(overwrite=True), numbers(0, 6))
    state = fbuf.add(state, numbers(6, 6))
    assert fbuf.Fault(int(state.fault)) == fbuf.Fault.LOST_UNREAD
    state, batch = fbuf.pop(state, 8)
    assert batch.data.tolist() == list(range(4, 12))
    assert not batch.truncated.any()


@pytest.mark.sweep
def test_segments_overlap_by_what_is_kept():
    state, seen = queue(), []
    for turn in range(6):
        state = fbuf.add(state, numbers(3 * turn, 3))
        state, batch = fbuf.pop(state, 4, keep=1, mask=fbuf.unread(state) >= 4)
        if batch.mask.any():
            seen.append(batch.data.tolist())
    assert seen == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9], [9, 10, 11, 12], [12, 13, 14, 15]]


@pytest.mark.sweep
def test_what_was_popped_can_be_written_until_it_is_overwritten():
    state = fbuf.init({"n": jnp.int32(0)}, 8, sampler=fbuf.Fifo())
    state = fbuf.add(state, {"n": numbers(0, 6)})
    state, batch = fbuf.pop(state, 2)
    state = fbuf.write(state, batch.ids, {"n": jnp.int32([70, 71])})
    assert fbuf.read(state, batch.ids).data["n"].tolist() == [70, 71]
    state = fbuf.add(state, {"n": numbers(6, 4)})
    assert fbuf.read(state, batch.ids).mask.tolist() == [False, False]


@pytest.mark.parametrize("overwrite", [pytest.param(False, marks=SWEEP), True])
def test_every_byte_is_in_place(overwrite):
    """One compiled step that adds and pops copies nothing of the buffer."""
    rows = 4096
    state = fbuf.init(jnp.zeros(8), rows, num_envs=4, sampler=fbuf.Fifo(overwrite=overwrite))

    def step(state, items):
        state = fbuf.add(state, items)
        state, batch = fbuf.pop(state, 8, keep=1)
        return fbuf.add(state, items), batch.data.sum()

    compiled = built(jax.jit(step, donate_argnums=0), state, jnp.ones((4, 8, 8)))
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == held
    assert memory.temp_size_in_bytes < held / 4

    def looped(state):
        return lax.scan(lambda s, _: step(s, jnp.ones((4, 8, 8))), state, length=3)

    looped_memory = built(jax.jit(looped, donate_argnums=0), state).memory_analysis()
    assert looped_memory.alias_size_in_bytes >= held
    assert looped_memory.temp_size_in_bytes < held / 4


@SWEEP
def test_it_is_the_same_compiled_and_for_many_at_once():
    def run(first):
        state = queue()
        state = fbuf.add(state, first + numbers(0, 6))
        state, one = fbuf.pop(state, 4, keep=1)
        state = fbuf.add(state, first + numbers(6, 4))
        state, two = fbuf.pop(state, 8)
        return one.data, two.data, two.mask, fbuf.space(state), state.fault

    first = jnp.int32([0, 100])
    alone = [run(n) for n in first]
    got = jax.jit(jax.vmap(run))(first)
    for at in range(2):
        jax.tree.map(np.testing.assert_array_equal, alone[at], tuple(leaf[at] for leaf in got))


@SWEEP
@pytest.mark.parametrize("capacity", [4, 8, 12])
def test_resize_keeps_what_is_unread(capacity):
    state = fbuf.add(queue(), numbers(0, 8))
    state, _ = fbuf.pop(state, 3)
    state = fbuf.resize(fbuf.add(state, numbers(8, 1)), capacity)
    kept = list(range(3, 9))[-capacity:]
    lost = fbuf.Fault.LOST_UNREAD if capacity < 6 else fbuf.Fault(0)
    assert fbuf.Fault(int(state.fault)) == lost
    assert int(fbuf.unread(state)) == len(kept)
    state, batch = fbuf.pop(state, capacity)
    assert batch.data[batch.mask].tolist() == kept


@pytest.mark.sweep
def test_an_empty_one_and_clear():
    state, batch = fbuf.pop(queue(), 3)
    assert not batch.mask.any()
    assert batch.data.tolist() == [0, 0, 0]
    state = fbuf.clear(fbuf.add(state, numbers(0, 5)))
    assert int(fbuf.unread(state)) == 0
    assert fbuf.stats(state)["unread"] == 0
    state, batch = fbuf.pop(fbuf.add(state, numbers(5, 2)), 3)
    assert batch.data.tolist() == [5, 6, 0]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: fbuf.sample(s, jax.random.key(0), 2), ValueError, "fbuf.pop"),
        (lambda s: fbuf.pop(s, 0), ValueError, "count must be from 1 to 8"),
        (lambda s: fbuf.pop(s, 9), ValueError, "count must be from 1 to 8"),
        (lambda s: fbuf.pop(s, 2.0), TypeError, "count must be an int"),
        (lambda s: fbuf.pop(s, 2, keep=2), ValueError, "keep must be from 0 to 1"),
        (lambda s: fbuf.pop(s, 2, mask=jnp.ones(2, bool)), ValueError, "mask"),
        (lambda s: fbuf.pop(s, 2, mask=1), TypeError, "mask must be bool"),
        (lambda s: fbuf.add(s, jnp.int32(0), priority=1.0), ValueError, "Fifo keeps no priorities"),
        (lambda s: fbuf.Fifo(overwrite=1), TypeError, "overwrite must be True or False"),
        (lambda s: fbuf.Fifo(True), TypeError, "positional"),
        (lambda s: fbuf.pop(fbuf.init(jnp.int32(0), 4), 1), ValueError, "sampler=fbuf.Fifo()"),
        (lambda s: fbuf.unread(fbuf.init(jnp.int32(0), 4)), ValueError, "sampler=fbuf.Fifo()"),
        (lambda s: fbuf.space(fbuf.init(jnp.int32(0), 4)), ValueError, "sampler=fbuf.Fifo()"),
        (
            lambda s: fbuf.pop(s, 2, view=fbuf.Hindsight(jnp.equal, goal="x", achieved="x")),
            ValueError,
            "random",
        ),
    ],
)
def test_misuse(call, error, words):
    with pytest.raises(error, match=words.replace("(", r"\(").replace(")", r"\)")):
        call(queue())


@pytest.mark.sweep
def test_a_pop_that_jax_traces_by_itself_comes_before_the_add():
    """An add outside of that trace sees the read in the state alone."""
    state = fbuf.init(jnp.zeros(8), 4096, sampler=fbuf.Fifo(overwrite=True))

    def step(state, items):
        state, batch = jax.jit(lambda state: fbuf.pop(state, 8))(state)
        return fbuf.add(state, items), batch.data

    memory = built(jax.jit(step, donate_argnums=0), state, jnp.ones((8, 8))).memory_analysis()
    assert memory.temp_size_in_bytes < state.storage.words.nbytes / 4
