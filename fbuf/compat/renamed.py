"""Names and arguments of an earlier version: a class that still defines them is refused."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self


class OldName(NamedTuple):
    """A name of an earlier version, as a class of that version would define it.

    Attributes:
        new: The present name.
        arguments: The number of arguments of the old method, without `self`; None for an attribute.
        instead: The remedy in words; empty to define the present name.
    """

    new: str
    arguments: int | None
    instead: str = ""

    def is_in_use(self, old: str, cls: type) -> bool:
        """Tell whether a class defines the old name in place of the present one.

        A method that takes other arguments has the name by chance. So has one beside a definition
        of the present name.
        """
        for kind in cls.__mro__:
            if self.new in vars(kind):
                return False
            if old in vars(kind):
                return self._is_old(vars(kind)[old], getattr(cls, old))
        return False

    def _is_old(self, defined: Any, value: Any) -> bool:
        """Tell whether a definition is one of the earlier version, given its value in the class."""
        if self.arguments is None:
            return isinstance(defined, bool | property | functools.cached_property)
        return _takes(value, self.arguments + (not isinstance(defined, classmethod | staticmethod)))


class OldArguments(NamedTuple):
    """A method of an earlier version, which took each argument by itself.

    Attributes:
        before: The number of its arguments then, without `self`.
        now: The method as it is now, in words: its arguments, and what the last one has.
    """

    before: int
    now: str

    def are_in_use(self, method: Any) -> bool:
        """Tell whether a method takes the arguments of then, and not those of now."""
        now = self.now.partition(")")[0].count(",") + 1
        return _takes(method, self.before + 1) and not _takes(method, now + 1)


def _takes(method: Any, count: int) -> bool:
    """Tell whether this number of positional arguments fits."""
    try:
        inspect.signature(method).bind(*[None] * count)
    except TypeError:  # also of an attribute that is no method
        return False
    return True


class CurrentNames:
    """Refuse to construct an object of a class that defines an old name, or takes old arguments.

    Attributes:
        old_names: The old names, and what is known of each.
        old_arguments: The methods whose arguments have changed, by name.
    """

    old_names: ClassVar[Mapping[str, OldName]] = {}
    old_arguments: ClassVar[Mapping[str, OldArguments]] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a new object, or raise `TypeError` for an old name or old arguments."""
        for name, arguments in cls.old_arguments.items():
            method = getattr(cls, name, None)
            is_ours = (getattr(method, "__module__", None) or "").startswith("fbuf.")
            if not is_ours and arguments.are_in_use(method):
                raise TypeError(
                    f"fbuf: {cls.__name__}.{name} takes the arguments of an earlier version; it is "
                    f"{name}{arguments.now}"
                )
        for old, name in cls.old_names.items():
            if name.is_in_use(old, cls):
                raise TypeError(
                    f"fbuf: {cls.__name__} defines {old!r}, the name of an earlier version, which "
                    f"is not used any more; define {name.instead or repr(name.new)}"
                )
        return super().__new__(cls)
