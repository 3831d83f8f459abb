"""Stacks of frames: each frame is stored once, and stacked again when it is drawn.

An environment of Stable-Baselines3 that stacks frames begins each episode with empty frames
(`VecFrameStack`), or with copies of the first one (the wrapper of Gymnasium). A row has its newest
frame, and the number of frames in its stack that came before in the episode. A stack may begin in
the middle of an episode. Its older frames are then in no row, and its row is not drawn.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first

import fbuf
from fbuf.adapter_api import Layout, Reader, Reading, Request, View, Wanted, following
from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._columns import Array, Column


class Frames:
    """Takes stacks apart, and checks that they are the stacks of the frames before.

    Attributes:
        column: The column of one frame.
        axis: The axis that frames are stacked on, in `[n_envs, ...]`.
    """

    def __init__(self, space: Any, stack: Column, n_stack: int) -> None:
        """Take stacks of `n_stack` frames apart."""
        if isinstance(space, spaces.Dict) or not stack.shape:
            raise ValueError(
                f"{WHERE}: n_stack is for observations that are one array, got {space}; leave "
                "n_stack out"
            )
        first = is_image_space(space) and is_image_space_channels_first(space)
        self.axis, self._n = (1 if first else len(stack.shape)), n_stack
        size = stack.shape[self.axis - 1]
        if size % n_stack:
            raise ValueError(
                f"{WHERE}: n_stack={n_stack} frames cannot be stacked in an observation of shape "
                f"{stack.shape}, on its axis of {size}; give the n_stack of your VecFrameStack"
            )
        shape = list(stack.shape)
        shape[self.axis - 1] = size // n_stack
        self.column = Column(tuple(shape), stack.dtype)
        self._shape = stack.shape
        nothing: Any = None
        # An interrupted step may be the newest one here, and not in the buffer: so there are two.
        self._seen: list[tuple[int, Array, Array]] = [(-1, nothing, nothing)] * 2
        self.copies: bool | None = None
        """Whether stacks begin with copies of the first frame; None until a stack tells."""

    def newest(self, stack: Array) -> Array:
        """Return the newest frame of stacks `[n_envs, ...]`."""
        return self._frames(stack)[self._n - 1]

    def _frames(self, stack: Array) -> list[Array]:
        return np.split(stack, self._n, axis=self.axis)

    def stacks(self, given: Any, n_envs: int) -> Array:
        """Return stacks of all environments: `[n_envs, *shape]`."""
        stack, wanted = np.asarray(given), (n_envs, *self._shape)
        if stack.shape != wanted:
            raise ValueError(
                f"{WHERE}: observations must be of shape {wanted}, got {stack.shape}; make the "
                "buffer with the n_envs and the space of your environments"
            )
        return stack

    def depth(self, stack: Array, step: int, is_open: Array) -> tuple[Array, Array]:
        """Count the frames of each stack that came before in its episode.

        Args:
            stack: The stacks of a step. They count as seen once the next step comes.
            step: The number of the step in the run.
            is_open: bool `[n_envs]`; whether the episode of the step before goes on.

        Returns:
            uint8 `[n_envs]`: the count, `n_stack + count` where frames before are not in the
            buffer. Besides bool `[n_envs]`: whether the stack follows the one before.
        """
        frames = np.stack(self._frames(stack))
        known, before, newest = self._seen[(step - 1) % 2]
        depth = np.zeros(stack.shape[0], np.uint8)
        follows = np.zeros(stack.shape[0], bool)
        for env in range(stack.shape[0]):
            mine = frames[:, env]
            if known == step - 1 and is_open[env]:
                follows[env] = np.array_equal(mine[:-1], newest[1:, env])
            if follows[env]:
                depth[env] = self._deeper(int(before[env]))
            elif not self._begins(mine):
                depth[env] = self._n
        self._seen[step % 2] = step, depth, frames
        return depth, follows

    def _deeper(self, before: int) -> int:
        """Return the count behind a stack of this count."""
        missing = before >= self._n
        count = before % self._n + 1
        return self._n + count if missing and count < self._n - 1 else min(count, self._n - 1)

    def _begins(self, frames: Array) -> bool:
        """Whether frames are those of an episode's first step; notes what comes before that."""
        copies = all(np.array_equal(frame, frames[-1]) for frame in frames)
        empty = not any(frame.any() for frame in frames[:-1])
        ways = {True: copies, False: empty}
        possible = [way for way in ways if ways[way] and self.copies in (None, way)]
        if len(possible) == 1:
            self.copies = possible[0]
        return bool(possible)

    def check_next(self, stack: Array, following: Array) -> None:
        """Refuse next observations that are not the stacks with one more frame.

        No loss reads those of terminated rows. There CleanRL hands over the next episode's first.
        """
        pairs = zip(self._frames(stack)[1:], self._frames(following)[:-1], strict=True)
        if not all(np.array_equal(*pair) for pair in pairs):
            raise ValueError(
                f"{WHERE}: a next observation is not the stack of the observation with one more "
                "frame; leave n_stack out, which stores whole stacks"
            )


