"""The memory of a buffer, before there is one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checks import sizes
from fbuf.doctor.text import columns, lines
from fbuf.ops.capacity_for import capacity_for
from fbuf.ops.init import init
from fbuf.samplers import (
    EvictLowest,
    Fifo,
    FreshFirst,
    Grouped,
    Limited,
    Mixture,
    Prioritized,
    Reservoir,
    Sampler,
    Shuffled,
    Uniform,
)
from fbuf.storage import deferred

SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "uniform": lambda window: Uniform(window=window),
    "prioritized": lambda window: Prioritized(window=window),
    "shuffled": lambda window: Shuffled(window=window),
    "mixture": lambda window: Mixture(priorities=Prioritized(window=window)),
    "fresh-first": lambda window: FreshFirst(Uniform(window=window)),
    "limited": lambda window: Limited(Uniform(window=window), max_uses=1),
    "reservoir": lambda window: Reservoir(),
    "evict-lowest": lambda window: EvictLowest(),
    "fifo": lambda window: Fifo(),
}
"""The samplers by name, with a window. Their other arguments change the memory by little."""

GROUPED = "grouped"
"""The sampler whose memory depends on the number of groups."""

_OF_ROWS = ("reservoir", "evict-lowest", "fifo")
"""Samplers without a window."""

_SHORT = {
    # The dtype that `fbuf.init` gives a number of Python.
    **{"float": "float32", "int": "int32", "complex": "complex64"},
    **{"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"},
    **{"single": "float32", "fp64": "float64", "double": "float64", "boolean": "bool"},
    # To NumPy these have no meaning, so that they have a single one.
    **{"f32": "float32", "f64": "float64", "i16": "int16", "i32": "int32", "i64": "int64"},
    **{"u16": "uint16", "u32": "uint32", "u64": "uint64", "byte": "uint8"},
}
"""Usual names of dtypes that are none to JAX, or another one."""


def item_of(fields: Sequence[str]) -> dict[str, Any]:
    """Return an item of fields such as `obs:uint8:84x84x4`; `obs.camera` is a field in a field.

    Raises:
        ValueError: If a field is not written so, or if two do not fit each other.
    """
    item: dict[str, Any] = {}
    for field in fields:
        name, *parts = field.split(":")
        if name and not parts:
            raise ValueError(f"{field!r} has no dtype; write {name}:float32")
        dtype, axes = (*parts, "")[:2] if parts else ("", "")
        if not name or len(parts) > 2 or not re.fullmatch(r"(\d+(x\d+)*)?", axes):
            raise ValueError(f"{field!r} is no field; write name:dtype or name:dtype:84x84x4")
        shape = tuple(map(int, axes.split("x"))) if axes else ()
        _put(item, name, jax.ShapeDtypeStruct(shape, _dtype(field, dtype)))
    return item


def _put(item: dict[str, Any], name: str, leaf: jax.ShapeDtypeStruct) -> None:
    """Put a leaf where its name says, with dots between keys."""
    *outer, last = name.split(".")
    inner: Any = item
    if not all((*outer, last)):
        raise ValueError(f"{name!r} has an empty part; write obs.camera for a field in a field")
    for depth, key in enumerate(outer):
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            whole = ".".join(outer[: depth + 1])
            raise ValueError(f"{whole!r} is an array, and cannot have the field {name!r}")
    if last in inner:
        same = isinstance(inner[last], jax.ShapeDtypeStruct)
        what = f"there are two fields {name!r}" if same else f"{name!r} has fields of its own"
        raise ValueError(what)
    inner[last] = leaf


def _dtype(field: str, name: str) -> np.dtype[Any]:
    """Return the dtype that `fbuf.init` makes of a number or an array of this name."""
    if name in _SHORT:
        return jnp.dtype(_SHORT[name])
    if found := re.fullmatch(r"([a-z])\d+", name):  # to NumPy u8 has 8 bytes, to many others 8 bits
        whole = {"f": "float32", "i": "int32", "u": "uint8"}.get(found[1], "float32")
        raise ValueError(f"{field!r}: {name!r} may mean two dtypes; write it out, as {whole}")
    try:
        return jnp.dtype(name)
    except TypeError:
        raise ValueError(f"{field!r}: there is no dtype {name!r}; write float32") from None


def sampler_of(name: str, window: int, groups: str | None) -> Sampler:
    """Return a sampler by its name.

    Args:
        name: One of `SAMPLERS`, or `GROUPED`.
        window: Its window.
        groups: The field with the group of a row, and the number of groups, such as `task:3`.

    Raises:
        ValueError: If the window or the groups are not for this sampler.
    """
    if (groups is not None) != (name == GROUPED):
        raise ValueError("--sampler grouped and --groups task:3 go together: a field, and how many")
    if window > 1 and name in _OF_ROWS:
        raise ValueError(f"--sampler {name} has no window; leave --window out")
    if groups is None:
        return SAMPLERS[name](window)
    field, _, number = groups.rpartition(":")
    if not field or not re.fullmatch("[0-9]+", number):
        raise ValueError(f"--groups is a field and a number of groups, as task:3, got {groups!r}")
    return Grouped(field, int(number), window=window)


def table(
    size: str,
    fields: Sequence[str],
    *,
    sampler: str,
    window: int,
    groups: str | None = None,
    **options: Any,
) -> str:
    """Return the memory of a buffer by its rows, or its rows by its memory, and where both lie.

    Args:
        size: Rows, or memory with its unit.
        fields: The fields of an item, see `item_of`.
        sampler: The name of the sampler.
        window: Its window.
        groups: As for `sampler_of`.
        options: `num_envs`, `next_of` and `max_ends` of `fbuf.init`.
    """
    item = item_of(fields)
    options["sampler"] = sampler_of(sampler, window, groups)
    rows = _rows(size)
    capacity = capacity_for(size, item, **options) if rows is None else rows
    state = jax.eval_shape(lambda: init(item, capacity, **options))
    total, stored = sizes.nbytes(state), sizes.nbytes(state.storage)
    index = sizes.nbytes((state.index, state.ring))
    entries = {
        "rows": f"{capacity:,}",
        "memory": sizes.in_words(total),
        "  the rows": f"{sizes.in_words(stored)}, {stored / capacity:,.0f} bytes a row",
        "  flags and index": sizes.in_words(index),
    }
    if state.next_obs is not None:
        ends = state.next_obs.owner.shape[0] - state.ring.lanes
        kept = sizes.nbytes(state.next_obs)
        entries["  last observations"] = f"{sizes.in_words(kept)}, {ends:,} ends of episodes"
    entries["checkpoint"] = f"{sizes.in_words(total)} to {sizes.in_words(2 * total)} on the disk"
    return f"{lines(entries)}\n\n{columns(*tiers(state))}"


def _rows(size: str) -> int | None:
    """Return a number of rows, such as `1_000_000` or `1e6`; None if it is something else."""
    plain = size.replace("_", "").replace(",", "")
    if re.fullmatch(r"[0-9]+", plain):
        return int(plain)
    if re.fullmatch(r"[0-9.]+[eE]\+?[0-9]{1,2}", plain) and float(plain).is_integer():
        return int(float(plain))
    return None


def apart(state: Any) -> tuple[int, int]:
    """Return the bytes of a buffer without its rows, and the bytes of its rows."""
    index = sizes.nbytes(deferred.without_rows(state))
    return index, sizes.nbytes(state) - index


def tiers(state: Any) -> tuple[list[str], list[list[str]]]:
    """Return where the bytes of a buffer lie, for each place of its rows: head and lines.

    Args:
        state: The buffer, or the shapes and dtypes of one.
    """
    index, rows = apart(state)
    ends = 0 if state.next_obs is None else sizes.nbytes(state.next_obs.rows)
    # The accelerator is not asked: the command leaves it alone.
    free, disk = sizes.free(jax.devices("cpu")[0]), shutil.disk_usage(".").free

    def line(kept: str, *taken: int | None, room: int | None = None) -> list[str]:
        fits = "" if room is None else "fits here" if rows <= room else "does not fit here"
        return [kept, *("-" if size is None else sizes.in_words(size) for size in taken), fits]

    return ["rows kept", "on the device", "on the host", "on the disk", ""], [
        line("on the device", index + rows, None, None),
        line("in host memory, HostStore", index, rows, None, room=free),
        line("in files, HostStore", index, None, rows, room=disk),
        line("in a checkpoint, HostStore.open", index, 4 * state.capacity + ends, index + rows),
        line("free here", None, free, disk),
    ]
