"""Hindsight goals for Stable-Baselines3, whose environments compute the rewards on the host."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her import GoalSelectionStrategy
from stable_baselines3.her import her_replay_buffer as theirs

import fbuf
from fbuf.adapter_api import Sampler, View, uninterrupted
from fbuf_adapters.sb3 import _checks
from fbuf_adapters.sb3._columns import Array
from fbuf_adapters.sb3._drawing import Drawing, Fields
from fbuf_adapters.sb3._memory import on_host
from fbuf_adapters.sb3._replay_buffer import ReplayBuffer

_WHERE = "fbuf_adapters.sb3.HerReplayBuffer"


# Both bases declare the arrays of rows, each with its own types.
class HerReplayBuffer(  # pyright: ignore[reportIncompatibleVariableOverride]
    ReplayBuffer, theirs.HerReplayBuffer
):
    """A buffer whose drawn rows may get a goal that the agent reached later.

    Each draw gets a new goal with probability `n_sampled_goal / (n_sampled_goal + 1)`, as by
    `fbuf.Hindsight`. The environment then computes its reward: `compute_reward` is called once a
    batch, for these rows. Rows of the episode that is under way are drawn, too.

    Args:
        buffer_size: As for `ReplayBuffer`.
        observation_space: A dict of spaces with `"observation"`, `"achieved_goal"` and
            `"desired_goal"`; the two goals have one shape and one dtype.
        action_space: As for `ReplayBuffer`.
        env: The environment that computes rewards; Stable-Baselines3 gives it.
        device: As for `ReplayBuffer`.
        n_envs: As for `ReplayBuffer`.
        optimize_memory_usage: As for `ReplayBuffer`.
        handle_timeout_termination: As for `ReplayBuffer`.
        n_sampled_goal: How many new goals there are for each stored one, at least 0.
        goal_selection_strategy: `"future"`, `"final"` or `"episode"`, as for `fbuf.Hindsight`.
        copy_info_dict: Whether to keep the infos of all rows, for `compute_reward`.
        **options: `sampler`, `rows_on`, `arrays` and `seed`, as for `ReplayBuffer`.

    Raises:
        ValueError: If the space has no goals, or if they differ in shape or dtype.

    Cost: O(B log(episodes)) for a batch of B rows, O(steps that are staged), and one call of
    `compute_reward`. After each write of staged steps O(episodes), and after a load O(N). With
    another sampler or on a GPU, as for `fbuf.Hindsight`.

    Examples:
        >>> from stable_baselines3 import DQN
        >>> from stable_baselines3.common.envs import BitFlippingEnv
        >>> from fbuf_adapters.sb3 import HerReplayBuffer
        >>> model = DQN(
        ...     "MultiInputPolicy",
        ...     BitFlippingEnv(n_bits=4),
        ...     buffer_size=100,
        ...     learning_starts=20,
        ...     replay_buffer_class=HerReplayBuffer,
        ... )
        >>> sorted(model.learn(30).replay_buffer.sample(8).observations)
        ['achieved_goal', 'desired_goal', 'observation']

    References:
        Andrychowicz et al., Hindsight Experience Replay, arXiv:1707.01495.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        env: VecEnv,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        **options: Any,
    ) -> None:
        _check_goals(observation_space)
        _check_options(options)
        self.env = env
        self.n_sampled_goal = _checks.integer("n_sampled_goal", n_sampled_goal, 0, 10**6)
        self.goal_selection_strategy = _strategy(goal_selection_strategy)
        self.her_ratio = 1 - 1 / (n_sampled_goal + 1)
        self.copy_info_dict = copy_info_dict
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            **options,
        )
        if copy_info_dict:
            self.infos = np.full((self.buffer_size, n_envs), None, object)
            self.memory.refuses_states = (
                "with copy_info_dict, for a state has no infos; use buffer.save and buffer.load"
            )

    def _item(self) -> Fields:
        goal = self._columns["observations"]["achieved_goal"]
        return super()._item() | {"achieved": goal}

    def _drawing(self, sampler: Sampler) -> Drawing:
        return super()._drawing(sampler)._replace(named=True)

    def _view(self) -> View:
        return fbuf.Hindsight(
            _no_reward,
            # To pyright the name is any string.
            strategy=self.goal_selection_strategy.name.lower(),  # pyright: ignore[reportArgumentType]
            ratio=self.her_ratio,
            goal="observation.desired_goal",
            achieved="achieved",
        )

    def _rows(self, row: Fields, following: Any, terminated: Array, truncated: Array) -> None:
        super()._rows(
            row | {"achieved": following["achieved_goal"]}, following, terminated, truncated
        )

    def _step(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any
    ) -> None:
        if not self.copy_info_dict:
            super()._step(obs, next_obs, action, reward, done, infos)
            return
        at, kept = self.pos, copy.deepcopy(infos)
        with uninterrupted():  # a row without its info would be rewarded by another one
            super()._step(obs, next_obs, action, reward, done, infos)
            self.infos[at] = kept

    _redraws = frozenset(("her_ratio", "goal_selection_strategy"))
    _made_with = ReplayBuffer._made_with | {"n_steps", "gamma", "n_sampled_goal", "copy_info_dict"}

    def _draw_otherwise(self, name: str, value: Any) -> None:
        if name == "goal_selection_strategy":
            value = _strategy(value)
        elif not 0 <= value <= 1:
            raise ValueError(f"{_WHERE}: her_ratio must be from 0 to 1, got {value!r}")
        super()._draw_otherwise(name, value)

    def _draws_by_position(self) -> bool:
        return False  # nor does theirs

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw a batch, as `ReplayBuffer.sample` does.

        Raises:
            RuntimeError: As there. Also if no environment is set: call `set_env` after unpickling.
        """
        return ReplayBuffer.sample(self, batch_size, env)

    def _samples(self, fields: Fields, env: VecNormalize | None) -> Any:
        self._reward_new_goals(fields)
        return super()._samples(fields, env)

    def _reward_new_goals(self, fields: Fields) -> None:
        """Have the environment compute the rewards of rows with new goals."""
        if not isinstance(fields["relabelled"], np.ndarray):
            fields.update(jax.tree.map(lambda leaf: leaf.cpu(), fields))
            # NumPy, as torch cannot assign all dtypes that a space may have.
            for name in ("item", "next_observation", "reward", "relabelled"):
                fields[name] = jax.tree.map(on_host, fields[name])
        new = fields["relabelled"]
        if not new.any():
            return
        if self.env is None:
            raise RuntimeError(
                f"{_WHERE}.sample: there is no environment to compute rewards; call set_env(env)"
            )
        goal = fields["item"]["observation"]["desired_goal"]
        following = fields["next_observation"]
        following["desired_goal"][new] = goal[new]
        achieved = following["achieved_goal"]
        column = self._columns["observations"]["desired_goal"]
        achieved, wanted = column.numpy(achieved[new]), column.numpy(goal[new])
        infos: Any = [{} for _ in range(len(wanted))]
        if self.copy_info_dict:
            places = fields.get("positions") or self.memory.positions(on_host(fields["ids"].slot))
            infos = copy.deepcopy(self.infos[places[0][new], places[1][new]])
        (rewards,) = self.env.env_method("compute_reward", achieved, wanted, infos, indices=[0])
        rewards = np.asarray(rewards, np.float32)
        if rewards.size != len(wanted):
            raise ValueError(
                f"{_WHERE}: compute_reward of the environment must return a reward for each of "
                f"{len(wanted)} rows, got an array of shape {rewards.shape}; take norms and "
                "comparisons over the last axis alone"
            )
        rewards = rewards.reshape(-1, 1)
        fields["reward"][new] = rewards

    def truncate_last_trajectory(self) -> None:
        """Truncate the episodes that are under way, with a warning."""
        is_open = self.memory.open()
        if is_open.any():
            warnings.warn(
                "The last trajectory in the replay buffer will be truncated. If the environments "
                "go on where they were when it was saved, give truncate_last_traj=False",
                stacklevel=2,
            )
            self.memory.end(is_open)


def _no_reward(achieved: Any, goal: Any) -> Any:
    """Stand for the reward of a new goal, which the environment computes later."""
    return jnp.float32(0)


def _strategy(given: Any) -> GoalSelectionStrategy:
    if isinstance(given, GoalSelectionStrategy):
        return given
    names = [strategy.name.lower() for strategy in GoalSelectionStrategy]
    if str(given).lower() not in names:
        raise ValueError(
            f"{_WHERE}: goal_selection_strategy must be one of {sorted(names)}, got {given!r}"
        )
    return GoalSelectionStrategy[str(given).upper()]


def _check_goals(space: Any) -> None:
    names = {"observation", "achieved_goal", "desired_goal"}
    if not isinstance(space, spaces.Dict) or not names <= set(space.spaces):
        raise ValueError(
            f"{_WHERE}: observation_space must be a dict with {sorted(names)}, got {space}; use "
            "fbuf_adapters.sb3.ReplayBuffer where there are no goals"
        )
    achieved, desired = (space.spaces[name] for name in ("achieved_goal", "desired_goal"))
    if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
        raise ValueError(
            f"{_WHERE}: achieved_goal and desired_goal must have one shape and dtype, got "
            f"{achieved} and {desired}; store what was achieved in the form of a goal"
        )


def _check_options(options: dict[str, Any]) -> None:
    refused = sorted({"n_steps", "gamma", "n_stack"} & set(options))
    if refused:
        raise ValueError(
            f"{_WHERE}: {refused[0]} is not for hindsight goals, because the rewards in between "
            "have other goals; leave it out, or use fbuf_adapters.sb3.ReplayBuffer"
        )
