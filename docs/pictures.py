"""Draw the pictures of the pages into docs/img/."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import fbuf
from fbuf.samplers import random_bits
from fbuf.trees import sum_tree

OUT = pathlib.Path(__file__).parent / "img"
BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#cbd5e0"


def ring() -> None:
    """Twelve slots after fifteen rows: what each holds, and its generation."""
    state = fbuf.init(np.int32(0), 12)
    state = fbuf.add(state, np.arange(15, dtype=np.int32))
    head, lap = int(state.ring.head[0]), int(state.ring.lap[0])
    rows = fbuf.read(state, fbuf.ids_at(state, np.arange(12, dtype=np.int32))).data
    fig, ax = plt.subplots(figsize=(8, 1.9))
    for slot in range(12):
        new = slot < head
        ax.add_patch(plt.Rectangle((slot, 0), 0.94, 0.94, color=BLUE if new else GREY, alpha=0.85))
        colour = "white" if new else "black"
        ax.text(
            slot + 0.47,
            0.58,
            f"row {int(rows[slot])}",
            ha="center",
            color=colour,
            fontsize=8,
        )
        text = f"lap {lap if new else lap - 1}"
        ax.text(slot + 0.47, 0.22, text, ha="center", color=colour, fontsize=8)
        ax.text(slot + 0.47, -0.25, f"{slot}", ha="center", fontsize=8)
    ax.annotate("head: the oldest row,\nnext to be overwritten", (head + 0.05, 1.0),
                (head + 0.6, 1.45), arrowprops={"arrowstyle": "->"}, va="center")  # fmt: skip
    ax.text(-0.1, -0.25, "slot", ha="right", fontsize=8)
    ax.set(xlim=(-0.9, 12.1), ylim=(-0.4, 1.8))
    ax.axis("off")
    _save(fig, "ring.png")


def tree() -> None:
    """One draw through a small tree, drawn with four children to a node."""
    fan_out = 4
    values = np.array([3, 1, 0, 2, 5, 1, 1, 1, 0, 4, 2, 2, 1, 1, 6, 2], float)
    sums = values.reshape(-1, fan_out).sum(axis=1)
    picked_node, picked = 2, 9  # values 0, 4, 2, 2
    fig, ax = plt.subplots(figsize=(8, 2.9))
    for level, (nodes, y) in enumerate(((sums, 1.6), (values, 0.0))):
        width = 16 / len(nodes)
        for i, node in enumerate(nodes):
            chosen = i == (picked_node, picked)[level]
            on_way = level == 1 and i // fan_out == picked_node
            colour = ORANGE if chosen else (BLUE if on_way or level == 0 else GREY)
            ax.add_patch(plt.Rectangle((i * width + 0.04, y), width - 0.08, 0.7, color=colour))
            ax.text((i + 0.5) * width, y + 0.35, f"{node:g}", ha="center", va="center",
                    color="black" if colour == GREY else "white")  # fmt: skip
            if level == 1 and i % fan_out == 0:
                ax.plot([(i + 2), (i + 2)], [0.72, 1.58], color=GREY, lw=1, zorder=0)
    total = int(sums.sum())
    ax.text(0, 2.45, f"top: u₁ · {total} falls into the third node, of sum 8", fontsize=9)
    ax.text(0, -0.35, "leaves: u₂ · 8 falls into the second child; the first, of value 0, cannot "
            "be taken", fontsize=9)  # fmt: skip
    ax.set(xlim=(-0.1, 16.1), ylim=(-0.5, 2.7))
    ax.axis("off")
    _save(fig, "sum_tree.png")


def reach() -> None:
    """Which of N equal rows are ever drawn: the rows next to each other in one row of the tree.

    With one float32 a draw the slot is floor(u * N); with one a level it is a walk down the tree.
    Counted: of 4,096 neighbouring slots in the middle, the share that can be reached.
    """
    capacities = [2**k for k in range(20, 29)]
    single, levels = [], []
    for capacity in capacities:
        start = capacity // 2
        numerators = np.arange(2**24 // 2, 2**24 // 2 + 2**17, dtype=np.float64)
        slots = np.floor(numerators / 2**24 * capacity) - start
        single.append(np.unique(slots[(slots >= 0) & (slots < 4096)]).size / 4096)
        # Twelve levels' worth of picks below a node of 4,096 slots: three numbers of 16 children.
        tree = sum_tree.empty(4096)
        slots = jnp.arange(4096, dtype=jnp.int32)
        tree = sum_tree.write(tree, slots, jnp.ones(4096, jnp.float32))
        uniforms = random_bits.uniforms_of_rows(jax.random.key(0), sum_tree.picks(tree), 100_000)
        levels.append(np.unique(sum_tree.draw(tree, uniforms)[0]).size / 4096)
    fig, ax = plt.subplots(figsize=(6, 2.6))
    ax.plot(capacities, single, "o-", color=ORANGE, label="one float32 a draw")
    ax.plot(capacities, levels, "o-", color=BLUE, label="one a level (fbuf)")
    ax.set(xscale="log", ylim=(0, 1.05), xlabel="rows, all of equal priority",
           ylabel="share that can be drawn")  # fmt: skip
    ax.legend(frameon=False, loc="lower left")
    _save(fig, "reach.png")


def goals() -> None:
    """Rows that are the goal of row 24, and the share of each: counted in episodes of 20 rows."""
    row, rows, draws = 24, 60, 400_000
    numbers = np.arange(rows, dtype=np.int32)
    items = {"goal": -numbers, "achieved_goal": numbers, "reward": np.zeros(rows, np.float32)}
    state = fbuf.init(jax.tree.map(lambda leaf: leaf[0], items), rows)
    state = fbuf.add(state, items, truncated=numbers % 20 == 19)
    ids = fbuf.ids_at(state, np.full(draws, row, np.int32))
    fig, axes = plt.subplots(3, 1, figsize=(8, 3.6), sharex=True)
    mixture = {"current": 0.2, "future": 0.5, "random": 0.3}
    for ax, name, options in (
        (axes[0], '"future"', {}),
        (axes[1], '"future", discount=0.8', {"discount": 0.8}),
        (
            axes[2],
            "20% current, 50% future, 30% random, discount=0.8, nearest=1",
            {"strategy": mixture, "discount": 0.8, "nearest": 1},
        ),
    ):
        view = fbuf.Hindsight(lambda achieved, goal: 0.0, ratio=1.0, **options)
        found = fbuf.read(state, ids, view=view, key=jax.random.key(0)).data.item["goal"]
        often = np.bincount(np.asarray(found), minlength=rows) / draws
        colours = [ORANGE if n == row else BLUE if n // 20 == row // 20 else GREY for n in numbers]
        ax.bar(numbers, often, color=colours)
        for end in (19.5, 39.5):
            ax.axvline(end, color="black", lw=0.8, ls=":")
        ax.set_title(name, fontsize=9, loc="left", pad=2)
        ax.set(yscale="log", ylim=(0.002, 0.4))
        ax.set_ylabel("share", fontsize=8)
        ax.tick_params(labelsize=8)
    axes[2].set_xlabel(
        "the row that the goal comes from; row 24 is drawn, dots are ends", fontsize=8
    )
    fig.tight_layout()
    _save(fig, "goals.png")


def window() -> None:
    """Two episodes, and the window of three rows: at a beginning, in the middle, at an end."""
    lengths, offsets = (6, 7), {"observation": (-3, 0), "action": tuple(range(4))}
    count = sum(lengths)
    number = np.arange(count, dtype=np.int32)
    state = fbuf.init({"observation": jnp.int32(0), "action": jnp.int32(0)}, count)
    ends = np.isin(number, np.cumsum(lengths) - 1)
    state = fbuf.add(state, {"observation": number, "action": number}, truncated=ends)
    drawn = np.array([2, 6, 11])
    ids = jax.tree.map(lambda leaf: leaf[drawn], fbuf.newest_ids(state, count))
    data = fbuf.read(state, ids, view=fbuf.Window(offsets)).data
    fig, ax = plt.subplots(figsize=(8, 2.9))

    def cell(x: float, y: float, text: str, colour: str, there: bool = True) -> None:
        form = {"facecolor": colour} if there else {"fill": False, "hatch": "////"}
        ax.add_patch(plt.Rectangle((x, y), 0.9, 0.7, edgecolor=colour, lw=1.2, **form))
        background = None if there else {"facecolor": "white", "edgecolor": "none", "pad": 1}
        ax.text(x + 0.45, y + 0.34, text, ha="center", va="center", fontsize=9, bbox=background,
                color="white" if there and colour != GREY else "black")  # fmt: skip

    for row in range(count):
        later = row >= lengths[0]
        cell(row + 0.6 * later, 3.6, str(row), ORANGE if row in drawn else GREY)
    for first, last, name in ((0, 5, "an episode"), (6, 12, "the next one")):
        middle = (first + last + 1) / 2 + 0.6 * (first > 0)
        ax.text(middle, 4.5, name, ha="center", fontsize=9)
    ax.text(-0.3, 3.95, "rows", ha="right", va="center", fontsize=9)
    for place, row in enumerate(drawn):
        y = 2.1 - place
        ax.text(-0.3, y + 0.35, f"row {row} drawn", ha="right", va="center", fontsize=9)
        for name, x in (("observation", 0.6), ("action", 4.6)):
            values, valid = np.asarray(data.item[name])[place], data.valid[name][place]
            for at, value in enumerate(values):
                cell(x + at, y, str(value), BLUE, bool(valid[at]))
    ax.text(0.6, 3.05, "observation (-3, 0)", fontsize=9)
    ax.text(4.6, 3.05, "action range(4)", fontsize=9)
    ax.text(9.4, 1.4, "hatched: valid is False.\nThe nearest step of the\nepisode is repeated.",
            fontsize=9, va="center")  # fmt: skip
    ax.set(xlim=(-2.6, 13.8), ylim=(-0.1, 4.9))
    ax.axis("off")
    _save(fig, "window.png")


def buffer() -> None:
    """A prioritised buffer whose learner draws fewer rows than its actors add."""
    rng = np.random.default_rng(0)
    item = {"observation": np.zeros(4, np.float32), "reward": np.float32(0)}
    state = fbuf.init(item, 8000, num_envs=4, sampler=fbuf.Prioritized())
    for turn in range(150):
        rows = {
            "observation": rng.normal(size=(4, 20, 4)).astype(np.float32),
            "reward": (rng.normal(size=(4, 20)) + turn / 30).astype(np.float32),
        }
        state = fbuf.add(state, rows, terminated=rng.random((4, 20)) < 0.02)
        batch = fbuf.sample(state, jax.random.key(turn), 60)
        error = rng.exponential(size=60).astype(np.float32)
        state = fbuf.update_priority(state, batch.ids, error)
    figure = fbuf.plot(state)
    figure.savefig(OUT / "buffer.png", dpi=75)


def _save(fig: plt.Figure, name: str) -> None:
    OUT.mkdir(exist_ok=True)
    fig.savefig(OUT / name, bbox_inches="tight", dpi=150)
    plt.close(fig)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    ring()
    tree()
    reach()
    goals()
    window()
    buffer()
