"""The replay buffer for Stable-Baselines3: `replay_buffer_class=fbuf_adapters.sb3.ReplayBuffer`."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecNormalize

import fbuf
from fbuf.adapter_api import BufferSpec, Holder, Sampler, View
from fbuf_adapters.sb3 import _checks, _columns, _overrides, _pickles
from fbuf_adapters.sb3._all_rows import AllRows, rows_of, stored
from fbuf_adapters.sb3._batches import Batches, valid
from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._columns import Array, Column, map_columns
from fbuf_adapters.sb3._drawing import Drawing, Fields
from fbuf_adapters.sb3._frames import Frames, Stacked
from fbuf_adapters.sb3._memory import Memory, device_of
from fbuf_adapters.sb3._priorities import Priorities


class ReplayBuffer(Priorities, buffers.ReplayBuffer):
    """Replay memory for the algorithms of Stable-Baselines3, sb3-contrib, SBX and CleanRL.

    Give the class as `replay_buffer_class`, and arguments that are not in the list of Stable-
    Baselines3 as `replay_buffer_kwargs`. It takes box, discrete and binary observations, images,
    and dicts of them. Each observation is stored once: the next one is that of the following row,
    or kept aside at an end. If you reset the environments or load another run, an observation
    is not the next observation of the row before. The episode before is then truncated there.

    Rows are what Stable-Baselines3 stores, bit for bit, and batches have its shapes and dtypes.
    `observations`, `next_observations`, `actions`, `rewards`, `dones` and `timeouts` show all rows,
    read-only: each reads the rows that an index names. Only one thread may call a buffer. A signal
    handler may add a step in the midst of another call, and the step waits for the end of that
    call. Other calls in the midst of a change get a `RuntimeError`.

    A class of yours may override what it would of Stable-Baselines3's: `add`, `sample`, `reset`,
    `_get_samples`, `_normalize_obs`, `_normalize_reward`, `to_torch` and `_maybe_cast_dtype`. With
    `_get_samples` rows are drawn uniformly, by position. A class with an override that would not be
    called is refused when it is made.

    Args:
        buffer_size: How many rows to keep. Each environment has `buffer_size // n_envs`.
        observation_space: The space of one observation.
        action_space: The space of one action.
        device: The device of the tensors of a batch.
        n_envs: How many environments there are.
        optimize_memory_usage: Accepted, and without meaning: observations are always stored once.
        handle_timeout_termination: Whether an episode that `TimeLimit.truncated` in its info has
            cut off counts as truncated, so that targets bootstrap there. If not, `done` alone ends
            an episode, as terminated.
        sampler: Which rows may be drawn, and how likely each is. With `fbuf.Prioritized` a batch
            has `weights` and `ids` besides, for losses and `update_priority`; the algorithms
            `PrioritizedDQN`, `PrioritizedSAC` and `PrioritizedTD3` use them.
        n_steps: The number of steps whose rewards are summed, as Stable-Baselines3's own n-step
            buffer does. A batch then has `discounts`.
        gamma: The discount of a step, from 0 to 1. Needed with `n_steps` above 1.
        n_stack: The number of frames in an observation, to store each frame once. It is that of
            `VecFrameStack` or of Gymnasium's wrapper. The buffer refuses observations that are no
            such stack.
        rows_on: The platform of JAX whose memory has the rows: `"cpu"`, or `"cuda"`.
        arrays: `"torch"` for tensors, or `"jax"` for batches of JAX arrays, with the methods of
            tensors that SBX calls.
        seed: From 0 to 2**32 - 1: chooses all batches. With `arrays="jax"` the same seed draws
            other rows. None takes a seed from NumPy's global generator, which the algorithm has
            seeded.

    Raises:
        MemoryError: If the machine has no room for the rows.
        ValueError: If an argument is out of range, or `n_steps` lacks its `gamma`. Also if the
            class overrides `_get_samples`, and the sampler does not draw uniformly; or `to_torch`,
            with `arrays="jax"`.
        TypeError: If a space has no arrays.

    Cost: O(B) for a batch of B rows, O(B log N) with priorities, and O(n_envs) for a step,
    whatever is stored. Where more episodes end than is usual, the room for their last observations
    grows fourfold, each time in O(N).

    Examples:
        >>> from stable_baselines3 import DQN
        >>> from fbuf_adapters.sb3 import ReplayBuffer
        >>> model = DQN(
        ...     "MlpPolicy",
        ...     "CartPole-v1",
        ...     buffer_size=1000,
        ...     learning_starts=50,
        ...     replay_buffer_class=ReplayBuffer,
        ... )
        >>> model = model.learn(60)
        >>> model.replay_buffer.size(), model.replay_buffer.sample(32).observations.shape
        (60, torch.Size([32, 4]))
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        sampler: Sampler = fbuf.Uniform(),
        n_steps: int = 1,
        gamma: float | None = None,
        n_stack: int = 1,
        rows_on: Literal["cpu", "cuda"] = "cpu",
        arrays: Literal["torch", "jax"] = "torch",
        seed: int | None = None,
    ) -> None:
        # The base class's own `__init__` would allocate its arrays.
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.observation_space, self.action_space = observation_space, action_space
        self.device = get_device(device)
        self.n_envs = n_envs
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps, self.gamma, self.n_stack, self.arrays = n_steps, gamma, n_stack, arrays
        _checks.integer("n_steps", n_steps, 1, self.buffer_size)
        _checks.integer("n_stack", n_stack, 1, self.buffer_size)
        _checks.choice("arrays", arrays, ("torch", "jax"))
        _checks.choice("rows_on", rows_on, ("cpu", "cuda"))
        _checks.sampler(sampler)
        self._check_overrides(sampler)
        observations = _columns.of_observations(observation_space)
        actions = _columns.of_actions(action_space, self._maybe_cast_dtype)
        self.obs_shape = map_columns(lambda column: column.shape, observations)
        (self.action_dim,) = actions.shape
        self._columns: Fields = {"observations": observations, "actions": actions}
        several = gamma if n_steps > 1 else None
        self._batches = Batches(self._columns, several, arrays)
        self._frames = Frames(observation_space, observations, n_stack) if n_stack > 1 else None
        spec = BufferSpec(self.buffer_size * n_envs, sampler, n_envs, next_of="observation")
        self.memory = Memory(
            dataclasses.replace(spec, removable=False),  # nothing here removes a row
            self._item(),
            self._drawing(sampler),
            _seed(seed),
            device_of(rows_on),
        )
        """The rows. `memory.state` is the `fbuf.State`."""

        self._never = np.zeros(n_envs, bool)
        self.beta = None
        self._losses = None
        self._weighs = self._drew = self._was_updated = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that overrides what would not be called."""
        super().__init_subclass__(**options)
        _overrides.check_class(cls)

    def _check_overrides(self, sampler: Sampler) -> None:
        """Refuse arguments that do not go with what the class overrides."""
        if self._draws_by_position() and sampler != fbuf.Uniform():
            raise ValueError(
                f"{WHERE}: sampler={sampler} draws rows, and {type(self).__name__}._get_samples "
                "takes positions, which are drawn uniformly; leave the sampler out, or override "
                "sample in place of _get_samples"
            )
        if self.arrays == "jax" and _overrides.hooked(self, "to_torch"):
            raise ValueError(
                f"{WHERE}: arrays='jax' makes no tensors, so that {type(self).__name__}.to_torch "
                "would not be called; leave arrays out, or do not override it"
            )

    _derived = False
    """Whether a user may have overridden methods, in a class or in this object alone."""

    def _draws_by_position(self) -> bool:
        """Whether `sample` draws positions, for a `_get_samples` of another class."""
        return self._derived and (
            type(self)._get_samples is not _GET_SAMPLES or "_get_samples" in vars(self)
        )

    # The parts that a buffer with goals has otherwise.

    def _item(self) -> Fields:
        """Return the columns of a row."""
        item: Fields = {
            "observation": self._columns["observations"],
            "action": self._columns["actions"],
            "reward": Column((), np.dtype(np.float32)),
        }
        if self._frames is not None:
            depth = Column((), np.dtype(np.uint8))
            item |= {"observation": self._frames.column, "depth": depth}
        return item

    def _drawing(self, sampler: Sampler) -> Drawing:
        """Return the way batches are drawn."""
        weighted, several = sampler.keeps_priorities, self.n_steps > 1
        gamma = self.gamma if several else None
        return Drawing(self._view(), gamma, weighted or several, weighted, self.arrays)

    def _view(self) -> View:
        """Return the view of a drawn row."""
        view = fbuf.Transition()
        if self.n_steps > 1:
            if self.gamma is None:
                raise ValueError(
                    f"{WHERE}: n_steps={self.n_steps} needs gamma, the discount of a step; give "
                    "the gamma of the algorithm in replay_buffer_kwargs, too"
                )
            view = fbuf.NStep(self.n_steps, gamma=self.gamma)
        if self._frames is None:
            return view
        return Stacked(view, self.n_stack, self._frames.axis, bool(self._frames.copies))

    def _step(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any
    ) -> None:
        """Add a step of all environments."""
        terminated = _checks.flags("done", done, self.n_envs)
        truncated = None
        if self.handle_timeout_termination:
            truncated = _checks.timeouts(infos, self.n_envs)
        if truncated is None:
            truncated = self._never
        else:
            terminated = terminated & ~truncated
        row = {"observation": obs, "action": action, "reward": reward}
        self._rows(row, next_obs, terminated, truncated)

    def _rows(self, row: Fields, following: Any, terminated: Array, truncated: Array) -> None:
        """Hand over a step of all environments."""
        if self._frames is None:
            self.memory.add(row, following, terminated, truncated)
            return
        stack = self._frames.stacks(row["observation"], self.n_envs)
        following = self._frames.stacks(following, self.n_envs)
        # No loss reads those of terminated rows. There CleanRL hands over the next episode's first.
        self._frames.check_next(stack[~terminated], following[~terminated])
        count = self.memory.steps - self.memory.offset
        depth, follows = self._frames.depth(stack, count, self.memory.open())
        self.memory.drawing = self.memory.drawing._replace(view=self._view())
        frame = self._frames.newest
        row = row | {"observation": frame(stack), "depth": depth}
        self.memory.add(row, frame(following), terminated, truncated, follows)

    # Writing.

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a step of all environments.

        Args:
            obs: The observations before the step, `[n_envs, ...]`, or a dict of such arrays.
            next_obs: Those after the step: at the end of an episode its last one.
            action: `[n_envs, action_dim]`; other shapes of as many numbers are taken, too.
            reward: `[n_envs]`.
            done: `[n_envs]`: whether the episode ended.
            infos: For each environment a dict. `"TimeLimit.truncated"` says that the episode was
                cut off. Without `handle_timeout_termination` it is not read.

        Raises:
            ValueError: If a shape is not that of the space and of `n_envs`, or if the observations
                are no stacks of `n_stack` frames. Nothing is added.
            TypeError: If a dtype is of another kind than that of the space. Nothing is added.
        """
        turns = self.memory.turns
        if turns.adding or turns.busy:  # a signal handler, in the midst of another call
            step = copy.deepcopy((obs, next_obs, action, reward, done, infos))
            turns.later.append(functools.partial(ReplayBuffer.add, self, *step))
            return
        turns.adding = True
        try:
            self._step(obs, next_obs, action, reward, done, infos)
        finally:
            turns.adding = False
            if turns.later:
                turns.go_on()

    def reset(self) -> None:
        """Forget all rows. The memory stays allocated."""
        self.memory.clear()

    # Files.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Pickle the buffer to a file, which is there whole or not at all.

        A process that is killed, or a disk that is full, leaves the file that was there before.
        `model.save_replay_buffer` of Stable-Baselines3 writes into that file, and can leave
        neither. Steps that a signal handler adds meanwhile wait, and are not in the file.

        Args:
            path: The file. Without an ending it gets `.pkl`, as in Stable-Baselines3, whose
                `load_replay_buffer` reads the file. Missing directories are made.

        Raises:
            OSError: If the file cannot be written.

        Cost: O(N); `fbuf.save(path, buffer.memory.state)` writes new rows alone.
        """
        _pickles.save(self, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on where `save` or `model.save_replay_buffer` was called.

        Make the buffer with the same arguments. It keeps its device, and its environment if it has
        goals. The next batch is the one that the other would have drawn. A step that goes on from
        the newest row continues its episode; any other begins one.

        Args:
            path: The file. Give only files that you trust: a pickle can run any code.

        Raises:
            FileNotFoundError: If there is no such file.
            fbuf.CheckpointError: If it is no whole pickle. The buffer is then unchanged.
            TypeError: If another object is in it; likewise.
            ValueError: If it is from a buffer that was made with other arguments; likewise.
        """
        other = _pickles.load(self, path)
        kept = {name: x for name, x in vars(other).items() if name not in ("device", "env")}
        # In one instruction: an exception comes before all of it, or after.
        vars(self).update(kept)

    # Reading.

    @property
    def pos(self) -> int:
        """Where the next step goes, in an environment's rows."""
        return self.memory.steps % self.buffer_size

    @pos.setter
    def pos(self, value: int) -> None:
        _check_same("pos", value, self.pos)

    @property
    def full(self) -> bool:
        """Whether the next step replaces an old one."""
        return self.memory.steps >= self.buffer_size

    @full.setter
    def full(self, value: bool) -> None:
        _check_same("full", value, self.full)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw a batch.

        Args:
            batch_size: `B`, at least 1.
            env: The environment that normalises observations and rewards; None changes nothing.

        Returns:
            The batch, of the type that Stable-Baselines3 has: `ReplayBufferSamples`, or
            `DictReplayBufferSamples` for dicts of observations. With priorities a
            `PrioritizedReplayBufferSamples`.

        Raises:
            RuntimeError: If there is nothing to draw. Also at a second draw with priorities, if
                none was updated: the algorithm then is one that does not know of them.
        """
        _checks.integer("batch_size", batch_size, 1, 2**31 - 1)
        memory = self.memory
        if not memory.steps:
            raise RuntimeError(f"{WHERE}.sample: the buffer is empty; add rows before")
        turns = memory.turns
        before, turns.adding = turns.adding, True  # steps wait, so that all is of the same rows
        try:
            if self._draws_by_position():
                return self._get_samples(memory.places(batch_size)[0], env=env)
            return self._draw(batch_size, env)
        finally:
            turns.adding = before
            if turns.later:
                turns.go_on()

    def _draw(self, batch_size: int, env: VecNormalize | None) -> Any:
        """Draw a batch by the sampler."""
        self._check_updated()
        self.settle()
        return self._samples(valid(self.memory.draw(batch_size, self.beta)), env)

    def _get_samples(self, batch_inds: Array, env: VecNormalize | None = None) -> Any:
        """Return rows at positions, each of an environment drawn at random."""
        if self.memory.drawing.weighted:
            raise RuntimeError(
                f"{WHERE}: rows at positions have no importance weights; call sample, or make the "
                "buffer with fbuf.Uniform()"
            )
        memory, steps = self.memory, np.asarray(batch_inds)
        if steps.dtype.kind not in "iu":
            raise TypeError(
                f"{WHERE}: batch_inds must be integers, the positions of rows, got {steps.dtype}; "
                "give np.flatnonzero(mask) for a mask"
            )
        steps = steps.astype(np.int64)  # unsigned ones would not go together with others
        if not memory.steps:
            raise RuntimeError(f"{WHERE}: the buffer is empty; add rows before")
        with memory.turns.held():
            envs = memory.places(len(steps))[1]
            wrong = (steps < -self.buffer_size) | (steps >= self.buffer_size)
            wrong |= ~memory.ages(steps, envs)[1]
            if wrong.any():
                raise IndexError(
                    f"{WHERE}: batch_inds must be positions of stored rows, and there is none at "
                    f"{steps[wrong][0]}; draw them below pos, or below buffer_size if it is full"
                )
            return self._samples(valid(memory.take(steps % self.buffer_size, envs)), env)

    def _samples(self, fields: Fields, env: VecNormalize | None) -> Any:
        """Return the batch of what was drawn."""
        batches, hooked = self._batches, functools.partial(_overrides.hooked, self)
        found = batches.of(fields)
        if env is not None or hooked("_normalize_obs"):
            batches.change_observations(found, lambda obs: self._normalize_obs(obs, env))
        if env is not None or hooked("_normalize_reward"):
            each = hooked("_normalize_reward") or (env is not None and env.norm_reward)
            several = fields.get("rewards")
            steps = lambda: several or self.memory.rewards(fields["ids"], self.n_steps)
            change = lambda rewards: self._normalize_reward(rewards, env)
            batches.change_rewards(found, change, steps if each else None)
        to_torch = self.to_torch if hooked("to_torch") else None
        batch = batches.deliver(found, fields, self.device, self._weighs, to_torch)
        if self._weighs:
            self._losses = batch.rewards.losses
        return batch

    def __setstate__(self, kept: dict[str, Any]) -> None:
        """Go on from a pickle. Another algorithm may have loaded it: priorities are due again."""
        restore = getattr(super(), "__setstate__", vars(self).update)
        restore(kept)
        self._drew = self._was_updated = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; refuse what would have no effect, such as new rows."""
        if name in AllRows._fields:
            raise AttributeError(
                f"{WHERE}: {name} cannot be assigned, because stored rows do not change; add the "
                "rows to a new buffer"
            )
        if name not in _FREE and "memory" in vars(self):
            if name in self._redraws:
                self._draw_otherwise(name, value)
                return
            if name in self._made_with:
                if value == getattr(self, name):
                    return
                raise AttributeError(
                    f"{WHERE}: {name} cannot be set to {value!r}, because the buffer was made with "
                    f"{getattr(self, name)!r}; make another one"
                )
            if _overrides.check_attribute(self, name):
                super().__setattr__("_derived", True)
        super().__setattr__(name, value)

    _redraws = frozenset(("n_steps", "gamma"))
    """The arguments that say how batches are drawn, and can be set."""
    _made_with = frozenset(
        ("memory", "buffer_size", "n_envs", "n_stack", "arrays", "obs_shape", "action_dim")
    )
    """Attributes that cannot be set to another value."""

    def _draw_otherwise(self, name: str, value: Any) -> None:
        """Set an argument that says how batches are drawn, and draw so from now on."""
        before = getattr(self, name)
        super().__setattr__(name, value)
        try:
            _checks.integer("n_steps", self.n_steps, 1, self.buffer_size)
            self.memory.draw_by(self._drawing(self.memory.spec.sampler))
        except BaseException:
            super().__setattr__(name, before)
            raise
        self._batches.gamma = self.gamma if self.n_steps > 1 else None

    if not TYPE_CHECKING:  # the base class declares the arrays of rows

        def __getattr__(self, name):
            """Return one of the arrays of all rows, such as `rewards`; see `Rows`."""
            if name in AllRows._fields:
                return rows_of(self.memory, self._columns, name)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def stored(self) -> AllRows:
        """Return all rows as read-only arrays `[buffer_size, n_envs, ...]`. O(N)."""
        return stored(self.memory, self._columns)


_GET_SAMPLES = vars(ReplayBuffer)["_get_samples"]
_FREE = frozenset(("beta", "_losses", "_weighs", "_drew", "_was_updated"))
"""Attributes that `sample` sets."""


Holder.register(ReplayBuffer, lambda buffer, _: buffer.memory.state)


def _check_same(name: str, value: Any, own: Any) -> None:
    """Refuse to set where the next row goes."""
    if value != own:
        raise AttributeError(
            f"{WHERE}: {name} cannot be set to {value!r}, because new rows come after the newest "
            f"one, and {name} is {own!r}; call reset() to forget all rows"
        )


def _seed(given: int | None) -> int:
    """Return a seed. The algorithm has seeded NumPy's global generator."""
    if given is None:
        return int(np.random.randint(2**32, dtype=np.uint32))  # noqa: NPY002  (which the algorithm has seeded)
    return _checks.integer("seed", given, 0, 2**32 - 1)
