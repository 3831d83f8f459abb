"""A bar for calls that take more than a second."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


def bar(what: str, steps: int, progress: bool | None) -> Any:
    """A bar of so many steps; `progress` None shows it on a terminal only."""
    hidden = None if progress is None else not progress
    return tqdm(total=steps, desc=what, unit="step", delay=1, disable=hidden, leave=False)
