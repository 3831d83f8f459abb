"""A picture of the contents of a buffer. It needs matplotlib."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from fbuf.doctor.look import Found, look
from fbuf.doctor.opened import opened
from fbuf.doctor.rewards import Asked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 50
"""The most points of a curve; each is the mean of a part."""

_POINTS = 1000
"""The most values to draw one by one; of more, the range of each part is drawn."""

_SMALL: dict[str, Any] = {"frameon": False, "fontsize": "small"}
"""The style of a legend, beside the axes, as lines may be anywhere inside."""

_LARGEST = 1e300
"""The largest value to draw; a larger one overflows the limits of the axes."""


def plot(state: Any, *, reward: str | None = None) -> Figure:
    """Draw the contents of a buffer: its rows, episodes and returns, and which rows are drawn.

    The picture has eight parts. Four show the slots, and the lengths and returns of whole episodes,
    also over time. Three show the age of drawn rows: probabilities, draws by age and priority, and
    the age of draws. The last one shows the effective sample size, and the share of draws that the
    likeliest rows take. A part that cannot be drawn says why.

    A notebook shows the result. Elsewhere save it: `fbuf.plot(state).savefig("buffer.png")`.
    Nothing of `pyplot` is changed, and no backend is chosen.

    Args:
        state: As for `fbuf.report`; never consumed.
        reward: As for `fbuf.report`.

    Returns:
        A figure of Matplotlib.

    Raises:
        ImportError: If Matplotlib is not installed.
        TypeError: As `fbuf.report`.
        ValueError: As `fbuf.report`.
        RuntimeError: As `fbuf.report`.

    Cost: O(N log N) time, and O(N) memory of the host. It waits for the result.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init({"reward": 0.0}, 100), {"reward": jnp.ones(50)})
        >>> figure = fbuf.plot(state)  # doctest: +SKIP
        >>> figure.savefig("buffer.png")  # doctest: +SKIP
    """
    require("fbuf.plot")
    with opened(state, "plot") as parts:
        return drawn(look(parts, Asked(reward, "plot", "reward")), repr(state))


def require(asked: str) -> type[Figure]:
    """Return the figures of Matplotlib.

    Args:
        asked: The caller, in words.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f'{asked} needs Matplotlib: pip install "fbuf[plot]"') from None
    return Figure


def drawn(found: Found, title: str) -> Figure:
    """Return the picture of a buffer."""
    figure = require("a picture")(figsize=(10, 12.5), layout="constrained")
    axes: Any = figure.subplots(4, 2)
    of, episodes, draws, why_not = found.figures, found.episodes, found.draws, found.why_not
    _fill(axes[0, 0], of)
    lengths, unordered = "lengths of whole episodes", why_not.get("episodes", "")
    _histogram(axes[0, 1], lengths, "rows", episodes.lengths, unordered)
    returns, why = episodes.returns, why_not.get("returns", "")
    _histogram(axes[1, 0], "returns of whole episodes", "sum of rewards", returns, why)
    number = np.arange(1, episodes.lengths.size + 1)
    _curve(axes[1, 1], "returns over time", number, returns, why)
    axes[1, 1].set(xlabel="episodes, in the order of their ends", ylabel="sum of rewards")
    likely, ages = (None, number) if draws is None else (draws.likely, draws.ages)
    why = why_not.get("draws", "")
    by_age = why or unordered
    ordered = None if by_age else likely
    _curve(axes[2, 0], "which rows are drawn, by age", ages, ordered, by_age)
    axes[2, 0].set(xlabel="age in steps", ylabel="times as likely as on average")
    if ordered is not None and ordered.size and ordered.max() > 10 * ordered.min():
        axes[2, 0].set_yscale("log")
    none = by_age or ("" if found.priorities is not None else "the sampler keeps no priorities")
    _priorities(axes[2, 1], ages, ordered, found.priorities, none)
    _ages(axes[3, 0], ages, ordered, by_age)
    _shares(axes[3, 1], of, likely, why)
    # A path may contain the syntax of a formula.
    figure.suptitle(textwrap.fill(title, 110), fontsize="medium", parse_math=False)
    return figure


def _priorities(
    axes: Any,
    ages: np.ndarray,
    likely: np.ndarray | None,
    priorities: np.ndarray | None,
    why_not: str,
) -> None:
    """Draw the number of draws by age and priority."""
    axes.set(
        title="draws, by age and priority (darker: more)",
        xlabel="age in steps",
        ylabel="stored priority",
    )
    stored = None if why_not else priorities
    if stored is not None and stored.size and not stored.any():
        stored, why_not = None, "all priorities are 0"
    if _finite(axes, stored, why_not) is None or stored is None or likely is None:
        return
    drawn = stored > 0
    if not drawn.all():
        axes.set_ylabel("stored priority (0 left out)")
    ages, stored, share = ages[drawn], stored[drawn], likely[drawn] / likely.sum()
    low, high = float(stored.min()), float(stored.max())
    is_log = high > 10 * low
    if high - low <= 1e-6 * high:
        low, high = 0.5 * low, 1.5 * high
    last = int(ages.max())
    edges = np.linspace(0.5, last + 0.5, min(last, _BINS) + 1)
    levels = np.geomspace(low, high, _BINS + 1) if is_log else np.linspace(low, high, _BINS + 1)
    levels[0], levels[-1] = low, high
    counts, *_ = np.histogram2d(ages, stored, (edges, levels), weights=share)
    shown, most = np.ma.masked_equal(counts.T, 0), float(counts.max())
    axes.pcolormesh(
        edges, levels, shown, cmap="Blues", norm="log", vmin=most / 1e4, vmax=most, rasterized=True
    )
    if is_log:
        axes.set_yscale("log")
    axes.locator_params(axis="x", nbins=6, integer=True)


