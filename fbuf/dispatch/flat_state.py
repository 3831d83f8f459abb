"""Cache the flat arrays of a state on the state, so that a call need not flatten it.

For every call JAX takes a state apart, and makes the state that it returns anew. From Python that
costs 7 us a call, as much as many programs. So the compiled functions of `fbuf` take and return
arrays, and the state that a call returns holds them. Its fields are made when somebody looks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import tree_flatten

from fbuf.state import State


class Form:
    """The structure of a state, and the programs for states of this structure.

    Attributes:
        structure: The structure.
        fault: The place of the fault bits among the arrays.
        programs: The compiled functions, by what they are made of; see `program`.
    """

    def __init__(self, structure: Any) -> None:
        self.structure = structure
        self.fault = structure.unflatten(range(structure.num_leaves)).fault
        self.programs: dict[Any, Any] = {}

    def program(self, plain: Callable[..., Any], static: tuple[str, ...], donate: bool) -> Any:
        """Return the compiled form of a function of a state.

        The program takes the arrays of the state in its place, and returns two results. The first
        are the arrays of a state of the same structure, and the other is what comes with it, or
        None. If there is no such state, they are None and the whole result.
        """
        program = self.programs.get((plain, donate))
        if program is None:
            program = self.programs[plain, donate] = self._compiled(plain, static, donate)
        return program

    def _compiled(self, plain: Callable[..., Any], static: tuple[str, ...], donate: bool) -> Any:
        @functools.wraps(plain)  # with its signature, in which JAX finds the static arguments
        def of_arrays(arrays: Any, *others: Any, **given: Any) -> tuple[Any, Any]:
            result = plain(self.structure.unflatten(arrays), *others, **given)
            with_more = type(result) is tuple and type(result[0]) is State
            state, rest = result if with_more else (result, None)
            arrays, structure = tree_flatten(state)
            return (tuple(arrays), rest) if structure == self.structure else (None, result)

        return jax.jit(of_arrays, static_argnames=static, donate_argnums=0 if donate else ())


_form_of = functools.lru_cache(maxsize=1024)(Form)


def held(state: State[Any]) -> tuple[tuple[Any, ...], Form]:
    """Return the arrays of a state and its form. Cached in the state."""
    found = state.__dict__.get("_held")
    if found is None:
        arrays, structure = tree_flatten(state)
        found = state.__dict__["_held"] = tuple(arrays), _form_of(structure)
    return found


def holding(arrays: tuple[Any, ...], form: Form) -> State[Any]:
    """Return a state that has these arrays."""
    state = object.__new__(State)
    state.__dict__["_held"] = arrays, form
    return state
