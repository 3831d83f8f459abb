"""Transitions that NumPy makes are those of `fbuf.NStep` and `fbuf.Hindsight`."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import gymnasium as gym
import jax
import numpy as np
import pytest
import torch
from fbuf_adapters.sb3 import HerReplayBuffer, ReplayBuffer, _write_sizes
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import fbuf

ACTIONS = spaces.Box(-1, 1, (2,), np.float32)
FLOATS = spaces.Box(-10, 10, (3,), np.float32)
DICT = spaces.Dict({"a": FLOATS, "b": spaces.Box(0, 9, (1,), np.float64)})


def run(space, n_envs, seed):
    """Steps whose episodes end, are cut off, and are left by a reset that nobody tells of."""
    rng = np.random.default_rng(seed)
    space.seed(seed)
    sampled = lambda: [space.sample() for _ in range(n_envs)]
    obs = sampled()
    batch = lambda rows: (
        {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        if isinstance(space, spaces.Dict)
        else np.stack(rows)
    )
    while True:
        following, done = sampled(), rng.random(n_envs) < 0.2
        infos = [{"TimeLimit.truncated": bool(rng.random() < 0.5)} for _ in range(n_envs)]
        reward = rng.standard_normal(n_envs).astype(np.float32)
        action = rng.uniform(-1, 1, (n_envs, 2)).astype(np.float32)
        yield batch(obs), batch(following), action, reward, done, infos
        again = done | (rng.random(n_envs) < 0.1)
        obs = [
            new if left else old for left, new, old in zip(again, sampled(), following, strict=True)
        ]


def made(n, *, n_envs=2, size=40, space=FLOATS, gamma=0.9, **options):
    options |= {"n_steps": n, "gamma": gamma, "seed": 0}
    buffer = ReplayBuffer(size, space, ACTIONS, "cpu", n_envs, **options)
    assert buffer.memory._uniform is not None
    return buffer


def of_all(buffer, read):
    """The fields of all stored rows; those without a mask are left out."""
    steps, envs = np.divmod(np.arange(buffer.size() * buffer.n_envs), buffer.n_envs)
    fields = read(steps, envs)
    fields.pop("rewards", None)
    fields.pop("ids", None)
    mask = fields.pop("mask")
    mask = np.ones(len(steps), bool) if mask is None else np.asarray(mask)
    return mask, jax.tree.map(lambda leaf: np.asarray(leaf)[mask], fields)


def check(buffer):
    """NumPy reads what the compiled view reads, before the steps are written and after."""
    memory = buffer.memory
    before = of_all(buffer, memory.take)
    compiled = of_all(buffer, lambda steps, envs: memory.read(memory.slots(steps, envs)))
    after = of_all(buffer, memory.take)
    for found in (before, after):
        np.testing.assert_array_equal(found[0], compiled[0])
        for (path, one), other in zip(
            jax.tree.leaves_with_path(found[1]), jax.tree.leaves(compiled[1]), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=jax.tree_util.keystr(path))
            assert one.dtype == other.dtype


@pytest.mark.parametrize(
    ("n", "n_envs", "space"),
    [
        (3, 2, FLOATS),
        (2, 1, FLOATS),
        pytest.param(7, 3, FLOATS, marks=pytest.mark.sweep),
        pytest.param(3, 2, DICT, marks=pytest.mark.sweep),
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_every_row_is_that_of_the_view(n, n_envs, space, seed, monkeypatch):
    """Amid staged steps, around the end of the ring, and behind resets that nobody told of."""
    monkeypatch.setattr(_write_sizes, "SIZES", (1, 4, 16))
    buffer, steps = made(n, n_envs=n_envs, space=space), run(space, n_envs, seed)
    for count in (1, 2, 9, 3, 30, 1, 25):
        for step in itertools.islice(steps, count):
            buffer.add(*copy.deepcopy(step))
        check(buffer)
        buffer.memory.end(np.arange(n_envs) == 0)
        check(buffer)


def test_a_step_that_is_not_continued_ends_the_episode_before_it_is_written():
    buffer = made(3, n_envs=1)
    row = lambda value: np.full((1, 3), value, np.float32)
    none = np.zeros(1)
    for now, following in ((0, 1), (1, 2), (7, 8), (8, 9)):
        buffer.add(row(now), row(following), np.zeros((1, 2)), np.ones(1), none, [{}])
    fields = buffer.memory.take(np.arange(4), np.zeros(4, int))
    assert fields["reward"].ravel().tolist() == pytest.approx([1.9, 1, 1.9, 1])
    assert fields["next_observation"][:, 0].tolist() == [2, 2, 9, 9]
    buffer.add(row(9), row(10), np.zeros((1, 2)), np.ones(1), none, [{}])
    fields = buffer.memory.take(np.arange(5), np.zeros(5, int))
    assert fields["reward"].ravel().tolist() == pytest.approx([1.9, 1, 2.71, 1.9, 1])


def test_draws_go_on_when_the_number_of_steps_changes():
    buffer = made(3)
    for step in itertools.islice(run(FLOATS, 2, 0), 30):
        buffer.add(*copy.deepcopy(step))
    for n in (1, 5, 2):
        buffer.n_steps = n
        batch = buffer.sample(500)
        found = buffer.memory._uniform.view
        assert found == (fbuf.Transition() if n == 1 else fbuf.NStep(n, gamma=0.9))
        assert (batch.discounts is None) == (n == 1)
        if n > 1:
            # The last bit of a power differs between processors.
            steps = np.log(batch.discounts.numpy()) / np.log(0.9)
            np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)
            assert set(np.round(steps).ravel().astype(int).tolist()) <= set(range(1, n + 1))


def test_rows_are_drawn_alike():
    buffer = made(3, n_envs=2, size=16)
    for step in itertools.islice(run(FLOATS, 2, 0), 13):
        buffer.add(*copy.deepcopy(step))
    drawn = buffer.sample(40_000).observations[:, 0].numpy()
    counts = np.unique(drawn, return_counts=True)[1]
    assert len(counts) == 16
    expected = 40_000 / 16
    assert ((counts - expected) ** 2 / expected).sum() < 45  # 15 degrees: 1 in 10,000


def test_rewards_of_each_step_are_normalised():
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]), clip_reward=1.0)
    env.reset()
    env.ret_rms.var = np.float64(0.25)
    buffer = ReplayBuffer(
        40, env.observation_space, env.action_space, "cpu", 1, n_steps=2, gamma=0.5, seed=0
    )
    none, obs = np.zeros(1), np.arange(12, dtype=np.float32).reshape(4, 1, 3)
    for step in range(3):
        reward = np.array([0.25 * (step + 1)])
        buffer.add(obs[step], obs[step + 1], np.zeros((1, 1)), reward, none, [{}])
    rewards = set(np.round(buffer.sample(200, env).rewards.ravel().tolist(), 4))
    assert rewards == {round(0.5 + 0.5 * 1, 4), round(1 + 0.5 * 1, 4), 1}


@pytest.mark.parametrize("hook", [False, True])
def test_rewards_of_no_other_episode_are_seen(hook):
    """Not a NaN behind the end, nor by a hook that looks at the rewards of every step."""

    class Hooked(ReplayBuffer):
        @staticmethod
        def _normalize_reward(reward, env=None):
            return reward

    kind = Hooked if hook else ReplayBuffer
    buffer = kind(40, FLOATS, ACTIONS, "cpu", 1, n_steps=3, gamma=1.0, seed=0)
    row = lambda value: np.full((1, 3), value, np.float32)
    for n in range(10):
        reward, done = np.array([np.nan if n == 5 else 1.0]), np.array([n % 5 == 4])
        buffer.add(row(n), row(n + 1), np.zeros((1, 2)), reward, done, [{}])
    batch = buffer.sample(500)
    rows = batch.observations[:, 0].long()
    expected = torch.tensor([3, 3, 3, 2, 1, torch.nan, 3, 3, 2, 1])
    np.testing.assert_array_equal(batch.rewards[:, 0], expected[rows])


def test_numbers_of_numpy_change_no_dtype():
    buffer = made(np.int64(3), gamma=np.float64(0.9))
    for step in itertools.islice(run(FLOATS, 2, 0), 9):
        buffer.add(*copy.deepcopy(step))
    for n in (np.int32(2), 3):
        buffer.n_steps, buffer.gamma = n, np.float64(0.5)
        batch = buffer.sample(9)
        assert batch.rewards.dtype == batch.discounts.dtype == torch.float32


def test_a_draw_amid_a_draw_misses_no_end(monkeypatch):
    """As a signal handler may draw."""
    buffer = made(3, n_envs=1, gamma=1.0)
    row = lambda value: np.full((1, 3), value, np.float32)

    def step(now):
        buffer.add(row(now), row(now + 1), np.zeros((1, 2)), np.ones(1), np.zeros(1), [{}])

    plain = type(buffer.memory.staging).cut_off
    step(0)
    buffer.sample(1)
    step(1)
    step(2)
    monkeypatch.setattr(
        type(buffer.memory.staging), "cut_off", lambda self, first: amid(plain(self, first))
    )

    def amid(found):
        monkeypatch.setattr(type(buffer.memory.staging), "cut_off", plain)
        buffer.sample(4)
        return found

    buffer.sample(4)
    step(50)
    step(51)
    fields = buffer.memory.take(np.arange(5), np.zeros(5, int))
    assert fields["reward"].ravel().tolist() == [3, 2, 1, 2, 1]
    assert fields["next_observation"][:, 0].tolist() == [3, 3, 3, 52, 52]


def distances(buffer):
    """The steps to the end and since the start of the episode, `[steps, n_envs]`; row by row."""
    rows = fbuf.rollout(buffer.memory.state)
    ended = np.asarray(rows.terminated | rows.truncated)[np.asarray(rows.mask)]
    ended = ended.reshape(buffer.n_envs, -1)
    to_end, since = np.zeros_like(ended, int), np.zeros_like(ended, int)
    for env, ends in enumerate(ended):
        for step in range(1, len(ends)):
            since[env, step] = 0 if ends[step - 1] else since[env, step - 1] + 1
        for step in reversed(range(len(ends) - 1)):
            to_end[env, step] = 0 if ends[step] else to_end[env, step + 1] + 1
    return to_end.T, since.T


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_distances_within_an_episode(n_envs, seed, monkeypatch):
    """Also amid staged steps, behind resets that nobody told of, and where a start is gone."""
    monkeypatch.setattr(_write_sizes, "SIZES", (1, 4, 16))
    buffer, steps = made(3, n_envs=n_envs, size=20 * n_envs), run(FLOATS, n_envs, seed)
    memory = buffer.memory
    for count in (1, 2, 9, 3, 30, 1, 25, 0, 5, 60):
        if not count:
            buffer.reset()  # it leaves the flags of rows where they are
            continue
        for step in itertools.islice(steps, count):
            buffer.add(*copy.deepcopy(step))
        number = min(memory.steps, 20)
        ages = np.arange(number * n_envs)[::-1].copy()

        def found(ages=ages, number=number):
            memory.take(np.zeros(1, int), np.zeros(1, int))  # so that it looks at the newest rows
            ends = memory._uniform._ends
            both = ends.steps_to_end(ages), ends.steps_since_start(ages)
            return [distance.reshape(number, n_envs) for distance in both]

        before, after = found(), (memory.write(), found())[1]
        for one, other, expected in zip(before, after, distances(buffer), strict=True):
            np.testing.assert_array_equal(one, expected)
            np.testing.assert_array_equal(other, expected)


def test_known_ends_are_no_more_than_those_of_the_buffer():
    buffer, steps = made(3, n_envs=2, size=40), run(FLOATS, 2, 0)
    for step in itertools.islice(steps, 300):
        buffer.add(*copy.deepcopy(step))
        buffer.memory.write()
        buffer.memory.take(np.zeros(1, int), np.zeros(1, int))
        ends = buffer.memory._uniform._ends
        ends.steps_to_end(np.zeros(1, int))
        assert len(ends.known.places) <= 40


class Corridor(gym.Env):
    """Goals are places; the reward is how far apart two of them are."""

    observation_space = spaces.Dict(
        dict.fromkeys(
            ("observation", "achieved_goal", "desired_goal"), spaces.Box(-1, 1e6, (1,), np.float64)
        )
    )
    action_space = spaces.Discrete(2)

    def compute_reward(self, achieved, desired, infos):
        for info, place in zip(infos, achieved, strict=True):
            assert info.get("at", place[0]) == place[0]
        return -np.abs(achieved - desired)[:, 0]


def walked(strategy="future", n_envs=2, **options):
    """Episodes of 10 steps in one lane and of 7 in the next; a row's place is unique."""
    env = DummyVecEnv([Corridor] * n_envs)
    buffer = HerReplayBuffer(
        *(60, Corridor.observation_space, Corridor.action_space, env, "cpu", n_envs),
        goal_selection_strategy=strategy,
        seed=0,
        **options,
    )
    at = lambda step: np.array([[1000.0 * env + step] for env in range(n_envs)])
    for step in range(47):
        row = lambda step: {
            "observation": at(step), "achieved_goal": at(step), "desired_goal": at(-1) * 0 - 1
        }  # fmt: skip
        done = np.array([(step + 1) % (10, 7)[env % 2] == 0 for env in range(n_envs)])
        infos = [{"at": place} for (place,) in at(step + 1).tolist()]
        buffer.add(
            row(step), row(step + 1), np.zeros((n_envs, 1), int), np.zeros(n_envs), done, infos
        )
    return buffer


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("infos", [False, True])
def test_goals_are_drawn_alike(strategy, infos):
    buffer = walked(strategy, n_sampled_goal=3, copy_info_dict=infos)
    assert buffer.memory._uniform is not None
    batch = buffer.sample(30_000)
    place = batch.observations["observation"].numpy()[:, 0]
    goal = batch.observations["desired_goal"].numpy()[:, 0]
    np.testing.assert_array_equal(goal, batch.next_observations["desired_goal"][:, 0])
    new = goal >= 0
    assert abs(new.mean() - 0.75) < 0.015
    np.testing.assert_array_equal(batch.rewards[new, 0], -np.abs(place + 1 - goal)[new])
    counts, expected = [], []
    for row in np.unique(place):
        env, step = divmod(int(row), 1000)
        length = (10, 7)[env]
        begin = step // length * length
        end = min(begin + length, 47)
        begin = max(begin, 47 - 30)
        first = {"future": step, "final": end - 1, "episode": begin}[strategy]
        goals = 1000 * env + np.arange(first, end) + 1
        own = goal[new & (place == row)]
        counts += [(own == which).sum() for which in goals]
        expected += [len(own) / len(goals)] * len(goals)
        assert sum(counts[-len(goals) :]) == len(own)
    counts, expected = np.array(counts), np.array(expected)
    square = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 60
    assert square < freedom + 4 * (2 * freedom) ** 0.5 + 1


