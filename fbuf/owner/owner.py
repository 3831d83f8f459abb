"""The owner of a buffer: one set of methods for a state, for one over a mesh, and for objects.

Reports, collectors, data sets and loads ask `owner_of(buffer)`, and nothing else, what they were
given. A class that has a buffer registers its owner once: `owner_of.register(Class, ItsOwner)`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fbuf.dispatch.call import refuse_consumed
from fbuf.mesh.shards import shards_here
from fbuf.ops.add import add
from fbuf.ops.read import read
from fbuf.sharded_state import ShardedState
from fbuf.state import State


@dataclasses.dataclass(frozen=True)
class Asked:
    """The argument that has a buffer, in words for messages.

    Attributes:
        where: The function that was called.
        wanted: The kinds of buffers that it takes.
        instead: The remedy for any other object.
        argument: The name of the argument.
        error: The class of the error.
    """

    where: str
    wanted: str = "a fbuf.State"
    instead: str = "make one with fbuf.init"
    argument: str = "state"
    error: type[TypeError] = TypeError

    @property
    def function(self) -> str:
        """The name of the function alone."""
        return self.where.rpartition(".")[2]

    def refuse(self, given: Any) -> NoReturn:
        """Raise an error that says what was given, and what to give."""
        instead = self.instead
        if isinstance(given, tuple):
            instead = "give the state alone, as in state, batch = fbuf.draw(...)"
        elif isinstance(given, str | os.PathLike):
            instead = "of a checkpoint give fbuf.load(path).state, or run fbuf doctor PATH"
        elif isinstance(getattr(given, "state", None), State | ShardedState):
            instead = "give its state, as in collector.state"
        raise self.error(
            f"{self.where}: {self.argument} must be {self.wanted}, got {type(given).__name__}"
            + f"; {instead}" * bool(instead)
        )


class Owner:
    """The owner of a `fbuf.State`. The owners of all other buffers inherit from this class.

    Attributes:
        buffer: The buffer as it is now: of a state another one after each change.
        asked: The caller.
    """

    make = "fbuf.init({}, {})"
    """The call that makes such a buffer, for errors: of an item and of options."""
    over_mesh = False
    in_place = False
    """Whether a change leaves `buffer` the same object, which other threads may share."""

    def __init__(self, buffer: Any, asked: Asked) -> None:
        """Change this buffer for a caller."""
        self.buffer, self.asked = buffer, asked

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """The buffer's own `lock`, if it has one: held, nobody else changes the buffer."""
        return getattr(self.buffer, "lock", contextlib.nullcontext())

    @property
    def index(self) -> State[Any]:
        """The state that knows the item, the ring and the sampler; its rows may lie elsewhere."""
        return self.buffer

    @property
    def num_envs(self) -> int | None:
        """The number of environments, of all shards together."""
        each = self.index.ring.num_envs
        return None if each is None else each * self.num_shards

    @property
    def num_shards(self) -> int:
        """The number of shards, whose cursors lie one after the other in `index`."""
        return 1

    def require(self, operation: str) -> None:
        """Refuse a buffer that cannot be given to this function of fbuf, such as `add`."""
        refuse_consumed(operation, self.index)

    def whole(self) -> Sequence[State[Any]]:
        """Return the index with its rows, of each shard. The rows may be arrays of NumPy."""
        return [self.buffer]

    def read(self, ids: Any, view: Any) -> Any:
        """Read rows by their ids."""
        return read(self.buffer, ids, view=view)

    def add(self, items: Any, **given: Any) -> None:
        """Add rows, by the arguments of `fbuf.add`."""
        self.change(add, items=items, **given)

    def change(self, operation: Callable[..., Any], **given: Any) -> None:
        """Have a function of fbuf that writes no rows make the next buffer."""
        self.buffer = operation(self.buffer, **given)

    def replace_index(self, change: Callable[[State[Any]], State[Any]]) -> None:
        """Go on with another index, made of this one; its rows stay."""
        self.change(change)


class _MeshOwner(Owner):
    """The owner of a `fbuf.sharded.ShardedState`."""

    make = "fbuf.sharded.init({}, mesh=mesh, {})"
    over_mesh = True

    @property
    def index(self) -> State[Any]:
        return self.buffer.blocks

    @property
    def num_shards(self) -> int:
        return self.buffer.num_shards

    def whole(self) -> Sequence[State[Any]]:
        if not self.index.fault.is_fully_addressable:
            raise ValueError(
                f"{self.asked.where}: state lies on devices of several processes, and one of them "
                "sees its own shards alone; call fbuf.save, and then run fbuf doctor PATH"
            )
        return [shard for _, shard in shards_here(self.buffer)]

    def replace_index(self, change: Callable[[State[Any]], State[Any]]) -> None:
        self.buffer = dataclasses.replace(self.buffer, blocks=change(self.index))


class Holder(Owner):
    """The owner of an object that has a buffer inside, and reads and changes it by itself.

    Reports look at the buffer inside. Its rows may have a form there that only the object knows, so
    every other use is refused.
    """

    def __init__(self, inner: Callable[[Any, str], Any], buffer: Any, asked: Asked) -> None:
        """Look into an object; see `register`."""
        super().__init__(buffer, asked)
        self._inner = inner

    @classmethod
    def register(cls, kind: type, inner: Callable[[Any, str], Any]) -> None:
        """Make this class the owner of all objects of a class.

        Args:
            kind: The class of the objects.
            inner: Returns the buffer inside, of any class that has an owner. It gets the object,
                and the name of the function that asks, for messages.
        """
        owner_of.register(kind, functools.partial(cls, inner))

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """The lock of the object, or of the buffer inside."""
        return getattr(self.buffer, "lock", None) or self._held.lock

    @property
    def index(self) -> State[Any]:
        """As `Owner.index`."""
        return self._held.index

    def whole(self) -> Sequence[State[Any]]:
        """As `Owner.whole`."""
        return self._held.whole()

    def require(self, operation: str) -> None:
        """Refuse the object."""
        self.asked.refuse(self.buffer)

    @property
    def _held(self) -> Owner:
        return owner_of(self._inner(self.buffer, self.asked.function), self.asked)


@functools.singledispatch
def owner_of(buffer: Any, asked: Asked) -> Owner:
    """Return the owner of a buffer, for a caller.

    Raises:
        TypeError: If nothing is registered for its class.
    """
    asked.refuse(buffer)


owner_of.register(State, Owner)
owner_of.register(ShardedState, _MeshOwner)
