"""The picture: its parts, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.play import item, played

import fbuf

pytest.importorskip("matplotlib")

TITLES = [
    *("lengths of whole episodes", "returns of whole episodes", "returns over time"),
    *("which rows are drawn, by age", "draws, by age and priority (darker: more)"),
    *("age of draws", "effective sample size"),
]


def parts(state):
    """The parts of the picture by their titles, once it is drawn."""
    figure = fbuf.plot(state)
    figure.draw_without_rendering()
    return {axes.get_title(): axes for axes in figure.axes}


def texts(axes):
    """The words in a part."""
    return [text.get_text().replace("\n", " ") for text in axes.texts]


def test_the_parts():
    state = played(fbuf.Prioritized())
    found = parts(state)
    assert list(found) == ["800 slots", *TITLES]
    assert not any(map(texts, found.values()))
    stats = fbuf.stats(state, detailed=True)
    size = f"effective sample size: {float(stats['effective_sample_size']):,.0f} of 800"
    labels = found[TITLES[-1]].get_legend_handles_labels()[1]
    assert size in labels
    shares = found[TITLES[-1]].lines[0].get_ydata()
    assert shares[0] == 0
    assert shares[-1] == pytest.approx(1)
    assert (np.diff(np.diff(shares)) < 1e-9).all()  # the likeliest rows come first


def test_the_age_of_draws():
    sampler = fbuf.Prioritized(alpha=1.0, eps=0.0)
    state = fbuf.add(
        fbuf.init(0.0, 8, sampler=sampler),
        jnp.arange(4.0),
        priority=jnp.array([1.0, 1.0, 1.0, 5.0]),
    )
    (label,) = (
        label
        for label in parts(state)["age of draws"].get_legend_handles_labels()[1]
        if label.startswith("mean")
    )
    assert label == "mean age of draws: 2"  # (4 + 3 + 2 + 5 * 1) / 8 = 1.75


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (fbuf.init({"reward": 0.0}, 10), "none"),
        (fbuf.add(fbuf.init({"reward": 0.0}, 10), {"reward": jnp.ones(1)}), "no priorities"),
        (fbuf.add(fbuf.init({"x": 0.0}, 10), {"x": jnp.ones(3)}), "no field called reward"),
        (fbuf.add(fbuf.init(0.0, 10, sampler=fbuf.Fifo()), jnp.ones(3)), "rows are read once"),
        (fbuf.add(fbuf.init(0.0, 9, sampler=fbuf.Reservoir()), jnp.ones(3)), "no order of time"),
        (
            fbuf.add(
                fbuf.init(0.0, 9, sampler=fbuf.Prioritized(eps=0.0)), jnp.ones(3),
                priority=jnp.zeros(3),
            ),
            "none",
        ),
    ],
)  # fmt: skip
def test_a_part_that_cannot_be_drawn_says_why(state, said):
    written = [text for axes in parts(state).values() for text in texts(axes)]
    assert any(said in text for text in written)


def filled(sampler, rows):
    """A buffer with so many rows, all of them with priority 0."""
    state = fbuf.init(item(), 8, sampler=sampler)
    given = {"priority": np.zeros(rows, np.float32)} if sampler.keeps_priorities else {}
    new = jax.tree.map(lambda of: np.ones((rows, *np.shape(of)), np.asarray(of).dtype), item())
    return fbuf.add(state, new, **given) if rows else state


ZERO = fbuf.Prioritized(eps=0.0)
SAMPLERS = {
    "uniform": fbuf.Uniform(),
    "window": fbuf.Uniform(window=3),
    "prioritized": fbuf.Prioritized(),
    "prioritized windows": fbuf.Prioritized(window=2, stride=2),
    "floor": fbuf.Prioritized(floor=1.0, eps=0.0),
    "shuffled": fbuf.Shuffled(),
    "mixture": fbuf.Mixture(0.4, prioritized=0.4, recent=0.2, recent_rows=2),
    "fresh first": fbuf.FreshFirst(),
    "grouped": fbuf.Grouped("task", 3),
    "limited": fbuf.Limited(fbuf.FreshFirst(fbuf.Grouped("task", 3)), max_uses=2),
    "reservoir": fbuf.Reservoir(),
    "evict lowest": fbuf.EvictLowest(),
    "queue": fbuf.Fifo(),
    "all zero, mixture": fbuf.Mixture(0.5, priorities=ZERO),
    "all zero": ZERO,
    "all zero, fresh first": fbuf.FreshFirst(ZERO),
    "all zero, limited": fbuf.Limited(ZERO, max_uses=2),
}
FEW = ("all zero, mixture", "all zero, fresh first", "queue")


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.sweep) for n in SAMPLERS]
)
def test_a_picture_of_any_sampler(name):
    for rows in (0, 1, 4):
        state = filled(SAMPLERS[name], rows)
        assert fbuf.report(state).summary
        assert list(parts(state)) == ["8 slots", *TITLES]
    if name == "all zero, mixture":
        assert texts(parts(state)[TITLES[4]]) == ["all priorities are 0"]
    if name == "all zero, fresh first":
        assert texts(parts(state)[TITLES[3]]) == ["4 fresh rows first, and no other row"]


def test_some_priorities_are_0():
    state = fbuf.init(0.0, 8, sampler=fbuf.Mixture(0.5, priorities=ZERO))
    state = fbuf.add(state, jnp.ones(4), priority=jnp.arange(4.0))
    assert parts(state)[TITLES[4]].get_ylabel() == "stored priority (0 left out)"
    assert "8 slots" in parts(state)


def test_pyplot_and_the_backend_stay_as_they_are(tmp_path):
    program = """
import sys, fbuf, jax.numpy as jnp
assert "matplotlib" not in sys.modules
import matplotlib
before = dict.__getitem__(matplotlib.rcParams, "backend")
figure = fbuf.plot(fbuf.add(fbuf.init({"reward": 0.0}, 10), {"reward": jnp.ones(5)}))
figure.savefig(sys.argv[1])
assert "matplotlib.pyplot" not in sys.modules
assert dict.__getitem__(matplotlib.rcParams, "backend") is before
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "out.png")], check=True)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def lengths_of(*lengths):
    """The part of the lengths of such whole episodes."""
    state = fbuf.init({"reward": 0.0}, 400)
    ends = np.zeros(sum(lengths), bool)
    ends[np.cumsum(lengths) - 1] = True
    state = fbuf.add(state, {"reward": np.ones(ends.size, np.float32)}, truncated=ends)
    return parts(state)[TITLES[0]]


@pytest.mark.first(1)
@pytest.mark.parametrize("lengths", [(20, 20, 20), (20, 20, 21), (1,)])
def test_lengths_have_bars_at_whole_numbers(lengths):
    axes = lengths_of(*lengths)
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in axes.patches}
    counts = {length: lengths.count(length) for length in set(lengths)}
    assert {round(at): height for at, height in bars.items() if height} == counts
    assert all(at == pytest.approx(round(at)) for at in bars)
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert len(ticks) >= 3
    assert all(tick == round(tick) for tick in ticks)


@pytest.mark.parametrize("sampler", [fbuf.Uniform(), fbuf.Prioritized()])
def test_no_legend_lies_on_a_line(sampler):
    figure = fbuf.plot(played(sampler, steps=100))
    figure.draw_without_rendering()
    seen = 0
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is None or axes.get_title().endswith("slots"):
            continue
        seen += 1
        assert not legend.get_window_extent().overlaps(axes.get_window_extent()), axes.get_title()
    assert seen == 2
