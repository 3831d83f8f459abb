"""Frozen dataclasses that are pytrees, and that programs of `jax.export` may take and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform, overload

import jax

Kind = TypeVar("Kind", bound=type)

classes: list[type[Any]] = []
"""All such classes; `fbuf._exported` registers them with `jax.export`, by their names."""


@overload
def pytree(kind: Kind, /) -> Kind: ...


@overload
def pytree(*, eq: bool = ..., repr: bool = ...) -> Callable[[Kind], Kind]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def pytree(kind: Any = None, /, *, eq: bool = True, repr: bool = True) -> Any:
    """Make a class a frozen dataclass and a pytree; its name must be the only one of its kind.

    Fields with the metadata `{"static": True}` are static, all others are data.

    Args:
        kind: The class.
        eq: As for `dataclasses.dataclass`.
        repr: As for `dataclasses.dataclass`.
    """

    def made(kind: Kind) -> Kind:
        found = dataclasses.dataclass(frozen=True, eq=eq, repr=repr)(kind)
        classes.append(jax.tree_util.register_dataclass(found))
        return found

    return made if kind is None else made(kind)
