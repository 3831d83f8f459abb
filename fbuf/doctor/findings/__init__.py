"""All that is suspicious in a buffer: one family of findings a file."""

from __future__ import annotations

import dataclasses
import re
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

_SHARDED = re.compile(
    r"\bfbuf\.(?=(add|clear|draw|end_episode|expire|remove|sample|update_priority|write)\b)"
)
"""Calls of functions that `fbuf.sharded` has, too."""


def all_of(found: Found, leaves: Mapping[str, Leaf]) -> tuple[Finding, ...]:
    """Return all findings, errors first."""
    each = [finding for family in _FAMILIES for finding in family.find(found, leaves)]
    if found.over_mesh:
        each = [_over_mesh(finding) for finding in each]
    return tuple(sorted(each, key=lambda finding: finding.severity != "error"))


def _over_mesh(finding: Finding) -> Finding:
    """Name the functions for a buffer over a mesh."""
    sentence, remedy = (
        _SHARDED.sub("fbuf.sharded.", said) for said in (finding.sentence, finding.remedy)
    )
    return dataclasses.replace(finding, sentence=sentence, remedy=remedy)
