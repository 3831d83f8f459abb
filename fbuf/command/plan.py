"""How large a buffer is, before there is one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fbuf.checks import memory
from fbuf.command.text import lines
from fbuf.samplers import Prioritized, Shuffled, Uniform
from fbuf.verbs.capacity_for import capacity_for
from fbuf.verbs.init import init

SAMPLERS = {"uniform": Uniform, "prioritized": Prioritized, "shuffled": Shuffled}


def item_of(fields: Sequence[str]) -> dict[str, jax.ShapeDtypeStruct]:
    """An item of fields such as `obs:uint8:84x84x4`.

    Raises:
        ValueError: If one is no such field.
    """
    item: dict[str, jax.ShapeDtypeStruct] = {}
    for field in fields:
        name, dtype, *shape = field.split(":")
        sizes = shape[0] if shape else ""
        if not name or len(shape) > 1 or not re.fullmatch(r"(\d+(x\d+)*)?", sizes):
            raise ValueError(f"{field!r} is no field; write name:dtype or name:dtype:84x84x4")
        if name in item:
            raise ValueError(f"there are two fields {name!r}")
        try:
            of = jnp.dtype(dtype)
        except TypeError:
            raise ValueError(f"{field!r}: there is no dtype {dtype!r}; write float32") from None
        item[name] = jax.ShapeDtypeStruct(tuple(map(int, sizes.split("x"))) if sizes else (), of)
    return item


def table(size: str, fields: Sequence[str], *, sampler: str, window: int, **options: Any) -> str:
    """What a buffer of so many rows takes, or one of so many bytes holds.

    Args:
        size: Rows, or memory with its unit.
        fields: The fields of an item, see `item_of`.
        sampler: The name of the sampler.
        window: Its window.
        options: `num_envs`, `next_of` and `max_ends` of `fbuf.init`.
    """
    item = item_of(fields)
    options["sampler"] = SAMPLERS[sampler](window=window)
    rows = size.replace("_", "").replace(",", "")
    capacity = int(rows) if re.fullmatch("[0-9]+", rows) else capacity_for(size, item, **options)
    state = jax.eval_shape(lambda: init(item, capacity, **options))
    total, stored = memory.nbytes(state), memory.nbytes(state.storage)
    index = memory.nbytes((state.index, state.ring))
    found = {
        "rows": f"{capacity:,}",
        "memory": memory.in_words(total),
        "  the rows": f"{memory.in_words(stored)}, {stored / capacity:,.0f} bytes a row",
        "  flags and index": memory.in_words(index),
    }
    if state.next_obs is not None:
        ends = state.next_obs.owner.shape[0] - state.ring.lanes
        kept = memory.nbytes(state.next_obs)
        found["  last observations"] = f"{memory.in_words(kept)}, {ends:,} ends of episodes"
    found["checkpoint"] = f"{memory.in_words(total)} to {memory.in_words(2 * total)} on the disk"
    return lines(found)
