"""The figures that a buffer of TensorDicts keeps beside its rows."""

from __future__ import annotations

import dataclasses
from typing import Any

from fbuf_adapters.tensordict._leaves import Form


@dataclasses.dataclass
class Run:
    """The figures in one object, so that a load replaces them in one instruction.

    Attributes:
        form: The form of the items; None before the first row.
        alpha: The exponent of priorities; None means the sampler's.
        beta: The exponent of weights; None means the sampler's.
        write_count: The number of rows added, replaced ones included.
        cursor: The slot of the next row.
        lap: How often the cursor has passed the end, modulo 2**32.
        seen: The stamp of the state of both. Another stamp in the buffer means
            that other code has written to it since.
        ready: Whether there was a row to draw at the last check.
    """

    form: Form | None = None
    alpha: float | None = None
    beta: float | None = None
    write_count: int = 0
    cursor: int = 0
    lap: int = 0
    seen: Any = None
    ready: bool = False
