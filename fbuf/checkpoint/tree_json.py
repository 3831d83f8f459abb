"""Trees of arrays as data: what they are made of, in JSON, and the arrays by number.

Dicts, lists, tuples and None are made again as they were. Of a class of somebody's own only the
name is kept: to make one could run anything. Such a tree is made again from an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.pace import PaceCounter

Data = Any
"""What JSON has."""


_OWN: dict[str, Any] = {f"{PaceCounter.__module__}.{PaceCounter.__qualname__}": PaceCounter}
"""Classes of fbuf by name, which can be made again."""


def described(tree: Any, leaf: Any) -> Data:
    """A tree as data; `leaf` says what a leaf is."""
    if tree is None:
        return {"none": []}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": [[key, described(tree[key], leaf)] for key in sorted(tree)]}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [described(child, leaf) for child in tree]}
    children, whole = jax.tree.flatten(tree, is_leaf=lambda node: node is not tree)
    if whole.num_leaves and jax.tree_util.treedef_is_leaf(whole):  # not an empty object
        return {"leaf": leaf(tree)}
    kind = type(tree)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(tree, dict):
        name += f" with the keys {sorted(map(repr, tree))}"
    return {"other": [name, [described(child, leaf) for child in children]]}


def leaves(data: Data) -> list[Data]:
    """What was said of the leaves, in JAX's order."""
    kind, content = only(data)
    if kind == "leaf":
        return [content]
    if kind == "other":
        content = content[1]
    children = [child for _, child in content] if kind == "dict" else content
    return [leaf for child in children for leaf in leaves(child)]


def classes(data: Data) -> list[str]:
    """The names of the classes that cannot be made again."""
    kind, content = only(data)
    if kind == "leaf":
        return []
    own = [content[0]] if kind == "other" and content[0] not in _OWN else []
    children = content[1] if kind == "other" else content
    children = [child for _, child in children] if kind == "dict" else children
    return own + [name for child in children for name in classes(child)]


def without_classes(data: Data) -> Data:
    """The same with tuples in place of objects whose classes cannot be made again."""
    kind, content = only(data)
    match kind:
        case "leaf" | "none":
            return data
        case "dict":
            return {kind: [[key, without_classes(child)] for key, child in content]}
        case _:
            children = content[1] if kind == "other" else content
            kind = "tuple" if kind == "other" else kind
            return {kind: [without_classes(child) for child in children]}


def made(data: Data, of: Sequence[Any], argument: str) -> Any:
    """The tree, with these leaves.

    Raises:
        CheckpointError: If it has classes of somebody's own. The message says to give an example as
            `argument`.
    """
    own = classes(data)
    if own:
        raise Mismatch(
            f"fbuf.load: {argument} is made of {', '.join(sorted(set(own)))}, and a checkpoint "
            f"has only the names of classes; give an example of the same structure as {argument}="
            + (", or with_extra=False to read the buffer alone" if argument == "extra" else "")
        )
    rest = iter(of)

    def node(data: Data) -> Any:
        kind, content = only(data)
        match kind:
            case "leaf":
                return next(rest)
            case "none":
                return None
            case "dict":
                return {key: node(child) for key, child in content}
            case "list":
                return [node(child) for child in content]
            case "other":
                return _OWN[content[0]](*map(node, content[1]))
            case _:
                return tuple(node(child) for child in content)

    return node(data)


def only(data: Data) -> tuple[str, Any]:
    """The one entry of a node."""
    if not isinstance(data, dict) or len(data) != 1:
        raise CheckpointError("fbuf.load: the manifest describes a tree that is none")
    ((kind, content),) = data.items()
    well = kind in ("leaf", "none", "dict", "list", "tuple", "other")
    if kind in ("none", "dict", "list", "tuple"):
        well = isinstance(content, list)
    if kind == "dict":
        well = well and all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
            for pair in content
        )
    if kind == "other":
        well = (
            isinstance(content, list)
            and len(content) == 2
            and isinstance(content[0], str)
            and isinstance(content[1], list)
        )
    if not well:
        raise CheckpointError("fbuf.load: the manifest describes a tree that is none")
    return kind, content


def words(data: Data) -> str:
    """A tree as people write it; of leaves it says what they are, as far as that is known."""
    kind, content = only(data)
    match kind:
        case "leaf":
            if not isinstance(content, dict):
                return "leaf"
            if "shape" not in content:
                return "number" if "float" in content else type(content.get("value")).__name__
            return f"{content['dtype']}{content['shape']}"
        case "none":
            return "None"
        case "dict":
            return "{" + ", ".join(f"{key}: {words(child)}" for key, child in content) + "}"
        case "list":
            return f"[{', '.join(map(words, content))}]"
        case "tuple":
            return f"({', '.join(map(words, content))})"
        case _:
            return f"{content[0]}({', '.join(map(words, content[1]))})"


# --- arrays --------------------------------------------------------------------------------------


def array(shape: tuple[int, ...], dtype: Any) -> Data:
    """An array as data."""
    return {"shape": list(map(int, shape)), "dtype": np.dtype(dtype).name}


def spec(data: Data) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array."""
    shape = data.get("shape") if isinstance(data, dict) else None
    if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        raise CheckpointError(f"fbuf.load: the manifest has an array of shape {shape!r}")
    name = data.get("dtype")
    if not is_known(name):
        raise CheckpointError(f"fbuf.load: the manifest has an array of {name!r}")
    dtype = jnp.dtype(name)
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def is_known(name: object) -> bool:
    """Whether numbers of this name can be made again."""
    if not isinstance(name, str) or not name.replace("_", "").isalnum():
        return False
    try:
        dtype = jnp.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        return False
    return dtype.name == name and dtype.kind not in "OSUMm" and dtype.itemsize > 0


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**31
