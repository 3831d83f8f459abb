"""Counts of what an author and a contributor must know and edit: they may fall, and not rise."""

from __future__ import annotations

import inspect
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import fbuf
from fbuf.samplers import PlacingSampler, PlannedSampler, QueueSampler, Sampler, Wrapper
from fbuf.views import View

ROOT = pathlib.Path(__file__).parents[2]
CODE = sorted([*ROOT.glob("fbuf/**/*.py"), *ROOT.glob("adapters/**/*.py")])

TO_WRITE = {
    Sampler: 6,
    PlannedSampler: 9,
    QueueSampler: 6,
    PlacingSampler: 7,
    Wrapper: 0,
    View: 2,
}
"""The methods that an author must write, those of the base class included."""

TO_KNOW = {
    Sampler: 32,
    PlannedSampler: 17,
    QueueSampler: 8,
    PlacingSampler: 2,
    Wrapper: 28,
    View: 6,
}
"""The members of a protocol: methods, properties and flags; not those of its base class."""

PARAMETERS = 4
"""The most parameters of a method of a protocol, without `self`."""

MECHANISMS = {
    r"\bat_once\b": 5,
    r"\buninterrupted\b": 13,
    r"\bisinstance\([^()]*\bPlannedSampler\b": 5,
    r"\bisinstance\([^()]*\bHostStore\b": 4,  # all others ask `owner_of`
}
"""The most files of code that name a mechanism, those that define and export it included."""

PLACES = 4
"""The places to edit for a sampler, as CONTRIBUTING.md lists them. There were 9."""


def members(kind):
    """The public members that a class of a protocol adds, without the names of old versions."""
    old = ("old_names", "old_arguments")
    fields = set(vars(kind)) | set(inspect.get_annotations(kind))
    return {name for name in fields if name[0] != "_" and name not in old}


@pytest.mark.parametrize("kind", TO_WRITE, ids=lambda kind: kind.__name__)
def test_the_methods_that_an_author_must_write(kind):
    assert len(kind.__abstractmethods__) <= TO_WRITE[kind], sorted(kind.__abstractmethods__)


@pytest.mark.parametrize("kind", TO_KNOW, ids=lambda kind: kind.__name__)
def test_the_members_of_a_protocol(kind):
    assert len(members(kind)) <= TO_KNOW[kind], sorted(members(kind))


@pytest.mark.parametrize("kind", TO_KNOW, ids=lambda kind: kind.__name__)
def test_the_parameters_of_a_method(kind):
    for name in members(kind):
        method = vars(kind).get(name)
        if inspect.isfunction(method):
            parameters = list(inspect.signature(method).parameters)[1:]
            assert len(parameters) <= PARAMETERS, f"{name}({', '.join(parameters)})"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_files_that_name_a_mechanism(mechanism):
    found = [path for path in CODE if re.search(mechanism, path.read_text())]
    assert len(found) <= MECHANISMS[mechanism], [str(path.relative_to(ROOT)) for path in found]


def test_the_places_to_edit_for_a_sampler():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("## Add a sampler or a view\n")[2].partition("\n## ")[0]
    steps = re.findall(r"(?m)^\d+\. `([\w./]+)`", section)
    assert len(steps) == len(re.findall(r"(?m)^\d+\. ", section))
    assert len(steps) <= PLACES
    assert len(set(steps)) == len(steps)


YOURS = '''"""A sampler of a contributor."""

import dataclasses

from fbuf.samplers.uniform import Uniform


@dataclasses.dataclass(frozen=True)
class Yours(Uniform):
    """Draw as `Uniform` does."""

    share: float = 0.5
'''
PROGRAM = """
import importlib.util, sys, tempfile
import jax.numpy as jnp
import fbuf

assert fbuf.__file__.startswith(sys.argv[1]), fbuf.__file__
assert "Yours" in fbuf.__all__ and fbuf.samplers.Yours is fbuf.Yours
state = fbuf.init(jnp.zeros(()), 8, sampler=fbuf.Yours(share=0.25))
state = fbuf.add(state, jnp.ones(4))
folder = tempfile.mkdtemp()
fbuf.save(folder, state)
assert fbuf.load(folder).state.sampler == fbuf.Yours(share=0.25)  # a checkpoint knows its name
spec = importlib.util.spec_from_file_location("api_table", sys.argv[2])
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)
assert "Yours" in table.THEMES["Samplers"]
"""


def test_one_file_and_one_line_make_a_sampler(tmp_path):
    """All else that knows the samplers of fbuf finds it: exports, checkpoints, pages of names."""
    package = tmp_path / "fbuf"
    shutil.copytree(
        pathlib.Path(fbuf.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "samplers" / "yours.py").write_text(YOURS)
    with (package / "samplers" / "public.py").open("a") as file:
        file.write("from fbuf.samplers.yours import Yours as Yours\n")
    arguments = [str(tmp_path), str(ROOT / "docs" / "api_table.py")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
