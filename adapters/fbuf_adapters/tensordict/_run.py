"""The figures that a buffer of TensorDicts keeps beside its rows."""

from __future__ import annotations

import dataclasses
from typing import Any

from fbuf_adapters.tensordict._leaves import Form


@dataclasses.dataclass
class Run:
    """All of them in one object, so that a load replaces them in one instruction.

    Attributes:
        form: The form of the items as they were given; None before the first row.
        alpha: The exponent of priorities; None is the sampler's.
        beta: The exponent of weights; None is the sampler's.
        write_count: The number of rows added, replaced ones included.
        cursor: The slot of the next row.
        seen: The stamp of the state that the cursor is of: other code may have written since.
        ready: Whether there was a row to draw.
    """

    form: Form | None = None
    alpha: float | None = None
    beta: float | None = None
    write_count: int = 0
    cursor: int = 0
    seen: Any = None
    ready: bool = False
