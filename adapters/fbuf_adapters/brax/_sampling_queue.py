"""Buffers that draw batches uniformly or by priority."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import fbuf
from fbuf.adapter_api import check
from fbuf_adapters.brax._replay_buffer import Drawn, ReplayBuffer
from fbuf_adapters.brax._state import ReplayBufferState


class _SamplingQueue(ReplayBuffer[Drawn]):
    """Draws batches by the key of the state."""

    def _drawn(
        self, buffer_state: ReplayBufferState
    ) -> tuple[ReplayBufferState, fbuf.Sample[Any, jax.Array]]:
        """Draw a batch, and return the state with another key."""
        key, draw_key = jax.random.split(buffer_state.key)
        batch = fbuf.sample(self._buffer(buffer_state, "sample"), draw_key, self._batch_size)
        return buffer_state.replace(key=key), batch


class UniformSamplingQueue(_SamplingQueue[Any]):
    """Keeps the newest rows, and draws them uniformly with replacement.

    It has the arguments and methods of brax's class of this name. An insert takes time in
    proportion to its rows, where brax's moves every stored row of a full buffer.

    Args:
        max_replay_size: The number of rows to keep, at least 1.
        dummy_data_sample: One row: any pytree of arrays and numbers. Each leaf keeps its dtype.
        sample_batch_size: The number of rows that `sample` draws, at least 1. They come as the tree
            of `dummy_data_sample`, leaves `[sample_batch_size, ...]`.

    Raises:
        ValueError: If a size is out of range.
        TypeError: If a size is not an int, or if a leaf cannot be stored as it is.

    Cost: O(B) for `insert` and `sample` inside `jit`. Outside, `insert` copies the buffer.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fbuf_adapters.brax import UniformSamplingQueue
        >>> row = {"observation": jnp.zeros(3), "reward": 0.0}
        >>> replay = UniformSamplingQueue(1000, row, sample_batch_size=32)
        >>> state = replay.init(jax.random.PRNGKey(0))
        >>> state = replay.insert(state, {"observation": jnp.ones((8, 3)), "reward": jnp.ones(8)})
        >>> state, batch = replay.sample(state)
        >>> batch["observation"].shape, int(replay.size(state))
        ((32, 3), 8)
    """

    _sampler = fbuf.Uniform()

    def sample_internal(self, buffer_state: ReplayBufferState) -> tuple[ReplayBufferState, Any]:
        """Read a batch as `sample` does, without its check."""
        buffer_state, batch = self._drawn(buffer_state)
        return buffer_state, batch.data


class PrioritizedSamplingQueue(_SamplingQueue[fbuf.Sample[Any, jax.Array]]):
    """Keeps the newest rows, and draws them in proportion to their priorities.

    `sample` returns a `fbuf.Sample`: the rows are its `data`, and beside them are `weight` and
    `ids`. A loss that knows no weights takes `batch.data`, on purpose. To hand it the whole batch
    is an error at once, and not a biased loss.

    Args:
        max_replay_size: As for `UniformSamplingQueue`.
        dummy_data_sample: As for `UniformSamplingQueue`.
        sample_batch_size: As for `UniformSamplingQueue`.
        sampler: The rule of the draws, a `fbuf.Prioritized` that may draw every row. New rows get
            its default priority.

    Raises:
        ValueError: If a size is out of range, or if the sampler draws windows or first rows
            of episodes, whose ends the buffer does not know.
        TypeError: If a size is not an int, if the sampler is no `fbuf.Prioritized`, or if a leaf
            cannot be stored as it is.

    Cost: O(B log N) for each method inside `jit`. Outside, methods that write copy the buffer.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> from fbuf_adapters.brax import PrioritizedSamplingQueue
        >>> replay = PrioritizedSamplingQueue(1000, {"reward": 0.0}, 32)
        >>> state = replay.init(jax.random.PRNGKey(0))
        >>> state = replay.insert(state, {"reward": jnp.arange(8.0)})
        >>> state, batch = replay.sample(state)
        >>> td_error = batch.data["reward"] - 3.0
        >>> loss = (batch.weight * td_error**2).mean()
        >>> state = replay.update_priority(state, batch.ids, td_error)
    """

    def __init__(
        self,
        max_replay_size: int,
        dummy_data_sample: Any,
        sample_batch_size: int,
        sampler: fbuf.Prioritized = fbuf.Prioritized(),
    ) -> None:
        super().__init__(max_replay_size, dummy_data_sample, sample_batch_size)
        check.instance(
            type(self).__name__, "sampler", sampler, fbuf.Prioritized, "fbuf.Prioritized()"
        )
        if sampler.follows_episodes:
            raise ValueError(
                f"{type(self).__name__}: sampler must draw every row, because insert takes no ends "
                "of episodes; leave out window, stride and first_only, or use fbuf.init and "
                "fbuf.add themselves"
            )
        self._sampler = sampler

    def sample_internal(
        self, buffer_state: ReplayBufferState
    ) -> tuple[ReplayBufferState, fbuf.Sample[Any, jax.Array]]:
        """Read a batch as `sample` does, without its check."""
        return self._drawn(buffer_state)

    def update_priority(
        self, buffer_state: ReplayBufferState, ids: fbuf.Ids, td_error: jax.Array
    ) -> ReplayBufferState:
        """Set the priorities of drawn rows to the sizes of their TD errors.

        Args:
            buffer_state: The state; it stays good.
            ids: `batch.ids`, of any shape. Ids of rows that have been replaced are ignored.
            td_error: Real, shaped like `ids`, with its sign or without.

        Returns:
            The state with the new priorities.

        Raises:
            ValueError: When traced, if the shapes differ.
            TypeError: When traced, if `ids` is not a `fbuf.Ids`, or if a dtype does not fit.

        Faults:
            BAD_PRIORITY: A TD error is NaN or infinite. The row keeps its priority.
            STALE_ID: A row has been replaced since it was drawn.

        Cost: O(B log N), and O(N) for a copy outside `jit`.
        """
        buffer = self._buffer(buffer_state, "update_priority")
        buffer = fbuf.update_priority(buffer, ids, jnp.abs(td_error), donate=False)
        return buffer_state.replace(buffer=buffer)


UniformSamplingQueue.__module__ = "fbuf_adapters.brax"  # its public module
PrioritizedSamplingQueue.__module__ = "fbuf_adapters.brax"
