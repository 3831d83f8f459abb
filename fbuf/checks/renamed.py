"""Names of an earlier version: a class that still defines one is refused, for no code calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self


class CurrentNames:
    """Refuse to construct an object of a class that defines a method by its old name.

    Attributes:
        old_names: The new name for each old one.
    """

    old_names: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a new object, or raise `TypeError` for an old name."""
        for old, new in cls.old_names.items():
            value = getattr(cls, old, None)
            if callable(value) or isinstance(value, bool):
                raise TypeError(
                    f"fbuf: {cls.__name__} defines {old!r}, the name of an earlier version, which "
                    f"is not used any more; define {new}"
                )
        return super().__new__(cls)
