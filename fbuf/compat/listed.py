"""The names that `dir` lists of a class, and with them `help`: users need not read the protocol."""

from __future__ import annotations

import abc
import dataclasses


class ListsFields(abc.ABCMeta):
    """List of a dataclass its fields and what it adds, and leave out the names of its protocol.

    `help` of the base class, which is no dataclass, has all of them, for authors.
    """

    def __dir__(cls) -> list[str]:
        """Return the names of the class; if it is a dataclass, without those of its protocol."""
        names = super().__dir__()
        if not dataclasses.is_dataclass(cls):
            return list(names)
        bases = (base for base in cls.__mro__ if not dataclasses.is_dataclass(base))
        protocol = {name for base in bases for name in vars(base)}
        protocol -= {field.name for field in dataclasses.fields(cls)}
        return [name for name in names if name not in protocol and not name.startswith("_")]


class Listed(abc.ABC, metaclass=ListsFields):
    """A base whose objects list what their class lists."""

    def __dir__(self) -> list[str]:
        """Return the names of the class, and the fields that have no default."""
        return sorted({*dir(type(self)), *vars(self)})
