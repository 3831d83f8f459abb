"""Ids: the names of rows."""

from __future__ import annotations

from typing import Generic

import jax
import jax.numpy as jnp
from typing_extensions import TypeVar

from fbuf._pytree import pytree
from fbuf.checks.uncompared import Uncompared

ArrayT = TypeVar("ArrayT", default=jax.Array)
"""The arrays of a batch: of JAX, or tensors of PyTorch once the batch has crossed."""

NO_SLOT = -1
"""The slot of an id that names no row, as in the masked part of a sample."""


@pytree(eq=False)
class Ids(Uncompared, Generic[ArrayT]):
    """Names of rows: the slot, and the generation that tells a row from later rows in that slot.

    Attributes:
        slot: int32 in `[0, capacity)`, or -1 for no row. With `num_envs` it is `place * num_envs +
            environment`: rows of one step lie side by side.
        generation: int32: the lap of the ring that wrote the row, counted from a random number of
            the buffer. So an id names no row of another buffer. Compare it for equality only.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.ones(1))
        >>> fbuf.sample(state, jax.random.key(0), 2).ids.slot
        Array([0, 0], dtype=int32)
    """

    slot: ArrayT
    """int32 in `[0, capacity)`, or -1 for no row."""
    generation: ArrayT
    """int32: the lap of the ring that wrote the row, counted from a random number of the buffer."""


def only(ids: Ids, mask: jax.Array) -> Ids:
    """Return the ids, and "no row" where a mask is False."""
    return Ids(
        slot=jnp.where(mask, ids.slot, NO_SLOT), generation=jnp.where(mask, ids.generation, 0)
    )
