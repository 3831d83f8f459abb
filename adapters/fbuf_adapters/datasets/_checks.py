"""Checks of what a user's class gives: the source itself, its blocks, and their flags."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fbuf.adapter_api import table_in_words
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import Array, refuse_foreign
from fbuf_adapters.datasets._source import Block, RowFlags, Source


def require_source(source: Any) -> None:
    """Refuse what is no object of a subclass of `Source`, and say what to call instead."""
    if isinstance(source, Source):
        return
    came, instead = type(source).__name__, "write a subclass of Source for a format of your own"
    if isinstance(source, type):
        came, instead = f"the class {source.__name__}", f"call it: {source.__name__}(...)"
    elif isinstance(source, Mapping):
        instead = "a dict of arrays is for from_arrays"
    elif table_in_words("source", source) is not None:
        instead = "a table is for from_pandas"
    elif isinstance(source, str | os.PathLike):
        instead = "a file is for the loader of its format, such as from_npz"
    raise TypeError(f"load: source must be a Source, got {came}; {instead}")


def checked_block(where: str, block: Any) -> Block:
    """Return a block whose flags are all bool `[n]`; refuse other flags, and what is no block."""
    if not isinstance(block, Block):
        raise DatasetError(f"{where}: blocks() must yield Block(...), got {type(block).__name__}")
    flags: Any = block.flags  # nothing holds a user to the types
    if not isinstance(flags, RowFlags):
        came = type(flags).__name__
        raise DatasetError(f"{where}: flags of a block must be RowFlags(...), got {came}")
    arrays: list[Array] = []
    for name, flag in block.flags._asdict().items():
        refuse_foreign(where, name, flag)
        if not isinstance(flag, bool) and getattr(flag, "dtype", None) != np.bool_:
            dtype = getattr(flag, "dtype", None)
            came = type(flag).__name__ if dtype is None else f"an array of {dtype}"
            raise DatasetError(
                f"{where}: {name} of RowFlags must be a bool array, got {came}; give "
                f"np.asarray({name}, bool), or np.zeros(n, bool) where no row is"
            )
        arrays.append(np.asarray(flag))
    shapes = {name: flag.shape for name, flag in zip(RowFlags._fields, arrays, strict=True)}
    rows = next((shape for shape in list(shapes.values())[:2] if shape), ())
    if len(rows) != 1 or not {(), rows}.issuperset(shapes.values()):
        raise DatasetError(
            f"{where}: each array of RowFlags must be of shape (n,) for the n rows of the block, "
            f"got {shapes}"
        )
    flags = RowFlags(*(np.broadcast_to(flag, rows) for flag in arrays))
    return dataclasses.replace(block, flags=flags)
