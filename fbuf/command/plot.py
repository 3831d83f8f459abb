"""A picture of what a checkpoint holds. It needs matplotlib."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from fbuf.command.inspect import Found


def require() -> Any:
    """Matplotlib, set up for files.

    Raises:
        ValueError: If it is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("agg")
    return Figure


def draw(found: Found, out: pathlib.Path) -> None:
    """Draw fill, lengths of episodes, returns and priorities into a file."""
    figure = require()(figsize=(10, 6.5), layout="constrained")
    fill, lengths, returns, likely = figure.subplots(2, 2).ravel()
    of = found.figures
    left = 0
    parts = {"rows": of["rows"], "removed": of["removed"], "resets": of["dummies"]}
    parts["free"] = of["capacity"] - sum(parts.values())
    colors = "tab:blue", "tab:red", "tab:orange", "lightgray"
    for (name, count), color in zip(parts.items(), colors, strict=True):
        fill.barh([""], [count], left=left, color=color, label=f"{name}: {count:,}")
        left += count
    fill.set(title=f"{of['capacity']:,} slots", xlabel="slots")
    fill.legend(loc="upper center", ncols=4, frameon=False, fontsize="small")
    fill.set_ylim(-0.6, 1)
    _histogram(lengths, "lengths of whole episodes", "rows", found.episodes.lengths)
    _histogram(returns, "returns of whole episodes", "sum of rewards", found.episodes.returns)
    _histogram(likely, "how likely a draw is", "times the average row", found.likely)
    figure.suptitle(f"{of['path']}, checkpoint {of['checkpoint']}, {of['time']}", fontsize="medium")
    figure.savefig(out, dpi=120)


def _histogram(axes: Any, title: str, label: str, values: np.ndarray | None) -> None:
    axes.set(title=title, xlabel=label, ylabel="count")
    if values is None or not values.size:
        text = "not known" if values is None else "none"
        axes.text(0.5, 0.5, text, ha="center", transform=axes.transAxes)
        return
    values = values[np.isfinite(values)]
    axes.hist(values, bins=min(50, max(10, values.size // 10)), color="tab:blue")
