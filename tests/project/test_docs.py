"""The documentation: every block of code runs, and every link leads somewhere."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import types
from typing import Any

import jax
import pytest

import fbuf
from fbuf.command.main import main

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), ROOT / "adapters" / "README.md"]
BLOCK = re.compile(
    r"(?:<!-- needs: ([\w, ]+) -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
REFERENCE = DOCS / "look_up" / "reference.md"
ROOT_URL = "https://github.com/fbuf/fbuf/blob/main/"
ALONE = (
    "know/benchmarks.md",
    "know/design.md",
    "look_up/api.md",
)
"""Pages whose blocks, if any, are no programs."""
SCRIPTS = ("know/processes.md",)
"""Pages whose blocks are programs of their own, which start processes."""
RAY = {"RAY_ADDRESS": "local", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
"""A cluster of the script's own; nothing is written into the home, and nothing is reported."""
PROCESSES = ("several", "processes")
"""The need of a block that several processes run: no name of a package, so other tests skip it."""
QUICK = (
    "README.md",
    "adapters/README.md",
    "docs/index.md",
    "docs/learn/first_buffer.md",
    "docs/learn/priorities.md",
    "docs/do/anneal_beta.md",
    "docs/do/many_environments.md",
    "docs/do/mix_two_buffers.md",
    "docs/know/coming_from_cleanrl.md",
    "docs/know/coming_from_brax.md",
    "docs/know/priorities.md",
    "docs/know/switches.md",
)
"""Pages whose blocks run in every test; those of all others are for the sweep."""


def name_of(page: pathlib.Path) -> str:
    """The path of a page, as tests are named by it."""
    return page.relative_to(ROOT).as_posix()


EACH = [pytest.param(page, id=name_of(page)) for page in PAGES]


def blocks(page: pathlib.Path) -> list[tuple[int, tuple[str, ...], str]]:
    """The Python blocks of a page: the line each begins at, what it needs, its code."""
    text = page.read_text()
    return [
        (
            text.count("\n", 0, found.start(2)),
            tuple((found[1] or "").replace(",", " ").split()),
            found[2],
        )
        for found in BLOCK.finditer(text)
    ]


def programs() -> list[Any]:
    """The pages that have blocks to run; those that take long are for the sweep."""
    return [
        pytest.param(
            page,
            id=name_of(page),
            marks=[] if name_of(page) in QUICK else [pytest.mark.sweep],
        )
        for page in PAGES
        if name_of(page).removeprefix("docs/") not in (*ALONE, *SCRIPTS) and blocks(page)
    ]


