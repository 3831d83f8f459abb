"""The common part of states, samples and buffers."""

from __future__ import annotations

import dataclasses
from typing import Any, Self


class Replaceable:
    """A frozen dataclass with flashbax's method `replace`."""

    def replace(self, **changes: Any) -> Self:
        """Return the same with some fields replaced."""
        whole: Any = self
        return dataclasses.replace(whole, **changes)
