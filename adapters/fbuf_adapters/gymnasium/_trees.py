"""Trees of dicts and tuples, without JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def map_leaves(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """The tree with `function(leaf, *leaves of the rest)` for each leaf."""
    if isinstance(tree, dict):
        return {
            name: map_leaves(function, value, *(other[name] for other in rest))
            for name, value in tree.items()
        }
    if isinstance(tree, tuple):
        return tuple(map_leaves(function, *parts) for parts in zip(tree, *rest, strict=True))
    return function(tree, *rest)


def leaves(tree: Any) -> list[Any]:
    """The leaves, in the order of `paths`."""
    return [leaf for _, leaf in paths(tree)]


def paths(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with where it is, such as `['camera'][0]`."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from paths(value, f"{name}[{key!r}]")
    elif isinstance(tree, tuple):
        for place, value in enumerate(tree):
            yield from paths(value, f"{name}[{place}]")
    else:
        yield name, tree


def matched(tree: Any, like: Any) -> list[Any] | None:
    """The leaves of a tree in the order of those of `like`; None if it is another tree."""
    if isinstance(like, dict):
        if not isinstance(tree, dict) or tree.keys() != like.keys():
            return None
        parts = [(tree[name], value) for name, value in like.items()]
    elif isinstance(like, tuple):
        if not isinstance(tree, tuple) or len(tree) != len(like):
            return None
        parts = list(zip(tree, like, strict=True))
    else:
        return None if isinstance(tree, dict | tuple) else [tree]
    found = [matched(part, other) for part, other in parts]
    return None if None in found else [leaf for part in found if part for leaf in part]