def test_goals_follow_what_is_set_later():
    buffer = walked(n_sampled_goal=1)
    buffer.her_ratio = 1.0
    buffer.goal_selection_strategy = "final"
    goal = buffer.sample(200).observations["desired_goal"].numpy()
    assert (goal >= 0).all()
    buffer.her_ratio = 0.0
    assert (buffer.sample(200).observations["desired_goal"].numpy() == -1).all()


@pytest.mark.parametrize("arrays", ["torch", "jax"])
def test_goals_with_priorities(arrays):
    buffer = walked(
        n_sampled_goal=3, sampler=fbuf.Prioritized(), arrays=arrays, copy_info_dict=True
    )
    assert buffer.memory._uniform is None
    batch = buffer.sample(64)
    assert type(batch.weights) is type(batch.rewards)
    assert isinstance(batch.ids.slot, torch.Tensor)
    assert (arrays == "torch") == isinstance(batch.rewards, torch.Tensor)
    place, goal = (np.asarray(batch.observations[k]) for k in ("observation", "desired_goal"))
    new = goal[:, 0] >= 0
    assert new.any()
    np.testing.assert_array_equal(
        np.asarray(batch.rewards)[new, 0], -np.abs(place + 1 - goal)[new, 0]
    )
    buffer.update_priority(batch.ids, np.ones(64, np.float32))


@pytest.mark.parametrize(
    "options",
    [
        {"discount": 0.5},
        {"nearest": 1},
        {"strategy": {"future": 0.5, "random": 0.5}},
        {"copies": 1},
    ],
    ids=str,
)
def test_other_options_of_a_derived_buffer_are_drawn_by_the_view(options):
    buffer = walked()
    drawing, memory = buffer.memory.drawing, buffer.memory
    assert drawing.by_numpy(memory.spec, memory.device)
    other = drawing._replace(view=dataclasses.replace(drawing.view, **options))
    assert not other.by_numpy(memory.spec, memory.device)
