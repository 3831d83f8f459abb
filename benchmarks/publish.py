"""Put the figures of `benchmarks/results/` where they are read: the docs and the README.

    python -m benchmarks.publish
    python -m benchmarks.publish --quick    of a quick run, into outputs/benchmarks/published/

It needs nothing beside the files of a run of the benchmarks; `make bench` ends with it.

`docs/benchmarks.md` is made of the reports as they are, with their pictures beside it in
`docs/benchmarks/`. The README gets one table and one picture, between its marks, `docs/scale.md`
some tables of the exchange, and `docs/host.md` those of rows on the host.
`docs/thousands_of_environments.md` gets that of large batches, and `docs/sampling.md` that of small
and large buffers. A report that is not there is left
out. One of a quick run is never published in the repository.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from benchmarks import compare, host, report, sb3, sharded, slices
from benchmarks.evidence import (
    exchange_rounds,
    flat_in_capacity,
    fronts_brax,
    gpu_speed,
    large,
    lerobot,
    sb3_learning,
)
from benchmarks.harness import ROOT, Record
from benchmarks.report import Find

REPORTS = (
    "compare",
    "draw_parts",
    "calls",
    "flat_in_capacity",
    "agents",
    "slices",
    "saving",
    "host",
    "bridge",
    "torch_buffers",
    "sb3",
    "sb3_learning",
    "collect",
    "processes",
    "exchange_rounds",
    "sharded",
    "torchrl_dqn",
    "torchrl_td3",
    "torchrl_td_mpc2",
    "fronts_brax",
    "fronts_flashbax",
    "lerobot",
    "gpu_build",
    "gpu_build_sharded",
    "gpu_speed",
    "large",
    "row_access",
    "tree_shapes",
    "order",
    "learn_every_k",
)
"""The order of the page."""
PICTURE = "https://raw.githubusercontent.com/fbuf/fbuf/main/docs/benchmarks/compare.png"
"""The README's picture, also where the README is shown by a package index."""
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
PAGES: dict[str, dict[str, dict[str, Callable[[list[Record]], exchange_rounds.Table]]]] = {
    "scale.md": {
        "exchange_rounds": {
            "rounds": exchange_rounds.skew_table,
            "cost": exchange_rounds.cost_table,
            "sizes": lambda records: exchange_rounds.rule_table(
                [record for record in records if record.get("rows") == exchange_rounds.USUAL]
            ),
            "told": exchange_rounds.told_table,
            "memory": exchange_rounds.memory_table,
        },
        "sharded": {
            "calls": sharded.scaling_table,
            "collectives": sharded.alone_table,
            "shards": sharded.shards_table,
            "bytes": sharded.bytes_table,
            "copies": sharded.memory_table,
        },
    },
    "coming_from_stable_baselines3.md": {
        "sb3": {"calls": sb3.call_table, "bytes": sb3.byte_table},
        "sb3_learning": {"returns": sb3_learning.return_table},
    },
    "coming_from_brax.md": {
        "fronts_brax": {"steps": fronts_brax.time_table, "returns": fronts_brax.return_table}
    },
    "host.md": {
        "host": {
            "memory": host.bytes_table,
            "batches": host.tiers_table,
            "ahead": host.ahead_table,
            "mapped": host.mapped_table,
        }
    },
    "datasets.md": {"lerobot": {"batches": lerobot.batch_table}},
    "sampling.md": {"flat_in_capacity": {"flat": flat_in_capacity.time_table}},
    "thousands_of_environments.md": {"large": {"step": large.step_table}},
}
"""The tables of pages of the docs, by the report: each between marks of its name."""
INTRODUCTION = """\
# Benchmarks

All figures of this project are on this page, and `make bench` wrote it. Every report says which
command made it, on which device, when, and with which versions. Where fbuf is slower than
another library, the table says so. "Bars" are what the project promises of itself.

The compiled programs differ a little from process to process, so a difference of a few per cent
says nothing."""


