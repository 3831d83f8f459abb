"""The view of a window: the steps from a drawn one on, whatever ends between them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fbuf.adapter_api import Layout, Reader, Reading, Request, View


@dataclasses.dataclass(frozen=True)
class Window(View[Any]):
    """Return the steps from each drawn row on, leaves `[B, length, ...]`; zeros for masked draws.

    The samplers of flashbax's buffers draw only steps that enough stored ones follow.

    Attributes:
        length: The number of steps of a window.

    Cost: O(B length) reads; no flags are read.
    """

    length: int

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Request the steps."""
        number = jnp.arange(self.length, dtype=jnp.int32)[None]
        steps = reader.ring.later(slots[:, None], number)
        valid = None
        if reader.mask is not None:
            valid = jnp.broadcast_to(reader.mask[:, None], steps.shape)
        none = jnp.zeros(slots.shape, jnp.uint8)
        return Request({"steps": reader.rows(steps, valid=valid)}, none)

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Return the steps, without flags."""
        return Reading(data=rows["steps"], flags=seen)
