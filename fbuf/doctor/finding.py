"""A report, and its findings."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from fbuf.doctor import text

Severity = Literal["error", "warning"]
"""An `"error"` breaks learning; a `"warning"` may be intended."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something suspicious in a buffer, as `fbuf.report` finds it.

    Attributes:
        severity: `"error"` if learning cannot work; `"warning"` if it may be intended.
        name: A short name that no version changes, for tests and logs, such as `"rewards_zero"`.
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
    """`"error"` if learning cannot work; `"warning"` if it may be intended."""
    name: str
    """A short name that no version changes."""
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
        figures: The figures by name, in types of JSON. None means that a figure does not exist.
        summary: The figures as text.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init({"reward": 0.0}, 100), {"reward": jnp.zeros(100)})
        >>> [finding.name for finding in fbuf.report(state).findings]
        ['rewards_zero']
    """

    findings: tuple[Finding, ...]
    """All that is suspicious, errors first."""
    figures: dict[str, Any]
    """The figures by name, in types of JSON."""
    summary: str
    """The figures as text."""

    def __str__(self) -> str:
        """Return the figures and the findings as text."""
        found = [str(finding) for finding in self.findings] or ["Nothing is suspicious."]
        return "\n\n".join([self.summary, *found])

    def __repr__(self) -> str:
        """Return the same text, for notebooks."""
        return str(self)
