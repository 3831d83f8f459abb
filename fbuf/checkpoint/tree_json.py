"""The codec for trees of arrays: their structure as JSON, without the arrays.

Dicts, lists, tuples and None are decoded as they were. Users' classes keep only their names,
because making an object could run any code. Such a tree is decoded with an example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.checks.foreign import printable
from fbuf.pace import PaceCounter

Data = Any
"""JSON data."""


_OWN: dict[str, Any] = {f"{PaceCounter.__module__}.{PaceCounter.__qualname__}": PaceCounter}
"""The classes of fbuf that can be decoded, by name."""

_ADVICE = {
    "item": "leave item out, or give the one that was saved: fill and drop change fields",
    "extra": "give an example of the structure that was saved, or with_extra=False to read the "
    "buffer alone",
}
"""Advice for an example of another structure, by argument."""


def encode(tree: Any, leaf: Callable[[Any], Data]) -> Data:
    """Encode a tree; `leaf` encodes a leaf."""
    if tree is None:
        return {"none": []}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": [[key, encode(tree[key], leaf)] for key in sorted(tree)]}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [encode(child, leaf) for child in tree]}
    children, whole = jax.tree.flatten(tree, is_leaf=lambda node: node is not tree)
    if whole.num_leaves and jax.tree_util.treedef_is_leaf(whole):  # not an empty object
        return {"leaf": leaf(tree)}
    kind = type(tree)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(tree, dict):
        name += f" with the keys {sorted(map(repr, tree))}"
    return {"other": [name, [encode(child, leaf) for child in children]]}


def fold(
    data: Data, leaf: Callable[[Data], Any], node: Callable[[str, Any, list[Any]], Any]
) -> Any:
    """Return the value of an encoded tree, from its leaves upwards.

    Args:
        data: The encoded tree.
        leaf: Returns the value of an encoded leaf. The leaves come in JAX's order.
        node: Returns the value of a node, from its kind, its names and the values of its children.
            The names are the keys of a dict, or the name of a class.
    """
    kind, content = only(data)
    if kind == "leaf":
        return leaf(content)
    names, children = None, content
    if kind == "dict":
        names, children = [key for key, _ in content], [child for _, child in content]
    elif kind == "other":
        names, children = content
    return node(kind, names, [fold(child, leaf, node) for child in children])


def leaves(data: Data) -> list[Data]:
    """Return the encoded leaves, in JAX's order."""
    together = lambda _kind, _names, children: [leaf for child in children for leaf in child]
    return fold(data, lambda leaf: [leaf], together)


def classes(data: Data) -> list[str]:
    """Return the names of the classes that cannot be decoded."""

    def node(kind: str, names: Any, children: list[list[str]]) -> list[str]:
        own = [names] if kind == "other" and names not in _OWN else []
        return own + [name for child in children for name in child]

    return fold(data, lambda _leaf: [], node)


def without_leaves(data: Data) -> Data:
    """Return the structure alone: that of `encode` with None for every leaf."""
    return fold(data, lambda _leaf: {"leaf": None}, _node)


def without_classes(data: Data) -> Data:
    """Return the tree with tuples in place of objects whose classes cannot be decoded."""
    node = lambda kind, names, children: _node(
        "tuple" if kind == "other" else kind, names, children
    )
    return fold(data, lambda leaf: {"leaf": leaf}, node)


def _node(kind: str, names: Any, children: list[Data]) -> Data:
    """Encode a node."""
    if kind == "dict":
        return {kind: [list(pair) for pair in zip(names, children, strict=True)]}
    return {kind: [names, children] if kind == "other" else children}


