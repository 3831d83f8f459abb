"""A picture of what a checkpoint holds. It needs matplotlib."""

from __future__ import annotations

import pathlib
import textwrap
from typing import Any

import numpy as np

from fbuf.command.inspect import Found

_BINS = 50
"""The most parts of a curve; the curve is the mean of each part."""

_POINTS = 1000
"""The most values that are drawn one by one; else the range of each part is drawn."""

_LARGEST = 1e300
"""The largest value; with a larger one the edges of a picture overflow."""


def require() -> Any:
    """Return the figures of Matplotlib, set up for files.

    Raises:
        ValueError: If Matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("agg")
    return Figure


def draw(found: Found, out: pathlib.Path) -> pathlib.Path:
    """Draw fill, lengths of episodes, returns and priorities.

    Args:
        found: The content of the checkpoint.
        out: The file. A name without a suffix gets `.png`.

    Returns:
        The written file.
    """
    out = out if out.suffix else out.with_name(f"{out.name}.png")
    figure = require()(figsize=(10, 9.5), layout="constrained")
    axes = figure.subplots(3, 2)
    of, episodes, drawn = found.figures, found.episodes, found.draws
    _fill(axes[0, 0], of)
    _histogram(axes[0, 1], "lengths of whole episodes", "rows", episodes.lengths)
    returns, why_not = episodes.returns, found.why_not.get("returns", "")
    _histogram(axes[1, 0], "returns of whole episodes", "sum of rewards", returns, why_not)
    number = np.arange(1, episodes.lengths.size + 1)
    _curve(axes[1, 1], "returns over time", number, returns, why_not)
    axes[1, 1].set(xlabel="episodes, in the order of their ends", ylabel="sum of rewards")
    likely, ages = (None, number) if drawn is None else (drawn.likely, drawn.ages)
    why_not, unit = found.why_not.get("draws", ""), "relative to uniform sampling"
    _histogram(axes[2, 0], "how likely rows are to be drawn", unit, likely, why_not)
    _curve(axes[2, 1], "how likely rows are to be drawn, by age", ages, likely, why_not)
    axes[2, 1].set(xlabel="rows ago", ylabel=unit)
    if likely is not None and likely.size and likely.max() > 10 * likely.min():
        axes[2, 1].set_yscale("log")
    title = f"{of['path']}, checkpoint {of['checkpoint']}, {of['time']}"
    # A path may hold what would be a formula.
    figure.suptitle(textwrap.fill(title, 110), fontsize="medium", parse_math=False)
    figure.savefig(out, dpi=120)
    return out


def _fill(axes: Any, of: dict[str, Any]) -> None:
    """Draw how many slots hold rows, removed rows, resets and none."""
    left = 0
    parts = {"rows": of["rows"], "removed": of["removed"], "resets": of["dummies"]}
    parts["free"] = of["capacity"] - sum(parts.values())
    colors = "tab:blue", "tab:red", "tab:orange", "lightgray"
    for (name, count), color in zip(parts.items(), colors, strict=True):
        axes.barh([""], [count], left=left, color=color, label=f"{name}: {count:,}")
        left += count
    axes.set(title=f"{of['capacity']:,} slots", xlabel="slots")
    axes.legend(loc="upper center", ncols=2, frameon=False, fontsize="small")
    axes.set_ylim(-0.6, 1.2)


def _histogram(
    axes: Any, title: str, label: str, values: np.ndarray | None, why_not: str = ""
) -> None:
    """Draw the distribution of the finite values."""
    axes.set(title=title, xlabel=label, ylabel="count")
    values = _finite(axes, values, why_not)
    if values is None:
        return
    low, high = float(values.min()), float(values.max())
    largest = max(abs(low), abs(high))
    # Values that differ in their last bits alone have no room for bins between them.
    if high - low <= 1e-6 * largest:
        room = max(1e-6 * largest, 0.5)
        low, high = low - room, high + room
    bins = min(50, max(10, values.size // 10))
    axes.hist(values, bins=np.linspace(low, high, bins + 1), color="tab:blue")


def _curve(axes: Any, title: str, at: np.ndarray, values: np.ndarray | None, why_not: str) -> None:
    """Draw values over numbers from 1 on, and the mean of the values in each part."""
    axes.set(title=title)
    if _finite(axes, values, why_not) is None or values is None:
        return
    last = int(at.max())
    bins = min(last, _BINS)
    part = (at - 1).astype(np.int64) * bins // last
    middle = 0.5 + (np.arange(bins) + 0.5) * last / bins
    good = np.isfinite(values)
    at, values, of, bad = at[good], values[good], part[good], np.unique(part[~good])
    count = np.bincount(of, minlength=bins)
    there = count > 0
    middle_there = middle[there]
    if values.size <= _POINTS:
        axes.plot(at, values, ".", color="tab:blue", alpha=0.5)
    else:
        least, most = np.full(bins, np.inf), np.full(bins, -np.inf)
        np.minimum.at(least, of, values)
        np.maximum.at(most, of, values)
        between = least[there], most[there]
        axes.fill_between(middle_there, *between, color="tab:blue", alpha=0.25, linewidth=0)
    axes.locator_params(axis="x", nbins=6, integer=True)
    mean = np.bincount(of, values, bins)[there] / count[there]
    axes.plot(middle_there, mean, color="tab:blue", linewidth=1.5)
    if bad.size:
        label, where = f"NaN or infinite: {(~good).sum():,}", axes.get_xaxis_transform()
        height = np.full(bad.size, 0.02)
        axes.plot(middle[bad], height, "x", color="tab:red", transform=where, label=label)
        axes.legend(loc="upper left", frameon=False, fontsize="small")


def _finite(axes: Any, values: np.ndarray | None, why_not: str) -> np.ndarray | None:
    """Return the finite values; if they cannot be drawn, write why, and return None."""
    good = np.zeros(0) if values is None else values[np.isfinite(values)]
    if good.size and np.abs(good).max() <= _LARGEST:
        return good
    said = why_not or "none"
    if values is not None and values.size:
        said = "too large to draw" if good.size else "none is finite"
    said = textwrap.fill(said, 40)
    axes.text(0.5, 0.5, said, ha="center", transform=axes.transAxes, parse_math=False)
    return None
