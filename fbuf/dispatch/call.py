"""Dispatch of every call of an operation, eager or traced.

An operation is written once, as a plain function that JAX can trace. The decorator `operation`
returns the function that users call:

1. It checks the state, and then numbers, such as an exponent.
2. It copies NumPy arrays: JAX may read an array after the call has returned, and the owner may
   fill the array anew. It refuses values that are no array, or that JAX would cut to 32 bits.
3. It refuses a consumed state.
4. Inside a trace it calls the plain function. From Python it calls the compiled one. An operation
   that changes the state writes into the memory of the given state, unless `donate=False`.

Static arguments, such as a batch size, are checked while a program is made. A call that finds its
program skips these checks. To JAX, arguments by position and arguments by name are two programs, so
all go by position where possible. Most calls give a state and JAX arrays by position: these calls
take a short path. The rows of the last draw have evicted its code from the CPU cache.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, ParamSpec, TypeVar

import jax
import jax.core
from jax.sharding import SingleDeviceSharding
from jax.tree_util import tree_leaves

from fbuf.checks import not_arrays
from fbuf.checks import values as check
from fbuf.dispatch import gradients
from fbuf.dispatch.flat_state import Form, held, holding
from fbuf.dispatch.host_arrays import on_device, owned
from fbuf.dispatch.intact import one_buffer
from fbuf.dispatch.read_before_write import tied
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.xla.explicit import explicit_mesh, on_automatic_axes
from fbuf.xla.loop import in_one_turn
from fbuf.xla.rows import returned

P = ParamSpec("P")
R = TypeVar("R")

Check = Callable[[str, str, Any], Any]
"""A function of an operation's name, an argument's name and its value; it returns the value."""

HostCheck = Callable[[str, Any, dict[str, Any]], None]
"""A function of an operation's name, a state and the other arguments by name."""


def require_state(
    function: str, state: Any, argument: str = "state", over_mesh: bool = False
) -> None:
    """Refuse a value that is no `State`; `over_mesh` tells whether a `ShardedState` would do."""
    if not isinstance(state, State):
        _refuse(function, state, argument, over_mesh)


def _refuse(
    function: str, state: Any, argument: str = "state", over_mesh: bool = False
) -> NoReturn:
    name = type(state).__name__
    wanted, instead = "a fbuf.State", "make one with fbuf.init"
    if over_mesh:
        wanted, instead = f"{wanted} or a ShardedState", f"{instead} or fbuf.sharded.init"
    if isinstance(state, ShardedState):
        instead = "it does not work over a mesh"
    elif isinstance(state, tuple):
        instead = "give the state alone, as in state, batch = fbuf.pop(...)"
    raise TypeError(f"fbuf.{function}: {argument} must be {wanted}, got {name}; {instead}")


def is_deleted(array: Any) -> bool:
    """Tell whether the memory of an array is gone; a value of another type has none."""
    is_array = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    return is_array and array.is_deleted()


def refuse_consumed(function: str, state: Any) -> None:
    """Raise if an earlier call has taken the memory of a state."""
    if any(map(is_deleted, jax.tree.leaves(state))):
        raise RuntimeError(
            f"fbuf.{function}: this state was consumed: an earlier call wrote its result into the "
            "memory of this state. Use the state that the call returned (state = fbuf.add(state, "
            "...)), or give it donate=False to keep the old one"
        )


@dataclasses.dataclass(frozen=True)
class StateType:
    """The type of state that an operation takes.

    Attributes:
        kind: The class.
        plain: Returns a `State` with the static parts of a state.
        refuse: Called with the name of the operation and a value of another class; raises.
        check_traced: Called with the name and the state in every trace.
        check_arrays: Called with the name, the state and all arrays of a call from Python.
        finish: Called with the state and the result of a call from Python.
    """

    kind: type
    plain: Callable[[Any], State[Any]]
    refuse: Callable[[str, Any], NoReturn]
    check_traced: Callable[[str, Any], None]
    check_arrays: Callable[[str, Any, dict[str, Any]], None] | None = None
    finish: Callable[[Any, Any], None] | None = None


_ONE_BUFFER = StateType(State, lambda state: state, _refuse, one_buffer)


