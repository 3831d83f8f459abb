"""The replay buffer for Stable-Baselines3: `replay_buffer_class=fbuf_adapters.sb3.ReplayBuffer`."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecNormalize

import fbuf
from fbuf.adapter_api import BufferSpec, Sampler, View
from fbuf_adapters.sb3 import _checks, _columns
from fbuf_adapters.sb3._batches import Batches, valid
from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._columns import Array, Column, map_columns
from fbuf_adapters.sb3._frames import Frames, Stacked
from fbuf_adapters.sb3._memory import Drawing, Fields, Memory, device_of
from fbuf_adapters.sb3._stored import Stored, plain, stored
from fbuf_adapters.sb3._weighted_losses import Losses


class ReplayBuffer(buffers.ReplayBuffer):
    """Replay memory for the algorithms of Stable-Baselines3, sb3-contrib, SBX and CleanRL.

    Give the class as `replay_buffer_class`, and arguments that are not in the list of Stable-
    Baselines3 as `replay_buffer_kwargs`. It takes box, discrete and binary observations, images,
    and dicts of them. Each observation is stored once: the next one is that of the following row,
    or kept aside at an end. An observation may not be the one that the row before led to, because
    you have reset the environments or have loaded another run. The episode before is then
    truncated there.

    Rows are what Stable-Baselines3 stores, bit for bit, and batches have its shapes and dtypes.
    `observations`, `next_observations`, `actions`, `rewards`, `dones` and `timeouts` are read-only
    copies of all rows. `save_replay_buffer` pickles the buffer, with its random numbers. Only one
    thread may call a buffer.

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
        ValueError: If an argument is out of range, or `n_steps` lacks its `gamma`.
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
        observations = _columns.of_observations(observation_space)
        actions = _columns.of_actions(action_space)
        self.obs_shape = map_columns(lambda column: column.shape, observations)
        (self.action_dim,) = actions.shape
        self._columns: Fields = {"observations": observations, "actions": actions}
        several = gamma if n_steps > 1 else None
        self._batches = Batches(self._columns, several, arrays)
        self._frames = Frames(observation_space, observations, n_stack) if n_stack > 1 else None
        self.memory = Memory(
            BufferSpec(self.buffer_size * n_envs, sampler, n_envs, next_of="observation"),
            self._item(),
            self._drawing(sampler),
            _seed(seed),
            device_of(rows_on),
        )
        """The rows. `memory.state` is the `fbuf.State`."""

        self._never = np.zeros(n_envs, bool)
        self.beta: float | None = None
        """The exponent of importance weights; None is that of the sampler."""
        self._losses: Losses | None = None
        self._weighs = self._drew = self._was_updated = False

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

    def _rows(self, row: Fields, following: Any, terminated: Array, truncated: Array) -> None:
        """Hand over a step of all environments."""
        if self._frames is None:
            self.memory.add(row, following, terminated, truncated)
            return
        stack = self._frames.stacks(row["observation"], self.n_envs)
        following = self._frames.stacks(following, self.n_envs)
        # No loss reads those of terminated rows. There CleanRL hands over the next episode's first.
        self._frames.check_next(stack[~terminated], following[~terminated])
        depth, follows = self._frames.depth(stack, self.memory.steps, self.memory.open())
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

    def reset(self) -> None:
        """Forget all rows. The memory stays allocated."""
        self.memory.clear()

    # Reading.

    @property
    def pos(self) -> int:
        """Where the next step goes, in an environment's rows."""
        return self.memory.steps % self.buffer_size

    @property
    def full(self) -> bool:
        """Whether the next step replaces an old one."""
        return self.memory.steps >= self.buffer_size

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
        if not self.memory.steps:
            raise RuntimeError(f"{WHERE}.sample: the buffer is empty; add rows before")
        self._check_updated()
        self.settle()
        return self._samples(valid(self.memory.draw(batch_size, self.beta)), env)

    def _get_samples(self, batch_inds: Array, env: VecNormalize | None = None) -> Any:
        """Return rows at positions, each of an environment drawn at random."""
        envs = np.random.randint(0, self.n_envs, size=len(batch_inds))  # noqa: NPY002  (the generator that theirs draws from)
        if self.memory.drawing.weighted:
            raise RuntimeError(
                f"{WHERE}: rows at positions have no importance weights; call sample, or make the "
                "buffer with fbuf.Uniform()"
            )
        slots = self.memory.slots(np.asarray(batch_inds), envs)
        return self._samples(valid(self.memory.read(slots)), env)

    def _samples(self, fields: Fields, env: VecNormalize | None) -> Any:
        """Return the batch of what was drawn."""
        found = self._batches.of(fields)
        if env is not None:
            rewards = lambda: self.memory.rewards(fields["ids"], self.n_steps)
            self._batches.normalize(found, env, rewards)
        batch = self._batches.deliver(found, fields, self.device, self._weighs)
        if self._weighs:
            self._losses = batch.rewards.losses
        return batch

    # Priorities.

    def update_priority(self, ids: fbuf.Ids[Any], priority: Any) -> None:
        """Give rows new priorities: the absolute TD errors of your loss.

        Args:
            ids: `batch.ids`. A row that was overwritten since is left out.
            priority: `[B]` or `[B, 1]`, finite: a tensor or an array. Its sign does not matter.

        Raises:
            ValueError: If the sampler keeps no priorities, or if the shape is another one. Also if
                a priority is not finite: the run has diverged.
        """
        if not self.memory.drawing.weighted:
            raise ValueError(
                f"{WHERE}.update_priority: the sampler keeps no priorities; make the buffer with "
                "sampler=fbuf.Prioritized()"
            )
        if isinstance(priority, torch.Tensor):
            priority = priority.detach().cpu().numpy()
        errors = np.abs(np.asarray(priority, np.float32))
        wrong = errors[~np.isfinite(errors)]
        if wrong.size:
            raise ValueError(
                f"{WHERE}.update_priority: TD errors must be finite, got {wrong[0]}; look at the "
                "loss, which has diverged"
            )
        self.memory.update_priority(ids, errors.reshape(np.shape(ids.slot)))
        self._was_updated = True

    @contextlib.contextmanager
    def weighted_losses(self) -> Generator[None]:
        """Weigh the losses of a block, and take TD errors from them; see `WeightedRewards`.

        Raises:
            RuntimeError: If a batch was drawn in the block, and no loss was computed from it.
        """
        self._weighs = True
        try:
            yield
            self.settle()
        finally:
            self._weighs, self._losses = False, None

    def settle(self) -> None:
        """Update the priorities of the batch whose losses were weighted."""
        losses, self._losses = self._losses, None
        if losses is not None:
            self.update_priority(losses.ids, losses.td_error())

    def _check_updated(self) -> None:
        """Refuse a second batch by priority if no priority was updated since the first."""
        if not self.memory.drawing.weighted or self._weighs or self._was_updated:
            return
        if self._drew:
            raise RuntimeError(
                f"{WHERE}.sample: rows are drawn by priority, and no priority was updated since "
                "the first batch. A loss that knows no weights learns from biased batches. Use "
                "PrioritizedDQN, PrioritizedSAC or PrioritizedTD3 of fbuf_adapters.sb3; in a loss "
                "of your own weigh by batch.weights and call update_priority(batch.ids, td_error). "
                "For SBX, whose losses know no weights, leave the sampler out"
            )
        self._drew = True

    def __setstate__(self, kept: dict[str, Any]) -> None:
        """Go on from a pickle. Another algorithm may have loaded it: priorities are due again."""
        restore = getattr(super(), "__setstate__", vars(self).update)
        restore(kept)
        self._drew = self._was_updated = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse new rows in the place of those stored; they would not be drawn."""
        if name in Stored._fields:
            raise AttributeError(
                f"{WHERE}: {name} cannot be assigned, because stored rows do not change; add the "
                "rows to a new buffer"
            )
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # the base class declares them

        def __getattr__(self, name):
            """Return all rows of one array, such as `rewards`; see `stored`."""
            if name in Stored._fields:
                return getattr(self.stored(), name)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def stored(self) -> Stored:
        """Return all rows as read-only arrays `[buffer_size, n_envs, ...]`. O(N)."""
        return stored(self.memory, self._columns, plain(self.memory.drawing.view))


def _seed(given: int | None) -> int:
    """Return a seed. The algorithm has seeded NumPy's global generator."""
    if given is None:
        return int(np.random.randint(2**32, dtype=np.uint32))  # noqa: NPY002  (which the algorithm has seeded)
    return _checks.integer("seed", given, 0, 2**32 - 1)
