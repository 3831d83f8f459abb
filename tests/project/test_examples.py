"""The small examples: each is a page, complete, and in the table. `.ci/run` runs them all."""

from __future__ import annotations

import ast
import pathlib
import re
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SMALL = sorted((EXAMPLES / "small").glob("*.py"))
LONGEST = 100
ROW = re.compile(
    r"^\| \[(?P<name>\w+\.py)\]\((?P=name)\) \| .* \| (?P<lines>\d+) \|$", re.MULTILINE
)

pytestmark = pytest.mark.skipif(not SMALL, reason="comes with a clone")


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_a_small_example_is_a_page_and_complete(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST
    tree = ast.parse(text)
    assert "Needs `pip install" in (ast.get_docstring(tree) or "")
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else names_of(node))
    }
    assert not imported & {other.stem for other in SMALL}
    assert imported <= sys.stdlib_module_names | allowed(text)
    assert re.search(r'^print\(".*[Ll]earned\."\)$', text.splitlines()[-1])
    assert "sys.exit(" in text


def names_of(node: ast.Import) -> list[str]:
    return [alias.name for alias in node.names]


def allowed(text: str) -> set[str]:
    """Return the modules that an example may import: what its first lines install."""
    needs = re.search(r"Needs `pip install (.*)`", text)
    assert needs
    words = set(re.findall(r"\w+", needs[1]))
    brings = {"fbuf": {"fbuf", "fbuf_adapters", "jax", "numpy"}, "tensordict": {"torch"}}
    return words.union(*(brings.get(word, set()) for word in words))


def test_the_table_has_every_small_example_and_its_lines():
    rows = {row["name"]: int(row["lines"]) for row in ROW.finditer(page("small"))}
    assert rows == {path.name: len(path.read_text().splitlines()) for path in SMALL}


def test_the_table_has_every_whole_agent():
    for path in EXAMPLES.glob("*.py"):
        assert f"[{path.name}]({path.name})" in page(".")


@pytest.mark.parametrize("folder", [".", "small"])
def test_every_link_of_a_table_leads_somewhere(folder):
    links = re.findall(r"\]\((?!https:)([^)#]+)[^)]*\)", page(folder))
    assert links
    for link in links:
        assert (EXAMPLES / folder / link).exists(), link


def page(folder: str) -> str:
    return (EXAMPLES / folder / "README.md").read_text()
