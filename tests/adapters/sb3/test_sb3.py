"""The buffer for Stable-Baselines3 beside its own: the same steps in, the same rows out."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import pickle

import gymnasium as gym
import jax
import numpy as np
import pytest
import torch
from fbuf_adapters.sb3 import ReplayBuffer, _write_sizes
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

import fbuf

ACTIONS = spaces.Box(-1, 1, (2,), np.float32)
FLOATS = spaces.Box(-10, 10, (3,), np.float32)
SPACES = {
    "float32": FLOATS,
    "float64": spaces.Box(-10, 10, (3,), np.float64),
    "uint8": spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "int64": spaces.Box(-(2**40), 2**40, (2,), np.int64),
    "discrete": spaces.Discrete(100),
    "binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(
        {"a": FLOATS, "b": spaces.Discrete(9), "c": spaces.Box(0, 9, (1,), np.float64)}
    ),
}
SWEEP = pytest.mark.sweep
SOON = ("float32", "dict")
NAMES = [*SOON, *(pytest.param(name, marks=SWEEP) for name in SPACES if name not in SOON)]


class Run:
    """Steps of environments that terminate, are cut off, and are reset by somebody else."""

    def __init__(self, space, n_envs, seed=0, resets=True):
        self.space, self.n_envs, self.resets = space, n_envs, resets
        self.rng = np.random.default_rng(seed)
        space.seed(seed)
        ACTIONS.seed(seed)
        self.obs = self.observe()

    def observe(self):
        return stacked([self.space.sample() for _ in range(self.n_envs)])

    def __iter__(self):
        while True:
            following = self.observe()
            done = self.rng.random(self.n_envs) < 0.2
            cut = done & (self.rng.random(self.n_envs) < 0.5)
            action = np.stack([ACTIONS.sample() for _ in range(self.n_envs)])
            reward = self.rng.standard_normal(self.n_envs).astype(np.float32)
            infos = [{"TimeLimit.truncated": True} if c else {} for c in cut]
            yield copy.deepcopy(self.obs), copy.deepcopy(following), action, reward, done, infos
            again = done | (self.resets & (self.rng.random(self.n_envs) < 0.1))
            self.obs = merged(again, self.observe(), following)


def stacked(observations):
    if isinstance(observations[0], dict):
        return {k: stacked([o[k] for o in observations]) for k in observations[0]}
    return np.stack(observations)


def merged(which, new, old):
    if isinstance(new, dict):
        return {k: merged(which, new[k], old[k]) for k in new}
    return np.where(which.reshape(-1, *[1] * (new.ndim - 1)), new, old).astype(old.dtype)


def both(space, n_envs, size=40, **options):
    """Our buffer, and theirs."""
    kind = buffers.DictReplayBuffer if isinstance(space, spaces.Dict) else buffers.ReplayBuffer
    theirs = kind(size, space, ACTIONS, "cpu", n_envs)
    return ReplayBuffer(size, space, ACTIONS, "cpu", n_envs, seed=0, **options), theirs


def filled(space, n_envs, steps, size=40, seed=0, **options):
    ours, theirs = both(space, n_envs, size, **options)
    for _, step in zip(range(steps), Run(space, n_envs, seed), strict=False):
        ours.add(*copy.deepcopy(step))
        theirs.add(*copy.deepcopy(step))
    return ours, theirs


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)
    jax.tree.map(lambda a, b: np.testing.assert_equal(a.dtype, b.dtype), one, other)


def keys(batch):
    """Each row of a batch or of a buffer as one string of bytes."""
    parts = [np.asarray(leaf) for leaf in jax.tree.leaves(tuple(batch))]
    return [b"".join(part[row].tobytes() for part in parts) for row in range(len(parts[0]))]


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("name", "n_envs"),
    [
        *((name, 1) for name in SPACES if name in SOON),
        ("float32", 3),
        *(pytest.param(name, 1, marks=SWEEP) for name in SPACES if name not in SOON),
        *(pytest.param(name, 3, marks=SWEEP) for name in SPACES if name != "float32"),
    ],
)
def test_rows_are_theirs_bit_for_bit(name, n_envs, monkeypatch):
    """Around the end of the ring, with more ends of episodes than there was room for."""
    monkeypatch.setattr(_write_sizes, "SIZES", (1, 4, 16))
    ours, theirs = both(SPACES[name], n_envs)
    steps = iter(Run(SPACES[name], n_envs))
    for count in (1, 5, 70, 37):
        for _ in range(count):
            step = next(steps)
            ours.add(*copy.deepcopy(step))
            theirs.add(*copy.deepcopy(step))
        assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
        valid = slice(None) if ours.full else slice(theirs.pos)
        cut = lambda x, valid=valid: x[valid]
        for field in ("observations", "next_observations", "actions", "rewards"):
            mine, wanted = getattr(ours, field), getattr(theirs, field)
            if isinstance(wanted, dict):
                mine = dict(mine)
            same(jax.tree.map(cut, mine), jax.tree.map(cut, wanted))
        np.testing.assert_array_equal(
            (ours.dones * (1 - ours.timeouts))[valid], (theirs.dones * (1 - theirs.timeouts))[valid]
        )
    batch, wanted = ours.sample(64), theirs.sample(2000)
    assert type(batch) is type(wanted)
    same(
        jax.tree.map(lambda x: x[:0].numpy(), tuple(batch)[:5]),
        jax.tree.map(lambda x: x[:0].numpy(), tuple(wanted)[:5]),
    )
    assert set(keys(tuple(batch)[:5])) <= set(keys(tuple(wanted)[:5]))
    assert not int(ours.memory.state.fault) & fbuf.Fault.LOST_NEXT


def test_every_row_is_drawn_alike():
    ours, _ = filled(FLOATS, 2, 30, size=32)
    counts = {}
    for _ in range(40):
        for row in keys(tuple(ours.sample(200))[:5]):
            counts[row] = counts.get(row, 0) + 1
    assert len(counts) == 32
    expected = 8000 / 32
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 70  # 31 degrees, p 1e-4


@pytest.mark.parametrize("n_steps", [3, pytest.param(1, marks=SWEEP), pytest.param(6, marks=SWEEP)])
def test_several_steps_are_summed_as_theirs(n_steps):
    options = {"n_steps": n_steps, "gamma": 0.9}
    theirs = buffers.NStepReplayBuffer(40, FLOATS, ACTIONS, "cpu", 1, **options)
    ours = ReplayBuffer(40, FLOATS, ACTIONS, "cpu", 1, seed=0, **options)
    for _, step in zip(range(70), Run(FLOATS, 1, resets=False), strict=False):
        ours.add(*step)
        theirs.add(*step)
    at = np.arange(40)
    mine, wanted = ours._get_samples(at), theirs._get_samples(at)
    for field in mine._fields:
        if n_steps > 1 or field != "discounts":
            # Sums of float32 in another order.
            pair = getattr(mine, field), getattr(wanted, field)
            np.testing.assert_allclose(*pair, rtol=1e-6, atol=1e-6)
    assert (ours.sample(8).discounts is None) == (n_steps == 1)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_observations_and_rewards_are_normalised_when_they_are_drawn(n_steps):
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]), clip_reward=0.5)
    kind = buffers.ReplayBuffer if n_steps == 1 else buffers.NStepReplayBuffer
    options = {} if n_steps == 1 else {"n_steps": n_steps, "gamma": 0.9}
    arguments = 64, env.observation_space, env.action_space, "cpu", 1
    ours, theirs = ReplayBuffer(*arguments, seed=0, **options), kind(*arguments, **options)
    env.reset()
    before = env.get_original_obs()
    for _ in range(50):
        action = np.stack([env.action_space.sample()])
        _, _, done, infos = env.step(action)
        step = before, env.get_original_obs(), action, env.get_original_reward(), done, infos
        ours.add(*step)
        theirs.add(*step)
        before = env.get_original_obs()
    at = np.arange(50)
    mine, wanted = ours._get_samples(at, env), theirs._get_samples(at, env)
    for field in ("observations", "next_observations", "rewards", "dones"):
        np.testing.assert_allclose(getattr(mine, field), getattr(wanted, field), rtol=1e-5)
        assert getattr(mine, field).dtype == getattr(wanted, field).dtype
    assert ours.sample(8, env).rewards.abs().max() <= 0.5 * 3


class Images(gym.Env):
    """Random frames, and episodes of a few steps."""

    observation_space = spaces.Box(0, 255, (6, 5, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def frame(self):
        return self.rng.integers(1, 255, (6, 5, 1), dtype=np.uint8)

    def reset(self, *, seed=None, options=None):
        return self.frame(), {}

    def step(self, action):
        kind = self.rng.random()
        return self.frame(), 1.0, kind < 0.1, 0.1 < kind < 0.2, {}


@pytest.mark.sweep
@pytest.mark.parametrize("n_steps", [1, pytest.param(3, marks=SWEEP)])
def test_stacks_of_frames_are_taken_apart(n_steps):
    """As `VecFrameStack` makes them; the oldest rows, whose frames are gone, are never drawn."""
    env = VecFrameStack(DummyVecEnv([lambda i=i: Images(i) for i in range(2)]), 4)
    kind = buffers.ReplayBuffer if n_steps == 1 else buffers.NStepReplayBuffer
    options = {} if n_steps == 1 else {"n_steps": n_steps, "gamma": 0.9}
    arguments = 40, env.observation_space, env.action_space, "cpu", 2
    theirs = kind(*arguments, **options)
    ours = ReplayBuffer(*arguments, n_stack=4, seed=0, **options)
    before = env.reset()
    for _ in range(50):
        action = np.array([env.action_space.sample() for _ in range(2)])
        following, reward, done, infos = env.step(action)
        led_to = following.copy()
        for at in np.flatnonzero(done):
            led_to[at] = infos[at]["terminal_observation"]
        ours.add(before, led_to, action, reward, done, infos)
        theirs.add(before, led_to, action, reward, done, infos)
        before = following
    assert ours.memory.state.storage.item["observation"].shape == (6, 5, 1)
    rows = {row for _ in range(60) for row in keys([x for x in theirs.sample(64) if x is not None])}
    drawn = {row for _ in range(20) for row in keys([x for x in ours.sample(64) if x is not None])}
    assert drawn <= rows
    assert len(drawn) >= 40 - 2 * 3
    if n_steps == 1:
        newest = slice(ours.pos, None)  # those before have lost their frames, or are new
        np.testing.assert_array_equal(
            ours.observations[newest][3:], theirs.observations[newest][3:]
        )


def stack(*frames):
    """Four frames of one number each, `[1, 4]`."""
    return np.array([frames], np.float32)


def added(buffer, before, newest, done=False, reward=1.0):
    """Add a step that leads to a new frame; return the stack it leads to."""
    after = stack(*before[0, 1:], newest)
    buffer.add(before, after, np.zeros((1, 1), int), np.atleast_1d(reward), [done], [{}])
    return after


def stacks_drawn(buffer):
    return {tuple(x.tolist()) for x in buffer.sample(300).observations}


def of_four(size=16):
    frames = spaces.Box(0, 255, (4,), np.float32)
    return ReplayBuffer(size, frames, spaces.Discrete(2), "cpu", n_stack=4, seed=0)


def test_a_refused_step_can_be_given_again():
    """Stacks go on behind it, and none is made across a step that was left out."""
    buffer = of_four()
    now = added(buffer, stack(0, 0, 0, 1), 2)
    for at in range(3, 7):
        with pytest.raises(ValueError, match="reward must be of shape"):
            added(buffer, now, at, reward=np.zeros(3))
        now = added(buffer, now, at)
    whole = {(0, 0, 0, 1), (0, 0, 1, 2), (0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5)}
    assert stacks_drawn(buffer) == whole
    with pytest.raises(ValueError, match="reward must be of shape"):
        added(buffer, now, 7, reward=np.zeros(3))
    now = stack(4, 5, 6, 7)  # its caller goes on all the same
    for at in range(8, 12):
        now = added(buffer, now, at)
    drawn = stacks_drawn(buffer)
    assert drawn == whole | {(7, 8, 9, 10)}
    assert int(buffer.timeouts.sum()) == 1


def test_stacks_that_begin_in_the_middle_of_an_episode():
    """After `reset`, or in another buffer: rows whose frames are not stored are not drawn."""
    buffer = of_four()
    added(buffer, stack(0, 0, 0, 9), 9, done=True)
    now = stack(1, 2, 3, 4)
    for at in range(5, 9):
        now = added(buffer, now, at)
    assert stacks_drawn(buffer) == {(0, 0, 0, 9), (4, 5, 6, 7)}
    buffer.reset()
    for at in range(9, 14):
        now = added(buffer, now, at)
    assert stacks_drawn(buffer) == {(8, 9, 10, 11), (9, 10, 11, 12)}


@pytest.mark.parametrize("sampler", [fbuf.Uniform(), fbuf.Prioritized()], ids=["uniform", "per"])
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_copy_goes_on_where_the_buffer_was(way, sampler):
    """In the middle of an episode, and with the next batch."""
    ours, theirs = both(FLOATS, 2, sampler=sampler)
    steps = iter(Run(FLOATS, 2, resets=False))
    for _ in range(33):
        step = next(steps)
        ours.add(*step)
        theirs.add(*step)
    batch = ours.sample(4)
    if sampler.keeps_priorities:
        ours.update_priority(batch.ids, torch.rand(4, 1))
    if way == "pickle":
        stream = io.BytesIO()
        pickle.dump(ours, stream)
        other = pickle.loads(stream.getvalue())
    else:
        other = copy.deepcopy(ours)
    for _ in range(9):
        step = next(steps)
        for buffer in (ours, other, theirs):
            buffer.add(*step)
    assert keys(tuple(ours.sample(16))[:5]) == keys(tuple(other.sample(16))[:5])
    same(other.next_observations, theirs.next_observations)
    np.testing.assert_array_equal(other.dones, theirs.dones)


def test_an_interrupted_step_is_there_whole_or_not_at_all(monkeypatch):
    ours, _ = filled(FLOATS, 1, 10)
    step = next(iter(Run(FLOATS, 1, seed=7)))
    before = ours.stored()

    def broken(*args, **kwargs):
        raise KeyboardInterrupt

    staged = type(ours.memory.staging).write
    for name, cut in (
        ("go_round", broken),
        ("write", lambda *given: (staged(*given), broken())),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(type(ours.memory.staging), name, cut)
            patch.setattr(ours.memory.staging, "room", 10)
            with pytest.raises(KeyboardInterrupt):
                ours.add(*step)
        same(ours.stored(), before)
    write = type(ours.memory)._change
    ours.add(*step)
    with monkeypatch.context() as patch:
        patch.setattr(type(ours.memory), "_change", lambda *a, **k: (write(*a, **k), broken()))
        with pytest.raises(KeyboardInterrupt):
            ours.memory.write()
    assert ours.size() == 11  # written once, though the call was cut off behind the write
    np.testing.assert_array_equal(ours.rewards[10], step[3])
    assert int(fbuf.size(ours.memory.state)) == 11


def test_the_newest_rows_can_be_ended_and_nothing_else_is_written():
    ours, _ = filled(FLOATS, 2, 5)
    step = next(iter(Run(FLOATS, 2, seed=3)))
    ours.add(*step[:4], np.zeros(2, bool), [{}, {}])
    ours.dones[ours.pos - 1] = True
    assert ours.dones[5].tolist() == [1, 1]
    assert ours.timeouts[5].tolist() == [1, 1]
    with pytest.raises(AttributeError, match="rewards cannot be assigned"):
        ours.rewards = ours.rewards * 2
    for write in (
        lambda: ours.dones.__setitem__(0, True),
        lambda: ours.rewards.__setitem__(0, 1.0),
        lambda: ours.observations.__setitem__(0, 1.0),
    ):
        with pytest.raises(ValueError, match=r"cannot be changed.*newest rows alone"):
            write()


def test_reset_forgets_all():
    ours, _ = filled(FLOATS, 2, 25)
    ours.reset()
    assert ours.size() == 0
    with pytest.raises(RuntimeError, match="empty"):
        ours.sample(1)
    step = next(iter(Run(FLOATS, 2)))
    ours.add(*step)
    assert ours.sample(2).rewards.shape == (2, 1)
    assert ours.size() == 1


def test_seeds():
    one, other = (filled(FLOATS, 1, 20)[0] for _ in range(2))
    assert keys(tuple(one.sample(8))[:5]) == keys(tuple(other.sample(8))[:5])
    np.random.seed(3)  # noqa: NPY002  as the algorithms do
    first, second = (ReplayBuffer(8, FLOATS, ACTIONS).memory.seed for _ in range(2))
    np.random.seed(3)  # noqa: NPY002
    assert first == ReplayBuffer(8, FLOATS, ACTIONS).memory.seed != second


def test_a_batch_is_the_learners_own():
    """It may be written to, saved and kept; the next batch is another."""
    ours, _ = filled(FLOATS, 1, 20)
    batch = ours.sample(16)
    kept = batch.observations.clone()
    stream = io.BytesIO()
    torch.save(batch.rewards, stream)
    assert len(stream.getvalue()) < 4000
    batch.observations.zero_()
    ours.sample(16)
    assert not any(bool((row == 0).all()) for row in ours.sample(16).observations)
    assert bool((batch.observations == 0).all())
    assert bool((kept != 0).any())


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_staged_steps_are_drawn_as_written_ones(name, n_envs, monkeypatch):
    """Written at each step, at some, or when the staging is full: the same batches."""
    monkeypatch.setattr(_write_sizes, "SIZES", (1, 4, 16))
    often, rare, never = (both(SPACES[name], n_envs)[0] for _ in range(3))
    for number, step in zip(range(70), Run(SPACES[name], n_envs), strict=False):
        batches = []
        for buffer, every in ((often, 1), (rare, 7), (never, 1000)):
            buffer.add(*copy.deepcopy(step))
            if number % every == every - 1:
                buffer.memory.write()
            if number % 9 == 8:
                buffer.memory.end(buffer.memory.open())
            batches.append(keys(tuple(buffer.sample(9))[:5]))
        assert batches[0] == batches[1] == batches[2]
    assert set(batches[0]) <= set(keys(every_row(often)))
    expected, *others = (fbuf.rollout(buffer.memory.state) for buffer in (often, rare, never))
    for found in others:
        np.testing.assert_array_equal(found.terminated, expected.terminated)
        np.testing.assert_array_equal(found.truncated, expected.truncated)


@pytest.mark.parametrize("how", ["as it is", "saved", "loaded"])
def test_steps_go_on_from_a_state_that_is_assigned(how, tmp_path):
    """Each environment from its own step, which another one may have led to, too."""
    for now, cut in (([3, 53], []), ([3, 3], [1])):
        buffer = ReplayBuffer(20, spaces.Discrete(99), spaces.Discrete(2), "cpu", n_envs=2)
        none = np.zeros(2, int)
        buffer.add(np.array([2, 52]), np.array([3, 53]), none, none, none, [{}, {}])
        state = buffer.memory.state
        if how != "as it is":
            state = fbuf.save(tmp_path / str(cut), state)
        if how == "loaded":
            state = fbuf.load(tmp_path / str(cut), episodes="keep").state
        buffer.memory.state = state
        buffer.add(np.array(now), np.array([4, 54]), none, none, none, [{}, {}])
        rows = fbuf.rollout(buffer.memory.state)
        assert rows.truncated[:, 0].nonzero()[0].tolist() == cut
        assert np.asarray(buffer.next_observations[0]).ravel().tolist() == [3, 53]


@pytest.mark.parametrize("own", [True, False])
def test_stacks_go_on_from_a_state_that_is_assigned(own, tmp_path):
    """A saved one of this buffer, around the end of the ring; or another one of as many steps."""

    def played(buffer, first, steps):
        for n in range(first, first + steps):
            obs = np.maximum(np.arange(n, n + 4, dtype=np.float32), first if n < first + 3 else 0)
            none = np.zeros(1, int)
            buffer.add(obs[None, :3], obs[None, 1:], none, none, none, [{}])
        return buffer

    make = lambda: ReplayBuffer(
        8, spaces.Box(-999, 999, (3,)), spaces.Discrete(2), "cpu", n_stack=3, seed=0
    )
    buffer, size = make(), 20 if own else 5
    played(buffer, 100, size)
    other = buffer if own else played(make(), 500, size)
    buffer.memory.state = fbuf.save(tmp_path, other.memory.state)
    for n in range(100 + size, 103 + size):
        obs, none = np.arange(n, n + 4, dtype=np.float32), np.zeros(1, int)
        buffer.add(obs[None, :3], obs[None, 1:], none, none, none, [{}])
    cut = fbuf.rollout(buffer.memory.state).truncated
    assert bool(cut.any()) != own
    batch = buffer.sample(200)
    for now, then in zip(
        batch.observations.tolist(), batch.next_observations.tolist(), strict=True
    ):
        assert now[1:] == then[:2]
        assert all(b - a in (0, 1) for a, b in itertools.pairwise([*now, then[-1]]))
    if own:
        assert {n[-1] for n in batch.observations.tolist()} == set(range(119, 125))


def test_an_episode_goes_on_from_one_round_of_steps_to_the_next(monkeypatch):
    monkeypatch.setattr(_write_sizes, "SIZES", (1, 4))
    buffer = ReplayBuffer(64, spaces.Box(-99, 99, (1,)), spaces.Discrete(2), "cpu", seed=0)
    reset = {9, 16, 20, 31}  # some of them with a round, and without a word to the buffer
    for n in range(40):
        now, following = ([[np.float32(number)]] for number in (n, -1 if n + 1 in reset else n + 1))
        buffer.add(now, following, np.zeros(1, int), np.zeros(1), np.zeros(1), [{}])
    stored = fbuf.rollout(buffer.memory.state)
    assert set(np.flatnonzero(stored.truncated)) == {n - 1 for n in reset}
    batch = buffer.sample(999)
    expected = [-1 if n + 1 in reset else n + 1 for n in batch.observations[:, 0].tolist()]
    assert batch.next_observations[:, 0].tolist() == expected


def test_a_staged_step_is_drawn_whatever_stands_there_now(monkeypatch):
    """Here rows whose next observation is lost, because no room was made for the ends."""
    buffer, _ = both(FLOATS, 1, size=400)
    monkeypatch.setattr(type(buffer.memory), "_make_room", lambda self, ends, steps: None)
    steps, led_to = iter(Run(FLOATS, 1)), {}
    for number in range(900):
        obs, following, action, *_ = next(steps)
        buffer.add(obs, following, action, np.full(1, number), np.ones(1), [{}])
        if number < 890:
            buffer.memory.write()
        led_to[number] = following
    batch = buffer.sample(10_000)
    numbers = batch.rewards.flatten().int().tolist()
    for number, following in zip(numbers, batch.next_observations.numpy(), strict=True):
        np.testing.assert_array_equal(following, led_to[number][0])
    assert set(range(890, 900)) <= set(numbers) < set(range(500, 900))  # some are lost


def test_rows_are_written_in_place_after_a_draw():
    buffer, _ = filled(FLOATS, 1, 30)
    places = []
    for step, _ in zip(Run(FLOATS, 1), range(3), strict=False):
        buffer.sample(4)
        buffer.add(*step)
        buffer.memory.write()
        places.append(buffer.memory.state.storage.words.unsafe_buffer_pointer())
    buffer.sample(4)
    buffer.reset()
    places.append(buffer.memory.state.storage.words.unsafe_buffer_pointer())
    assert len(set(places)) == 1


def test_a_draw_amid_a_write_leaves_nothing_behind(monkeypatch):
    """As a signal handler may draw."""
    buffer, _ = filled(FLOATS, 1, 30)
    plain = type(buffer.memory._backend).change

    def change(*args, **options):
        buffer.sample(4)
        plain(*args, **options)

    monkeypatch.setattr(type(buffer.memory._backend), "change", change)
    monkeypatch.setattr(buffer.memory.staging, "room", 4)
    for _, step in zip(range(60), Run(FLOATS, 1, resets=False), strict=False):
        buffer.add(*step)
    assert set(keys(tuple(buffer.sample(500))[:5])) <= set(keys(every_row(buffer)))


@pytest.mark.first(6)
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("ends", [0, 1])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("steps", [0, 9, pytest.param(25, marks=SWEEP), 40])
def test_a_state_is_saved_and_loaded(tmp_path, steps, n_envs, ends, reset):
    """Into a new buffer, which goes on like the old one, also in the middle of an episode."""
    ours, theirs = filled(FLOATS, n_envs, 33, size=60)
    memory = ours.memory
    memory.state = fbuf.save(tmp_path, memory.state)
    run = iter(Run(FLOATS, n_envs, seed=1, resets=False))

    def go_on(run, steps, *buffers):
        for step, _ in zip(run, range(steps), strict=False):
            for buffer in buffers:
                buffer.add(*step[:4], step[4] | bool(ends), step[5])

    go_on(run, steps, ours, theirs)
    memory.state = fbuf.save(tmp_path, memory.state)
    other, _ = both(FLOATS, n_envs, size=60)
    other.memory.state = fbuf.load(tmp_path).state
    go_on(iter(Run(FLOATS, n_envs, seed=2)) if reset else run, 15, ours, other, theirs)
    order = lambda rows: sorted(keys(rows))
    assert order(every_row(other)) == order(every_row(ours))
    same(ours.next_observations, theirs.next_observations)
    assert set(keys(tuple(other.sample(200))[:5])) <= set(keys(every_row(ours)))
    with pytest.raises(ValueError, match="make the buffer with the arguments"):
        both(FLOATS, n_envs, size=90)[0].memory.state = fbuf.load(tmp_path).state
    with pytest.raises(TypeError, match="such as fbuf"):
        other.memory.state = fbuf.load(tmp_path)


def of_before(buffer):
    """A buffer like this one, of a version whose rows could be removed."""
    memory = buffer.memory
    spec = dataclasses.replace(memory.spec, removable=True)
    old = type(memory)(spec, memory.staging.item, memory.drawing, memory.seed, memory.device)
    other = copy.copy(buffer)
    vars(other)["memory"] = old
    return other


def test_rows_stay(tmp_path):
    buffer, _ = filled(FLOATS, 2, 20)
    with pytest.raises(ValueError, match="removable=False"):
        fbuf.remove(buffer.memory.state, fbuf.newest_ids(buffer.memory.state, 1))


@pytest.mark.parametrize("gone", [False, True])
def test_a_state_of_a_version_whose_rows_could_be_removed(tmp_path, gone):
    """It is taken; but not with a removed row, which would be drawn."""
    old, (new, theirs) = of_before(both(FLOATS, 2, size=60)[0]), both(FLOATS, 2, size=60)
    for step, _ in zip(Run(FLOATS, 2), range(20), strict=False):
        old.add(*step)
        theirs.add(*step)
    state = old.memory.state
    if gone:
        state = fbuf.remove(state, fbuf.newest_ids(state, 1))
        old.memory._backend.state = state
        with pytest.raises(ValueError, match="2 rows of this state were removed"):
            pickle.loads(pickle.dumps(old))
    fbuf.save(tmp_path, state)
    loaded = fbuf.load(tmp_path).state
    if gone:
        with pytest.raises(ValueError, match="2 rows of this state were removed"):
            new.memory.state = loaded
        return
    new.memory.state = loaded
    drawn = set(new.sample(500).rewards.ravel().tolist())
    assert drawn == set(theirs.rewards[:20].ravel().tolist())
    fresh, _ = filled(FLOATS, 2, 9, size=60)
    new.memory.state = fresh.memory.state
    assert set(new.sample(200).rewards.ravel().tolist()) <= set(fresh.rewards[:9].ravel())


def test_a_pickle_of_a_version_whose_rows_could_be_removed(tmp_path):
    old, new = of_before(filled(FLOATS, 2, 0)[0]), both(FLOATS, 2)[0]
    for step, _ in zip(Run(FLOATS, 2), range(9), strict=False):
        old.add(*step)
    old.save(tmp_path / "old.pkl")
    new.load(tmp_path / "old.pkl")
    same(new.rewards, old.rewards)
    new.sample(4)


def test_a_state_that_somebody_consumed():
    buffer, _ = filled(FLOATS, 1, 20)
    buffer.sample(2)
    fbuf.clear(buffer.memory.state)
    for use in (lambda: buffer.sample(2), lambda: buffer.memory.end(np.ones(1, bool))):
        with pytest.raises(RuntimeError, match=r"consumed memory\.state.*donate=False"):
            use()


def test_observations_without_numbers():
    for space in (spaces.Box(0, 1, (0,)), spaces.Box(0, 1, (2, 0), np.float64)):
        ours, _ = filled(space, 2, 9)
        assert ours.sample(5).observations.shape == (5, *space.shape)
        assert ours.observations.shape == (20, 2, *space.shape)


def test_what_is_pickled_is_no_larger_than_the_rows():
    ours, _ = filled(FLOATS, 1, 20)
    assert len(pickle.dumps(ours)) < 20_000


def test_one_row_is_aligned():
    ours, _ = filled(SPACES["float64"], 1, 20)
    assert ours.sample(1).observations.data_ptr() % 8 == 0


def every_row(buffer):
    """All rows of a buffer, as a batch has them."""
    flat = lambda leaf: torch.from_numpy(np.array(leaf).reshape(-1, *leaf.shape[2:]))
    stored = buffer.stored()
    ends = flat(stored.dones * (1 - stored.timeouts))[:, None]
    trees = stored.observations, stored.actions, stored.next_observations
    return (*jax.tree.map(flat, trees), ends, flat(stored.rewards)[:, None])


@pytest.mark.first(1)
@pytest.mark.parametrize(("steps", "written"), [(7, 5), (13, 13), (50, 41)])
def test_each_row_is_drawn_as_often_as_any_other(steps, written):
    buffer, _ = both(FLOATS, 3, size=30)
    rewards = np.arange(3 * steps, dtype=np.float32).reshape(steps, 3)
    for number, step in zip(range(steps), Run(FLOATS, 3), strict=False):
        buffer.add(*step[:3], rewards[number], *step[4:])
        if number == written - 1:
            buffer.memory.write()
    drawn = buffer.sample(300_000).rewards.numpy().astype(int).ravel()
    counts = np.bincount(drawn, minlength=rewards.size)
    stored = min(3 * steps, 30)
    assert not counts[:-stored].any()
    mean = 300_000 / stored
    assert ((counts[-stored:] - mean) ** 2 / mean).sum() < stored + 5 * (2 * stored) ** 0.5
