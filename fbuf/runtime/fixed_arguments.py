"""Arguments that an object keeps: to assign one would do nothing, so it is an error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T", bound=type)


class _Fixed:
    """A name that cannot be assigned; an object is as if it did not have it."""

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice

    def __get__(self, instance: Any, kind: type) -> _Fixed:
        if instance is None:  # `dir` of the class lists it
            return self
        raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}")

    def __set__(self, instance: Any, value: Any) -> NoReturn:
        raise AttributeError(
            f"{type(instance).__name__}: {self._name} cannot be set; {self._advice}"
        )


def arguments(*but: str, **options: str) -> Callable[[T], T]:
    """Have a class refuse to assign the arguments it is made with, where it has no such attribute.

    Args:
        *but: Names of attributes of its own.
        **options: Other names to refuse, and the method that takes each.
    """

    def fixed(kind: T) -> T:
        made_with = inspect.signature(kind).parameters
        advice = dict.fromkeys(made_with, "it is given when the buffer is made")
        advice |= {n: f"give it to each call: {method}({n}=...)" for n, method in options.items()}
        for name, say in advice.items():
            if name not in but and not hasattr(kind, name):
                setattr(kind, name, _Fixed(name, say))
        kind.__dir__ = _attributes  # pyright: ignore[reportAttributeAccessIssue]
        return kind

    return fixed


def _attributes(self: Any) -> list[str]:
    """List what can be read of an object, for its completion in an editor."""
    fixed = lambda name: isinstance(inspect.getattr_static(type(self), name, None), _Fixed)
    return [name for name in object.__dir__(self) if not fixed(name)]
