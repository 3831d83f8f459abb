"""Called eagerly, compiled and donating; called inside a caller's jit, plain traced code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.core

from fbuf import _check

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Generic[P, R]):
    """A function of a state, ready to be called from either side of `jit`.

    Eagerly it runs compiled, and with `donate` it writes into the memory of the state it is given.
    Inside a trace it runs as it is: only the outermost jit can donate.
    """

    def __init__(self, name: str, function: Callable[P, R], static: tuple[str, ...] = ()) -> None:
        """Compile nothing yet; `static` names the arguments that are part of the program."""
        self._name = name
        self._plain = function
        self._keep = jax.jit(function, static_argnames=static)
        self._consume = jax.jit(function, static_argnames=static, donate_argnums=0)

    def __call__(self, donate: bool, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it; the first argument is the state."""
        _check.is_state(self._name, args[0])
        kinds = set(map(type, jax.tree.leaves((args, kwargs))))
        if any(issubclass(kind, jax.core.Tracer) for kind in kinds):
            return self._plain(*args, **kwargs)
        state: Any = args[0]
        if is_deleted(state.fault):  # one array stands for all: each costs time in every call
            refuse_consumed(self._name, state)
        return (self._consume if donate else self._keep)(*args, **kwargs)


def is_deleted(array: Any) -> bool:
    """Whether an array's memory is gone; of what is no array of JAX's it never is."""
    return isinstance(array, jax.Array) and array.is_deleted()


def refuse_consumed(function: str, state: Any) -> None:
    """Raise if an earlier call has taken the state's memory."""
    if any(map(is_deleted, jax.tree.leaves(state))):
        raise RuntimeError(
            f"fbuf.{function}: this state has been consumed: an earlier call wrote its result "
            "into the state's memory. Go on with the state which that call returned "
            "(state = fbuf.add(state, ...)), or keep the old one by calling it with donate=False"
        )
