"""The notebooks: small, in plain words, ready for Colab. `make notebooks` executes them."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest
from support import english, notebooks

PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))
LARGEST = 300_000

pytestmark = pytest.mark.skipif(not PATHS, reason="comes with a clone")


def cells(path: pathlib.Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["cells"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_opens_in_colab_as_it_is(path):
    title, install, *rest = cells(path)
    address = "https://colab.research.google.com/github/fbuf/fbuf/blob/main/examples/notebooks/"
    assert f"({address}{path.name})" in "".join(title["source"])
    assert "on the package index" in "".join(title["source"])
    assert '"fbuf[torch,plot] @ git+https://github.com/fbuf/fbuf"' in "".join(install["source"])
    assert not any("pip install" in "".join(cell["source"]) for cell in rest)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_keeps_small_outputs(path):
    assert path.stat().st_size < LARGEST
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(path):
    text = "".join("".join(cell["source"]) for cell in cells(path))
    found = re.findall(r"github\.com/fbuf/fbuf/blob/main/([^)#\s]*)", text)
    assert found
    for target in found:
        assert (notebooks.FOLDER.parents[1] / target).exists(), target


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_in_plain_words(path):
    for cell in cells(path):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            assert not list(english.faults_of(path, 1, source))
        elif "%pip" not in source:
            assert not list(english.of_python(path, source))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("return 1.000", "return 1.001", True),
        ("return 1.00", "return 1.10", False),
        ("1,000 rows", "1,001 rows", True),
        ("[1 2\n 3]", "[1 2 3]", True),
        ("[1 2 3]", "[1 2]", False),
        ("it learned: True", "it learned: False", False),
        ("jax 0.10.1", "jax 0.10.1", True),
        ("jax 0.10.1", "jax 0.10.2", False),
        ("-1", "1", False),
        ("0", "1e-9", True),
    ],
)
def test_texts_are_compared_up_to_rounding(one, other, expected):
    assert notebooks.same(one, other) is expected


def with_outputs(*outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cells": [{"outputs": [output]} for output in outputs]}


def printed(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def test_the_command_names_the_cell_that_differs():
    kept = with_outputs(printed("a 1"), printed("b 2"))
    assert not notebooks.faults(kept, kept)
    (fault,) = notebooks.faults(kept, with_outputs(printed("a 1"), printed("b 3")))
    assert fault.startswith("cell 1 printed 'b 3'")
    assert notebooks.faults(kept, with_outputs(printed("a 1")))
    warned = with_outputs(printed("a 1"), printed("careful", "stderr"))
    assert "cell 1 warns: careful" in notebooks.faults(kept, warned)


def test_pictures_are_not_compared():
    picture = {"output_type": "display_data", "data": {"image/png": "A", "text/plain": "<A>"}}
    assert not notebooks.faults(
        with_outputs(picture),
        with_outputs({**picture, "data": picture["data"] | {"image/png": "B"}}),
    )
