"""Put the figures of `benchmarks/results/` where they are read: the docs and the README.

    python -m benchmarks.publish
    python -m benchmarks.publish --quick    of a quick run, into outputs/benchmarks/published/

It needs nothing beside the files of a run of the benchmarks; `make bench` ends with it.

`docs/know/benchmarks.md` is a summary: the README's tables, and a list of the reports. The site has
a page of each report, which `docs/links.py` adds. The README gets its tables between its marks, and
so do the other pages named in `PAGES`. A report that is not there is left out. One of a quick run
is never published in the repository.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from benchmarks import compare, host, report
from benchmarks.evidence import exchange_rounds, gpu_calls
from benchmarks.evidence import gpu_speed_tables as gpu
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
    "forms",
    "forms_gpu",
    "gpu_speed",
    "gpu_parts",
    "large",
    "removable",
    "seeds",
    "row_access",
    "tree_shapes",
    "order",
    "learn_every_k",
)
"""The order of the summary."""
SUMMARY = "know/benchmarks.md"
"""The page of the summary."""
RESULTS = "../../benchmarks/results"
"""The folder of the reports, from there."""
PICTURE = f"![Time of a step over the capacity and over the batch]({RESULTS}/compare.png)"
"""The picture of the summary."""
GPU_PEERS = (gpu.FBUF, gpu.FLASHBAX, gpu.TORCHRL)
HANDED = "batch handed to PyTorch"
"""The name of draws of tensors in figures of a GPU that are older than modes and calls."""
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
PROMISE = re.compile("- .*: (held|MISSED)")
LONG = (
    "the same, with CUDA graphs in mode CONCURRENT",
    "the uniform one, in mode CONCURRENT",
    "uniform step of 4,096 84x84x4 frames, likewise",
    "a prioritised batch as tensors",
)
"""Figures of a GPU that the README leaves out."""
PAGES: dict[str, dict[str, dict[str, Callable[[list[Record]], exchange_rounds.Table]]]] = {
    "know/scale_costs.md": {"exchange_rounds": {"told": exchange_rounds.told_table}},
    "know/host.md": {"host": {"batches": host.tiers_table}},
}
"""The tables of pages of the docs, by the report: each between marks of its name."""
INTRODUCTION = """\
# Benchmarks

`make bench` wrote this page, and the reports. Every report says which command made it, on which
device, when, and with which versions. Where fbuf is slower than another library, the table says so.
Bars are what the project promises of itself. The list of reports has how many of them were held,
and the device, if it is no CPU. A difference of a few per cent says nothing.

