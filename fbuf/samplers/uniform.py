"""Uniform sampling: every stored row alike, every window, or every episode."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from fbuf._ring import Ring, Span
from fbuf.samplers import _runs, _start_index, _starts
from fbuf.samplers._protocol import Draw
from fbuf.samplers._runs import Runs
from fbuf.samplers._start_index import StartIndex
from fbuf.samplers._starts import Window


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class UniformIndex:
    """What `Uniform` keeps: the starts; and their runs, None unless episodes are drawn."""

    starts: StartIndex
    runs: Runs | None


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Draw every row with the same probability, with replacement; or the start of every window.

    With a window only those rows are drawn from which so many steps of one episode are there: none
    is rejected, cut short, or moved. These are the starts, each exactly as likely as any other; or,
    with `by="episode"`, first an episode is drawn, each as likely as any other that has a start,
    and then one of its starts. An episode that is still going on counts with what it has so far.

    Its index is a bit a row and the counts above them, 0.134 bytes a row (three times that by
    episode), kept as rows are written and removed. As long as nothing is removed and there is no
    window, a slot is the rank itself.

    Attributes:
        window: How many steps of one episode must follow from a row, itself included, for it to
            be drawn. From 1 to the length of a lane.
        by: `"start"`: every start alike; `"episode"`: every episode alike, and in it every start.
            Where a removed row parts the starts of an episode, they count as two. Importance
            weights make up for the lengths of episodes if `beta` is given to `fbuf.sample`;
            without, they are 1.
        stride: Draw only every so-manieth step of a lane. Must divide the length of a lane.
        starts: `"any"`, or `"first"`: only the first step of an episode.

    Cost: adding B rows O(B log N), drawing B rows O(B), or O(B log N) with a window, by episode,
    or while rows are removed. On a GPU the rank is always looked up, as a branch there waits for
    the host. Removing B rows O(B window log N). Clearing is O(1), but by episode, or where
    environments do not step together, the index is zeroed.

    Raises:
        ValueError: If an argument is out of its range.
        TypeError: If `window` or `stride` is no int.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> fbuf.init(jnp.zeros(3), capacity=100, sampler=fbuf.Uniform(window=4)).sampler
        Uniform(window=4, by='start', stride=1, starts='any')
    """

    window: int = 1
    by: Literal["start", "episode"] = "start"
    stride: int = 1
    starts: Literal["any", "first"] = "any"

    def __post_init__(self) -> None:
        _starts.check_options("Uniform", self.window, self.stride, self.starts)
        if self.by not in ("start", "episode"):
            raise ValueError(f"fbuf.Uniform: by must be 'start' or 'episode', got {self.by!r}")

    @property
    def follows_episodes(self) -> bool:
        """Whether it must be known where in its episode a row is."""
        return not self._window.every_row

    @property
    def _window(self) -> Window:
        return Window(self.window, self.stride, self.starts == "first", self.by == "episode")

    def init(self, ring: Ring) -> UniformIndex:
        """No start."""
        _starts.check("Uniform", ring, self._window)
        runs = _runs.empty(ring) if self.by == "episode" else None
        return UniformIndex(_start_index.empty(ring, self._window), runs)

    def add(
        self,
        index: UniformIndex,
        ring: Ring,
        span: Span,
        priority: jax.Array | None,
        alpha: jax.Array | float | None,
    ) -> tuple[UniformIndex, jax.Array]:
        """Count the starts there are now, and those that made way."""
        if priority is not None or alpha is not None:
            raise ValueError(_starts.no_priorities("add", "Uniform"))
        starts, change = _start_index.add(index.starts, ring, span, self._window)
        runs = index.runs
        if runs is not None:
            runs = _runs.add(runs, starts, ring, span, self._window, change)
        return UniformIndex(starts, runs), jnp.zeros_like(span.slots, jnp.uint32)

    def update_priority(
        self,
        index: UniformIndex,
        ring: Ring,
        slots: jax.Array,
        priority: jax.Array,
        alpha: jax.Array | float | None,
    ) -> tuple[UniformIndex, jax.Array]:
        """Refused: there is no priority to change."""
        raise ValueError(_starts.no_priorities("update_priority", "Uniform"))

    def remove(self, index: UniformIndex, ring: Ring, slots: jax.Array) -> UniformIndex:
        """Count the starts of all windows with these rows no more."""
        starts, lost = _start_index.remove(index.starts, ring, slots, self._window)
        runs = index.runs
        if runs is not None:
            runs, starts = _runs.remove(runs, starts, ring, lost, self._window)
        return UniformIndex(starts, runs)

    def clear(self, index: UniformIndex, ring: Ring) -> UniformIndex:
        """No start."""
        if index.runs is None:
            return UniformIndex(_start_index.clear(index.starts, ring), None)
        starts = _start_index.emptied(index.starts)
        return UniformIndex(starts, _runs.clear(index.runs))

    def can_sample(self, index: UniformIndex, ring: Ring) -> jax.Array:
        """Whether there is a start."""
        return _start_index.total(index.starts, ring) > 0

    def draw(
        self,
        index: UniformIndex,
        ring: Ring,
        key: jax.Array,
        batch_size: int,
        beta: jax.Array | float | None,
        step: jax.Array | int | None,
    ) -> Draw:
        """Draw starts. By start weights are 1 whatever `beta` is."""
        _starts.no_step(step, "Uniform")
        total = _start_index.total(index.starts, ring)
        if index.runs is None:
            slots, mask = _start_index.draw(index.starts, ring, key, batch_size)
            likely = jnp.where(mask, 1 / jnp.where(mask, total, 1).astype(jnp.float32), 0)
            one = mask.astype(jnp.float32)
            return Draw(slots, likely, one, jnp.zeros_like(one), mask)
        slots, length, mask = _runs.draw(
            index.runs, index.starts, ring, key, batch_size, self._window
        )
        each = jnp.maximum(index.runs.count, 1).astype(jnp.float32) * length.astype(jnp.float32)
        power = 0.0 if beta is None else _starts.power(beta)
        relative = jnp.where(mask, total, 1).astype(jnp.float32) / each
        log_weight = jnp.where(mask, -power * jnp.log(relative), 0)
        weight = jnp.where(mask, jnp.exp(log_weight - log_weight.max()), 0)
        return Draw(slots, jnp.where(mask, 1 / each, 0), weight, log_weight, mask)

    def stats(self, index: UniformIndex, ring: Ring) -> dict[str, jax.Array]:
        """With a window how many starts there are, and by episode how many episodes with one."""
        found = {} if index.starts.total is None else {"starts": index.starts.total}
        return found if index.runs is None else {**found, "episodes": index.runs.count}
