"""The way of every call into an operation, eager or traced.

An operation is written once, as a plain function that JAX can trace. The decorator `operation`
returns the function that users call:

1. It checks the state, and then numbers, such as an exponent.
2. It copies NumPy arrays: JAX may read an array after the call has returned, and the owner may
   fill the array anew. It refuses values that are no array, or that JAX would cut to 32 bits.
3. It refuses a consumed state.
4. Inside a trace it calls the plain function. From Python it calls the compiled one. An operation
   that changes the state writes into the memory of the given state, unless `donate=False`.

Static arguments, such as a batch size, are checked while a program is made. A call that finds its
program skips these checks. To JAX, arrays by position and arrays by name are two programs, so all
go by position where possible. Keep this path short: the rows of the last draw have evicted its
code from the CPU cache.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves

from fbuf.checks import values as check
from fbuf.state import State
from fbuf.xla.explicit import explicit_mesh, on_automatic_axes

P = ParamSpec("P")
R = TypeVar("R")

Check = Callable[[str, str, Any], Any]
"""A function of an operation's name, an argument's name and its value; it returns the value."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What kind of state an operation takes.

    Attributes:
        require: Called with the name of the operation and a value; refuses what is no such state.
        prefix: What the name of the operation begins with in messages.
        check_arrays: Called with the name, the state and all arrays of a call from Python.
        finish: Called with the state and the result of a call from Python.
    """

    require: Callable[[str, Any], None]
    prefix: str = ""
    check_arrays: Callable[[str, Any, dict[str, Any]], None] | None = None
    finish: Callable[[Any, Any], None] | None = None


def operation(
    *,
    static: tuple[str, ...] = (),
    checks: Mapping[str, Check] | None = None,
    typed: tuple[str, ...] = (),
    host_check: Callable[[Any, dict[str, Any]], None] | None = None,
    kind: Kind | None = None,
    several: bool = False,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make an operation of a function whose first argument is a state.

    An operation with an argument `donate` changes the state. The function itself ignores it.

    Args:
        static: The arguments that are part of the program.
        checks: How some arguments are checked before anything else is done with them.
        typed: Those of them whose check looks at the dtype and the shape alone.
        host_check: What is called with the state and the arguments if Python numbers are among
            them: inside `jit` they have no value any more.
        kind: What kind of state it takes; None is a `fbuf.State`.
        several: The first argument is a tuple of states.
    """
    kind = kind or Kind(require_state)
    return lambda plain: _wrapped(plain, static, checks or {}, typed, host_check, kind, several)


