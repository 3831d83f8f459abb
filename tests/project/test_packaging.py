"""The package names versions that were run, and its links work from an index."""

from __future__ import annotations

import pathlib
import re
import tomllib
import zipfile

import matrix
import pytest
import release

import fbuf

ROOT = pathlib.Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
COMMAND = re.compile(r"\bmake ([a-z][\w-]*)")


def targets():
    """The targets of the Makefile."""
    return set(re.findall(r"(?m)^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text()))


def values(tree, key):
    """All values of a key, wherever they lie in a tree of dicts and lists."""
    if isinstance(tree, list):
        return [value for part in tree for value in values(part, key)]
    if not isinstance(tree, dict):
        return []
    own = [tree[key]] if key in tree else []
    return own + [value for part in tree.values() for value in values(part, key)]


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


def test_the_extras_for_gpus_ask_for_the_jax_of_the_core():
    project = PYPROJECT["project"]
    (core,) = [one for one in project["dependencies"] if one.startswith("jax")]
    for extra in ("cuda12", "cuda13"):
        assert project["optional-dependencies"][extra] == [core.replace("jax", f"jax[{extra}]", 1)]


def test_make_dist_tries_every_other_extra():
    extras = set(PYPROJECT["project"]["optional-dependencies"])
    assert extras - {"cuda12", "cuda13"} == set(release.EXTRAS)


def test_the_version_is_the_same_everywhere():
    assert release.version() == fbuf.__version__
    assert f"\nversion: {fbuf.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{fbuf.__version__}] - " in (ROOT / "CHANGELOG.md").read_text()


def test_only_the_tag_of_the_version_publishes_and_only_with_a_date():
    notes = "# Changelog\n\n## [1.2.0] - 2026-01-31\n"
    release.check_tag("v1.2.0", "1.2.0", notes)
    for tag in ("v1.2.1", "1.2.0", "v1.2"):
        with pytest.raises(SystemExit, match=r"tag v1\.2\.0$"):
            release.check_tag(tag, "1.2.0", notes)
    for other in ("## [1.2.0] - unreleased\n", "## [1.2.01] - 2026-01-31\n", ""):
        with pytest.raises(SystemExit, match=r"CHANGELOG\.md has no line: ## \[1\.2\.0\]"):
            release.check_tag("v1.2.0", "1.2.0", other)


def test_a_wheel_with_tests_or_without_the_license_is_refused(tmp_path):
    wheel = tmp_path / "fbuf.whl"
    about = f"fbuf-{fbuf.__version__}.dist-info"
    metadata = (
        f"Metadata-Version: 2.4\nName: fbuf\nVersion: {fbuf.__version__}\n"
        "Description-Content-Type: text/markdown\n\n# fbuf\n"
    )
    files = {
        "fbuf/py.typed": "",
        "fbuf/testing/__init__.py": "",
        "fbuf_adapters/py.typed": "",
        f"{about}/licenses/LICENSE": "",
        f"{about}/METADATA": metadata,
    }

    def check(files):
        with zipfile.ZipFile(wheel, "w") as file:
            for name, text in files.items():
                file.writestr(name, text)
        release.check_wheel(wheel)

    check(files)
    with pytest.raises(AssertionError, match="files of neither package"):
        check({**files, "tests/conftest.py": ""})
    for name in list(files)[:4]:
        with pytest.raises(AssertionError, match="the wheel lacks"):
            check({other: text for other, text in files.items() if other != name})


def test_a_small_example_needs_what_it_says(tmp_path):
    example = tmp_path / "example.py"
    for line, expected in {
        "fbuf": (set(), []),
        "fbuf flax optax": (set(), ["flax", "optax"]),
        '"fbuf[torch]"': ({"torch"}, []),
        '"fbuf[torch,plot]" gymnasium six': ({"torch", "plot"}, ["gymnasium", "six"]),
    }.items():
        example.write_text(f'"""Learns.\n\nNeeds `pip install {line}`.\n"""\n')
        assert release.needs(example) == expected


def test_every_small_example_needs_extras_that_are_there():
    for example in (ROOT / "examples" / "small").glob("*.py"):
        assert release.needs(example)[0] <= set(release.EXTRAS)


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.name for path in WORKFLOWS])
def test_a_workflow_makes_what_can_be_made_with_pinned_actions(path):
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load(path.read_text())["jobs"]
    commands = "\n".join(values(jobs, "run"))
    assert set(COMMAND.findall(commands)) <= targets()
    used = values(jobs, "uses")
    assert used
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one) for one in used)


def test_the_release_checks_the_tag_and_publishes_without_a_password():
    yaml = pytest.importorskip("yaml")
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    build, publish = release["jobs"]["build"], release["jobs"]["publish"]
    assert 'make dist ARGS="--all --tag $TAG"' in values(build, "run")
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    assert publish["environment"]["name"] == "pypi"
    assert values(publish, "password") == []


def test_the_forms_for_issues_ask_something():
    yaml = pytest.importorskip("yaml")
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= form.keys()
            assert any(part["validations"]["required"] for part in form["body"])


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "CITATION.cff"])
def test_the_pages_for_contributors_name_what_is_there(page):
    text = (ROOT / page).read_text()
    assert set(COMMAND.findall(text.replace("make a ", ""))) <= targets()
    names = re.findall(r"\b(?:fbuf|tests|docs|benchmarks)/[\w./-]+\.\w+\b", text)
    invented = {"fbuf/samplers/yours.py", "tests/samplers/test_yours.py"}
    assert [name for name in names if not (ROOT / name).exists() and name not in invented] == []
