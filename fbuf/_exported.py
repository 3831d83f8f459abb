"""Registrations that let `jax.export` serialise a program that takes or returns a buffer.

Such a program names the classes of its arguments and of its results, with their static fields. The
static fields are written as data, and never as code: nothing in a file is run.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import jax.export

from fbuf._pytree import classes
from fbuf.checkpoint import config, tree_json
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.storage import layout as layouts
from fbuf.storage.layout import Layout
from fbuf.trees.sum_tree import Aggregate


@functools.cache
def register() -> None:
    """Register all classes with `jax.export`. Later calls, as of a module reloaded, do nothing."""
    for kind in classes:
        names = [field.name for field in dataclasses.fields(kind) if field.metadata.get("static")]
        jax.export.register_pytree_node_serialization(
            kind,
            serialized_name=f"fbuf.{kind.__name__}",
            serialize_auxdata=lambda values, names=names: _written(names, values),
            deserialize_auxdata=_read,
        )


def _written(names: list[str], values: tuple[Any, ...]) -> bytes:
    data = [_data(name, value) for name, value in zip(names, values, strict=True)]
    return json.dumps(data).encode()


def _read(written: bytearray | bytes) -> tuple[Any, ...]:
    return tuple(_value(data) for data in json.loads(bytes(written)))


def _data(name: str, value: Any) -> Any:
    """Encode the static fields as JSON."""
    if isinstance(value, Layout):
        item = tree_json.encode(value.item, lambda leaf: tree_json.array(leaf.shape, leaf.dtype))
        own = tree_json.classes(item)
        if own:
            raise TypeError(
                f"jax.export: the items of this buffer are made of {', '.join(sorted(set(own)))}, "
                "and a serialised program would have only their names; make the buffer with items "
                "of dicts with strings as keys, lists and tuples"
            )
        return {"layout": item}
    if isinstance(value, Sampler):
        data = config.sampler_data(value)
        if not config.is_known(data):
            raise TypeError(
                f"jax.export: {name} is a sampler of your own, {data['name']}, of which a "
                "serialised program would have only the name; export the program without the "
                "buffer, or use a sampler of fbuf"
            )
        return {"sampler": data}
    if isinstance(value, Aggregate):
        return {"aggregate": value.value}
    if isinstance(value, tuple):
        parts: tuple[Any, ...] = value
        return {"tuple": [_data(name, part) for part in parts]}
    return value


def _value(data: Any) -> Any:
    """Decode the static fields: the inverse of `_data`."""
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    match kind:
        case "layout":
            specs = [tree_json.spec(leaf) for leaf in tree_json.leaves(content)]
            return layouts.of(tree_json.decode(content, specs, "item"))
        case "sampler":
            return config.sampler_of(content)
        case "aggregate":
            return Aggregate(content)
        case _:
            return tuple(map(_value, content))
