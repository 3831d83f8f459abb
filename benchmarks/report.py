"""Print the report of a benchmark, and write its files.

A script ends with a call of `script`. Its files are `NAME.json` (every figure), `NAME.md` (the
tables) and, if it draws one, `NAME.png`. They are in `benchmarks/results/`, or in
`outputs/benchmarks/` after a quick run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.harness import ROOT, Measured, Record, Task

RESULTS = ROOT / "benchmarks" / "results"
QUICK_RESULTS = ROOT / "outputs" / "benchmarks"
"""The folder of quick runs: their figures say nothing, and git leaves them out."""


@dataclasses.dataclass(frozen=True)
class Report:
    """The parts of a benchmark.

    Attributes:
        module: The name of the script: `benchmarks.compare`.
        how: The script's docstring. Its first three paragraphs (title, commands, and all that it
            needs) are left out of the report.
        title: The headline.
        packages: The packages whose versions the figures depend on.
        keys: Records that are alike in these were measured by several processes.
        tasks: Returns the task of each process; given whether the run is a quick one, and with
            `commit` the trees (`harness.trees`).
        measure: Does one task.
        tables: Returns the tables, as lines of Markdown.
        bars: Returns the promises of the project, and whether each was held; not of a quick run.
        plot: Draws the picture into a file, if there is one.
        figures: The names of the figures in a record.
        device: Returns the name of the device, if that is not the CPU.
        commit: The help of an argument for an older commit; without it there is none.
        is_timed: Whether there are times among the figures, so that a busy machine spoils them.
    """

    module: str
    how: str
    title: str
    packages: Sequence[str]
    keys: Sequence[str]
    tasks: Callable[..., list[Task]]
    measure: Callable[[Task], Measured]
    tables: Callable[[list[Record]], list[str]]
    bars: Callable[[list[Record]], list[str]] | None = None
    plot: Callable[[list[Record], pathlib.Path], None] | None = None
    figures: Sequence[str] = ("us",)
    device: Callable[[], str] | None = None
    commit: str = ""
    is_timed: bool = True


def script(**more: Any) -> Measured:
    """Be the script that was started: its functions are the parts of a `Report`, with `more`."""
    main = sys.modules["__main__"]
    found = {name: getattr(main, name, None) for name in ("tasks", "measure", "tables")}
    found |= {name: getattr(main, name, None) for name in ("bars", "plot")}
    spec = main.__spec__
    return run(Report(module=spec.name if spec else "", how=main.__doc__ or "", **found, **more))


def run(report: Report) -> Measured:
    """Measure in processes of their own, write the report, and return all that was measured."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {report.module}", description=report.how.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: does it run?")
    if report.commit:
        parser.add_argument("commit", nargs="?", help=report.commit)
    add_options(parser)
    options = parser.parse_args()
    if options.worker:
        harness.work(report.measure, json.loads(options.worker), options.out)
        sys.exit()

    load, begun = harness.load(), time.monotonic()
    with harness.trees(options.commit if report.commit else None) as trees:
        todo = report.tasks(options.quick, *([trees] if report.commit else []))
        found = harness.run_tasks(report.module, todo)
    records = harness.merged(found.records, report.keys, report.figures)
    about = harness.about(*report.packages)
    if report.commit and options.commit:
        about["commit"] = options.commit
    if report.device:
        about["device"] = report.device()
    about["load before"] = load
    about["pace"] = paced(found.paces)
    about["run"] = f"{'quick' if options.quick else 'full'}, {time.monotonic() - begun:.0f} s"
    sections = report.tables(records)
    if report.bars and not options.quick:
        sections += ["", "## Bars", "", *(report.bars(records) or ["none: not measured"])]
    sections += missing(found.notes)
    folder, picture = results_of(options), None
    before = folder / f"{name_of(report.module)}.json"
    wrong = None
    if report.is_timed and not options.quick:
        wrong = unfit(found.paces, about["processor"], before)
    folder = QUICK_RESULTS if wrong else folder
    if report.plot:
        folder.mkdir(parents=True, exist_ok=True)
        picture = folder / f"{name_of(report.module)}.png"
        report.plot(records, picture)
    write(report.module, report.title, folder, about, records, sections, report.how, picture)
    if found.notes and not records:
        sys.exit(f"{report.module}: nothing was measured")
    if wrong:
        sys.exit(f"{report.module}: {wrong}; the figures are in {folder}, and not to be published")
    return Measured(records, found.notes)


