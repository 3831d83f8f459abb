"""Messages of the buffer of tensors, in the words of the buffer of TensorDicts."""

from __future__ import annotations

import re
from contextlib import ContextDecorator
from typing import Any

from fbuf_adapters.tensordict._codec import NAME

_SAID = (
    (re.compile(r"^fbuf(_adapters\.pytorch)?\.ReplayBuffer\b(?=[.:])"), NAME),
    (re.compile(rf"^({re.escape(NAME)})\.load:"), r"\1.loads:"),
    (re.compile(rf"^({re.escape(NAME)})\.save:"), r"\1.dumps:"),
    (re.compile(rf"^({re.escape(NAME)}\.extend: )items\b"), r"\1data"),
    (re.compile(r"\bitems\["), "data["),
)


class _OfTensorDicts(ContextDecorator):
    """Have errors name the class that the user has, and its arguments."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or not error.args or not isinstance(said := error.args[0], str):
            return
        for words, ours in _SAID:
            said = words.sub(ours, said)
        error.args = (said, *error.args[1:])


of_tensordicts = _OfTensorDicts()
"""A decorator for methods, and a context."""
