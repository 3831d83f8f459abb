"""Drawing one batch from several buffers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Generic

import jax
import jax.numpy as jnp

from fbuf._arrays import Array, PRNGKey
from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.checks.uncompared import Uncompared
from fbuf.dispatch.call import operation, require_state
from fbuf.ops.sample import CHECKS, drawn
from fbuf.samplers.chance import random_bits, weights
from fbuf.state import Sample, State
from fbuf.storage import shown
from fbuf.storage.ids import Ids
from fbuf.storage.store import Item
from fbuf.views.item import Item as ItemView
from fbuf.views.protocol import Data, View


@pytree(eq=False)
class MixedSample(Uncompared, Generic[Item]):
    """A batch of `fbuf.sample_mixed`: the draws of the first buffer, then those of the next.

    Attributes:
        sample: A sample as from `fbuf.sample`, leaves `[batch_size, ...]`. `probability` is the
            probability within each buffer. `weight` is normalised over the whole batch.
        source: int32 `[batch_size]`: the number of the buffer of each draw.
        counts: The number of draws from each buffer; static.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> both = [fbuf.add(fbuf.init(jnp.int32(0), 4), jnp.full(4, n)) for n in (5, 6)]
        >>> mixed = fbuf.sample_mixed([(both[0], 0.25), (both[1], 0.75)], jax.random.key(0), 4)
        >>> mixed.sample.data, mixed.source, mixed.ids(1).slot.shape
        (Array([5, 6, 6, 6], dtype=int32), Array([0, 1, 1, 1], dtype=int32), (3,))
    """

    __repr__ = shown.batch_repr

    sample: Sample[Item]
    """A sample as from `fbuf.sample`, leaves `[batch_size, ...]`."""
    source: jax.Array
    """int32 `[batch_size]`: the number of the buffer of each draw."""
    counts: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    """The number of draws from each buffer."""

    def ids(self, source: int) -> Ids:
        """Return the ids of one buffer's draws, for `fbuf.update_priority` of that buffer."""
        return jax.tree.map(lambda leaf: self.of(source, leaf), self.sample.ids)

    def of(self, source: int, values: jax.Array) -> jax.Array:
        """Return one buffer's part of `[batch_size, ...]` values, such as TD errors."""
        begin = sum(self.counts[:source])
        return values[begin : begin + self.counts[source]]


def sample_mixed(
    sources: Sequence[tuple[State[Any], float]],
    key: PRNGKey,
    batch_size: int,
    *,
    view: View[Data] = ItemView(),
    beta: Array | float | None = None,
) -> MixedSample[Data]:
    """Draw one batch from several buffers, such as offline and online data.

    Args:
        sources: Pairs of a buffer and its share. All buffers hold the same item. A share is a
            Python number above 0; shares are divided by their sum. Each buffer gets exactly `share
            * batch_size` draws if that is a whole number. If not, it is rounded down. The remaining
            draws go to the buffers that lost most.
        key: A key of `jax.random`. Use a key once only.
        batch_size: The number of draws in all, a static int: at least one for each buffer.
        view: The view of each drawn row; static.
        beta: As for `fbuf.sample`, for all buffers.

    Returns:
        The batch. Weights make up for what a buffer's sampler prefers, not for the shares, which
        you chose. A weight is `(N * probability) ** -beta` with the buffer's own `N` and
        `probability`, divided by the largest weight in the whole batch. So all draws from a uniform
        buffer have the same weight. The part of a buffer that has nothing to draw is masked, with
        weights 0.

    Raises:
        ValueError: When traced, if there are no sources, if a share is not above 0, or if the items
            differ. Also if a buffer draws by `fbuf.Shuffled` or `fbuf.Fifo`, or remembers draws:
            `fbuf.FreshFirst`, and `fbuf.Limited` with `max_uses`. Also if a buffer would get no
            draw.
        TypeError: When traced, if a source is not a pair of a state and a Python number.
        RuntimeError: If a state has been consumed.

    Cost: that of one `fbuf.sample` for each buffer.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> offline = fbuf.add(fbuf.init(jnp.int32(0), 4), jnp.int32([1, 1]))
        >>> online = fbuf.init(jnp.int32(0), 4, sampler=fbuf.Prioritized())
        >>> mixed = fbuf.sample_mixed([(offline, 1), (online, 1)], jax.random.key(0), 4)
        >>> mixed.sample.mask
        Array([ True,  True, False, False], dtype=bool)

    References:
        Ball et al., Efficient Online Reinforcement Learning with Offline Data, ICML 2023.
    """
    check.integer("sample_mixed", "batch_size", batch_size)
    check.instance("sample_mixed", "view", view, View, "fbuf.Item()")
    if view.time_major:
        raise ValueError(
            "fbuf.sample_mixed: batches are joined on their first axis; leave time_major out of "
            "the view"
        )
    states, shares = _taken_apart(sources)
    counts = _counts(shares, batch_size)
    return _sample_mixed(tuple(states), key, beta=beta, counts=counts, view=view)