def _ages(axes: Any, ages: np.ndarray, likely: np.ndarray | None, why_not: str) -> None:
    """Draw the ages of draws, beside those of drawable rows."""
    axes.set(title="age of draws", xlabel="age in steps", ylabel="share")
    if _finite(axes, likely, why_not) is None or likely is None:
        return
    edges = np.linspace(0.5, ages.max() + 0.5, min(int(ages.max()), _BINS) + 1)
    rows, draws = np.ones(ages.size) / ages.size, likely / likely.sum()
    axes.hist(ages, bins=edges, weights=rows, color="lightgray", label="rows")
    axes.hist(
        ages, bins=edges, weights=draws, color="tab:blue", histtype="step", lw=1.5, label="draws"
    )
    mean = float(np.sum(ages * draws))
    axes.axvline(mean, color="tab:blue", ls=":", label=f"mean age of draws: {mean:,.0f}")
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, **_SMALL)


def _shares(axes: Any, of: dict[str, Any], likely: np.ndarray | None, why_not: str) -> None:
    """Draw the share of draws of the likeliest rows."""
    axes.set(
        title="effective sample size", xlabel="rows, the likeliest first", ylabel="share of draws"
    )
    if _finite(axes, likely, why_not) is None or likely is None:
        return
    shares = np.append(0, np.cumsum(np.sort(likely)[::-1])) / likely.sum()
    some = np.unique(np.linspace(0, likely.size, min(likely.size, _POINTS) + 1).astype(np.int64))
    axes.plot(some, shares[some], color="tab:blue", lw=1.5, label="draws")
    axes.plot([0, likely.size], [0, 1], color="gray", ls="--", lw=1, label="all rows alike")
    size = of["effective sample size"]
    label = f"effective sample size: {size:,.0f} of {likely.size:,}"
    axes.axvline(size, color="tab:orange", lw=1.5, label=label)
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.set_ylim(0, 1.05)
    # Two lines rise, and the third is vertical: only the place below the picture is free.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, **_SMALL)


def _fill(axes: Any, of: dict[str, Any]) -> None:
    """Draw the numbers of slots with rows, removed rows and resets, and of empty ones."""
    left = 0
    removed = "removed or left empty"
    parts = {"rows": of["rows"], removed: of["removed"], "resets": of["dummies"]}
    parts["free"] = of["capacity"] - sum(parts.values())
    colors = "tab:blue", "tab:red", "tab:orange", "lightgray"
    for (name, count), color in zip(parts.items(), colors, strict=True):
        axes.barh([""], [count], 0.5, left=left, color=color, label=f"{name}: {count:,}")
        left += count
    axes.set(title=f"{of['capacity']:,} slots", xlabel="slots")
    axes.legend(loc="upper center", ncols=2, frameon=False, fontsize="small")
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.set_ylim(-0.4, 0.8)


def _histogram(
    axes: Any, title: str, label: str, values: np.ndarray | None, why_not: str = ""
) -> None:
    """Draw the distribution of the finite values."""
    axes.set(title=title, xlabel=label, ylabel="count")
    values = _finite(axes, values, why_not)
    if values is None:
        return
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind in "iu" and high - low <= _BINS:
        # A bar for each number; a single bar gets a margin at both sides.
        axes.hist(values, bins=np.arange(low - 0.5, high + 1.5), rwidth=0.9, color="tab:blue")
        room = max(1, 5 - (high - low))
        axes.set_xlim(max(low - room, 0), high + room)
        axes.locator_params(axis="x", nbins=6, integer=True)
        return
    largest = max(abs(low), abs(high))
    # No bins fit between values that differ in their last bits alone.
    if high - low <= 1e-6 * largest:
        room = max(1e-6 * largest, 0.5)
        low, high = low - room, high + room
    bins = min(50, max(10, values.size // 10))
    axes.hist(values, bins=np.linspace(low, high, bins + 1), color="tab:blue")


def _curve(axes: Any, title: str, at: np.ndarray, values: np.ndarray | None, why_not: str) -> None:
    """Draw values over the numbers `at`, which begin at 1, and the mean of each part."""
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
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), **_SMALL)


def _finite(axes: Any, values: np.ndarray | None, why_not: str) -> np.ndarray | None:
    """Return the finite values; or write why they cannot be drawn, and return None."""
    good = np.zeros(0) if values is None else values[np.isfinite(values)]
    if good.size and np.abs(good).max() <= _LARGEST:
        return good
    said = why_not or "none"
    if values is not None and values.size:
        said = "too large to draw" if good.size else "none is finite"
    said = textwrap.fill(said, 40)
    axes.set(xticks=[], yticks=[])
    axes.text(
        0.5, 0.5, said, ha="center", color="dimgray", transform=axes.transAxes, parse_math=False
    )
    return None
