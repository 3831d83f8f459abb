"""The public names: documented, in one order of arguments, and light to import."""

from __future__ import annotations

import inspect
import pathlib
import subprocess
import sys

import pytest

import fbuf

ROOT = pathlib.Path(__file__).parent.parent
HEAVY = ("torch", "gymnax", "gymnasium", "optax", "flax")


@pytest.mark.parametrize("name", fbuf.__all__)
def test_every_name_is_documented_with_an_example(name):
    assert "Examples:" in inspect.getdoc(getattr(fbuf, name))
    assert f"::: fbuf.{name}\n" in (ROOT / "docs" / "api.md").read_text() + "\n"


def test_the_state_comes_first_and_options_by_name():
    positional = {
        "add": ["state", "items"],
        "sample": ["state", "key", "batch_size"],
        "update_priority": ["state", "ids", "priority"],
        "remove": ["state", "ids"],
        "write": ["state", "ids", "fields"],
        "clear": ["state"],
        "init": ["item", "capacity"],
        "nbytes": ["item", "capacity"],
    }
    for name, expected in positional.items():
        parameters = inspect.signature(getattr(fbuf, name)).parameters.values()
        found = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert found == expected


def loaded(code):
    program = f"import sys; {code}; print(*[m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return done.stdout.split()


def test_importing_fbuf_loads_no_framework_but_jax():
    assert loaded("import fbuf") == []
    assert loaded("sys.path.insert(0, 'adapters'); import fbuf_adapters") == []
    assert loaded("import fbuf, optax") == ["optax"]  # the check itself can fail