def operation(
    *,
    static: tuple[str, ...] = (),
    checks: Mapping[str, Check] | None = None,
    typed: tuple[str, ...] = (),
    host_check: HostCheck | None = None,
    state_type: StateType | None = _ONE_BUFFER,
    several: bool = False,
    prefix: str = "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make an operation of a function whose first argument is a state.

    An operation with an argument `donate` changes the state. The function itself ignores it.

    Args:
        static: The arguments that are part of the program.
        checks: A check for each of some arguments, made before any other use of it.
        typed: Those of them whose check looks at the dtype and the shape alone.
        host_check: Called if Python numbers are among the arguments. Inside `jit` these have no
            value any more.
        state_type: The type of the state, by default `fbuf.State`. None: there is no state.
        several: The first argument is a tuple of states.
        prefix: The beginning of the operation's name in messages.
    """
    return lambda plain: _Dispatcher(
        plain, static, checks or {}, typed, host_check, state_type, several, prefix
    ).function()


def operation_of_both(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an operation that has another form for a buffer over a mesh; see `add_form`.

    The overloads of the function tell the types of both. Options are as for `operation`.
    """
    return operation(**options)


def add_form(
    operation: Callable[..., Any],
    form: Callable[..., Any],
    state_type: StateType,
    checks: Mapping[str, Check],
) -> None:
    """Give an operation another form, for states of another type.

    Args:
        operation: The operation.
        form: A function with the arguments of the operation, without `donate`.
        state_type: The type of its state.
        checks: Other checks than those of the operation.
    """
    operation.__dict__["_dispatcher"].add_form(form, state_type, checks)


def checked(operation: Callable[..., Any], state: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation after the checks of host values.

    Programs of other modules call the operation traced: there JAX has cut host values already.
    """
    return operation.__dict__["_dispatcher"].checked(state, given)


class _Dispatcher:
    """The checks and the compiled forms of one operation.

    Attributes:
        name: The name of the operation, in messages.
        changes: Whether it changes the state.
        short: For numbers of arguments by position: how many of these are arrays, and the names of
            the static ones behind them. None of them has a value to check at each call.
        of_values: Checks to make at every call.
        of_types: Checks to make while the program is made.
        known: Names and types of static arguments that passed. A value of another type may have no
            hash, and then never gets as far as the program.
        form: The type of other states that have a form of their own, and that function.
        program: The function, with these checks.
        whole: The same, as a program of its own: it returns the batch as it is.
        keep: The compiled program.
        consume: The compiled program that writes into the memory of the state.
    """

    def __init__(
        self,
        plain: Callable[..., Any],
        static: tuple[str, ...],
        checks: Mapping[str, Check],
        typed: tuple[str, ...],
        host_check: HostCheck | None,
        state_type: StateType | None,
        several: bool = False,
        prefix: str = "",
        like: _Dispatcher | None = None,
    ) -> None:
        self._plain, self._static, self._typed, self._several = plain, static, typed, several
        self._host_check, self._takes_state = host_check, state_type is not None
        self._type = state_type or _ONE_BUFFER
        self.name = like.name if like else prefix + plain.__name__.lstrip("_")
        self.signature = like.signature if like else inspect.signature(plain)
        parameters = self.signature.parameters
        self._names = tuple(parameters)
        self._allowed = frozenset(parameters)
        empty = inspect.Parameter.empty
        self._required = frozenset(n for n, p in parameters.items() if p.default is empty)
        by_position = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self._positional = sum(p.kind is by_position for p in parameters.values())
        self._checks = checks
        self.of_values = {n: c for n, c in checks.items() if n not in (*static, *typed)}
        self.of_types = {n: c for n, c in checks.items() if n in (*static, *typed)}
        self.changes = "donate" in parameters
        self.known: set[tuple[Any, ...]] = {()}
        self.form: tuple[type, Callable[..., Any]] | None = None
        self._holds = self._type is _ONE_BUFFER and self._takes_state and not several
        # Over a mesh of its own an operation says itself how arrays lie there, by their names.
        lies_anywhere = self._takes_state and self._type.check_arrays is None
        self._moved = self._names[1 : self._positional] if lies_anywhere else ()
        self.short = dict(self._short_forms()) if self._holds else {}

        @functools.wraps(plain)
        def program(*before: Any, **given: Any) -> Any:
            states = before[: int(self._takes_state)]
            given = dict(zip(self._names[1:], before[1:], strict=False)) | given
            given = self.passed(self.of_types, given)
            for state in self._states(states):
                self._type.check_traced(self.name, state)
            states = gradients.stopped(on_device(states))
            given = {n: v if n in static else on_device(v) for n, v in given.items()}
            if lies_anywhere and explicit_mesh((states, given)) is not None:
                return on_automatic_axes(plain)(*states, **given)
            return plain(*states, **given)

        self.program = program
        self.whole = returned()(program) if self._holds else program
        self.keep = jax.jit(self.whole, static_argnames=static)
        self.consume = jax.jit(self.whole, static_argnames=static, donate_argnums=0)

    def _short_forms(self) -> Iterator[tuple[int, tuple[int, tuple[str, ...]]]]:
        """Return the entries of `short`."""
        for count in range(1, self._positional + 1):
            given = self._names[:count]
            static = tuple(name for name in given if name in self._static)
            fits = self._required <= set(given) and self.of_values.keys().isdisjoint(given)
            if fits and given[count - len(static) :] == static:
                yield count, (count - len(static), static)

    def function(self) -> Callable[..., Any]:
        """Return the function that users call."""
        # Looked up here once, and not at every call.
        short, known, general, changes = self.short, self.known, self._general(), self.changes
        program, static_names = self.whole, self._static

        @functools.wraps(self._plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            split = None if kwargs else short.get(len(args))
            if split is None or type(args[0]) is not State:
                return general(args, kwargs)
            count, static = split
            arrays, form = held(args[0])
            fault = arrays[form.fault]
            if (
                _origins(frozenset(map(type, [*arrays, *tree_leaves(args[1:count])])))
                is not _OF_DEVICE
                or (static and (*static, *map(type, args[count:])) not in known)
                or fault.is_deleted()
                # On several devices JAX may end Python where on one it raises an error.
                or (changes and type(fault.sharding) is not SingleDeviceSharding)
            ):
                return general(args, kwargs)
            try:
                arrays, rest = form.program(program, static_names, changes)(arrays, *args[1:])
            except (RuntimeError, ValueError):  # one of JAX's has no names of arguments
                if changes:
                    self.refuse_own_arrays(args[:count], {})
                raise
            return _result(arrays, rest, form)

        call.__dict__["_dispatcher"] = self
        return call

    def add_form(
        self, form: Callable[..., Any], state_type: StateType, checks: Mapping[str, Check]
    ) -> None:
        """Give the operation another form; see the function `add_form`."""
        static, typed, checks = self._static, self._typed, {**self._checks, **checks}
        other = _Dispatcher(form, static, checks, typed, self._host_check, state_type, like=self)
        self.form = state_type.kind, other._general()

    def _general(self) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        """Return the function for calls with any arguments."""
        name, changes, bound, finish = self.name, self.changes, self.bound, self._type.finish
        several, takes_state = self._several, int(self._takes_state)
        kind, check_arrays = self._type.kind, self._type.check_arrays

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            arrays, arguments = bound(args, kwargs)
            states = arrays[0] if several else arrays[:takes_state]
            for state in states:
                if not isinstance(state, kind):
                    return self.form_for(state)(args, kwargs)
            donate = changes
            if "donate" in arguments:
                donate = check.boolean(name, "donate", arguments.pop("donate"))
            arguments, fixed = self.checked_values(arguments)
            leaves = tree_leaves((arrays, arguments))
            origins = _origins(frozenset(map(type, leaves)))
            if "host" in origins:
                arguments = self.owned(arrays, self.passed(self.of_types, arguments))
                if not all(isinstance(state.fault, jax.Array) for state in states):
                    arrays = owned(name, "state", arrays)
            for state in states:
                if is_deleted(state.fault):  # one array stands for all: each costs time per call
                    refuse_consumed(name, state)
            if "tracer" in origins:
                return self.traced(arrays, arguments, fixed)
            if check_arrays is not None:
                check_arrays(name, arrays[0], arguments)
            # JAX refuses an array that is given and consumed. On several devices it may end Python.
            if donate and len(set(map(id, leaves))) < len(leaves):
                self.refuse_own_arrays(arrays, arguments)
            result = self.run(donate, *self.by_position(arrays, arguments | fixed))
            if finish is not None:
                finish(arrays[0], result)
            return result

        return call

    def form_for(self, state: Any) -> Callable[..., Any]:
        """Return the form for a state of another type; refuse the state if there is none."""
        if self.form is None:
            self._type.refuse(self.name, state)
        if not isinstance(state, self.form[0]):
            _refuse(self.name, state, over_mesh=True)
        return self.form[1]

    def run(self, donate: bool, before: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Call the compiled function."""
        if not self._holds or type(before[0]) is not State:  # of a subclass JAX makes another one
            return (self.consume if donate else self.keep)(*before, **given)
        arrays, form = held(before[0])
        program = form.program(self.whole, self._static, donate)
        arrays, rest = program(arrays, *before[1:], **given)
        return _result(arrays, rest, form)

    def traced(self, arrays: tuple[Any, ...], given: dict[str, Any], fixed: dict[str, Any]) -> Any:
        """Call the function inside a program of the caller.

        A change waits for the reads that the same trace has made. It stands in a loop of one turn:
        without, XLA would copy the arrays that a branch of the caller changes.
        """
        if not (self.changes and self._holds):
            return self.program(*arrays, **given, **fixed)
        state, given = gradients.stopped(arrays[0]), gradients.stopped_but_rows(given)
        if "tracer" not in _origins(frozenset(map(type, tree_leaves((state, given))))):
            # A gradient outside of `jit`: the result must not have arrays of the caller's state.
            return self.run(False, *self.by_position((state,), given | fixed))
        state = tied(self.name, state, given.get("ids"))

        def change(state: Any, given: dict[str, Any]) -> tuple[Any, Any]:
            result = self.program(state, **given, **fixed)
            return result if type(result) is tuple else (result, None)

        state, rest = in_one_turn(change, state, given, known=state.fault)
        return state if rest is None else (state, rest)

    def _states(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the states among the arguments by position."""
        return arrays[0] if self._several else arrays[: int(self._takes_state)]

    def checked(self, state: Any, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments after all checks; see the function `checked`."""
        given = self.passed(self._checks, given)
        fixed = {name: value for name, value in given.items() if name in self._static}
        arrays = {name: value for name, value in given.items() if name not in self._static}
        if "host" in _origins(frozenset(map(type, tree_leaves(arrays)))):
            arrays = self.owned((state,), arrays)
        return arrays | fixed

    def checked_values(self, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments after the checks of values, and the static ones apart."""
        if not self.of_values.keys().isdisjoint(given):
            given = self.passed(self.of_values, given)
        fixed = {name: given.pop(name) for name in self._static if name in given}
        types = (*fixed, *map(type, fixed.values()))
        return given, fixed if types in self.known else self.checked_static(types, fixed)

    def passed(self, checks: Mapping[str, Check], given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments, each as its check returns it."""
        passed = given
        for argument, checked in checks.items():
            if argument in given:
                passed = {**passed, argument: checked(self.name, argument, given[argument])}
        return passed

    def checked_static(self, types: tuple[Any, ...], fixed: dict[str, Any]) -> dict[str, Any]:
        """Check static arguments, once for values of the same types."""
        passed = self.passed(self.of_types, fixed)
        if all(passed[argument] is value for argument, value in fixed.items()):
            self.known.add(types)
        return passed

    def owned(self, before: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments, with copies of all arrays of the host."""
        types = set(map(type, tree_leaves(given)))
        copies = {name: owned(self.name, name, value) for name, value in given.items()}
        if self._host_check is not None and any(issubclass(of, int | float) for of in types):
            # The given numbers are checked: their copies may lie on the device.
            self._host_check(self.name, self._type.plain(before[0]), given)
        return copies

    def by_position(
        self, before: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Move arguments to their positions, as many as can go: names make another program."""
        for name in self._moved:
            if name not in given:
                break
            before = (*before, given.pop(name))
        return before, given

    def refuse_own_arrays(self, arrays: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Refuse arrays of the state as arguments of a call that consumes it."""
        own = set(map(id, tree_leaves(arrays[0])))
        by_position = zip(self._names[1:], arrays[1:], strict=False)
        for argument, value in (*by_position, *given.items()):
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
        """Return the state, if there is one, and the other arguments by name.

        As `inspect.Signature.bind`, in a tenth of the time.
        """
        arguments = dict(zip(self._names, args, strict=False))
        fits = len(args) <= self._positional
        if kwargs:
            fits = fits and arguments.keys().isdisjoint(kwargs) and self._allowed.issuperset(kwargs)
            arguments.update(kwargs)
        if not (fits and self._required <= arguments.keys()):
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as error:
                by_name = self._names[self._positional :]
                many = len(args) > self._positional and by_name
                hint = f"; give these by name: {', '.join(by_name)}" if many else ""
                said = str(error)
                # The missing argument may be there under a wrong name.
                if unknown := [name for name in kwargs if name not in self._allowed]:
                    said = f"got an unexpected keyword argument {unknown[0]!r}"
                    takes = f"it takes {', '.join(self._names)}"
                    hint = f"; {not_arrays.of_name(unknown[0], self._allowed) or takes}"
                raise TypeError(f"fbuf.{self.name}: {said}{hint}") from None
        return (arguments.pop(self._names[0]),) if self._takes_state else (), arguments


def _result(arrays: Any, rest: Any, form: Form) -> Any:
    """Return what an operation returns: a state, something else, or both."""
    if arrays is None:
        return rest
    state = holding(form, arrays)
    return state if rest is None else (state, rest)


_OF_DEVICE = frozenset({"array"})


@functools.cache
def _origins(types: frozenset[type]) -> frozenset[str]:
    """Return the origins of values of these types: `_OF_DEVICE` if all are arrays. Cached."""

    def origin(of: type) -> str:
        if issubclass(of, jax.core.Tracer):
            return "tracer"
        return "array" if issubclass(of, jax.Array) else "host"

    origins = frozenset(map(origin, types))
    return _OF_DEVICE if origins == _OF_DEVICE else origins
