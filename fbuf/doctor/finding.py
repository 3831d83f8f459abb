"""A report, and its findings."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from fbuf.doctor import text

Severity = Literal["error", "warning"]
"""With an `"error"` something does not work; a `"warning"` may be meant so."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something suspicious in a buffer, as `fbuf.report` finds it.

    Attributes:
        severity: `"error"` where learning cannot work so; `"warning"` where it may be meant so.
        name: A short name that stays. Tests and logs may have it, such as `"rewards_zero"`.
        sentence: The fault, with its figures.
        remedy: The way to mend it.

    Examples:
        >>> import fbuf
        >>> print(fbuf.Finding("warning", "actions_alike", "All actions are 0.", "Look at them."))
        warning: actions_alike
          All actions are 0.
          Remedy: Look at them.
    """

    severity: Severity
    """`"error"` where learning cannot work so."""
    name: str
    """A short name that stays."""
    sentence: str
    """The fault, with its figures."""
    remedy: str
    """The way to mend it."""

    def __str__(self) -> str:
        """Return three paragraphs."""
        body = text.indented(self.sentence), text.indented(f"Remedy: {self.remedy}")
        return "\n".join([f"{self.severity}: {self.name}", *body])


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """The result of `fbuf.report`. Print it, or log its figures.

    Attributes:
        findings: All that is suspicious, errors first.
        figures: The figures by name, as JSON has them: numbers, texts, lists and dicts of these,
            and None where a figure does not exist.
        summary: The figures in words.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init({"reward": 0.0}, 100), {"reward": jnp.zeros(100)})
        >>> [finding.name for finding in fbuf.report(state).findings]
        ['rewards_zero']
    """

    findings: tuple[Finding, ...]
    """All that is suspicious, errors first."""
    figures: dict[str, Any]
    """The figures by name, as JSON has them."""
    summary: str
    """The figures in words."""

    def __str__(self) -> str:
        """Return the figures and the findings in words."""
        found = [str(finding) for finding in self.findings] or ["Nothing is suspicious."]
        return "\n\n".join([self.summary, *found])

    def __repr__(self) -> str:
        """Return the same, so that a notebook shows it."""
        return str(self)
