"""Run the tests of the core on several versions of Python and JAX.

The tests run on the package that a user gets. The source distribution is built and unpacked. A
wheel is built from that, and installed into one virtual environment a row. PyTorch is not
installed.

    python tests/matrix.py          every row; writes the tables in docs/know/versions.md
    python tests/matrix.py --quick  some tests, on the oldest and the newest; writes nothing
    python tests/matrix.py --times  only the times, on every JAX that fbuf allows

Adds, a draw and an update are timed at 10,000 and at 10,000,000 rows on each of these. Some
versions of JAX copy whole arrays where no program shows it.

A row needs its Python. It is looked up as the variable PYTHON312 (say), then as `python3.12`, then
with `pyenv`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import xml.etree.ElementTree as ElementTree

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = pathlib.Path(__file__).parent.parent
HOME = ROOT / ".venv-matrix"
TABLE = ROOT / "docs" / "know" / "versions.md"
SHOWN = ("jax", "chex", "numpy")


@dataclasses.dataclass(frozen=True)
class Row:
    """One environment: a Python, and what is installed beside fbuf and what its tests need."""

    python: str
    why: str
    packages: tuple[str, ...] = ()


ROWS = (
    Row(
        "3.11",
        "the oldest of everything that fbuf's bounds allow",
        ("jax==0.8.0", "chex==0.1.91", "numpy==2.0.*", "tqdm==4.60.*", "typing_extensions==4.15.*"),
    ),
    Row("3.11", "what fbuf is developed with", ("jax==0.10.1",)),
    Row("3.12", "beside flax, optax, orbax and gymnax", ("optax", "gymnax")),
    Row("3.12", "the newest"),
    Row("3.13", "the newest"),
)
TIMED = Row("3.12", "the times of operations")
LEFT_OUT = "0.11.1"
"""A version that fbuf leaves out for its times: the table shows why."""
MOST_SLOWER = 4
"""The most that a thousand times the rows may slow an operation: they lie in slower memory."""
QUICK_ROWS = (ROWS[0], ROWS[-1])
CORE = ("tests", "fbuf", "--ignore=tests/adapters", "--ignore=tests/gpu")
# Every example of the core, printed to the digit; rows of all kinds; memory; saving.
QUICK_CORE = (
    "fbuf",
    "tests/project/test_versions.py",
    "tests/checkpoint/test_checkpoint_libraries.py",
    "tests/storage/test_storage.py",
    "tests/dispatch/test_contracts.py::test_eager_calls_write_into_the_memory_they_are_given",
    "tests/dispatch/test_contracts.py::test_one_trace_serves_all_calls",
)


def main() -> int:
    """Run it; the exit status is 0 if every test of every row has passed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the oldest and the newest, in short")
    parser.add_argument("--times", action="store_true", help="only the times of a step")
    given = parser.parse_args()
    quick = given.quick
    if given.times:
        return 0 if write_times(build()) else 1
    rows = QUICK_ROWS if quick else ROWS
    pythons = {row.python: find_python(row.python) for row in rows}
    tree, wheel = build()
    tests = QUICK_CORE if quick else CORE
    lines = []
    passed = True
    for row in rows:
        python = install(row, pythons[row.python], wheel, upgrade=not quick)
        found = versions(python)
        print(f"Python {row.python}:", *(f"{name} {v}" for name, v in found.items()), flush=True)
        ok, counts = run(python, tree, tests)
        passed &= ok
        passed &= is_flat(found["jax"], step_times(python, tree))
        lines.append([row.python, *found.values(), row.why, *map(str, counts)])
    if not quick:
        write_table(lines)
        passed &= write_times((tree, wheel))
    return 0 if passed else 1