@dataclasses.dataclass(frozen=True)
class Stacked(View):
    """Return what another view does, with observations and next observations as stacks of frames.

    Attributes:
        view: `fbuf.Transition` or `fbuf.NStep`.
        n: The number of frames in a stack.
        axis: The axis that frames are stacked on, in `[B, ...]`.
        copies: Whether the first frame of an episode stands for those before; else they are 0.
    """

    view: fbuf.Transition | fbuf.NStep
    n: int
    axis: int
    copies: bool

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Request what the view does, and the frames before."""
        asked = self.view.request(reader, slots, key)
        last = slots
        if isinstance(self.view, fbuf.NStep):
            assert isinstance(self.view.n, int)  # the `n_steps` of the buffer
            steps = following(reader, slots, self.view.n)
            count = jnp.maximum(jnp.sum(steps.same_episode, axis=1, dtype=jnp.int32), 1)
            last = jnp.take_along_axis(steps.slots, count[:, None] - 1, axis=1)[:, 0]
        frames = {
            "frames": self._before(reader, slots),
            "last_frames": self._before(reader, last),
            "last_depth": reader.field(last, "depth", "depth"),
        }
        return Request({**asked.rows, **frames}, (asked.seen, reader.ring.older(slots)))

    def _before(self, reader: Reader, slots: jax.Array) -> Wanted:
        """Request the frames at slots and before them, also those of an earlier episode."""
        back = jnp.arange(self.n - 1, -1, -1, dtype=jnp.int32)[None]
        back = jnp.minimum(back, reader.ring.older(slots)[:, None])
        places = reader.ring.later(slots[:, None], -back)
        return reader.field(places, "observation", "observation")

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Stack the frames."""
        asked, older = seen
        made = self.view.build(layout, rows, asked)
        depth = made.data.item["depth"].astype(jnp.int32)
        last_depth = rows["last_depth"].astype(jnp.int32)
        frames, last = ([rows[name][:, at] for at in range(self.n)] for name in _FRAMES)
        item = made.data.item | {"observation": self._stack(frames, depth)}
        following = self._stack([*last[1:], made.data.next_observation], last_depth + 1)
        data = dataclasses.replace(made.data, item=item, next_observation=following)
        # Else frames of the stack were never in the buffer, or have been overwritten.
        known = (depth < self.n) & (older >= depth)
        return Reading(data, made.flags, known if made.known is None else known & made.known)

    def _stack(self, frames: list[jax.Array], depth: jax.Array) -> jax.Array:
        """Stack frames, of which those beyond the depth belong to another episode."""
        age = [self.n - 1 - at for at in range(self.n)]
        lead = (-1, *[1] * (frames[0].ndim - 1))
        first = frames[0]
        for frame, old in zip(frames, age, strict=True):
            first = jnp.where((depth == old).reshape(lead), frame, first)
        blank = first if self.copies else jnp.zeros_like(first)
        pairs = zip(frames, age, strict=True)
        kept = [jnp.where((depth >= old).reshape(lead), frame, blank) for frame, old in pairs]
        return jnp.concatenate(kept, axis=self.axis)


_FRAMES = "frames", "last_frames"