@pytest.fixture(autouse=True)
def _promotion_of_the_reader():
    """The pages are for readers who have JAX as it comes."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.filterwarnings("ignore:.*Box:UserWarning")  # Gymnasium's, of the spaces of envpool
@pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning")  # Minari's, of who made it
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its own folder
@pytest.mark.parametrize("page", programs())
def test_blocks_run_in_order(page, monkeypatch, capsys):
    if "pytorch" in page.name or page.parent.name == "adapters":
        pytest.importorskip("torch")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    # A module, for the pickles and dataclasses of a page look for the one they are from.
    module = types.ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    dispatch = jax.config.read("jax_cpu_enable_async_dispatch")
    ran = 0
    try:
        for line, needs, code in blocks(page):
            if any(importlib.util.find_spec(package) is None for package in needs):
                continue
            # Behind empty lines, so that a traceback names the line of the page.
            exec(compile("\n" * line + code, str(page), "exec"), module.__dict__)
            ran += 1
    finally:
        jax.config.update("jax_cpu_enable_async_dispatch", dispatch)
    assert ran


@pytest.mark.sweep
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_run(name, tmp_path, request):
    pytest.importorskip("gymnasium")
    # The name is short, for those of sockets have to be. Ray may still write there as it ends.
    ray = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    request.addfinalizer(ray.cleanup)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "adapters"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, **RAY, "RAY_TMPDIR": ray.name}
    running = []
    for line, needs, code in blocks(DOCS / name):
        if any(importlib.util.find_spec(package) is None for package in needs):
            continue
        script = tmp_path / f"line_{line}.py"
        script.write_text(code)
        command = [sys.executable, str(script)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        running.append((process, needs))
    assert running
    try:
        for process, needs in running:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
            # Ray says there what it does.
            assert "Traceback" not in errors if "ray" in needs else errors == ""
    finally:
        for process, _ in running:
            process.kill()


@pytest.mark.sweep
def test_scripts_of_several_processes_run(tmp_path):
    scripts = [code for page in PAGES for _, needs, code in blocks(page) if needs == PROCESSES]
    assert scripts
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    for code in scripts:
        script = tmp_path / "script.py"
        script.write_text(code)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        running = [
            subprocess.Popen(
                [sys.executable, str(script), address, "2", str(number)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        try:
            said = []
            for process in running:
                output, errors = process.communicate(timeout=240)
                assert process.returncode == 0, errors
                said.append(output.splitlines()[-1])  # before it, Gloo speaks of its peers
            assert said == ["192", "192"]
        finally:
            for process in running:
                process.kill()


@pytest.mark.parametrize("page", EACH)
def test_benchmarks_of_a_page_are_published(page):
    """`make` runs them, and the pages of figures have what they wrote."""
    named = set(re.findall(r"python -m benchmarks\.([\w.]+\w)", page.read_text()))
    made = (ROOT / "Makefile").read_text().split()
    published = (ROOT / "benchmarks" / "publish.py").read_text()
    for name in named:
        assert name in made
        assert f'"{name.rpartition(".")[2]}"' in published


@pytest.mark.parametrize("page", EACH)
def test_every_name_of_fbuf_in_a_page_is_there(page):
    text = page.read_text()
    for _, _, code in blocks(page):
        compile(code, str(page), "exec")
    named = set(re.findall(r"(?<![\w./])fbuf\.([A-Za-z]\w*)", text))
    files = {"py", "md", "git"}
    missing = {name for name in named - files if not hasattr(fbuf, name)}
    missing -= {name for name in missing if importlib.util.find_spec(f"fbuf.{name}")}
    assert not missing, f"{page.name} names {sorted(missing)}, which fbuf has not"


PLAN = re.compile(r"^```sh\nfbuf (plan .+)\n```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_plans_in_the_pages_are_what_the_command_prints(capsys):
    found = [match.groups() for page in PAGES for match in PLAN.finditer(page.read_text())]
    assert found
    for command, shown in found:
        assert main(command.split()) == 0
        assert capsys.readouterr().out.startswith(shown), command


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors that headings make."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", EACH)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(ROOT_URL):
            path, _, anchor = target.removeprefix(ROOT_URL).partition("#")
            found = ROOT / path
        elif "://" in target:
            continue
        else:
            path, _, anchor = target.partition("#")
            found = page.parent / path if path else page
        assert found.exists(), f"{page.name} links to {target}, which is not there"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{page.name} links to {target}: no such heading"
        assert found.resolve() != REFERENCE, f"{page.name} links to {target}: raw on a forge"


def test_readme_names_the_two_commands_and_the_installation_every_extra():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    extras = re.findall(r"^(\w+) = \[", _section("project.optional-dependencies"), re.MULTILINE)
    assert {"torch", "tensordict"} <= set(extras)
    page = (DOCS / "do" / "install.md").read_text()
    for extra in extras:
        assert f"`{extra}`" in page, f"docs/do/install.md does not name fbuf[{extra}]"


@pytest.mark.parametrize("page", EACH)
def test_a_page_is_short(page):
    """A README is read in two minutes, a recipe is a screen, and no page is long but the API's."""
    lines = len(page.read_text().splitlines())
    most = {ROOT: 119, DOCS / "do": 65, DOCS / "learn": 100}.get(page.parent, 300)
    assert lines <= most or page.parent == DOCS / "look_up", f"{page.name} has {lines} lines"


@pytest.mark.parametrize("page", EACH)
def test_a_page_reads_on_a_forge(page):
    """No syntax of the site: an admonition or a docstring would be shown as it is written."""
    raw = [line for line in page.read_text().splitlines() if line.startswith((":::", "!!!", "???"))]
    assert page == REFERENCE or not raw, f"{page.name}: {raw[0]}"


FIELD = re.compile(r"""["'](?:next_)?obs["']|\bobs:\w+:|--next-of obs\b""")


@pytest.mark.parametrize("page", EACH)
def test_names_and_spelling_are_the_same_everywhere(page):
    text = page.read_text()
    assert not FIELD.findall(text), "fields are named observation and next_observation"
    prose = re.sub(r"^```.*?^```$|`[^`]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    american = re.findall(r"\bprioritiz\w+|\bPrioritiz\w+ [a-z]+", prose)
    assert not american, f"{page.name}: {american}, and elsewhere prioritised"


@pytest.mark.parametrize("page", EACH)
def test_no_figure_is_left_open(page):
    assert "@@" not in page.read_text(), "run: make bench"


def test_every_page_is_in_the_site():
    site = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        assert f": {name}\n" in site, f"{name} is not in mkdocs.yml"


def _section(name: str) -> str:
    """The lines of one section of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    return text.partition(f"[{name}]\n")[2].partition("\n[")[0]