def function(
    *, static: tuple[str, ...] = (), checks: Mapping[str, Check] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `operation`, for a function that takes no state."""
    return lambda plain: _wrapped(plain, static, checks or {}, (), None, None)


def _wrapped(
    plain: Callable[P, R],
    static: tuple[str, ...],
    checks: Mapping[str, Check],
    typed: tuple[str, ...],
    host_check: Callable[[Any, dict[str, Any]], None] | None,
    kind: Kind | None,
    several: bool = False,
) -> Callable[P, R]:
    entry = _Entry(plain, static, checks, typed, host_check, kind)
    # Looked up here once, and not at every call.
    name, changes, counts = entry.name, entry.changes, entry.counts
    takes_state = int(entry.state is not None)
    require, check_arrays, finish = entry.kind.require, entry.kind.check_arrays, entry.kind.finish
    bound, keep, consume, known = entry.bound, entry.keep, entry.consume, entry.known
    of_values = frozenset(entry.of_values)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> R:
        by_place = len(args) in counts and not kwargs
        arrays, given = (args, {}) if by_place else bound(args, kwargs)
        states = arrays[0] if several else arrays[:takes_state]
        for state in states:
            require(name, state)
        donate, fixed = changes, {}
        if given:
            if "donate" in given:
                donate = check.boolean(name, "donate", given.pop("donate"))
            if not of_values.isdisjoint(given):
                given = entry.passed(entry.of_values, given)
            if static:
                fixed = {argument: given.pop(argument) for argument in static if argument in given}
                types = (*fixed, *map(type, fixed.values()))
                if types not in known:
                    fixed = entry.looked_at(types, fixed)
        leaves = tree_leaves((arrays, given))
        kinds = _kinds(frozenset(map(type, leaves)))
        if "host" in kinds:
            if by_place:
                arrays, given = bound(args, kwargs)
            given = entry.taken_over(arrays, entry.passed(entry.of_types, given))
            if not all(isinstance(state.fault, jax.Array) for state in states):
                arrays = _owned(name, "state", arrays)
        for state in states:
            if is_deleted(state.fault):  # one array stands for all: each costs time in every call
                refuse_consumed(name, state)
        if "tracer" in kinds:
            return entry.program(*arrays, **given, **fixed)
        if check_arrays is not None:
            check_arrays(name, arrays[0], given)
        if given and counts:
            arrays, given = entry.by_place(arrays, given)
        # JAX refuses an array that is given and consumed, but on several devices it may end Python.
        if donate and len(set(map(id, leaves))) < len(leaves):
            entry.refuse_own_arrays(arrays, given)
        result = (consume if donate else keep)(*arrays, **given, **fixed)
        if finish is not None:
            finish(arrays[0], result)
        return result

    call.__dict__["_entry"] = entry
    return call


def checked(operation: Callable[..., Any], state: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operation, of which those of the host have been checked.

    Programs of other modules call the operation traced: there JAX has cut host values already.
    """
    return operation.__dict__["_entry"].checked(state, given)


class _Entry:
    """What the way into one operation needs.

    Attributes:
        kind: See `Kind`.
        name: That of the operation, in messages.
        state: The name of the argument that is the state; None if there is none.
        changes: Whether it changes the state.
        counts: With so many arguments by position, they are the state and arrays without checks.
            JAX takes those in less time than by name. Over a mesh the names are needed.
        of_values: Checks to make at every call.
        of_types: Checks to make while the program is made.
        known: Names and types of static arguments that came, and passed. A value of another type
            may have no hash, and then never gets as far as the program.
        program: The function, with these checks.
        keep: It compiled.
        consume: It compiled, and writing into the memory of the state.
    """

    def __init__(
        self,
        plain: Callable[..., Any],
        static: tuple[str, ...],
        checks: Mapping[str, Check],
        typed: tuple[str, ...],
        host_check: Callable[[Any, dict[str, Any]], None] | None,
        kind: Kind | None,
    ) -> None:
        self.kind = kind or Kind(require_state)
        self.name = self.kind.prefix + plain.__name__.lstrip("_")
        self._signature = inspect.signature(plain)
        parameters = self._signature.parameters
        self._names = tuple(parameters)
        self._allowed = frozenset(parameters)
        empty = inspect.Parameter.empty
        self._required = frozenset(n for n, p in parameters.items() if p.default is empty)
        by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self._positional = sum(p.kind is by_place for p in parameters.values())
        self.state = None if kind is None else self._names[0]
        self._static = static
        self._checks = checks
        self.of_values = {n: c for n, c in checks.items() if n not in (*static, *typed)}
        self.of_types = {n: c for n, c in checks.items() if n in (*static, *typed)}
        self._host_check = host_check
        self.changes = "donate" in parameters
        self.known: set[tuple[Any, ...]] = set()
        checked = {*static, *checks, "donate"}
        self.counts = frozenset(
            count
            for count in range(1, self._positional + 1)
            if self.state is not None
            and self.kind.check_arrays is None
            and self._required <= set(self._names[:count])
            and checked.isdisjoint(self._names[:count])
        )
        self._places = {frozenset(self._names[1:n]): self._names[1:n] for n in self.counts}

        # Over a mesh of its own an operation says itself how arrays lie there.
        lies_anywhere = self.kind.check_arrays is None

        @functools.wraps(plain)
        def program(*before: Any, **given: Any) -> Any:
            given = self.passed(self.of_types, given)
            before = _on_device(before)
            given = {n: v if n in static else _on_device(v) for n, v in given.items()}
            if lies_anywhere and explicit_mesh((before, given)) is not None:
                return on_automatic_axes(plain)(*before, **given)
            return plain(*before, **given)

        self.program = program
        self.keep = jax.jit(program, static_argnames=static)
        self.consume = jax.jit(program, static_argnames=static, donate_argnums=0)

    def checked(self, state: Any, given: dict[str, Any]) -> dict[str, Any]:
        """See the function of this name."""
        given = self.passed(self._checks, given)
        fixed = {name: value for name, value in given.items() if name in self._static}
        arrays = {name: value for name, value in given.items() if name not in self._static}
        if "host" in _kinds(frozenset(map(type, tree_leaves(arrays)))):
            arrays = self.taken_over((state,), arrays)
        return arrays | fixed

    def passed(self, checks: Mapping[str, Check], given: dict[str, Any]) -> dict[str, Any]:
        """The arguments, as some checks return them."""
        passed = given
        for argument, checked in checks.items():
            if argument in given:
                passed = {**passed, argument: checked(self.name, argument, given[argument])}
        return passed

    def looked_at(self, types: tuple[Any, ...], fixed: dict[str, Any]) -> dict[str, Any]:
        """Static arguments, checked; of these types they need not be again."""
        passed = self.passed(self.of_types, fixed)
        if all(passed[argument] is value for argument, value in fixed.items()):
            self.known.add(types)
        return passed

    def taken_over(self, before: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """The arguments, of which those of the host are the buffer's own."""
        types = set(map(type, tree_leaves(given)))
        owned = {name: _owned(self.name, name, value) for name, value in given.items()}
        if self._host_check is not None and any(issubclass(of, int | float) for of in types):
            self._host_check(before[0], given)  # not what was put on the device already
        return owned

    def by_place(
        self, before: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by position, if they can be: given by name, they would be another program."""
        names = self._places.get(frozenset(given))
        if names is None:
            return before, given
        return (*before, *(given[name] for name in names)), {}

    def refuse_own_arrays(self, arrays: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Refuse arrays of the state as arguments of a call that consumes it."""
        own = set(map(id, tree_leaves(arrays[0])))
        by_place = zip(self._names[1:], arrays[1:], strict=False)
        for argument, value in (*by_place, *given.items()):
            for path, leaf in jax.tree.leaves_with_path(value):
                if id(leaf) in own:
                    raise ValueError(
                        f"fbuf.{self.name}: {argument}{jax.tree_util.keystr(path)} is an array of "
                        "the state itself, which this call consumes; give a copy (jnp.copy), or "
                        "use donate=False"
                    )

    def bound(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The state, if there is one, and the other arguments by name.

        As `inspect.Signature.bind`, in a tenth of the time.
        """
        given = dict(zip(self._names, args, strict=False))
        fits = len(args) <= self._positional
        if kwargs:
            fits = fits and given.keys().isdisjoint(kwargs) and self._allowed.issuperset(kwargs)
            given.update(kwargs)
        if not (fits and self._required <= given.keys()):
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                by_name = self._names[self._positional :]
                many = len(args) > self._positional and by_name
                hint = f"; give these by name: {', '.join(by_name)}" if many else ""
                said = str(error)
                # What is missing may be what has another name.
                if unknown := [name for name in kwargs if name not in self._allowed]:
                    said = f"got an unexpected keyword argument {unknown[0]!r}"
                    hint = f"; it takes {', '.join(self._names)}"
                raise TypeError(f"fbuf.{self.name}: {said}{hint}") from None
        return () if self.state is None else (given.pop(self.state),), given


def _on_device(value: Any) -> Any:
    """A value whose NumPy arrays are JAX's.

    Inside `jit` they are: here beside traced arrays, and where a user switched `jit` off.
    """
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf, value
    )


@functools.cache
def _kinds(types: frozenset[type]) -> frozenset[str]:
    """What there is among values of these types; kept, for it is asked in every call."""

    def kind(of: type) -> str:
        if issubclass(of, jax.core.Tracer):
            return "tracer"
        return "array" if issubclass(of, jax.Array) else "host"

    return frozenset(map(kind, types))


_PLAIN = frozenset(map(np.dtype, ("?", "b", "B", "h", "H", "i", "I", "e", "f")))
"""What JAX takes as it is; any other dtype is looked at more closely."""


def _owned(function: str, argument: str, value: Any) -> Any:
    """An argument whose NumPy arrays are nobody else's, and of which JAX cuts nothing."""
    leaves, tree = jax.tree.flatten(value)
    if not all(type(leaf) is np.ndarray and leaf.dtype in _PLAIN for leaf in leaves):
        for path, leaf in jax.tree.leaves_with_path(value):
            if not isinstance(leaf, jax.Array):
                check.array(function, argument + jax.tree_util.keystr(path), leaf)
    return tree.unflatten(map(_own, leaves))


def _own(leaf: Any) -> Any:
    """A leaf that is nobody else's, and of a type that holds it."""
    if isinstance(leaf, np.ndarray):
        return np.array(leaf)
    # JAX takes an int as a signed one, and raises an error of its own if that cannot hold it.
    if isinstance(leaf, int) and leaf > jnp.iinfo(jax.dtypes.canonicalize_dtype(np.int64)).max:
        leaf = jax.dtypes.canonicalize_dtype(np.uint64).type(leaf)
    # JAX makes the names of its options at run time.
    config: Any = jax.config
    if config.jax_transfer_guard_host_to_device not in (None, "allow"):
        # A number has been given to this very call: it crosses because somebody said so.
        return leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf)
    return leaf


def require_state(function: str, state: Any, argument: str = "state") -> None:
    """A state."""
    if not isinstance(state, State):
        name = type(state).__name__
        instead = "make one with fbuf.init"
        if name == "ShardedState":
            there = function in sys.modules["fbuf.sharded"].__all__
            instead = (
                f"over a mesh it is fbuf.sharded.{function}"
                if there
                else "it does not work over a mesh"
            )
        elif isinstance(state, tuple):
            instead = "give the state alone, as in state, batch = fbuf.pop(...)"
        raise TypeError(f"fbuf.{function}: {argument} must be a fbuf.State, got {name}; {instead}")


def one_buffer(function: str, state: State[Any]) -> None:
    """A state, and not a batch of states."""
    if jnp.ndim(state.fault) != 0:
        raise ValueError(
            f"fbuf.{function}: state is a batch of buffers of shape {jnp.shape(state.fault)}; "
            f"use jax.vmap(fbuf.{function})"
        )


def is_deleted(array: Any) -> bool:
    """Whether an array's memory is gone; of what is no array of JAX's it never is."""
    is_array = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    return is_array and array.is_deleted()


def refuse_consumed(function: str, state: Any) -> None:
    """Raise if an earlier call has taken the state's memory."""
    if any(map(is_deleted, jax.tree.leaves(state))):
        over_mesh = "sharded." if function.startswith("sharded.") else ""
        raise RuntimeError(
            f"fbuf.{function}: this state was consumed: an earlier call wrote its result into the "
            "memory of this state. Use the state that the call returned "
            f"(state = fbuf.{over_mesh}add(state, ...)), or give it donate=False to keep the old "
            "one"
        )
