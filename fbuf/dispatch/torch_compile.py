"""Functions that `torch.compile` calls as they are: traced, the Python of JAX fails.

Torch looks for an attribute of each function that it is about to trace, and leaves out of its graph
what has it. What then runs, torch looks at anew, frame by frame, unless it was told of the code.
That takes a function of torch's. So it is told as soon as it is there to be told: here, or when it
asks for the attribute. A call costs nothing for it.
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


class _Asked:
    """The attribute, which is true, and tells torch of all code when torch looks whether it is."""

    def __bool__(self) -> bool:
        _tell()
        return True


_ASKED = _Asked()


def opaque(function: Any) -> None:
    """Have `torch.compile` break its graph where a function is called, and call it as it is."""
    function._torchdynamo_disable = _ASKED
    function._torchdynamo_disable_msg = "fbuf computes in JAX"
    _untold.add(function.__code__)
    _tell()


def opaque_all(members: Iterable[Any]) -> None:
    """The same for all functions among some objects, and all methods of the classes among them.

    Methods that Python writes for classes of data stay: a learner may make such objects in a graph.
    """
    for member in members:
        if isinstance(member, types.FunctionType):
            opaque(member)
        elif inspect.isclass(member) and not issubclass(member, BaseException | enum.Enum):
            for function in _methods(member):
                opaque(function)


def _methods(kind: type) -> Iterable[Any]:
    """The functions that stand in a class, those of its properties and class methods, too."""
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
    """Tell torch of the code that it has not been told of, if it is there."""
    # It is a module of C, which is there as soon as torch is, and before anything is compiled.
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if frames is None or not hasattr(frames, "set_code_exec_strategy"):
        return
    skip = frames._FrameAction.SKIP
    for code in tuple(_untold):
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
        _untold.discard(code)
