"""The state in a `TensorDictReplayBuffer`, for `fbuf.report` and `fbuf.plot`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fbuf.adapter_api import Part, opened_for_report
from fbuf_adapters.tensordict._replay_buffer import TensorDictReplayBuffer


@opened_for_report.register
def _(buffer: TensorDictReplayBuffer, function: str) -> AbstractContextManager[list[Part]]:
    return opened_for_report(buffer.buffer, function)
