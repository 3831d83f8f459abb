"""The one way in: what every call goes through, eager or traced.

A verb is written once, as the plain function that is traced. `verb` makes of it what users call:

1. Arguments that must be known before tracing, such as a batch size, are checked. 2. Values of the
host become the buffer's own. NumPy arrays are copied, because JAX may read them after the call has
returned, when their owner has filled them anew. Anything that is not an array, or that JAX would
cut to 32 bits, is refused by the name of its argument. 3. Inside a trace the function runs as it
is. From Python it runs compiled, and a verb that changes the state writes into the memory of the
given state, unless `donate=False`.
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

P = ParamSpec("P")
R = TypeVar("R")

Check = Callable[[str, str, Any], Any]
"""What is called with the verb, the name of an argument and its value, and returns the value."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What kind of state a verb takes.

    Attributes:
        require: Called with the name of the verb and a value; refuses what is no such state.
        prefix: What the name of the verb begins with in messages.
        check_arrays: Called with the name, the state and all arrays of a call from Python.
        finish: Called with the state and the result of a call from Python.
    """

    require: Callable[[str, Any], None]
    prefix: str = ""
    check_arrays: Callable[[str, Any, dict[str, Any]], None] | None = None
    finish: Callable[[Any, Any], None] | None = None


def verb(
    *,
    static: tuple[str, ...] = (),
    checks: Mapping[str, Check] | None = None,
    host_check: Callable[[Any, dict[str, Any]], None] | None = None,
    kind: Kind | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a verb of a function whose first argument is a state, or a tuple of states.

    A verb with an argument `donate` changes the state. The function itself ignores it.

    Args:
        static: The arguments that are part of the program.
        checks: How some arguments are checked before anything else is done with them.
        host_check: What is called with the state and the arguments if Python numbers are among
            them: inside `jit` they have no value any more.
        kind: What kind of state it takes; None is a `fbuf.State`.
    """
    kind = kind or Kind(require_state)
    return lambda plain: _wrapped(plain, static, checks or {}, host_check, kind)


