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
from fbuf.dispatch.flat_state import Form, form_of
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.state import State
from fbuf.storage import layout as layouts
from fbuf.storage.layout import Layout
from fbuf.trees.sum_tree import Aggregate


@functools.cache
def register() -> None:
    """Register all classes with `jax.export`. Later calls, as of a module reloaded, do nothing."""
    for kind in classes:
        names = _static_names(kind)
        jax.export.register_pytree_node_serialization(
            kind,
            serialized_name=f"fbuf.{kind.__name__}",
            serialize_auxdata=lambda values, names=names: _written(names, values),
            deserialize_auxdata=_read,
        )
    jax.export.register_pytree_node_serialization(
        State,
        serialized_name="fbuf.State",
        serialize_auxdata=_form_written,
        deserialize_auxdata=_form_read,
    )


def _static_names(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.metadata.get("static")]


def _form_written(form: Form) -> bytes:
    parts = form.structure.unflatten(range(form.structure.num_leaves))
    return json.dumps({"sampler": _data("sampler", form.sampler), "parts": _node(parts)}).encode()


def _form_read(written: bytearray | bytes) -> Form:
    data = json.loads(bytes(written))
    if not isinstance(data, dict):
        raise ValueError(
            "jax.export: this program was serialised by a version before 0.4, for buffers "
            "of other parts; export it anew"
        )
    return form_of(jax.tree.structure(_part(data["parts"])), _value(data["sampler"]))


def _node(part: Any) -> Any:
    """Encode a part of a state as JSON: an array is 0."""
    if part is None or isinstance(part, int):
        return None if part is None else 0
    if isinstance(part, tuple):
        return [_node(each) for each in part]
    kind = type(part)
    static = _static_names(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    return {
        "class": kind.__name__,
        "static": {name: _data(name, getattr(part, name)) for name in static},
        "parts": {name: _node(getattr(part, name)) for name in names if name not in static},
    }


def _part(data: Any) -> Any:
    """Decode a part of a state: the inverse of `_node`."""
    if isinstance(data, list):
        return tuple(map(_part, data))
    if not isinstance(data, dict):
        return data
    kind = next(kind for kind in classes if kind.__name__ == data["class"])
    static = {name: _value(value) for name, value in data["static"].items()}
    return kind(**static, **{name: _part(part) for name, part in data["parts"].items()})


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
