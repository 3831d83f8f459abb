"""The state in a `ReplayBuffer`, for `fbuf.report` and `fbuf.plot`."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from fbuf.adapter_api import Part, opened_for_report
from fbuf_adapters.pytorch._contents import Contents
from fbuf_adapters.pytorch._replay_buffer import ReplayBuffer


@opened_for_report.register
@contextlib.contextmanager
def _(buffer: ReplayBuffer, function: str) -> Generator[list[Part]]:
    contents: Contents = buffer.contents
    with contents.lock:
        if contents.stored is None:  # nothing has been added: the item is not known
            contents.check_open(function)
            state = contents.empty_state()
        else:
            state = contents.made(function).backend.whole()
        with opened_for_report(state, function) as parts:
            yield parts