def find_python(version: str) -> str:
    """The interpreter of a version, by its variable or its name."""
    given = os.environ.get("PYTHON" + version.replace(".", ""))
    names = [given] if given else [f"python{version}"]
    if not given and shutil.which("pyenv"):
        asked = subprocess.run(["pyenv", "prefix", version], capture_output=True, text=True)
        if asked.returncode == 0:
            names.append(f"{asked.stdout.strip()}/bin/python")
    for name in names:
        if not shutil.which(name):
            continue
        # A name on the path may be a shim that starts nothing.
        program = "import sys; print('%d.%d' % sys.version_info[:2])"
        asked = subprocess.run([name, "-c", program], capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return name
    variable = "PYTHON" + version.replace(".", "")
    raise SystemExit(
        f"Python {version} was not found: install it, or say where it is: "
        f"{variable}=/path/to/python{version}"
    )


def build(made: pathlib.Path = HOME / "build") -> tuple[pathlib.Path, pathlib.Path]:
    """The source distribution, unpacked, and a wheel that was built from it, in a folder."""
    shutil.rmtree(made, ignore_errors=True)
    hatch = [sys.executable, "-m", "hatchling", "build", "-d", str(made)]
    subprocess.run([*hatch, "-t", "sdist"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (sdist,) = made.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(made, filter="data")
    tree = made / sdist.name.removesuffix(".tar.gz")
    subprocess.run([*hatch, "-t", "wheel"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = made.glob("*.whl")
    return tree, wheel


def install(row: Row, python: str, wheel: pathlib.Path, upgrade: bool) -> str:
    """The interpreter of the row's environment, with fbuf in it."""
    name = row.python + "-" + re.sub(r"[^a-z0-9]+", "-", row.why.lower())
    at = HOME / name / "bin" / "python"
    if not at.exists():
        subprocess.run([python, "-m", "venv", str(HOME / name)], check=True)
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["test"]
    pip = [str(at), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    newest = ["--upgrade", "--upgrade-strategy", "eager"] if upgrade else []
    subprocess.run([*pip, *newest, str(wheel), *group, *row.packages], check=True)
    # The version number is the same as that of the last run, the code is not.
    subprocess.run([*pip, "--no-deps", "--force-reinstall", str(wheel)], check=True)
    subprocess.run([str(at), "-m", "pip", "--disable-pip-version-check", "check"], check=True)
    return str(at)


def versions(python: str) -> dict[str, str]:
    """Return the installed versions that the table shows."""
    program = f"from importlib.metadata import version as v; print(*map(v, {SHOWN}))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    return dict(zip(SHOWN, done.stdout.split(), strict=True))


def run(
    python: str, tree: pathlib.Path, tests: tuple[str, ...]
) -> tuple[bool, tuple[int, int, int]]:
    """Whether pytest was content, and how many tests passed, failed and were skipped."""
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    # From elsewhere, so that this is the wheel.
    subprocess.run([python, "-c", "import fbuf, fbuf_adapters"], cwd=HOME, check=True)
    pytest = [python, "-m", "pytest", "--quiet", "-n", "2", "--dist", "worksteal"]
    options = ["-m", "not sweep or example", f"--junit-xml={report}"]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
    environment = {**os.environ, "XLA_FLAGS": flags}  # as make test
    done = subprocess.run([*pytest, *options, *tests], cwd=tree, env=environment)
    suites = list(ElementTree.parse(report).getroot())
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return done.returncode == 0, (total - failed - skipped, failed, skipped)


Times = dict[str, tuple[float, float]]
"""Microseconds of each operation at 10,000 and at 10,000,000 rows."""


def step_times(python: str, tree: pathlib.Path, **environment: str) -> Times:
    """Time the operations with the package that an interpreter has."""
    program = [python, str(tree / "tests" / "support" / "step_times.py")]
    done = subprocess.run(
        program,
        cwd=HOME,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.rsplit(maxsplit=2) for line in done.stdout.splitlines()]
    return {operation: (float(small), float(large)) for operation, small, large in lines}


def is_flat(jax: str, times: Times) -> bool:
    """Whether all operations take at most so many times longer with a thousand times the rows."""
    for operation, (small, large) in times.items():
        print(f"jax {jax}: {operation}: {small} us at 10,000 rows, {large} at 10,000,000")
    sys.stdout.flush()
    return all(large <= MOST_SLOWER * small for small, large in times.values())


def allowed_versions(python: str) -> list[str]:
    """Every version of JAX on the index that fbuf allows, and the one left out for its times."""
    pip = [python, "-m", "pip", "--disable-pip-version-check", "index", "versions", "jax"]
    done = subprocess.run(pip, capture_output=True, text=True, check=True)
    (listed,) = re.findall(r"Available versions: (.*)", done.stdout)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bounds,) = (r for r in map(Requirement, project["dependencies"]) if r.name == "jax")
    versions = [v for v in listed.split(", ") if v in bounds.specifier or v == LEFT_OUT]
    return sorted(versions, key=Version)


def write_times(made: tuple[pathlib.Path, pathlib.Path]) -> bool:
    """Time operations on each version of JAX, and write the table; whether all allowed are flat."""
    tree, wheel = made
    python = install(TIMED, find_python(TIMED.python), wheel, upgrade=False)
    lines, all_flat, times = [], True, Times()
    for version in allowed_versions(python):
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        subprocess.run([*pip, "--no-deps", f"jax=={version}", f"jaxlib=={version}"], check=True)
        times = step_times(python, tree)
        flat = is_flat(version, times)
        all_flat &= flat or version == LEFT_OUT
        allowed = "left out" if version == LEFT_OUT else "allowed"
        cells = [f"{small} to {large}" for small, large in times.values()]
        most = max(large / small for small, large in times.values())
        lines.append([version, *cells, f"{most:.1f}", allowed])
    head = ["jax", *(f"{name}: us" for name in times)]
    head += ["at most times as long", "fbuf"]
    write_between("times", head, lines)
    return all_flat


def write_table(lines: list[list[str]]) -> None:
    """Put the table of tests into the page."""
    head = ["Python", *SHOWN, "why", "passed", "failed", "skipped"]
    write_between("tests", head, lines)


def write_between(what: str, head: list[str], lines: list[list[str]]) -> None:
    """Put a table between its two marks in the page."""
    rule = ["---"] + ["---:" if line.replace(".", "").isdigit() else "---" for line in lines[0][1:]]
    table = "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])
    version = re.search(r'VERSION = "(.+)"', (ROOT / "fbuf" / "_versions.py").read_text())
    assert version
    today = datetime.date.today().isoformat()
    mark = f"<!-- {what}, written by make matrix -->"
    text = f"{mark}\n\nfbuf {version[1]}, {today}, on CPU:\n\n{table}\n\n"
    page = TABLE.read_text()
    before, _, rest = page.partition(mark)
    after = rest.partition("<!-- to here -->")[2]
    TABLE.write_text(f"{before}{text}<!-- to here -->{after}")


if __name__ == "__main__":
    sys.exit(main())
