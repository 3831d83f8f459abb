"""The sum tree by flashbax's fields, computed from that of `fbuf` where they are read."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

import fbuf
from fbuf.adapter_api import stored_priorities
from fbuf_adapters.flashbax.buffers import _steps


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SumTreeState:
    """A view of the priorities of a buffer, to read.

    A leaf is a window: those of the first environment in order, then those of the next one. Its
    value is its priority after the power; 0 while the window is not whole.

    Attributes:
        buffer: The `fbuf.State` with the priorities.
    """

    buffer: fbuf.State[Any]

    @property
    def nodes(self) -> jax.Array:
        """All sums, from the root to the leaves: float32 `[2 ** (tree_depth + 1) - 1]`.

        The first child of node `i` is node `2 * i + 1`, and the second is `2 * i + 2`.

        Cost: O(N), wherever a program uses the values. `fbuf.stats(buffer)["priority_total"]` is
        O(1), and `fbuf.probability(buffer, indices)` is O(B).
        """
        return _steps.of_each(_nodes, self.buffer)

    @property
    def max_recorded_priority(self) -> jax.Array:
        """The largest priority ever stored, after the power; at least 1: float32 scalar."""
        return _steps.of_each(lambda buffer: fbuf.stats(buffer)["new_priority"], self.buffer)

    @property
    def capacity(self) -> int:
        """The number of windows that may begin in the buffer."""
        return _windows(self.buffer) * self.buffer.ring.lanes

    @property
    def tree_depth(self) -> int:
        """The number of steps from the root to a leaf."""
        return (self.capacity - 1).bit_length()

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the nodes."""
        return jnp.dtype(jnp.float32)


def _windows(buffer: fbuf.State[Any]) -> int:
    """Count the windows that may begin in one environment."""
    sampler: Any = buffer.sampler
    return buffer.ring.lane_length // sampler.stride


def _nodes(buffer: fbuf.State[Any]) -> jax.Array:
    tree, sampler = SumTreeState(buffer), buffer.sampler
    steps = jnp.arange(_windows(buffer), dtype=jnp.int32) * sampler.stride
    environments = jnp.arange(buffer.ring.lanes, dtype=jnp.int32)
    slots = (environments[:, None] + steps[None] * buffer.ring.lanes).reshape(-1)
    leaves = stored_priorities(buffer.index, slots)
    levels = [jnp.pad(leaves, (0, 2**tree.tree_depth - tree.capacity))]
    while levels[0].size > 1:
        levels.insert(0, levels[0].reshape(-1, 2).sum(axis=1))
    return jnp.concatenate(levels)