STEADY = 1.3
"""The most by which the pace of a machine may change, but for a quarter of the time, and since."""


def paced(paces: Sequence[float]) -> str:
    """Return the pace of the machine in words: the fastest, and how much slower it was."""
    least = min(paces)
    return (
        f"{least:.2f} ms, a quarter of the time over {_upper_quartile(paces) / least:.2f} times "
        f"that, at most {max(paces) / least:.2f}"
    )


def unfit(paces: Sequence[float], processor: str, before: pathlib.Path) -> str | None:
    """Return why a machine's figures are not to be published, or None.

    Figures are medians over processes that took turns: a bad minute does not change them. A bad
    quarter of the time may.

    Args:
        paces: The pace of the machine, before, between and after the tasks.
        processor: The name of the processor.
        before: The file of figures that are published now, if there are any.
    """
    spread = _upper_quartile(paces) / min(paces)
    if spread > STEADY:
        return (
            f"the machine was busy: a quarter of the time it took over {spread:.2f} times as long "
            f"as at best, and {STEADY} is steady"
        )
    old = json.loads(before.read_text())["about"] if before.exists() else {}
    published = re.match(r"([\d.]+) ms", old.get("pace", ""))
    if published and old["processor"] == processor:
        slower = min(paces) / float(published[1])
        if slower > STEADY:
            return (
                f"the machine is slow: {slower:.2f} times as long as for the published figures, "
                f"and {STEADY} is steady"
            )
    return None


def _upper_quartile(paces: Sequence[float]) -> float:
    return sorted(paces)[len(paces) * 3 // 4]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all scripts: the folder of the results, and those of a task's process."""
    parser.add_argument("--results", type=pathlib.Path, help="the folder of the results")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)


def results_of(options: argparse.Namespace) -> pathlib.Path:
    """Return the folder of the results."""
    if options.results:
        return options.results
    return QUICK_RESULTS if getattr(options, "quick", False) else RESULTS


def missing(notes: Sequence[str]) -> list[str]:
    """Return the section of the notes, if there are any."""
    if not notes:
        return []
    return ["", "## What to know, and what is missing", "", *(f"- {note}" for note in notes)]


def name_of(module: str) -> str:
    """Return the name of the files of a benchmark."""
    return module.rpartition(".")[2]


def write(
    module: str,
    title: str,
    folder: pathlib.Path,
    about: dict[str, str],
    records: list[Record],
    sections: list[str],
    how: str,
    picture: pathlib.Path | None = None,
    shown: bool = True,
) -> None:
    """Print a report if it is to be shown, and write it and its figures."""
    command = f"python -m {module}"
    lines = [f"# {title}", "", f"`{command}`. {listed(about)}", ""]
    if picture:
        lines += [f"![{title}]({picture.name})", ""]
    lines += sections
    lines += ["", "## How it was measured", "", *how.split("\n\n", 3)[3].strip().splitlines()]
    save(name_of(module), folder, {"command": command, **about}, records, lines, shown)


def save(
    name: str,
    folder: pathlib.Path,
    about: dict[str, str],
    records: list[Record],
    lines: list[str],
    shown: bool = True,
) -> None:
    """Write lines of Markdown, which are shown too, and the figures that they are made of."""
    if shown:
        print("\n".join(lines))
    folder.mkdir(parents=True, exist_ok=True)
    found = {"about": about, "records": records}
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n")


