"""Classes derived from our buffers, as users derive from those of Stable-Baselines3."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fbuf_adapters.sb3 import HerReplayBuffer, ReplayBuffer
from gymnasium import spaces
from stable_baselines3.common import buffers
from test_her import filled as filled_with_goals

import fbuf

FLOATS, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float64)
DICT = spaces.Dict({"a": FLOATS, "b": spaces.Discrete(9)})
KINDS = {
    "plain": buffers.ReplayBuffer,
    "dict": buffers.DictReplayBuffer,
    "n": buffers.NStepReplayBuffer,
}
N_STEPS = {"n_steps": 3, "gamma": 0.5}


def pair(derive, kind="plain", n_envs=2, **options):
    """A class derived from ours and one from theirs, with the same steps in both."""
    space = DICT if kind == "dict" else FLOATS
    more = N_STEPS if kind == "n" else {}
    made = [
        derive(ReplayBuffer)(20, space, ACTIONS, "cpu", n_envs, seed=0, **more, **options),
        derive(KINDS[kind])(20, space, ACTIONS, "cpu", n_envs, **more),
    ]
    rng = np.random.default_rng(0)
    now = observed(kind, rng, n_envs)
    for _ in range(26):
        following = observed(kind, rng, n_envs)
        done = rng.random(n_envs) < 0.2
        action = rng.uniform(-1, 1, (n_envs, 2))
        reward = rng.standard_normal(n_envs).astype(np.float32)
        for buffer in made:
            buffer.add(now, following, action, reward, done, [{}] * n_envs)
        now = following
    return made


def observed(kind, rng, n_envs):
    floats = rng.uniform(-1, 1, (n_envs, 3)).astype(np.float32)
    return {"a": floats, "b": rng.integers(9, size=(n_envs, 1))} if kind == "dict" else floats


def same_kinds(mine, theirs):
    """The fields of two batches have the same shapes and dtypes."""
    for one, other in zip(mine, theirs, strict=True):
        if isinstance(other, dict):
            same_kinds(one.values(), other.values())
        elif other is not None:
            assert (one.shape, one.dtype) == (other.shape, other.dtype)


def rewards_42(base):
    class Mine(base):
        def _get_samples(self, batch_inds, env=None):
            batch = super()._get_samples(batch_inds, env)
            return batch._replace(rewards=torch.full_like(batch.rewards, 42))

    return Mine


def rewards_7(base):
    class Mine(base):
        @staticmethod
        def _normalize_reward(reward, env=None):
            return np.clip(reward, 7, 7)

    return Mine


def half(base):
    class Mine(base):
        def _normalize_obs(self, obs, env=None):
            if isinstance(obs, dict):
                return {name: (x / 2).astype(np.float64) for name, x in obs.items()}
            return (obs / 2).astype(np.float64)

    return Mine


def counting(base):
    class Mine(base):
        def to_torch(self, array, copy=True):
            return super().to_torch(np.asarray(array, np.float64), copy)

    return Mine


@pytest.mark.first(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("derive", [rewards_42, rewards_7, half, counting])
def test_an_override_makes_the_batch_that_it_makes_of_theirs(derive, kind):
    ours, theirs = pair(derive, kind)
    mine, wanted = ours.sample(16), theirs.sample(16)
    same_kinds(mine, wanted)
    if derive is rewards_42:
        assert set(mine.rewards.ravel().tolist()) == {42}
    if derive is rewards_7:
        assert (
            set(mine.rewards.ravel().tolist()) == set(wanted.rewards.ravel().tolist())
            or kind == "n"
        )
        assert mine.rewards.max() <= 7 * 1.75
        assert mine.rewards.min() >= 7
    if derive is half:
        rows = ours.observations["a"] if kind == "dict" else ours.observations
        found = mine.observations["a"] if kind == "dict" else mine.observations
        stored = {tuple(row) for row in np.asarray(rows).reshape(-1, 3).tolist()}
        assert {tuple((2 * row).tolist()) for row in found} <= stored


def test_an_override_reads_the_rows_it_is_given():
    """It looks at arrays by position, as in theirs, and each position is as likely as another."""

    def derive(base):
        class Mine(base):
            def _get_samples(self, batch_inds, env=None):
                self.seen = batch_inds
                envs = np.random.randint(0, self.n_envs, len(batch_inds))  # noqa: NPY002
                batch = super()._get_samples(batch_inds, env)
                rewards = self.rewards[batch_inds, envs].reshape(-1, 1)
                obs = self.observations[batch_inds, envs, :]
                return batch._replace(
                    rewards=self.to_torch(rewards), observations=self.to_torch(obs)
                )

        return Mine

    ours, theirs = pair(derive)
    batch = ours.sample(2000)
    for at in range(10):
        mine = batch.observations[torch.from_numpy(ours.seen == at)]
        found = {tuple(row) for row in mine.tolist()}
        assert found == {tuple(row) for row in theirs.observations[at].tolist()}
    counts = np.bincount(ours.seen, minlength=10)
    assert ((counts - 200.0) ** 2 / 200).sum() < 34  # 9 degrees, p 1e-4
    assert type(ours)._get_samples is not ReplayBuffer._get_samples


@pytest.mark.first(3)
@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_at_positions_are_theirs(kind, n_envs):
    ours, theirs = pair(lambda base: base, kind, n_envs)
    at = np.arange(-3, 20 // n_envs)
    mine, wanted = ours._get_samples(at), theirs._get_samples(at)
    same_kinds(mine, wanted)
    if n_envs == 1:
        np.testing.assert_allclose(mine.rewards, wanted.rewards, rtol=1e-6)
        np.testing.assert_array_equal(mine.dones, wanted.dones)
        np.testing.assert_array_equal(mine.actions, wanted.actions)


def test_positions_of_no_row_are_refused():
    buffer = ReplayBuffer(20, FLOATS, ACTIONS, "cpu")
    one = np.zeros((1, 3), np.float32)
    buffer.add(one, one, np.zeros((1, 2)), np.zeros(1), np.zeros(1), [{}])
    for wrong in (1, 20, -1, -21):
        with pytest.raises(IndexError, match=f"there is none at {wrong}"):
            buffer._get_samples(np.array([0, wrong]))
    with pytest.raises(TypeError, match="must be integers, the positions of rows, got bool"):
        buffer._get_samples(np.array([True]))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32", "uint64"])
def test_positions_may_be_integers_of_any_dtype(dtype):
    buffer = ReplayBuffer(400, FLOATS, ACTIONS, "cpu")
    none = np.zeros(1)
    for number in range(300):  # more than a byte counts
        row = np.full((1, 3), number, np.float32)
        buffer.add(row, row + 1, np.zeros((1, 2)), none, none, [{}])
    found = buffer._get_samples(np.array([1, 127, 5], dtype))
    assert found.observations[:, 0].tolist() == [1, 127, 5]


def test_an_override_of_one_object_is_called():
    ours, _ = pair(lambda base: base)
    ours._normalize_reward = lambda reward, env=None: reward * 0 + 3
    assert set(ours.sample(5).rewards.ravel().tolist()) == {3}
    ours._get_samples = lambda batch_inds, env=None: len(batch_inds)
    assert ours.sample(5) == 5


def test_an_override_that_keeps_float64_actions():
    def derive(base):
        class Mine(base):
            @staticmethod
            def _maybe_cast_dtype(dtype):
                return dtype

        return Mine

    ours, theirs = pair(derive)
    assert ours.sample(3).actions.dtype == theirs.sample(3).actions.dtype == torch.float64
    np.testing.assert_array_equal(ours.actions, theirs.actions)


def test_what_would_not_be_called_is_refused_when_the_class_is_made():
    for name in ("_sample_goals", "_get_virtual_samples", "_get_real_samples"):
        with pytest.raises(TypeError, match=rf"{name} is never called.*Override sample"):
            type("Mine", (HerReplayBuffer,), {name: lambda *_: None})
        with pytest.raises(TypeError, match=f"{name} is never called"):
            type("Mine", (type("Mixin", (), {name: lambda *_: None}), HerReplayBuffer), {})
        with pytest.raises(AttributeError, match=f"{name} is never called"):
            setattr(filled_with_goals(), name, None)
    type("Mine", (ReplayBuffer,), {"_sample_goals": lambda *_: None})  # nor does theirs call it
    with pytest.raises(TypeError, match="_rows has a name that"):
        type("Mine", (ReplayBuffer,), {"_rows": ()})
    again = type("Again", (type("Mine", (ReplayBuffer,), {}),), {})  # from a class of a user
    assert again._derived
    with pytest.raises(TypeError, match="_rows has a name that"):
        type("Mine", (type("Mixin", (), {"_rows": ()}), ReplayBuffer), {})
    with pytest.raises(AttributeError, match="_view has a name that"):
        pair(lambda base: base)[0]._view = ()


def test_what_does_not_go_with_an_override_is_refused():
    with pytest.raises(ValueError, match=r"takes positions.*override sample"):
        pair(rewards_42, sampler=fbuf.Prioritized())
    with pytest.raises(ValueError, match="makes no tensors"):
        pair(counting, arrays="jax")


def test_attributes_that_say_how_batches_are_drawn_can_be_set():
    ours, theirs = pair(lambda base: base, "n", 1)
    at = np.arange(20)
    for name, value in (("n_steps", 2), ("gamma", 0.9), ("n_steps", 4)):
        setattr(ours, name, value)
        setattr(theirs, name, value)
        for field in ("rewards", "discounts"):
            mine, wanted = (getattr(x._get_samples(at), field) for x in (ours, theirs))
            np.testing.assert_allclose(mine, wanted, rtol=1e-5)
    ours.n_steps = 1
    assert ours.sample(3).discounts is None
    np.testing.assert_array_equal(np.sort(ours._get_samples(at).rewards), np.sort(theirs.rewards))
    with pytest.raises(ValueError, match="n_steps must be from 1"):
        ours.n_steps = 0
    plain, _ = pair(lambda base: base)
    with pytest.raises(ValueError, match="needs gamma"):
        plain.n_steps = 3
    assert plain.n_steps == 1
    assert plain.sample(3).discounts is None


def test_goals_that_are_drawn_otherwise():
    buffer = filled_with_goals(n_sampled_goal=4)
    buffer.her_ratio = 0
    assert (buffer.sample(64).observations["desired_goal"] == -1).all()
    buffer.her_ratio, buffer.goal_selection_strategy = 1, "final"
    batch = buffer.sample(64)
    goals, place = batch.observations["desired_goal"], batch.observations["observation"]
    lengths = torch.tensor([4.0, 7, 3, 6])
    assert (goals[:, 1] == lengths[place[:, 0].long()]).all()
    with pytest.raises(ValueError, match="her_ratio must be from 0 to 1"):
        buffer.her_ratio = 2
    with pytest.raises(AttributeError, match="n_steps cannot be set"):
        buffer.n_steps = 3


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("pos", 0, r"pos cannot be set to 0.*call reset\(\)"),
        ("full", False, r"full cannot be set to False.*call reset\(\)"),
        ("buffer_size", 5, "buffer_size cannot be set to 5.*make another"),
        ("n_envs", 3, "n_envs cannot be set"),
        ("arrays", "jax", "arrays cannot be set"),
    ],
)
def test_attributes_that_cannot_be_set(name, value, text):
    ours, theirs = pair(lambda base: base)
    setattr(ours, name, getattr(theirs, name, "torch"))  # as it is
    with pytest.raises(AttributeError, match=text):
        setattr(ours, name, value)
    ours.handle_timeout_termination, ours.device, ours.mine = False, torch.device("cpu"), 1
    assert ours.sample(3).rewards.shape == (3, 1)
