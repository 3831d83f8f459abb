"""A state that one object owns, changed in place, and lost by no exception.

A change writes the new state into the memory of the old one. An exception could come between the
call and the assignment of its result, from Ctrl-C or any signal handler that raises. The object
would then hold the old state, whose memory is gone. So both are one instruction of Python's; see
`fbuf.runtime.interrupts`. The state is read in that instruction, too, for a signal handler may
change it before.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import fbuf
from fbuf.adapter_api import Calls, View, at_once, of_newest, waiting_steps
from fbuf_adapters.pytorch import _packed
from fbuf_adapters.pytorch._drawer import BatchProgram, PackedDraw, Recipe
from fbuf_adapters.pytorch._handed_ids import PackedIds

Operation = Callable[..., fbuf.State[Any]]


class Backend:
    """Hold a state on the device. Call it with a lock held."""

    def __init__(self, state: fbuf.State[Any], calls: Calls) -> None:
        """Own this state: nobody else may consume it."""
        leaves, self.form = jax.tree.flatten(state)
        self._calls = calls
        self._programs: dict[Any, Any] = {}
        self._kept: list[tuple[jax.Array, ...]] = [tuple(leaves)]
        self._keep = functools.partial(self._kept.__setitem__, 0)
        self._fault = jax.tree.unflatten(self.form, list(range(len(leaves)))).fault
        self._seen: tuple[tuple[jax.Array, ...], fbuf.State[Any]] = (self._kept[0], state)

    @property
    def leaves(self) -> tuple[jax.Array, ...]:
        """The arrays of the state, in the order of `form`."""
        self._calls.settle()
        return self._kept[0]

    @property
    def newest(self) -> list[tuple[jax.Array, ...]]:
        """The leaves in a list that always has the newest ones, for a call that reads it itself."""
        self._calls.settle()
        return self._kept

    @property
    def state(self) -> fbuf.State[Any]:
        """The state."""
        leaves = self.leaves
        seen, state = self._seen
        if seen is not leaves:
            state = jax.tree.unflatten(self.form, leaves)
            self._seen = leaves, state
        return state

    @state.setter
    def state(self, state: fbuf.State[Any]) -> None:
        self._calls.settle()
        leaves = tuple(jax.tree.leaves(state))
        self._kept[0] = leaves
        self._seen = leaves, state  # or the old one would keep its memory

    @property
    def fault(self) -> jax.Array:
        """The fault bits of the state. They are known when all else of it is.

        They are another array as soon as the state has changed.
        """
        return self.leaves[self._fault]

    def program(self, key: Any, make: Callable[[Any], Any]) -> Any:
        """The program of a key, made of the form of the state when it is first asked for."""
        if (found := self._programs.get(key)) is None:
            # Where JAX compares structures, an exception would become another one.
            found = self._calls.apart(functools.partial(make, self.form))
            self._programs[key] = found
        return found

    def change(
        self, operation: Operation, leaves: list[Any], structure: Any, wait: bool, **static: Any
    ) -> None:
        """Have a function of fbuf make the next state of this one.

        Args:
            operation: A function of a state that returns a state.
            leaves: Its other arguments, ready for JAX.
            structure: The structure of these leaves: a dict of the arguments, by name.
            wait: Whether to return only when the arguments have been read. A packed argument is a
                copy, and needs no wait.
            static: The arguments that are part of the program.
        """
        of_host = tuple([isinstance(leaf, np.ndarray) for leaf in leaves])
        arrays = [leaf for leaf, host in zip(leaves, of_host, strict=True) if host]
        others = [leaf for leaf, host in zip(leaves, of_host, strict=True) if not host]
        layout = _packed.layout(arrays)
        parts = operation, structure, layout, of_host, tuple(static.items())
        program = self.program(parts, functools.partial(_compiled, parts))
        packed = _packed.pack_numpy(layout, arrays)
        # The list, and not its entry: a signal handler may change the state until the call.
        steps = map(self._keep, map(program, self._kept, (packed,), (others,)))
        in_place = layout.alone or any(isinstance(leaf, jax.Array) for leaf in others)
        if wait and in_place:  # of a program all results are ready at once
            fault = operator.itemgetter(self._fault)
            waiting = waiting_steps(map(fault, self._kept), map(fault, self._kept))
            steps = itertools.chain(steps, waiting)
        kind = (program, *map(_kind, others))
        self._calls(kind, at_once(steps))

    def batch_program(self, recipe: Recipe) -> Callable[..., PackedDraw]:
        """Return the program that draws batches of a recipe; see `BatchProgram`."""
        return self.program("draw", functools.partial(BatchProgram, recipe, self._calls))

    def read(self, ids: fbuf.Ids, view: View = fbuf.Item()) -> fbuf.Batch[Any]:
        """The rows of ids."""
        return of_newest(lambda: self.state, lambda state: fbuf.read(state, ids, view=view))

    def stats(self, detailed: bool) -> dict[str, Any]:
        """Figures for a log."""
        return self.look(_STATS[bool(detailed)])

    def whole(self) -> fbuf.State[Any]:
        """The state with all that belongs to it."""
        return self.state

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Save it, as `fbuf.save` does."""
        self.state = fbuf.save(path, self.state, **options)

    def look(self, operation: Callable[[fbuf.State[Any]], Any]) -> Any:
        """Return the result of a function of fbuf that reads the state."""
        program = self.program(operation, functools.partial(_looking, operation))
        return self._calls(program, functools.partial(next, map(program, self._kept)))


_STATS = {False: fbuf.stats, True: functools.partial(fbuf.stats, detailed=True)}
"""By whether they are detailed; one function each, for what it compiles to is kept."""


@functools.cache
def _compiled(parts: tuple[Any, ...], form: Any) -> Any:
    """A function of fbuf, from arrays to arrays, compiled to write into those it is given.

    It takes and returns arrays: to make an object of them is Python, in which an exception can
    come.

    Args:
        parts: The function, the structure of its arguments, and the layout of the packed ones.
            Whether each argument is packed. The arguments that are part of the program.
        form: The structure of the state.
    """
    operation, structure, layout, of_host, static = parts

    def changed(
        leaves: tuple[jax.Array, ...], packed: tuple[jax.Array, ...], others: list[Any]
    ) -> tuple[jax.Array, ...]:
        unpacked, rest = iter(_packed.unpack(layout, packed)), iter(others)
        given = structure.unflatten([next(unpacked if host else rest) for host in of_host])
        if isinstance(given.get("ids"), PackedIds):
            given["ids"] = given["ids"].unpacked()
        state = jax.tree.unflatten(form, leaves)
        return tuple(jax.tree.leaves(operation(state, **given, **dict(static))))

    return jax.jit(changed, donate_argnums=0)


@functools.cache
def _looking(operation: Callable[[fbuf.State[Any]], Any], form: Any) -> Any:
    """The same for a function that leaves the state as it is."""
    return jax.jit(lambda leaves: operation(jax.tree.unflatten(form, leaves)))


def _kind(leaf: Any) -> Any:
    """Return the properties of an argument that a program depends on."""
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, leaf.weak_type, leaf.committed
    return type(leaf)
