"""Nothing that is read from a disk is run: `SECURITY.md` says so."""

from __future__ import annotations

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
RUNS_CODE = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "runpy"}
CALLS = {"eval", "exec", "compile", "__import__"}
SENDS_FUNCTIONS = ("gymnasium", "ray")
"""Adapters that give functions to their own processes, by cloudpickle."""
PICKLES = ("sb3/_pickles.py", "sb3/_checkpoint_callback.py", "pytorch/buffer/_copies.py")
"""Modules for files of Stable-Baselines3, which are pickles, and for what is in a pickle already:
`SECURITY.md` names both."""


def ways_to_run(source):
    """The lines of a program that could run what a file says."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names} & RUNS_CODE
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").partition(".")[0]} & RUNS_CODE
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = {node.func.id} & CALLS
        elif isinstance(node, ast.keyword):
            names = {node.arg} & {"allow_pickle", "weights_only"}
        else:
            continue
        yield from (f"line {node.lineno}: {name}" for name in names)


def modules():
    """All modules but those that send functions, or that are there for pickles."""
    adapters = ROOT / "adapters" / "fbuf_adapters"
    sending = [adapters / name for name in (*SENDS_FUNCTIONS, *PICKLES)]
    for folder in (ROOT / "fbuf", adapters):
        for path in sorted(folder.rglob("*.py")):
            if not any(path.is_relative_to(other) for other in sending):
                yield path


def test_no_module_can_run_what_a_file_says():
    found = {str(path): list(ways_to_run(path.read_text())) for path in modules()}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from cloudpickle import loads",
        "eval(text)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path, weights_only=False)",
    ],
)
def test_the_test_sees_each_way(line):
    assert list(ways_to_run(line))
