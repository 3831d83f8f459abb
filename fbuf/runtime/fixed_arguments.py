"""Fixed arguments of an object: assignments would have no effect, so they raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


def arguments(*but: str, **options: str) -> Callable[[T], T]:
    """Have a class refuse assignments to its arguments, except those that are its attributes.

    Args:
        *but: Names of attributes of its own.
        **options: Other names to refuse, each with the method to use instead.
    """

    def fixed(kind: T) -> T:
        made_with = inspect.signature(kind).parameters
        advice = dict.fromkeys(made_with, "it is given when the buffer is made")
        advice |= {n: f"give it to each call: {method}({n}=...)" for n, method in options.items()}
        refused = {n: say for n, say in advice.items() if n not in but and not hasattr(kind, n)}

        def assign(self: Any, name: str, value: Any) -> None:
            if name in refused and not hasattr(type(self), name):  # a user's subclass may have it
                raise AttributeError(
                    f"{type(self).__name__}: {name} cannot be set; {refused[name]}"
                )
            super(kind, self).__setattr__(name, value)

        # Not descriptors: `help` and `dir` would list them as attributes.
        kind.__setattr__ = assign  # pyright: ignore[reportAttributeAccessIssue]
        return kind

    return fixed
