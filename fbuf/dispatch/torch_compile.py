"""Functions that `torch.compile` calls as they are: traced, the Python of JAX fails.

Torch looks for an attribute of each function that it is about to trace, and leaves a function with
the attribute out of its graph. While that function runs, torch looks at each frame anew, unless
torch was told of the code. To tell torch takes one of its functions. So torch is told as soon as
it is loaded: here, or when it asks for the attribute. A call costs no time.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any

_untold: set[types.CodeType] = set()
"""Code that torch has not been told of yet."""


class _TorchMark:
    """The attribute: it is true, and tells torch of all code when torch asks for its truth."""

    def __bool__(self) -> bool:
        _tell()
        return True


_MARK = _TorchMark()


def opaque(function: Any) -> None:
    """Have `torch.compile` break its graph at a function, and call the function as it is."""
    function._torchdynamo_disable = _MARK
    function._torchdynamo_disable_msg = "fbuf computes in JAX"
    _untold.add(function.__code__)
    _tell()


def opaque_all(members: Iterable[Any]) -> None:
    """Apply `opaque` to all functions among some objects, and to the methods of all classes.

    Generated methods of dataclasses stay: a learner may make such objects in a graph.
    """
    for member in members:
        if isinstance(member, types.FunctionType):
            opaque(member)
        elif inspect.isclass(member) and not issubclass(member, BaseException | enum.Enum):
            for function in _methods(member):
                opaque(function)


def _methods(kind: type) -> Iterable[Any]:
    """Yield the functions of a class, with those of its properties and class methods."""
    for value in vars(kind).values():
        parts = (value.fget, value.fset) if isinstance(value, property) else (value,)
        for part in parts:
            function = getattr(part, "__func__", part)
            if (
                isinstance(function, types.FunctionType)
                and "<" not in function.__code__.co_filename
            ):
                yield function


def _tell() -> None:
    """Tell torch of the code that torch does not know yet, if torch is loaded."""
    # This module of C is loaded with torch, before anything is compiled.
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if frames is None or not hasattr(frames, "set_code_exec_strategy"):
        return
    skip = frames._FrameAction.SKIP
    for code in tuple(_untold):
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
        _untold.discard(code)
