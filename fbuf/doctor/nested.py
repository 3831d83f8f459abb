"""Samplers inside of samplers, with their indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fbuf.samplers.mixture import Mixture
from fbuf.samplers.protocol import Sampler
from fbuf.samplers.wrapper import Wrapper


def nested(sampler: Sampler, index: Any) -> Iterator[tuple[Sampler, Any]]:
    """Yield a sampler and all those that it draws with, from the outside inwards; their indices."""
    yield sampler, index
    if isinstance(sampler, Wrapper):
        inner = getattr(index, "others", getattr(index, "priorities", index))
        yield from nested(sampler.sampler, inner)
    elif isinstance(sampler, Mixture):
        yield sampler.priorities, index.priorities
