"""The figures of a buffer as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fbuf.doctor import text
from fbuf.doctor.look import UNORDERED, Found


def entries(found: Found) -> dict[str, str]:
    """Return the figures as text, by name."""
    of, why_not = found.figures, found.why_not
    bad = {}
    if of["rewards not finite"]:
        bad = {"rewards": _not_finite(of["rewards not finite"], of["rows"])}
    age = UNORDERED
    if of["oldest"] is not None:
        oldest = of["oldest"]
        age = f"the oldest row is of {text.count(oldest, 'step')} ago" if oldest else "no row"
    episodes = f"{of['episodes']:,} whole"
    if of["length"]:
        episodes += f", of {text.spread(*of['length'])} rows"
    if of["with removed rows"]:
        episodes += f"; {of['with removed rows']:,} more with removed rows"
    if of["unfinished"]:
        episodes += f"; {of['unfinished']:,} cut short by a load or by fbuf.extend"
    figures = of["sampler figures"]
    return {
        "rows": f"{of['rows']:,} of {of['capacity']:,} slots ({of['rows'] / of['capacity']:.1%}); "
        f"{of['removed']:,} removed or left empty, {of['dummies']:,} resets",
        "age": age,
        "episodes": why_not.get("episodes") or episodes,
        "returns": why_not.get("returns") or _returns(of),
        **bad,
        "draws": why_not.get("draws") or _draws(of),
        **({"figures": _figures(figures)} if figures else {}),
        "faults": ", ".join(of["faults"]) or "none",
    }


def _returns(of: Mapping[str, Any]) -> str:
    """Return the returns as text."""
    if not of["episodes"]:
        return "no whole episode"
    said = [text.spread(*of["return"])] if of["return"] else []
    if of["returns not finite"]:
        said.append(_not_finite(of["returns not finite"], of["episodes"]))
    return "; ".join(said)


def _not_finite(count: int, of: int) -> str:
    return f"{count:,} of {of:,} {'is' if count == 1 else 'are'} NaN or infinite"


def _draws(of: Mapping[str, Any]) -> str:
    """Return the probabilities of draws as text."""
    if not of["likely"]:
        return "no row can be drawn"
    spread, size = text.spread(*of["likely"]), of["effective sample size"]
    some, than = "", "the average row"
    if of["drawable"] < of["rows"]:
        some = f"{of['drawable']:,} of {text.count(of['rows'], 'row')} can be drawn, "
        than = "the average of these"
    return f"{some}{spread} times as likely as {than}; effective sample size {size:,.0f}"


def _figures(of: Mapping[str, Any]) -> str:
    """Return the figures of the sampler as text."""
    return ", ".join(f"{name} {_number(value)}" for name, value in of.items())


def _number(value: Any) -> str:
    if isinstance(value, list):
        shown = [f"{number:,}" for number in value[:10]]
        return f"[{', '.join(shown)}{', ...' if len(value) > 10 else ''}]"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
