"""Uniform sampling: every stored row alike, or every window."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from fbuf import _check, _ring
from fbuf._ring import START, Ring, Span
from fbuf.samplers import _bits, _starts
from fbuf.samplers._protocol import Draw
from fbuf.samplers._starts import Window
from fbuf.trees import count_tree
from fbuf.trees._levels import last_of_each
from fbuf.trees.count_tree import CountTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StartIndex:
    """What `Uniform` keeps: how many starts there are under each node, and in all.

    Which rows are starts is in the flags of the ring. `total` is None where every row is one, for
    then the ring knows.
    """

    tree: CountTree
    total: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Draw every row with the same probability, with replacement; or the start of every window.

    With a window only those rows are drawn from which so many steps of one episode are there, each
    exactly as likely as any other: none is rejected, cut short, or moved.

    Its index is a bit a row and the counts above them (0.27 bytes a row), kept as rows are written
    and removed. As long as nothing is removed and there is no window, a slot is the rank itself.

    Attributes:
        window: How many steps of one episode must follow from a row, itself included, for it to
            be drawn. From 1 to the length of a lane.
        stride: Draw only every so-manieth step of a lane. Must divide the length of a lane.
        starts: `"any"`, or `"first"`: only the first step of an episode.

    Cost: adding B rows O(B log N), drawing B rows O(B), or O(B log N) with a window or while rows
    are removed. On a GPU the rank is always looked up, as a branch there waits for the host.
    Removing B rows O(B window log N).

    Raises:
        ValueError: If an argument is out of its range.
        TypeError: If `window` or `stride` is no int.

    Example:
        >>> import fbuf, jax.numpy as jnp
        >>> fbuf.init(jnp.zeros(3), capacity=100, sampler=fbuf.Uniform(window=4)).sampler
        Uniform(window=4, stride=1, starts='any')
    """

    window: int = 1
    stride: int = 1
    starts: Literal["any", "first"] = "any"

    def __post_init__(self) -> None:
        for name in ("window", "stride"):
            _check.positive_int("Uniform", name, getattr(self, name), 2**31 - 1)
        if self.starts not in ("any", "first"):
            raise ValueError(f"fbuf.Uniform: starts must be 'any' or 'first', got {self.starts!r}")

    @property
    def flags_of_new_rows(self) -> int:
        """A new row is a start at once if every row is one."""
        return START if self._window.every_row else 0

    @property
    def follows_episodes(self) -> bool:
        """Whether it must be known where in its episode a row is."""
        return not self._window.every_row

    @property
    def _window(self) -> Window:
        return Window(self.window, self.stride, self.starts == "first")

    def init(self, ring: Ring) -> StartIndex:
        """No start."""
        _starts.check("Uniform", ring, self._window)
        total = None if self._window.every_row else jnp.int32(0)
        return StartIndex(count_tree.empty(ring.capacity), total)

    def add(
        self,
        index: StartIndex,
        ring: Ring,
        span: Span,
        priority: jax.Array | None,
        alpha: jax.Array | float | None,
    ) -> tuple[StartIndex, Ring, jax.Array]:
        """Count the starts there are now, and those that made way."""
        if priority is not None or alpha is not None:
            raise ValueError(_no_priorities("add"))
        faults = jnp.zeros_like(span.slots, jnp.uint32)
        written = jnp.minimum(span.slots, ring.capacity - 1)
        gone = (span.replaced & START > 0).astype(jnp.int32)
        if index.total is None:
            by = span.drawable.astype(jnp.int32) - gone
            return (
                dataclasses.replace(index, tree=count_tree.add(index.tree, written, by)),
                ring,
                faults,
            )
        starts, there = _starts.completed(ring, span, self._window)
        tree = count_tree.add(
            index.tree,
            jnp.concatenate([written, starts]),
            jnp.concatenate([-gone, there.astype(jnp.int32)]),
        )
        change = jnp.sum(there, dtype=jnp.int32) - jnp.sum(
            jnp.where(span.was_stored, gone, 0), dtype=jnp.int32
        )
        ring = _ring.set_flag(ring, jnp.where(there, starts, ring.capacity), START, on=True)
        return StartIndex(tree, index.total + change), ring, faults

    def update_priority(
        self,
        index: StartIndex,
        ring: Ring,
        slots: jax.Array,
        priority: jax.Array,
        alpha: jax.Array | float | None,
    ) -> tuple[StartIndex, jax.Array]:
        """Refused: there is no priority to change."""
        raise ValueError(_no_priorities("update_priority"))

    def remove(self, index: StartIndex, ring: Ring, slots: jax.Array) -> tuple[StartIndex, Ring]:
        """Count the starts of all windows with these rows no more."""
        starts = slots
        if self.window > 1:
            starts = _starts.containing(ring, slots, self._window)
            starts = jnp.where(last_of_each(starts), starts, ring.capacity)
        inside = jnp.minimum(starts, ring.capacity - 1)
        marked = ring.flags.at[inside].get(mode="promise_in_bounds") & START > 0
        # Marks behind the newest row are from before the last clear, and count for nothing.
        lost = (marked & (starts < ring.stored)).astype(jnp.int32)
        tree = count_tree.add(index.tree, inside, -lost)
        total = None if index.total is None else index.total - jnp.sum(lost, dtype=jnp.int32)
        ring = _ring.set_flag(ring, jnp.where(lost > 0, starts, ring.capacity), START, on=False)
        return StartIndex(tree, total), ring

    def clear(self, index: StartIndex) -> StartIndex:
        """No start. What is counted still lies behind the newest row, out of reach of any rank."""
        if index.total is None:
            return index
        return dataclasses.replace(index, total=jnp.zeros_like(index.total))

    def can_sample(self, index: StartIndex, ring: Ring) -> jax.Array:
        """Whether there is a start."""
        return self._total(index, ring) > 0

    def draw(
        self,
        index: StartIndex,
        ring: Ring,
        key: jax.Array,
        batch_size: int,
        beta: jax.Array | float | None,
    ) -> Draw:
        """Draw starts. Weights are 1 whatever `beta` is."""
        total = self._total(index, ring)
        ranks = _bits.ranks(key, batch_size, total)
        mask = jnp.broadcast_to(total > 0, (batch_size,))

        def select(tree: CountTree, ring: Ring, ranks: jax.Array) -> jax.Array:
            return count_tree.select(tree, ring.flags, START, ranks)

        def unless_all(tree: CountTree, ring: Ring, ranks: jax.Array) -> jax.Array:
            return lax.cond(ring.removed == 0, lambda: ranks, lambda: select(tree, ring, ranks))

        if index.total is None:
            slots = lax.platform_dependent(index.tree, ring, ranks, cpu=unless_all, default=select)
        else:
            slots = select(index.tree, ring, ranks)
        likely = jnp.where(mask, 1 / jnp.maximum(total, 1).astype(jnp.float32), 0)
        return Draw(slots, likely, mask.astype(jnp.float32), mask)

    def stats(self, index: StartIndex, ring: Ring) -> dict[str, jax.Array]:
        """With a window how many starts there are."""
        return {} if index.total is None else {"starts": index.total}

    def _total(self, index: StartIndex, ring: Ring) -> jax.Array:
        return ring.stored - ring.removed if index.total is None else index.total


def _no_priorities(function: str) -> str:
    return (
        f"fbuf.{function}: the buffer's sampler is Uniform, which keeps no priorities; leave "
        "priority and alpha out, or make the buffer with sampler=fbuf.Prioritized()"
    )
