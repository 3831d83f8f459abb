"""The state in the buffers of Stable-Baselines3's algorithms, for `fbuf.report` and `fbuf.plot`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fbuf.adapter_api import Part, opened_for_report
from fbuf_adapters.sb3._replay_buffer import ReplayBuffer


@opened_for_report.register
def _(buffer: ReplayBuffer, function: str) -> AbstractContextManager[list[Part]]:
    return opened_for_report(buffer.memory.state, function)
