"""A state that one object owns, changed in place, and lost by no exception.

A change writes the new state into the memory of the old one. An exception could come between the
call and the assignment of its result, from Ctrl-C or any signal handler that raises. The object
would then hold the old state, whose memory is gone. So both are one instruction of Python's; see
`fbuf.runtime.interrupts`. The state is read in that instruction, too, for a signal handler may
change it before.

A change may also wait for the next draw: then one program does both. It is made before anything
else looks at the state. So its meaning is that of a change made at once. The instruction that makes
the change also takes it from the list of those that wait. Else an exception could lose the change,
or have it made twice.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import fbuf
from fbuf.adapter_api import Calls, View, at_once, of_newest, waiting_steps
from fbuf_adapters.pytorch.batches._drawer import (
    BatchProgram,
    BatchRequest,
    Change,
    PackedDraw,
    Recipe,
)
from fbuf_adapters.pytorch.batches._numpy_draws import NumpyDraws
from fbuf_adapters.pytorch.buffer._pending import Pending
from fbuf_adapters.pytorch.crossing import _dtypes, _packed

Operation = Callable[..., fbuf.State[Any]]


class Backend:
    """Hold a state on the device. Call it with a lock held.

    Attributes:
        form: The structure of the state.
        defers: Whether changes of priorities may wait for the next draw; see `defer`.
    """

    def __init__(self, state: fbuf.State[Any], calls: Calls, defers: bool = False) -> None:
        """Own this state: nobody else may consume it."""
        leaves, self.form = jax.tree.flatten(state)
        self.defers = defers
        self._calls = calls
        self._programs: dict[Any, Any] = {}
        self._kept: list[tuple[jax.Array, ...]] = [tuple(leaves)]
        self._keep = functools.partial(self._kept.__setitem__, 0)
        self._fault = jax.tree.unflatten(self.form, list(range(len(leaves)))).fault
        self._seen: tuple[tuple[jax.Array, ...], fbuf.State[Any]] = (self._kept[0], state)
        self._pending: list[Pending] = []
        """The changes that wait, in order: one, and more only if a signal handler has called."""
        self._made: list[Pending] = []
        """Those of them that were made, until torch knows."""
        self._stamped: tuple[Any, Any] = (None, None)
        """The fault bits that the last of them has made, and its stamp."""
        self._checked: set[Any] = set()
        self._shown = self._kept[0]

    @property
    def leaves(self) -> tuple[jax.Array, ...]:
        """The arrays of the state, in the order of `form`."""
        return self.newest[0]

    @property
    def newest(self) -> list[tuple[jax.Array, ...]]:
        """The leaves in a list that always has the newest ones, for a call that reads it itself."""
        self._make_pending()
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
        self._make_pending()
        leaves = tuple(jax.tree.leaves(state))
        self._shown = leaves
        self._kept[0] = leaves
        self._seen = leaves, state  # or the old one would keep its memory

    def shown(self) -> fbuf.State[Any]:
        """The state, for code that may call functions of fbuf with it.

        The next change consumes it at once, or such a function would find it whole.
        """
        self._shown = self.leaves
        return self.state

    @property
    def may_defer(self) -> bool:
        """Whether the next change may wait for the next draw; see `defer`."""
        self._settle()
        return self.defers and (bool(self._pending) or self._kept[0] is not self._shown)

    @property
    def fault(self) -> jax.Array:
        """The fault bits of the state. They are known when all else of it is.

        They are another array as soon as the state has changed.
        """
        return self.leaves[self._fault]

    @property
    def stamp(self) -> object:
        """Another object as soon as the state has changed; no change is made for it."""
        self._settle()
        waiting = self._pending.copy()
        if waiting:
            return waiting[-1].stamp
        fault = self._kept[0][self._fault]
        made, stamp = self._stamped
        return stamp if made is fault else fault

    @property
    def is_consumed(self) -> bool:
        """Whether other code has consumed the state; no change is made for it."""
        self._settle()
        return self._kept[0][self._fault].is_deleted()

    def program(self, key: Any, make: Callable[[Any], Any]) -> Any:
        """The program of a key, made of the form of the state when it is first asked for."""
        if key not in self._programs:
            # Where JAX compares structures, an exception would become another one.
            self._programs[key] = self._calls.apart(functools.partial(make, self.form))
        return self._programs[key]

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
        self._make_pending()
        parts, arrays, others = _taken_apart(operation, leaves, structure, static)
        program = self.program(parts, functools.partial(_compiled, parts))
        layout = parts[2]
        packed = _packed.pack_numpy(layout, arrays)
        # The list, and not its entry: a signal handler may change the state until the call.
        steps = map(self._keep, map(functools.partial(program, packed, others), self._kept))
        in_place = layout.alone or any(isinstance(leaf, jax.Array) for leaf in others)
        if wait and in_place:  # of a program all results are ready at once
            fault = operator.itemgetter(self._fault)
            waiting = waiting_steps(map(fault, self._kept), map(fault, self._kept))
            steps = itertools.chain(steps, waiting)
        kind = (program, *map(_kind, others))
        self._calls(kind, at_once(steps))

    def defer(
        self,
        operation: Operation,
        leaves: list[Any],
        structure: Any,
        read: Callable[[jax.Array], object] | None,
    ) -> None:
        """Have a function of fbuf make the next state of this one, with the next draw.

        Or before, if anything else looks at the state. Wrong arguments raise now.

        Args:
            operation: As for `change`.
            leaves: As for `change`. Nobody else may write to arrays of JAX's among them.
            structure: As for `change`.
            read: Is called after the change was made, with its fault bits. Torch may then use the
                memory of these arrays again, if it waits for the bits.
        """
        self._make_pending()
        parts, arrays, others = _taken_apart(operation, leaves, structure, {})
        program = self.program(parts, functools.partial(_compiled, parts))
        layout = parts[2]
        packed = _packed.pack_numpy(layout, arrays)
        alone = len(layout.packed)  # from there on they are the caller's memory
        given = (*packed[:alone], *map(np.copy, packed[alone:])), others
        kind = (program, *map(_kind, others))
        if kind not in self._checked:
            self._calls.apart(lambda: jax.eval_shape(program, *given, self._kept[0]))
            self._checked.add(kind)
        self._pending.append(Pending(_changing(parts), program, given, kind, read))

    def draw(self, recipe: Recipe, asked: BatchRequest, ahead: bool) -> PackedDraw:
        """Draw a batch of a recipe; see `BatchProgram`. A change that waits is made with it."""
        make = lambda form: NumpyDraws.of(recipe, self._calls, form, self._kept[0])
        by_numpy = self.program("draw by NumPy", make)
        if by_numpy is not None and (drawn := by_numpy(self.newest, asked)) is not None:
            return drawn
        program = self.program("draw", functools.partial(BatchProgram, recipe, self._calls))
        self._make_pending(but=0 if _dtypes.x64() else 1)
        for change in self._pending[:1]:
            both = "change and draw", change.function
            after = self.program(both, lambda _, change=change: program.after(change.function))
            call = functools.partial(after, change.given, asked.arguments, **asked.static)
            found: list[Any] = []
            run = map(found.append, map(call, self._leaves_for(change)))
            keep = map(self._keep, map(operator.itemgetter(0), found))
            kind = (change.kind, asked.kind(after))
            once = functools.partial(next, zip(run, keep, self._taking(), strict=False))
            with contextlib.suppress(StopIteration):  # a signal handler has had the change made
                self._calls(kind, once)
            self._settle()
            for _, drawn in found:
                return program.drawn(drawn, self._kept[0], asked)
        return program(self.newest, asked, ahead)

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
        newest = self.newest
        return self._calls(program, functools.partial(next, map(program, newest)))

    # Changes that wait.

    def _make_pending(self, but: int = 0) -> None:
        """Make the waiting changes in order, except the last `but` ones."""
        self._settle()
        while len(waiting := self._pending.copy()) > but:
            change = waiting[0]
            run = map(self._keep, map(change.call, self._leaves_for(change)))
            # It raises if it does nothing: `Calls` would take the program for a compiled one.
            once = functools.partial(next, zip(run, self._taking(), strict=False))
            with contextlib.suppress(StopIteration):  # a signal handler has made the change
                if _dtypes.x64():  # it was off when the change was asked for
                    self._calls.apart(functools.partial(_in_32_bits, once))
                else:
                    self._calls(change.kind, once)
            self._settle()

    def _leaves_for(self, change: Pending) -> Iterator[tuple[jax.Array, ...]]:
        """Return the newest leaves, if the change is still the next one when they are asked for."""
        still_next = itertools.takewhile(functools.partial(operator.is_, change), self._pending)
        return itertools.compress(self._kept, still_next)

    def _taking(self) -> Iterator[Any]:
        """Return an iterator of which each turn notes that the next change was made."""
        return map(self._made.append, map(self._pending.pop, itertools.repeat(0)))

    def _settle(self) -> None:
        """Wait for a call that was under way; tell torch of the changes that were made."""
        self._calls.settle()
        while self._made:
            made, fault = self._made.copy(), self._kept[0][self._fault]
            for one in made:
                if one.read is not None:
                    one.read(fault)
                self._stamped = fault, one.stamp
            for one in made:
                with contextlib.suppress(ValueError):  # a signal handler has
                    self._made.remove(one)


_STATS = {False: fbuf.stats, True: functools.partial(fbuf.stats, detailed=True)}
"""By whether they are detailed; one function each, for what it compiles to is kept."""


def _taken_apart(
    operation: Operation, leaves: list[Any], structure: Any, static: dict[str, Any]
) -> tuple[tuple[Any, ...], list[Any], list[Any]]:
    """Return the parts of `_changing`, the arguments to pack, and the others."""
    of_host = tuple([isinstance(leaf, np.ndarray) for leaf in leaves])
    arrays = [leaf for leaf, host in zip(leaves, of_host, strict=True) if host]
    others = [leaf for leaf, host in zip(leaves, of_host, strict=True) if not host]
    layout = _packed.layout(arrays)
    return (operation, structure, layout, of_host, tuple(static.items())), arrays, others


@functools.cache
def _changing(parts: tuple[Any, ...]) -> Change:
    """Return a function of fbuf, from arrays to arrays.

    It takes and returns arrays: to make an object of them is Python, in which an exception can
    come.

    Args:
        parts: The function, the structure of its arguments, and the layout of the packed ones.
            Whether each argument is packed. The arguments that are part of the program.
    """
    operation, structure, layout, of_host, static = parts

    def changed(
        form: Any, packed: tuple[jax.Array, ...], others: list[Any], leaves: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, ...]:
        unpacked, rest = iter(_packed.unpack(layout, packed)), iter(others)
        given = structure.unflatten([next(unpacked if host else rest) for host in of_host])
        state = jax.tree.unflatten(form, leaves)
        return tuple(jax.tree.leaves(operation(state, **_packed.whole(given), **dict(static))))

    return changed


@functools.cache
def _compiled(parts: tuple[Any, ...], form: Any) -> Any:
    """The same for states of a form, compiled to write into the leaves it is given."""
    return jax.jit(functools.partial(_changing(parts), form), donate_argnums=2)


@functools.cache
def _looking(operation: Callable[[fbuf.State[Any]], Any], form: Any) -> Any:
    """The same for a function that leaves the state as it is."""
    return jax.jit(lambda leaves: operation(jax.tree.unflatten(form, leaves)))


def _in_32_bits(call: Callable[[], Any]) -> Any:
    """Make a call of a program that was checked without 64 bits."""
    with jax.enable_x64(False):
        return call()


def _kind(leaf: Any) -> Any:
    """Return the properties of an argument that a program depends on."""
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, leaf.weak_type, leaf.committed
    return type(leaf)
