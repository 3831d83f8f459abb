"""The arguments of `fbuf.init` for a buffer, as JSON."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import jax
import numpy as np

import fbuf.samplers
from fbuf.checkpoint import tree_json
from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.checkpoint.tree_json import Data
from fbuf.checks.foreign import printable
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.state import State

_SAMPLERS: dict[str, type[Sampler]] = {
    name: kind
    for name, kind in vars(fbuf.samplers).items()
    if isinstance(kind, type) and issubclass(kind, Sampler) and not inspect.isabstract(kind)
}
"""The samplers of `fbuf`, by name."""


_ARGUMENTS = frozenset(
    [
        "item",
        "capacity",
        "sampler",
        "num_envs",
        "lockstep",
        "autoreset",
        "next_of",
        "max_ends",
        "removable",
    ]
)
"""The arguments of `fbuf.init`."""

_UNKNOWN = "not known yet"


def unknown_item(sampler: Sampler) -> dict[str, Any]:
    """Return a placeholder item, for a buffer that gets its item from the first row.

    It has the fields of the sampler.
    """
    number = jax.ShapeDtypeStruct((), np.int32)
    item: dict[str, Any] = {_UNKNOWN: number}
    for name in sampler.fields:
        *outer, last = name.split(".")
        inside = item
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = number
    return item


def is_unknown(item: Data) -> bool:
    """Return whether an encoded item is the placeholder."""
    return isinstance(item, dict) and any(name == _UNKNOWN for name, _ in item.get("dict", ()))


def item_data(item: Any) -> Data:
    """Return an item as JSON."""
    return tree_json.encode(item, lambda leaf: tree_json.array(leaf.shape, leaf.dtype))


def made_with(state: State[Any]) -> dict[str, Any]:
    """Return the arguments that make an empty buffer like this one, without the item."""
    ring, kept = state.ring, state.next_obs
    return {
        "capacity": state.capacity,
        "sampler": state.sampler,
        "num_envs": ring.num_envs,
        "lockstep": ring.lockstep,
        "autoreset": ring.autoreset,
        "next_of": None if kept is None else kept.field,
        "max_ends": None if kept is None else kept.owner.shape[-1] - ring.lanes,
        "removable": ring.removable,
    }


def described(state: State[Any]) -> Data:
    """Return the arguments that make an empty buffer like this one, as JSON."""
    return made_with(state) | {
        "item": item_data(state.storage.item),
        "sampler": sampler_data(state.sampler),
    }


def arguments(data: Data, item: Any, sampler: Sampler | None) -> dict[str, Any]:
    """Return the arguments for `fbuf.init`.

    Args:
        data: The result of `described`.
        item: An example of an item, or None to make one.
        sampler: The sampler, or None to make one.
    """
    if not isinstance(data, dict) or not data.keys() >= _ARGUMENTS:
        raise CheckpointError("fbuf.load: the manifest does not say what the buffer was made with")
    return {
        **{name: data[name] for name in _ARGUMENTS},
        "item": _item(data["item"], item),
        "sampler": _sampler(data["sampler"], sampler),
    }


def as_today(data: Data) -> Data:
    """Return the result of an older `described`, with defaults for newer options."""
    if not isinstance(data, dict):
        return data
    data = {"removable": True, **data}
    if not is_known(data.get("sampler")):
        return data
    return {**data, "sampler": _with_new_options(data["sampler"])}


def _with_new_options(data: Data) -> Data:
    """Return an encoded sampler, with defaults for options that its version lacks."""
    if not is_known(data):
        return data
    defaults: dict[str, Data] = {}
    kind: Any = _SAMPLERS[data["name"]]
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = _option_data(data["name"], field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = _option_data(data["name"], field.name, field.default_factory())
    new = {name: value for name, value in defaults.items() if name not in data["options"]}
    options = {**data["options"], **new}
    return {**data, "options": {name: _with_new_options(of) for name, of in options.items()}}


def is_known(data: Data) -> bool:
    """Return whether an encoded sampler is of a class of fbuf."""
    return isinstance(data, dict) and data.get("name") in _SAMPLERS


def sampler_data(sampler: Any) -> Data:
    """Encode a sampler as its name and options, which may be samplers."""
    kind = type(sampler)
    known = _SAMPLERS.get(kind.__name__) is kind
    name = kind.__name__ if known else f"{kind.__module__}.{kind.__qualname__}"
    found: dict[str, Data] = {}
    for field in dataclasses.fields(sampler):
        if field.init:
            value = getattr(sampler, field.name)
            found[field.name] = _option_data(kind.__name__ if known else None, field.name, value)
    return {"name": name, "options": found}


def _option_data(sampler: str | None, option: str, value: Any) -> Data:
    """Encode an option; `sampler` names a class of fbuf, or is None for a user's class."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Sampler):
        return sampler_data(value)
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, tuple) and all(isinstance(n, int | float) for n in value):
        return list(value)
    if sampler is None:  # options of users' samplers are for people to read
        return repr(value)
    raise TypeError(
        f"fbuf.save: {option} of {sampler} is a {type(value).__name__}, {value!r}; use a plain "
        "number"
    )


