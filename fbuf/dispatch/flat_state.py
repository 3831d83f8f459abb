"""The node of JAX's trees that a state is: its arrays side by side, and its form.

JAX takes a state apart for every call of a compiled function, and makes the state that the call
returns anew. With a node for each part of a state, Python made a dozen objects. So a state is one
node, and holds the arrays that a call returns. Its fields are made when somebody looks. The
compiled functions of `fbuf` take and return the arrays themselves.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.tree_util import GetAttrKey, keystr, tree_flatten

from fbuf.samplers.protocol.sampler import Sampler
from fbuf.state import State


class Form:
    """The static parts of a state: all but its arrays. States of one form share their programs.

    Attributes:
        structure: The structure of the fields in their order, without the sampler.
        sampler: The sampler.
        fault: The place of the fault bits among the arrays.
        programs: The compiled functions, by plain function and donation; see `program`.
    """

    def __init__(self, structure: Any, sampler: Sampler) -> None:
        self.structure, self.sampler = structure, sampler
        self.fault = self.fields(range(structure.num_leaves))["fault"]
        self.programs: dict[Any, Any] = {}

    def __repr__(self) -> str:
        """Return both parts; JAX shows them where two states differ in one of them."""
        return f"{self.sampler}, {self.structure}"

    def __reduce__(self) -> Any:
        """Return the parts: a copy or a pickle, as of `jax.tree.structure`, is the one form."""
        return form_of, (self.structure, self.sampler)

    def fields(self, arrays: Iterable[Any]) -> dict[str, Any]:
        """Return the fields of a state that has these arrays."""
        parts = zip(_NAMES, self.structure.unflatten(arrays), strict=True)
        return {**dict(parts), "sampler": self.sampler}

    @functools.cached_property
    def keys(self) -> list[Any]:
        """The keys of the arrays: the way to each through the fields, as in `storage.wide[0]`."""
        parts = self.structure.unflatten(range(self.structure.num_leaves))
        ways = [
            (GetAttrKey(_NAMES[first.idx]), *others)
            for (first, *others), _ in jax.tree.leaves_with_path(parts)
        ]
        return [GetAttrKey(keystr(way)[1:]) for way in ways]

    def program(self, plain: Callable[..., Any], static: tuple[str, ...], donate: bool) -> Any:
        """Return the compiled form of a function of a state.

        The program takes the arrays of the state in its place, and returns two results. The first
        are the arrays of a state of the same form, and the other is what comes with it, or None. If
        there is no such state, they are None and the whole result.
        """
        program = self.programs.get((plain, donate))
        if program is None:
            program = self.programs[plain, donate] = self._compiled(plain, static, donate)
        return program

    def _compiled(self, plain: Callable[..., Any], static: tuple[str, ...], donate: bool) -> Any:
        @functools.wraps(plain)  # with its signature, in which JAX finds the static arguments
        def of_arrays(arrays: Any, *others: Any, **given: Any) -> tuple[Any, Any]:
            result = plain(holding(self, arrays), *others, **given)
            with_more = type(result) is tuple and type(result[0]) is State
            state, rest = result if with_more else (result, None)
            if type(state) is not State:
                return None, result
            arrays, form = held(state)
            return (arrays, rest) if form is self else (None, result)

        return jax.jit(of_arrays, static_argnames=static, donate_argnums=0 if donate else ())


_NAMES = tuple(field.name for field in dataclasses.fields(State) if not field.metadata)

_forms: weakref.WeakValueDictionary[Any, Form] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # a signal handler may ask for a form, too


@functools.lru_cache(maxsize=1024)  # keeps programs while nobody has a state of their form
def form_of(structure: Any, sampler: Sampler) -> Form:
    """Return the one form of these parts: JAX compares forms at every call, by identity."""
    made = Form(structure, sampler)
    with _lock:
        return _forms.setdefault((structure, sampler), made)


def held(state: State[Any]) -> tuple[tuple[Any, ...], Form]:
    """Return the arrays of a state and its form. Cached in the state."""
    found = state.__dict__.get("_held")
    if found is None:
        arrays, structure = tree_flatten(tuple(getattr(state, name) for name in _NAMES))
        found = state.__dict__["_held"] = tuple(arrays), form_of(structure, state.sampler)
    return found


def holding(form: Form, arrays: tuple[Any, ...]) -> State[Any]:
    """Return a state that has these arrays."""
    state = object.__new__(State)
    state.__dict__["_held"] = arrays, form
    return state


def _with_keys(state: State[Any]) -> tuple[list[tuple[Any, Any]], Form]:
    arrays, form = held(state)
    return list(zip(form.keys, arrays, strict=True)), form


_holding: Any = holding  # JAX gives it a tuple, and its types say an iterable
jax.tree_util.register_pytree_with_keys(State, _with_keys, _holding, held)
