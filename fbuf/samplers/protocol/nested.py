"""Samplers inside of samplers, with their indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from fbuf.samplers.protocol.sampler import Index, Sampler
from fbuf.samplers.protocol.wrapper import Wrapper
from fbuf.storage.ring import Ring


def nested(sampler: Sampler, index: Index, ring: Ring) -> Iterator[tuple[Sampler, Index]]:
    """Yield a sampler and its inner samplers, the outermost first, each with its index.

    Raises:
        TypeError: If a wrapper has more in its index, and no `inner` says which part is the inner
            index.
    """
    yield sampler, index
    for inner, found in sampler.inner(index):
        if type(sampler).inner is Wrapper.inner:
            found = _part(sampler, inner, found, ring)
        yield from nested(inner, found, ring)


def _part(sampler: Sampler, inner: Sampler, index: Index, ring: Ring) -> Index:
    """Return the wrapped sampler's part of a wrapper's index."""
    wanted = jax.eval_shape(inner.init, ring)
    structure, specs = jax.tree.structure(wanted), _specs(wanted)
    if not specs:
        return structure.unflatten([])
    parts: list[Any] = []

    def is_part(node: Any) -> bool:
        fits = jax.tree.structure(node) == structure and _specs(node) == specs
        if fits:
            parts.append(node)
        return fits

    jax.tree.leaves(index, is_leaf=is_part)
    if len(parts) == 1:
        return parts[0]
    name = type(sampler).__name__
    raise TypeError(
        f"fbuf.samplers.Wrapper: the index of {name} has {len(parts)} parts like that of "
        f"{type(inner).__name__}, and one is needed to look inside; give {name} a method "
        "inner(self, index) that yields self.sampler and its index"
    )


def _specs(tree: Any) -> list[Any]:
    """Return the shape and the dtype of each leaf."""
    return [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(tree)]