def _taken_apart(sources: Any) -> tuple[list[State[Any]], list[float]]:
    """Return the states and the shares, all checked."""
    if not isinstance(sources, list | tuple) or not sources:
        raise ValueError(
            f"fbuf.sample_mixed: sources must be a list of (state, share), got {sources!r}"
        )
    states: list[State[Any]] = []
    shares: list[float] = []
    for source in sources:
        if not isinstance(source, tuple) or len(source) != 2 or isinstance(source, State):
            raise TypeError("fbuf.sample_mixed: each of sources must be a pair (state, share)")
        state, share = source
        require_state("sample_mixed", state)
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise TypeError(
                f"fbuf.sample_mixed: a share must be a Python number because shapes depend on it, "
                f"got {share!r}"
            )
        if not (math.isfinite(share) and share > 0):
            raise ValueError(f"fbuf.sample_mixed: a share must be above 0, got {share}")
        if state.sampler.without_replacement:
            raise ValueError(
                f"fbuf.sample_mixed: a source has the sampler {type(state.sampler).__name__}, "
                "whose batches are numbered; give it another sampler, or draw from it with "
                "fbuf.sample(..., step=i)"
            )
        if state.sampler.notes_draws:
            raise ValueError(
                f"fbuf.sample_mixed: a source has the sampler {type(state.sampler).__name__}, "
                "which remembers what was drawn; draw from it with fbuf.draw"
            )
        if states and not _alike(state, states[0]):
            raise ValueError(
                "fbuf.sample_mixed: all buffers must hold the same items, got "
                f"{states[0].storage.item} and {state.storage.item}"
            )
        states.append(state)
        shares.append(float(share))
    return states, shares


def _alike(one: State[Any], other: State[Any]) -> bool:
    """Tell whether two buffers hold the same items."""
    return one.storage.layout == other.storage.layout


def _counts(shares: list[float], batch_size: int) -> tuple[int, ...]:
    """Return the draws of each buffer: rounded down, and the rest to buffers that lost most."""
    exact = [share / sum(shares) * batch_size for share in shares]
    counts = [math.floor(count + 1e-9) for count in exact]
    by_need = sorted(range(len(shares)), key=lambda at: counts[at] - exact[at])
    for at in by_need[: batch_size - sum(counts)]:
        counts[at] += 1
    if 0 in counts:
        raise ValueError(
            f"fbuf.sample_mixed: source {counts.index(0)} with share {shares[counts.index(0)]} "
            f"would get none of {batch_size} draws; raise its share or batch_size"
        )
    return tuple(counts)


@operation(
    static=("counts", "view"),
    checks={n: CHECKS[n] for n in ("key", "view", "beta")},
    typed=("key",),
    several=True,
)
def _sample_mixed(
    states: tuple[State[Any], ...], key: Any, *, beta: Any, counts: tuple[int, ...], view: View
) -> MixedSample[Any]:
    parts = [
        drawn(state, random_bits.fold_in(key, number), beta, None, count, view)
        for number, (state, count) in enumerate(zip(states, counts, strict=True))
    ]
    together = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *[part for part, _ in parts])
    log_weight = jnp.concatenate([log_weight for _, log_weight in parts])
    weight = weights.renormalised(log_weight, together.mask)
    source = [jnp.full(count, number, jnp.int32) for number, count in enumerate(counts)]
    return MixedSample(
        sample=dataclasses.replace(together, weight=weight),
        source=jnp.concatenate(source),
        counts=counts,
    )
