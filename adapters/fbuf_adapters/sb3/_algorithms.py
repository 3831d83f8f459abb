"""Algorithms of Stable-Baselines3 that learn from prioritised batches."""

from __future__ import annotations

import io
import pathlib
import warnings
from typing import Any

from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common import buffers
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

import fbuf
from fbuf_adapters.sb3._replay_buffer import ReplayBuffer

_THEIRS = buffers.ReplayBuffer, buffers.DictReplayBuffer, buffers.NStepReplayBuffer
"""The classes that the algorithms choose by themselves."""


class PrioritizedReplay(OffPolicyAlgorithm):
    """Prioritised replay for an off-policy algorithm: a mixin, to be the first base class.

    `train` runs as it is. Its losses are weighted by importance, and the mean absolute TD error of
    a batch's losses becomes the priorities of its rows. `beta` goes from the sampler's to 1 over
    the run. The algorithm's loss must be `mse_loss`, `smooth_l1_loss` or `huber_loss` of values
    `[B, 1]`; of another loss `train` says so, with a `RuntimeError`.

    Arguments are those of the algorithm. `replay_buffer_class` is a `ReplayBuffer` of this package
    or a subclass, and by default that class. Without a `sampler` in `replay_buffer_kwargs` it is
    `fbuf.Prioritized()`. `n_steps` and `gamma` of the algorithm are those of the buffer, too. A
    model that was saved by the plain algorithm can be loaded.

    Raises:
        TypeError: If `replay_buffer_class` is another class.
        ValueError: If the sampler keeps no priorities, or with `arrays="jax"`. Also if `n_steps`
            and that of `replay_buffer_kwargs` differ, or with goals.

    Examples:
        >>> from stable_baselines3 import DDPG
        >>> from fbuf_adapters.sb3 import PrioritizedReplay
        >>> class PrioritizedDDPG(PrioritizedReplay, DDPG):
        ...     pass
        >>> model = PrioritizedDDPG("MlpPolicy", "Pendulum-v1", buffer_size=100, learning_starts=10)
        >>> model.learn(12).num_timesteps
        12

    References:
        Schaul et al., Prioritized Experience Replay, ICLR 2016.
    """

    def _setup_model(self) -> None:
        """Make a buffer with priorities, also for a model that was saved without."""
        kind: Any = self.replay_buffer_class
        if kind in (None, *_THEIRS):
            kind = ReplayBuffer
        where = f"fbuf_adapters.sb3.{type(self).__name__}"
        if not issubclass(kind, ReplayBuffer):
            raise TypeError(
                f"{where}: replay_buffer_class must be a ReplayBuffer of fbuf_adapters.sb3, got "
                f"{kind.__name__}"
            )
        options = {"sampler": fbuf.Prioritized()} | self.replay_buffer_kwargs
        if not getattr(options["sampler"], "keeps_priorities", False):
            raise ValueError(
                f"{where}: sampler must keep priorities, such as fbuf.Prioritized(), got "
                f"{options['sampler']}"
            )
        if options.get("arrays", "torch") != "torch":
            raise ValueError(
                f"{where}: arrays={options['arrays']!r} has no losses of torch to weigh; leave "
                "arrays out. SBX, whose losses know no weights, draws with fbuf.Uniform"
            )
        if (n_steps := self.n_steps) > 1:
            if options.setdefault("n_steps", n_steps) != n_steps:
                raise ValueError(
                    f"{where}: n_steps is {n_steps}, and {options['n_steps']} in "
                    "replay_buffer_kwargs; give it once"
                )
            options.setdefault("gamma", self.gamma)
        self.replay_buffer_class, self.replay_buffer_kwargs = kind, options
        with warnings.catch_warnings():
            # It says that the n_steps are ignored, which they are not.
            warnings.filterwarnings("ignore", ".*n_steps=.* is ignored because a custom")
            super()._setup_model()

    def save_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """Save the replay buffer: to a file that is there whole or not at all, or to a stream."""
        if isinstance(self.replay_buffer, ReplayBuffer) and isinstance(path, str | pathlib.Path):
            self.replay_buffer.save(path)
        else:
            super().save_replay_buffer(path)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Update the networks from weighted batches, and the priorities of their rows."""
        buffer: Any = self.replay_buffer
        if not isinstance(buffer, ReplayBuffer) or not buffer.memory.drawing.weighted:
            raise TypeError(
                f"fbuf_adapters.sb3.{type(self).__name__}: the replay buffer keeps no priorities, "
                "because another one was loaded or set; load one that was saved by this class"
            )
        first = getattr(buffer.memory.spec.sampler, "beta", None)
        if first is not None:
            buffer.beta = 1 - (1 - first) * self._current_progress_remaining
        with buffer.weighted_losses():
            super().train(gradient_steps=gradient_steps, batch_size=batch_size)


class PrioritizedDQN(PrioritizedReplay, DQN):
    """DQN of Stable-Baselines3 with prioritised replay; see `PrioritizedReplay`.

    Examples:
        >>> from fbuf_adapters.sb3 import PrioritizedDQN
        >>> model = PrioritizedDQN("MlpPolicy", "CartPole-v1", buffer_size=100, learning_starts=10)
        >>> model.learn(20).replay_buffer.sample(4).weights.shape
        torch.Size([4, 1])
    """


class PrioritizedSAC(PrioritizedReplay, SAC):
    """SAC of Stable-Baselines3 with prioritised replay; see `PrioritizedReplay`.

    Examples:
        >>> from fbuf_adapters.sb3 import PrioritizedSAC
        >>> model = PrioritizedSAC("MlpPolicy", "Pendulum-v1", buffer_size=100, learning_starts=10)
        >>> model.learn(12).num_timesteps
        12
    """


class PrioritizedTD3(PrioritizedReplay, TD3):
    """TD3 of Stable-Baselines3 with prioritised replay; see `PrioritizedReplay`.

    Examples:
        >>> from fbuf_adapters.sb3 import PrioritizedTD3
        >>> model = PrioritizedTD3("MlpPolicy", "Pendulum-v1", buffer_size=100, learning_starts=10)
        >>> model.learn(12).num_timesteps
        12
    """