def listed(about: dict[str, str]) -> str:
    """Return all that figures depend on, in sentences."""
    versions = [name for name, value in about.items() if re.match(r"\d+\.\d+\.|not inst", value)]
    facts = [f"{name.capitalize()}: {about[name]}." for name in about if name not in versions]
    return f"{' '.join(facts)} Versions: {', '.join(f'{name} {about[name]}' for name in versions)}."


# --- tables --------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns line up, text to the left and figures to the right."""
    if not rows:
        return ["none"]
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    figures = [
        all(line[i].lstrip("-")[:1].isdigit() or line[i] == "-" for line in rows)
        for i in range(len(head))
    ]

    def line(cells: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(
                cell.rjust(width) if figure else cell.ljust(width)
                for cell, width, figure in zip(cells, widths, figures, strict=True)
            )
            + " |"
        )

    rules = (
        "-" * (width + 1) + (":" if figure else "-")
        for width, figure in zip(widths, figures, strict=True)
    )
    return [line(head), "|" + "|".join(rules) + "|", *(line(row) for row in rows)]


def section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table under its headline."""
    return ["", f"## {title}", "", *table(head, rows)]


def number(value: float | None) -> str:
    """A figure, or a dash for one that is not there; three digits of those below 100."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def beside(value: float | None, ours: float | None) -> str:
    """A figure, and in brackets how many times ours it is."""
    if value is None or not ours or value is ours:
        return number(value)
    return f"{number(value)} ({number(value / ours)}x)"


def rows_text(count: int) -> str:
    """A number of rows, in short."""
    return f"{count / 10**6:g}M" if count >= 10**6 else f"{count:,}"


def bar(text: str, held: bool, cause: str = "") -> str:
    """One promise, whether it was held, and if not the cause."""
    return f"- {text}: {'held' if held else 'MISSED'}{'' if held or not cause else f'. {cause}'}"


class Find:
    """Looks figures up: `find(name=value, ...)` is the figure of the one record that is so."""

    def __init__(self, records: Iterable[Record], figure: str = "us") -> None:
        self.records, self.figure = list(records), figure

    def __call__(self, **wanted: Any) -> float | None:
        """The figure, or None if it was not measured."""
        for record in self.records:
            if self.figure in record and all(record.get(k) == v for k, v in wanted.items()):
                return float(record[self.figure])
        return None


# --- pictures ------------------------------------------------------------------------------------

COLORS = {
    "fbuf": "#0b6e4f",
    "flashbax": "#c1432e",
    "brax": "#7a5195",
    "cpprb": "#3b6fb6",
    "torchrl": "#d08c00",
}


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a picture."""

    label: str
    points: Sequence[tuple[float, float]]
    color: str
    style: str = "o-"
    alpha: float = 1.0


@dataclasses.dataclass(frozen=True)
class Panel:
    """One of the panels of a picture."""

    title: str
    lines: Sequence[Line]
    xlabel: str


def draw(
    path: pathlib.Path,
    panels: Sequence[Panel],
    ylabel: str,
    *,
    logarithmic: bool = True,
    level: float | None = None,
    one_scale: bool = True,
) -> None:
    """One picture of panels with lines; lines without points are left out."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (7.5, 4.6) if len(panels) == 1 else (5.6 * len(panels), 4.6)
    picture, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=one_scale)
    for axis, panel in zip(axes[0], panels, strict=True):
        for line in panel.lines:
            if line.points:
                axis.plot(
                    *zip(*sorted(line.points), strict=True), line.style, color=line.color,
                    alpha=line.alpha, markersize=5, label=line.label,
                )  # fmt: skip
        if level is not None:
            axis.axhline(level, color="grey", linewidth=0.8, linestyle="--")
        if logarithmic:
            axis.set(xscale="log", yscale="log")
            axis.grid(True, which="both", alpha=0.25)
        axis.set(xlabel=panel.xlabel, title=panel.title)
    axes[0][0].set(ylabel=ylabel)
    axes[0][0].legend(frameon=False, fontsize=9)
    picture.tight_layout()
    picture.savefig(path, dpi=120)
    plt.close(picture)
