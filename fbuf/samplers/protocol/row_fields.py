"""The fields of rows that a sampler reads, such as the group of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from fbuf.samplers.protocol.sampler import Sampler
from fbuf.storage.layout import Layout


def check(sampler: Sampler, layout: Layout) -> None:
    """Refuse items that lack a field of the sampler, or have it in another dtype or shape."""
    for name, number in numbers(sampler, layout).items():
        sampler.check_field(name, layout.fields[number].spec)


def of_rows(sampler: Sampler, layout: Layout, rows: Any) -> dict[str, jax.Array]:
    """Return the sampler's fields of rows, leaves `[B, ...]`."""
    leaves = jax.tree.leaves(rows)
    return {name: leaves[number] for name, number in numbers(sampler, layout).items()}


def among(
    sampler: Sampler, layout: Layout, changed: Mapping[int, jax.Array]
) -> dict[str, jax.Array]:
    """Return the sampler's fields, by name, among changed leaves by number."""
    wanted = numbers(sampler, layout).items()
    return {name: changed[number] for name, number in wanted if number in changed}


def numbers(sampler: Sampler, layout: Layout) -> dict[str, int]:
    """Return the number of the leaf of each field."""
    found: dict[str, int] = {}
    for name in sampler.fields:
        number = layout.find("init", f"the sampler {type(sampler).__name__}", name)
        if not isinstance(number, int):
            raise ValueError(
                f"fbuf.init: the sampler {type(sampler).__name__} names {name!r}, which holds "
                "several arrays; name one of them, as in 'a.b'"
            )
        found[name] = number
    return found