## A few figures
"""


def list_of(results: pathlib.Path) -> list[str]:
    """Return the list of the reports: title, a device other than a CPU, how many bars were held."""
    lines = []
    for name in REPORTS:
        if not (path := results / f"{name}.md").exists():
            continue
        title, *rest = path.read_text().splitlines()
        about: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())["about"]
        promises = [line for line in rest if PROMISE.match(line)]
        held = sum(": held" in line for line in promises)
        line = f"- [{title.removeprefix('# ')}]({RESULTS}/{name}.md)"
        if (device := about.get("device", "CPU")) != "CPU":
            line += f", {device}"
        lines.append(f"{line}: {held} of {len(promises)}" if promises else line)
    return lines


def write_summary(results: pathlib.Path, docs: pathlib.Path) -> None:
    """Write the summary of all reports."""
    lines = [*INTRODUCTION.splitlines(), "", *about_figures(results), "", *summary(results), ""]
    lines += [*gpu_summary(results), PICTURE, "", "## Reports", "", *list_of(results)]
    (docs / SUMMARY).parent.mkdir(parents=True, exist_ok=True)
    (docs / SUMMARY).write_text("\n".join(lines) + "\n")


def records_of(name: str, results: pathlib.Path) -> list[Record]:
    """The figures of a report, none if it is not there."""
    path = results / f"{name}.json"
    return json.loads(path.read_text())["records"] if path.exists() else []


def summary(results: pathlib.Path) -> list[str]:
    """The table of a few figures, ours beside those of each other library."""
    found = Find(records_of("compare", results))
    agents = Find(records_of("agents", results))
    peers = (compare.FBUF, compare.FLASHBAX, compare.TORCHRL, compare.CPPRB)

    def step(prioritized: bool, mode: str) -> Callable[[str], float | None]:
        return lambda peer: found(
            item="row", n=compare.LARGE, batch=compare.MAIN, what=compare.STEP, cores=None,
            prioritized=prioritized, mode=mode, peer=peer,
        )  # fmt: skip

    def agent(peer: str) -> float | None:
        return agents(peer=peer, n=compare.LARGE, prioritized=True, way="in cond")

    figures: dict[str, Callable[[str], float | None]] = {
        "prioritised step, inside `lax.scan`": step(True, compare.SCAN),
        "uniform step, inside `lax.scan`": step(False, compare.SCAN),
        "an iteration of a whole prioritised DQN, learning in `lax.cond`": agent,
        "prioritised step, called from Python": step(True, compare.PYTHON),
        "uniform step, called from Python": step(False, compare.PYTHON),
    }
    rows = []
    for text, figure in figures.items():
        values = [figure(peer) for peer in peers]
        if values[0] is not None:
            ours = values[0]
            rows.append([text, *(report.beside(value, ours) for value in values)])
    return report.table(["", *peers], rows)


def gpu_figures(results: pathlib.Path) -> dict[str, list[float | None]]:
    """Return a few figures of a GPU: those of `GPU_PEERS`, by their description."""
    records = records_of("gpu_speed", results)
    found, has_modes = Find(records), any("mode" in r for r in records)
    step, sample = (gpu.STEP, "LHS"), (gpu_calls.SAMPLE, gpu.OWN)
    kinds = {
        "prioritised step, inside `lax.scan`": ("row", True, compare.MAIN, *step),
        "the same, with CUDA graphs in mode CONCURRENT": (
            "row", True, compare.MAIN, gpu.STEP, "CONCURRENT"
        ),
        "uniform step, inside `lax.scan`": ("row", False, compare.MAIN, *step),
        "the uniform one, in mode CONCURRENT": (
            "row", False, compare.MAIN, gpu.STEP, "CONCURRENT"
        ),
        "uniform step of 4,096 84x84x4 frames, likewise": ("frame", False, 4096, *step),
        "a prioritised batch as tensors": ("row", True, compare.MAIN, *sample),
        "a uniform batch as tensors": ("row", False, compare.MAIN, *sample),
    }  # fmt: skip
    figures = {}
    for text, (item, prioritized, batch, what, mode) in kinds.items():
        n = min(r["n"] for r in records if r["item"] == item and "n" in r)
        if has_modes:
            asked = {"what": what, "mode": mode}
        elif mode == "CONCURRENT":
            continue
        else:
            asked = {"what": HANDED if what == gpu_calls.SAMPLE else what}
        figures[text] = [
            found(item=item, prioritized=prioritized, batch=batch, n=n, peer=peer, **asked)
            for peer in GPU_PEERS
        ]
    return figures


def gpu_summary(results: pathlib.Path) -> list[str]:
    """Return the table of a GPU, beneath a line that names it; nothing without figures."""
    path = results / "gpu_speed.json"
    if not path.exists():
        return []
    about: dict[str, Any] = json.loads(path.read_text())["about"]
    rows = [
        [text, *(report.beside(value, values[0]) for value in values)]
        for text, values in gpu_figures(results).items()
    ]
    versions = f"jax {about['jax']}, torch {about['torch']}"
    table = report.table(["", *GPU_PEERS], rows)
    return [f"On a GPU ({about['device']}, {versions}):", "", *table, ""]


def gpu_sentences(results: pathlib.Path) -> list[str]:
    """Return the figures of a GPU in sentences, with how many times fbuf's the others are."""
    path = results / "gpu_speed.json"
    if not path.exists():
        return []
    device = json.loads(path.read_text())["about"]["device"]
    parts = []
    for text, values in gpu_figures(results).items():
        if text in LONG:
            continue
        beside = [
            f"{peer} {report.beside(value, values[0])}"
            for peer, value in zip(GPU_PEERS[1:], values[1:], strict=True)
            if value is not None
        ]
        ours = report.beside(values[0], values[0])
        parts.append(f"{text[0].upper()}{text[1:]}: {ours}, {', '.join(beside)}.")
    return ["", *textwrap.wrap(f"On a GPU, {device}. {' '.join(parts)}", 100)]


def about_figures(results: pathlib.Path) -> list[str]:
    """Return the words over the table: what was measured, when, and where."""
    about: dict[str, Any] = json.loads((results / "compare.json").read_text())["about"]
    versions = ", ".join(
        f"{name} {about[name]}" for name in ("jax", "flashbax", "torchrl", "cpprb") if name in about
    )
    text = (
        f"Microseconds, and in brackets how many times fbuf's. A buffer has a million rows of 97 "
        f"bytes; a step adds {compare.ADDED} and draws {compare.MAIN}. "
        "A dash: the library has no such thing, cannot be in a JAX program, or did not run here. "
        f"Written by `make bench` on {about['date']}, {about['processor']}, {versions}."
    )
    return textwrap.wrap(text, 100)


def readme_part(results: pathlib.Path) -> str:
    """Return the part of the README between its marks."""
    about, table = about_figures(results), summary(results)
    return "\n".join([*about, "", *table, *gpu_sentences(results)])


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
    write_summary(results, to / "docs")
    readme = between_marks((ROOT / "README.md").read_text(), readme_part(results))
    (to / "README.md").write_text(readme)
    for name, reports in PAGES.items():
        text = (ROOT / "docs" / name).read_text()
        for of in reports:
            if records := records_of(of, results):
                text = with_tables(name, of, text, records)
        (to / "docs" / name).write_text(text)
    pages = ", ".join(f"docs/{name}" for name in PAGES)
    print(f"wrote docs/{SUMMARY}, and the figures of README.md, {pages} in {to}")


if __name__ == "__main__":
    main()
