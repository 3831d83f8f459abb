"""The package names versions that were run, and its links work from an index."""

from __future__ import annotations

import pathlib
import re
import tomllib

import matrix

ROOT = pathlib.Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def built(readme):
    """The README as the build rewrites it."""
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for one in hook["substitutions"]:
        readme = re.sub(one["pattern"], one["replacement"], readme)
    return readme


def test_the_classifiers_are_the_pythons_that_make_matrix_runs():
    said = [
        one.rpartition(" ")[2]
        for one in PYPROJECT["project"]["classifiers"]
        if re.match(r"Programming Language :: Python :: \d+\.", one)
    ]
    assert said == sorted({row.python for row in matrix.ROWS})
    assert PYPROJECT["project"]["requires-python"] == f">={said[0]}"


def test_the_lower_bounds_are_what_make_matrix_runs_as_the_oldest():
    for dependency in PYPROJECT["project"]["dependencies"]:
        name, lowest = re.match(r"(\w+)>=([\d.]+)", dependency).groups()
        (pinned,) = [one for one in matrix.ROWS[0].packages if one.startswith(f"{name}==")]
        assert f"{pinned.partition('==')[2]}.".startswith(f"{lowest}.")


def test_the_build_leaves_no_relative_link_in_the_readme():
    text = re.sub(r"(?s)```.*?```", "", (ROOT / "README.md").read_text())
    assert re.search(r"\]\((?!https:|#)", text)  # else there is nothing to replace
    text = built(text)
    links = re.findall(r"\]\(([^)\s]*)\)", text)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]*)\)", text)
    assert all(not picture.startswith("https://github.com") for picture in pictures)


def test_links_and_pictures_go_to_their_own_places():
    text = "[a](docs/x.md#y) ![b c](benchmarks/p.png) [d](LICENSE) [e](#f) [g](https://h/i)"
    home = "https://github.com/fbuf/fbuf/blob/main"
    raw = "https://raw.githubusercontent.com/fbuf/fbuf/main"
    assert built(text) == (
        f"[a]({home}/docs/x.md#y) ![b c]({raw}/benchmarks/p.png) [d]({home}/LICENSE) "
        "[e](#f) [g](https://h/i)"
    )
