"""The policy versions of the rows, and the lowest drawable version."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._pytree import pytree
from fbuf.samplers.index import start_index
from fbuf.samplers.index.start_index import StartIndex
from fbuf.storage.ring import Ring
from fbuf.trees import bit_tree
from fbuf.xla.filled import filled, zeros
from fbuf.xla.rows import read_rows, write_rows

CHUNK = 1024
"""The number of rows that `oldest_stale` reads."""


@pytree
class Versions:
    """The versions of rows.

    Attributes:
        rows: int32 `[N]`; the version of each row.
        lowest: int32 scalar; the lowest version that may be drawn.
    """

    rows: jax.Array
    lowest: jax.Array


def empty(ring: Ring) -> Versions:
    """Return versions of no rows, of which any may be drawn."""
    lowest = filled((), np.iinfo(np.int32).min, np.int32)
    return Versions(zeros(ring.capacity, np.int32), lowest)


def write(versions: Versions, slots: jax.Array, new: jax.Array) -> Versions:
    """Store the versions of rows, `[B]` integers; a slot of `capacity` is left out."""
    if new.dtype == jnp.uint32:
        new = jnp.minimum(new, jnp.uint32(2**31 - 1))
    return dataclasses.replace(versions, rows=write_rows(versions.rows, slots, new.astype("int32")))


def raised(versions: Versions, lowest: jax.Array) -> Versions:
    """Return the versions with a new lowest one; a lower one than before is ignored."""
    return dataclasses.replace(versions, lowest=jnp.maximum(versions.lowest, lowest))


def may_be_drawn(versions: Versions, slots: jax.Array) -> jax.Array:
    """Return whether the versions of slots in range are high enough: bool `[B]`."""
    return read_rows(versions.rows, slots) >= versions.lowest


def oldest_stale(versions: Versions, live: StartIndex, ring: Ring) -> jax.Array:
    """Find stale rows among the oldest live ones: int32 slots, `capacity` in place of others."""
    total = start_index.total(live, ring)
    step = jnp.arange(min(CHUNK, ring.capacity), dtype=jnp.int32)
    there = step < total
    before = bit_tree.rank(live.tree, ring.head[:1] * ring.heads)
    ranks = start_index.around(before, jnp.where(there, step, 0), total)
    slots = bit_tree.select(live.tree, ranks)
    is_stale = there & ~may_be_drawn(versions, slots)
    return jnp.where(is_stale, slots, ring.capacity)


def check_field(name: str, spec: jax.ShapeDtypeStruct) -> None:
    """Refuse a version field that is not one integer of at most 32 bits."""
    kind = np.dtype(spec.dtype)
    if spec.shape or kind.kind not in "iu" or kind.itemsize > 4:
        raise TypeError(
            f"fbuf.init: Limited(version={name!r}) must name one integer of at most 32 bits, and "
            f"the field is {spec.dtype}{list(spec.shape)}; store the version as jnp.int32"
        )
