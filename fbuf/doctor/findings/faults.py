"""Fault bits that compiled code has set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.storage.faults import MEANING, Fault


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings; stale ids are normal, and give no finding."""
    del leaves
    for name in found.figures["faults"]:
        fault = Fault[name]
        if fault in (Fault.STALE_ID, Fault.NOTHING_TO_DRAW):  # the latter has its own finding
            continue
        what, _, remedy = MEANING[fault].partition(". ")
        yield Finding(
            "error",
            f"fault_{name.lower()}",
            f"Since the last fbuf.clear: {what}.",
            f"{remedy}.",
        )