def function(
    *, static: tuple[str, ...] = (), checks: Mapping[str, Check] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `verb`, for a function that takes no state."""
    return lambda plain: _wrapped(plain, static, checks or {}, None, None)


def _wrapped(
    plain: Callable[P, R],
    static: tuple[str, ...],
    checks: Mapping[str, Check],
    host_check: Callable[[Any, dict[str, Any]], None] | None,
    kind: Kind | None,
) -> Callable[P, R]:
    entry = _Entry(plain, static, checks, host_check, kind)

    @functools.wraps(plain)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return entry(args, kwargs)

    call.__dict__["_entry"] = entry
    return call


def checked(verb: Callable[..., Any], state: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a verb, of which those of the host have been checked.

    For who compiles the verb into a program of their own: inside it host values are traced, and
    JAX has cut them already.
    """
    return verb.__dict__["_entry"].checked(state, given)


class _Entry:
    """The way into one verb."""

    def __init__(
        self,
        plain: Callable[..., Any],
        static: tuple[str, ...],
        checks: Mapping[str, Check],
        host_check: Callable[[Any, dict[str, Any]], None] | None,
        kind: Kind | None,
    ) -> None:
        self._plain = plain
        self._kind = kind or Kind(require_state)
        self._name = self._kind.prefix + plain.__name__.lstrip("_")
        self._signature = inspect.signature(plain)
        parameters = self._signature.parameters
        self._names = tuple(parameters)
        self._allowed = frozenset(parameters)
        empty = inspect.Parameter.empty
        self._required = frozenset(n for n, p in parameters.items() if p.default is empty)
        by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self._positional = sum(p.kind is by_place for p in parameters.values())
        self._state = None if kind is None else self._names[0]
        self._static = frozenset(static)
        self._checks = checks
        self._host_check = host_check
        self._changes = "donate" in parameters
        self._keep = jax.jit(plain, static_argnames=static)
        self._consume = jax.jit(plain, static_argnames=static, donate_argnums=0)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = self._bound(args, kwargs)
        before: tuple[Any, ...] = () if self._state is None else (given.pop(self._state),)
        states = before[0] if before and isinstance(before[0], tuple) else before
        for state in states:
            self._kind.require(self._name, state)
        donate = self._changes
        if "donate" in given:
            donate = check.boolean(self._name, "donate", given.pop("donate"))
        for argument, checked in self._checks.items():
            if argument in given:
                given[argument] = checked(self._name, argument, given[argument])
        fixed = {name: given.pop(name) for name in self._static if name in given}
        own, leaves = tree_leaves(states), tree_leaves(given)
        kinds = _kinds(frozenset(map(type, own + leaves)))
        if "host" in kinds:
            given = self._taken_over(before, given, frozenset(map(type, leaves)))
        if "tracer" in kinds:
            return self._plain(*before, **given, **fixed)
        for state in states:
            if is_deleted(state.fault):  # one array stands for all: each costs time in every call
                refuse_consumed(self._name, state)
        if self._kind.check_arrays is not None:
            self._kind.check_arrays(self._name, before[0], given)
        # JAX refuses an array that is given and consumed, but on several devices it may end Python.
        if donate and not set(map(id, own)).isdisjoint(map(id, leaves)):
            _refuse_own_arrays(self._name, own, given)
        run = self._consume if donate else self._keep
        result = run(*before, **given, **fixed)
        if self._kind.finish is not None:
            self._kind.finish(before[0], result)
        return result

    def checked(self, state: Any, given: dict[str, Any]) -> dict[str, Any]:
        """See the function of this name."""
        for argument, checked in self._checks.items():
            if argument in given:
                given = {**given, argument: checked(self._name, argument, given[argument])}
        fixed = {name: value for name, value in given.items() if name in self._static}
        arrays = {name: value for name, value in given.items() if name not in self._static}
        types = frozenset(map(type, tree_leaves(arrays)))
        if "host" in _kinds(types):
            arrays = self._taken_over((state,), arrays, types)
        return arrays | fixed

    def _taken_over(
        self, before: tuple[Any, ...], given: dict[str, Any], types: frozenset[type]
    ) -> dict[str, Any]:
        """The arguments, of which those of the host are the buffer's own."""
        given = {name: _owned(self._name, name, value) for name, value in given.items()}
        if self._host_check is not None and not types.isdisjoint((int, float)):
            self._host_check(before[0], given)
        return given

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name. As `inspect.Signature.bind`, in a tenth of the time."""
        given = dict(zip(self._names, args, strict=False))
        fits = len(args) <= self._positional
        if kwargs:
            fits = fits and given.keys().isdisjoint(kwargs) and self._allowed.issuperset(kwargs)
            given.update(kwargs)
        if not (fits and self._required <= given.keys()):
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"fbuf.{self._name}: {error}") from None
        return given


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
    return tree.unflatten(
        [np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    )


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
    return isinstance(array, jax.Array) and array.is_deleted()


def refuse_consumed(function: str, state: Any) -> None:
    """Raise if an earlier call has taken the state's memory."""
    if any(map(is_deleted, jax.tree.leaves(state))):
        raise RuntimeError(
            f"fbuf.{function}: this state was consumed: an earlier call wrote its result into the "
            "memory of this state. Use the state that the call returned "
            "(state = fbuf.add(state, ...)), or give it donate=False to keep the old one"
        )


def _refuse_own_arrays(function: str, own: list[Any], given: dict[str, Any]) -> None:
    """Refuse arrays of the state as arguments of a call that consumes it."""
    arrays = set(map(id, own))
    for argument, value in given.items():
        for path, leaf in jax.tree.leaves_with_path(value):
            if id(leaf) in arrays:
                raise ValueError(
                    f"fbuf.{function}: {argument}{jax.tree_util.keystr(path)} is an array of the "
                    "state itself, which this call consumes; give a copy (jnp.copy), or use "
                    "donate=False"
                )
