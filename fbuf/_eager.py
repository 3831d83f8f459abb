"""Called eagerly, compiled and donating; called inside a caller's jit, plain traced code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.core

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
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs))):
            return self._plain(*args, **kwargs)
        refuse_consumed(self._name, args[0])
        return (self._consume if donate else self._keep)(*args, **kwargs)


def refuse_consumed(function: str, state: Any) -> None:
    """Raise if an earlier call has taken the state's memory."""
    if any(x.is_deleted() for x in jax.tree.leaves(state) if isinstance(x, jax.Array)):
        raise RuntimeError(
            f"fbuf.{function}: this state has been consumed: an earlier call wrote its result "
            "into the state's memory. Go on with the state which that call returned "
            "(state = fbuf.add(state, ...)), or keep the old one by calling it with donate=False"
        )