def report_text(name: str, results: pathlib.Path, pictures: pathlib.Path) -> list[str]:
    """One report as a section of the page; its picture is copied."""
    lines = []
    for line in (results / f"{name}.md").read_text().splitlines():
        if line.startswith("#"):
            lines.append("#" + line)
        elif line.startswith("!["):
            pictures.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(results / f"{name}.png", pictures / f"{name}.png")
            lines.append(line.replace(f"({name}.png)", f"({pictures.name}/{name}.png)"))
        else:
            lines.append(line)
    return lines


def page(results: pathlib.Path, pictures: pathlib.Path) -> str:
    """The page of all figures."""
    lines = INTRODUCTION.splitlines()
    for name in REPORTS:
        if (results / f"{name}.md").exists():
            lines += ["", *report_text(name, results, pictures)]
    return "\n".join(lines) + "\n"


def records_of(name: str, results: pathlib.Path) -> list[Record]:
    """The figures of a report, none if it is not there."""
    path = results / f"{name}.json"
    return json.loads(path.read_text())["records"] if path.exists() else []


def summary(results: pathlib.Path) -> list[str]:
    """The README's table: a few figures, ours beside those of each other library."""
    found = Find(records_of("compare", results))
    in_slices = Find(records_of("slices", results))
    agents = Find(records_of("agents", results))
    peers = (compare.FBUF, compare.FLASHBAX, compare.TORCHRL, compare.CPPRB)

    def step(
        prioritized: bool, mode: str, what: str = compare.STEP
    ) -> Callable[[str], float | None]:
        return lambda peer: found(
            item="row", n=compare.LARGE, batch=compare.MAIN, what=what, cores=None,
            prioritized=prioritized, mode=mode, peer=peer,
        )  # fmt: skip

    def windows(peer: str) -> float | None:
        names = {compare.FBUF: "fbuf, by start", compare.TORCHRL: slices.PEER}
        return in_slices(
            peer=names.get(peer), mode=slices.PYTHON, what=slices.STEP, stored=slices.SIZES[1][0]
        )

    def agent(way: str) -> Callable[[str], float | None]:
        return lambda peer: agents(peer=peer, n=compare.LARGE, prioritized=True, way=way)

    figures: dict[str, Callable[[str], float | None]] = {
        "prioritised step, inside `lax.scan`": step(True, compare.SCAN),
        "uniform step, inside `lax.scan`": step(False, compare.SCAN),
        "an iteration of a whole prioritised DQN, learning in `lax.cond`": agent("in cond"),
        "the same, the gradient alone in `lax.cond`": agent("outside"),
        "prioritised step, called from Python": step(True, compare.PYTHON),
        "the same, in one compiled call of yours": step(True, compare.PYTHON, compare.ONE_CALL),
        "uniform step, called from Python": step(False, compare.PYTHON),
        "the uniform one, likewise": step(False, compare.PYTHON, compare.ONE_CALL),
        "write 16 rows, draw 256 windows of 4, called from Python": windows,
    }
    rows = []
    for text, figure in figures.items():
        values = [figure(peer) for peer in peers]
        if values[0] is not None:
            ours = values[0]
            rows.append([text, *(report.beside(value, ours) for value in values)])
    return report.table(["", *peers], rows)


