"""Buffers that stay in the process that made them.

`multiprocessing` sends copies: as an argument of a process, through a queue or a pipe, or to a
pool. Rows that are added to the copy are lost silently.
"""

from __future__ import annotations

from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn


def stays(kind: type) -> None:
    """Have `multiprocessing`, also that of PyTorch, refuse to send such buffers."""
    ForkingPickler.register(kind, _refuse)


def check_stays(buffer: Any) -> None:
    """Refuse to be pickled for a new process, by any pickler."""
    if get_spawning_popen() is not None:
        _refuse(buffer)


def _refuse(buffer: Any) -> NoReturn:
    raise TypeError(
        f"{type(buffer).__name__}: a buffer stays in the process that made it: another one would "
        "have a copy, and rows added there would be lost. Send the rows to this process, by a "
        "multiprocessing.Queue for instance, and add them here; or, for a buffer of its own, send "
        "what it saves (state_dict() or a directory), and load that there"
    )