def _sampler(data: Data, given: Sampler | None) -> Sampler:
    """Decode a sampler; refuse a `given` one that differs."""
    if given is not None:
        if sampler_data(given) != data:
            raise Mismatch(_differing(data, sampler_data(given)))
        return given
    try:
        kind, options = _SAMPLERS.get(data["name"]), dict(data["options"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"fbuf.load: the manifest has the sampler {data!r}") from None
    if kind is None:
        raise Mismatch(
            "fbuf.load: the checkpoint has a sampler of your own, "
            f"{printable(str(data['name']))}; give it as sampler="
        )
    for option, value in options.items():
        if isinstance(value, dict):
            options[option] = _sampler(value, None)
        elif isinstance(value, list):
            options[option] = tuple(value)
    return kind(**options)


def sampler_of(data: Data) -> Sampler:
    """Decode a sampler of `fbuf`: the inverse of `sampler_data`."""
    return _sampler(data, None)


def _differing(saved: Data, given: Data) -> str:
    """Return a text on the difference between the caller's sampler and the saved one."""
    advice = (
        "leave sampler out, or give the same one; fbuf.extend adds the rows to a buffer with "
        "another sampler, and fbuf.add those of a Reservoir or an EvictLowest"
    )
    if saved["name"] != given["name"] or saved["options"].keys() != given["options"].keys():
        return (
            f"fbuf.load: the checkpoint has the sampler {sampler_words(saved)}, and sampler is "
            f"{sampler_words(given)}; {advice}"
        )
    words = lambda value: sampler_words(value) if isinstance(value, dict) else repr(value)
    pairs = ((name, value, given["options"][name]) for name, value in saved["options"].items())
    differing = [
        f"{name}={words(ours)}, and sampler has {words(theirs)}"
        for name, ours, theirs in pairs
        if ours != theirs
    ]
    return f"fbuf.load: the {saved['name']} of the checkpoint has {'; '.join(differing)}; {advice}"


def sampler_words(data: Data) -> str:
    """Return a sampler as text."""
    options = ", ".join(
        f"{printable(name)}={sampler_words(value) if isinstance(value, dict) else repr(value)}"
        for name, value in data["options"].items()
    )
    return f"{printable(str(data['name']))}({options})"


def _item(data: Data, example: Any) -> Any:
    """Decode an item of shapes and dtypes, in the tree of the example if there is one."""
    specs = [tree_json.spec(leaf) for leaf in tree_json.leaves(data)]
    wide = {spec.dtype for spec in specs if jax.dtypes.canonicalize_dtype(spec.dtype) != spec.dtype}
    if wide:
        raise Mismatch(
            f"fbuf.load: the checkpoint has items with {', '.join(sorted(map(str, wide)))}, and "
            "JAX's 64-bit types are off; switch them on as they were (jax_enable_x64)"
        )
    return tree_json.decode(data, specs, "item", example, _array)


def _array(leaf: Any) -> Data:
    """Encode the shape and JAX dtype of a leaf of an example."""
    dtype = jax.dtypes.canonicalize_dtype(jax.numpy.result_type(leaf))
    return tree_json.array(jax.numpy.shape(leaf), dtype)
