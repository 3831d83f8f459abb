"""Findings: suspicious facts about a buffer, one family a file."""

from __future__ import annotations

from collections.abc import Mapping

from fbuf.doctor.finding import Finding
from fbuf.doctor.findings import (
    causes,
    continuity,
    copies,
    drawing,
    ends,
    faults,
    next_observations,
    priorities,
    probabilities,
    rewards,
    samplers,
    values,
)
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found

_FAMILIES = (
    drawing,
    values,
    rewards,
    ends,
    next_observations,
    continuity,
    copies,
    causes,
    probabilities,
    priorities,
    samplers,
    faults,
)


def all_of(found: Found, leaves: Mapping[str, Leaf]) -> tuple[Finding, ...]:
    """Return all findings, errors first."""
    each = [finding for family in _FAMILIES for finding in family.find(found, leaves)]
    return tuple(sorted(each, key=lambda finding: finding.severity != "error"))