def decode(
    data: Data,
    values: Sequence[Any],
    argument: str,
    example: Any = None,
    leaf: Callable[[Any], Data] | None = None,
) -> Any:
    """Return the tree with these leaves.

    Args:
        data: The encoded tree.
        values: Its leaves, in JAX's order.
        argument: The name of the argument with the example: "item" or "extra".
        example: A tree of the same structure; or None, if the tree has no users' classes.
        leaf: Encodes the leaves of the example, which must equal the saved ones; None ignores them.

    Raises:
        CheckpointError: If an example is needed, or has another structure.
    """
    if example is not None:
        expected = data if leaf else without_leaves(data)
        given = encode(example, leaf or (lambda _: None))
        if given != expected:
            what = {"item": "items", "extra": "the extra"}[argument]
            raise Mismatch(
                f"fbuf.load: the checkpoint has {what} {words(expected)}, and {argument} is "
                f"{words(given)}; {_ADVICE[argument]}"
            )
        return jax.tree.unflatten(jax.tree.structure(example), values)
    own = classes(data)
    if own:
        raise Mismatch(
            f"fbuf.load: {argument} is made of {', '.join(sorted({*map(printable, own)}))}, and a "
            "checkpoint "
            f"has only the names of classes; give an example of the same structure as {argument}="
            + (", or with_extra=False to read the buffer alone" if argument == "extra" else "")
        )
    rest = iter(values)

    def node(kind: str, names: Any, children: list[Any]) -> Any:
        match kind:
            case "none":
                return None
            case "dict":
                return dict(zip(names, children, strict=True))
            case "list":
                return children
            case "other":
                return _OWN[names](*children)
            case _:
                return tuple(children)

    return fold(data, lambda _leaf: next(rest), node)


def only(data: Data) -> tuple[str, Any]:
    """Return the kind and the content of an encoded node."""
    if isinstance(data, dict) and len(data) == 1:
        ((kind, content),) = data.items()
        if _is_well(kind, content):
            return kind, content
    raise CheckpointError("fbuf.load: the manifest is damaged: it describes no valid tree")


def _is_well(kind: str, content: Any) -> bool:
    is_list = isinstance(content, list)
    has_name = lambda pair: isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
    match kind:
        case "dict":
            return is_list and all(map(has_name, content))
        case "other":
            return has_name(content) and isinstance(content[1], list)
        case _:
            return kind == "leaf" or (is_list and kind in ("none", "list", "tuple"))


def words(data: Data) -> str:
    """Return a tree as text, with the known kinds of its leaves."""

    def node(kind: str, names: Any, children: list[str]) -> str:
        if kind == "none":
            return "None"
        if kind == "dict":
            named = zip(map(printable, names), children, strict=True)
            children = [f"{key}: {child}" for key, child in named]
        before, after = {"dict": "{}", "list": "[]"}.get(kind, "()")
        return f"{printable(names) if kind == 'other' else ''}{before}{', '.join(children)}{after}"

    return fold(data, _leaf_in_words, node)


def _leaf_in_words(leaf: Data) -> str:
    if not isinstance(leaf, dict):
        return "leaf"
    if "shape" not in leaf:
        return "number" if "float" in leaf else type(leaf.get("value")).__name__
    return printable(f"{leaf.get('dtype')}{leaf['shape']}")


# --- arrays --------------------------------------------------------------------------------------


def array(shape: tuple[int, ...], dtype: Any) -> Data:
    """Encode the shape and dtype of an array."""
    return {"shape": list(map(int, shape)), "dtype": np.dtype(dtype).name}


def spec(data: Data) -> jax.ShapeDtypeStruct:
    """Decode the shape and dtype of an array."""
    shape = data.get("shape") if isinstance(data, dict) else None
    if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        raise CheckpointError(f"fbuf.load: the manifest has an array of shape {shape!r}")
    name = data.get("dtype")
    if not is_known(name):
        raise CheckpointError(f"fbuf.load: the manifest has an array of {name!r}")
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(name))


def is_known(name: object) -> bool:
    """Return whether a dtype of this name can be decoded."""
    if not isinstance(name, str) or not name.replace("_", "").isalnum():
        return False
    try:
        dtype = jnp.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        return False
    return dtype.name == name and dtype.kind not in "OSUMm" and dtype.itemsize > 0


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**31