def gpu_summary(results: pathlib.Path) -> list[str]:
    """The README's table of a GPU, beneath a line that names it; nothing without figures."""
    path = results / "gpu_speed.json"
    if not path.exists():
        return []
    found = Find(records_of("gpu_speed", results))
    about: dict[str, Any] = json.loads(path.read_text())["about"]
    peers = (gpu_speed.FBUF, gpu_speed.FLASHBAX, gpu_speed.TORCHRL)
    kinds = {
        "prioritised step, inside `lax.scan`": ("row", True, compare.MAIN, gpu_speed.STEP),
        "uniform step, inside `lax.scan`": ("row", False, compare.MAIN, gpu_speed.STEP),
        "uniform step of 4,096 84x84x4 frames, likewise": ("frame", False, 4096, gpu_speed.STEP),
        "a prioritised batch as tensors": ("row", True, compare.MAIN, gpu_speed.HANDED),
        "a uniform batch as tensors": ("row", False, compare.MAIN, gpu_speed.HANDED),
    }
    rows = []
    for text, (item, prioritized, batch, what) in kinds.items():
        n = min(r["n"] for r in records_of("gpu_speed", results) if r["item"] == item and "n" in r)
        values = [
            found(item=item, prioritized=prioritized, batch=batch, what=what, n=n, peer=peer)
            for peer in peers
        ]
        rows.append([text, *(report.beside(value, values[0]) for value in values)])
    versions = f"jax {about['jax']}, torch {about['torch']}"
    return [f"On a GPU ({about['device']}, {versions}):", "", *report.table(["", *peers], rows), ""]


def readme_part(results: pathlib.Path) -> str:
    """Return the part of the README between its marks."""
    about: dict[str, Any] = json.loads((results / "compare.json").read_text())["about"]
    versions = ", ".join(
        f"{name} {about[name]}" for name in ("jax", "flashbax", "torchrl", "cpprb") if name in about
    )
    text = (
        f"Microseconds, and in brackets how many times fbuf's. A buffer has a million rows of 97 "
        f"bytes; a step adds {compare.ADDED} and draws {compare.MAIN} (windows: of 5 million rows "
        "of a byte). A dash: the library has no such thing, or cannot be inside a JAX program. "
        f"Written by `make bench` on {about['date']}, {about['processor']}, {versions}."
    )
    lines = [
        *textwrap.wrap(text, 100),
        "",
        *summary(results),
        "",
        *gpu_summary(results),
        f"![Time of a step over the capacity and over the batch, fbuf and flashbax]({PICTURE})",
    ]
    return "\n".join(lines)


def between_marks(text: str, part: str) -> str:
    """The README with its part replaced.

    Raises:
        ValueError: If the marks are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the README has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def with_tables(page: str, of: str, text: str, records: list[Record]) -> str:
    """A page of the docs with the tables of a report replaced.

    Raises:
        ValueError: If the marks of a table are not there.
    """
    for name, table in PAGES[page][of].items():
        begin, end = (mark.replace("figures", f"figures of {name}") for mark in (BEGIN, END))
        marked = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        lines = report.table(*table(records))
        text, found = marked.subn("\n".join([begin, "", *lines, "", end]), text)
        if not found:
            raise ValueError(f"docs/{page} has no {begin} ... {end}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    report.add_options(parser)
    parser.add_argument("--quick", action="store_true", help="publish a quick run, elsewhere")
    options = parser.parse_args()
    results = report.results_of(options)
    quick = [
        path.name
        for path in sorted(results.glob("*.json"))
        if json.loads(path.read_text())["about"].get("run", "").startswith("quick")
    ]
    if quick and not options.quick:
        sys.exit(f"not published, these are of quick runs: {', '.join(quick)}")
    to = results / "published" if options.quick else ROOT
    (to / "docs").mkdir(parents=True, exist_ok=True)
    (to / "docs" / "benchmarks.md").write_text(page(results, to / "docs" / "benchmarks"))
    readme = between_marks((ROOT / "README.md").read_text(), readme_part(results))
    (to / "README.md").write_text(readme)
    for name, reports in PAGES.items():
        text = (ROOT / "docs" / name).read_text()
        for of in reports:
            if records := records_of(of, results):
                text = with_tables(name, of, text, records)
        (to / "docs" / name).write_text(text)
    pages = ", ".join(f"docs/{name}" for name in PAGES)
    print(f"wrote docs/benchmarks.md and the figures of README.md, {pages} in {to}")


if __name__ == "__main__":
    main()
