"""Cases of a test, of which few run each time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters: the `quick` ones of some cases run each time, the others in the sweep."""
    cases = list(cases)
    if unknown := [case for case in quick if case not in cases]:
        raise ValueError(f"no such cases: {unknown}")
    return [
        case if case in quick else pytest.param(case, marks=pytest.mark.sweep) for case in cases
    ]
