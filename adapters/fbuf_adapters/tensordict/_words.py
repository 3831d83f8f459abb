"""Messages of the buffer of tensors, in the words of the buffer of TensorDicts."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fbuf_adapters.tensordict._codec import NAME

P = ParamSpec("P")
R = TypeVar("R")

_SAID = (
    (re.compile(r"^fbuf(_adapters\.pytorch)?\.ReplayBuffer\b(?=[.:])"), NAME),
    (re.compile(rf"^({re.escape(NAME)})\.load:"), r"\1.loads:"),
    (re.compile(rf"^({re.escape(NAME)})\.save:"), r"\1.dumps:"),
    (re.compile(rf"^({re.escape(NAME)}\.extend: )items\b"), r"\1data"),
    (re.compile(r"\bitems\["), "data["),
    (
        re.compile(r"^\w+\.sample\(\) got an unexpected keyword argument 'beta'.*"),
        f"{NAME}.sample: there is no argument 'beta'; set it before, such as rb.beta = 0.5",
    ),
)


def of_tensordicts(method: Callable[P, R]) -> Callable[P, R]:
    """Have errors of a method name the class that the user has, and its arguments."""

    @functools.wraps(method)
    def called(*args: P.args, **options: P.kwargs) -> R:
        try:
            return method(*args, **options)
        except Exception as error:
            if error.args and isinstance(said := error.args[0], str):
                for words, ours in _SAID:
                    said = words.sub(ours, said)
                error.args = (said, *error.args[1:])
            raise

    return called
