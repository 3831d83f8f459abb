"""Build the wheel and the source distribution, and try both where no clone is.

    python tests/dist.py               two environments: the core, and PyTorch with pictures
    python tests/dist.py --quick       the same, with one small example
    python tests/dist.py --all         an environment for each extra
    python tests/dist.py --tag v0.3.0  first check that this tag may publish this version

Each environment is new, and lies outside the clone. The core is installed from the source
distribution, and the rest from the wheel. The versions are those of `requirements.lock`. In each
one the command starts, and the blocks of the README run in order. So do the small examples. What
needs a package that is not there is left out, and named. The two files stay in `dist/`.

The extras `cuda12` and `cuda13` are left out: gigabytes, for a GPU. They ask for the same versions
of JAX as the core, which `tests/project/test_packaging.py` checks.
"""

from __future__ import annotations

import argparse
import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import matrix
from packaging.metadata import Metadata

ROOT = pathlib.Path(__file__).parent.parent
DIST = ROOT / "dist"
EXTRAS = {
    "torch": "fbuf_adapters.pytorch",
    "plot": "fbuf.command.plot",
    "tensordict": "fbuf_adapters.tensordict",
    "gymnasium": "fbuf_adapters.gymnasium",
    "sb3": "fbuf_adapters.sb3",
    "datasets": "fbuf_adapters.datasets",
    "lerobot": "fbuf_adapters.datasets",
    "brax": "fbuf_adapters.brax",
    "ray": "fbuf_adapters.ray",
}
"""Each extra, and a module that needs it."""
BESIDE = ("optax",)
"""Packages of examples that no extra brings."""
BLOCK = re.compile(r"(?ms)(?:^<!-- needs: ([\w, ]+) -->\n)?^```python\n(.*?)^```$")


def main() -> int:
    """Run it; an error ends it with a status that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one small example")
    parser.add_argument("--all", action="store_true", help="an environment for each extra")
    parser.add_argument("--tag", help="the tag that these files would be published under")
    given = parser.parse_args()
    if given.tag is not None:
        check_tag(given.tag, version(), (ROOT / "CHANGELOG.md").read_text())
    environments = [(), *((extra,) for extra in EXTRAS)] if given.all else [(), ("torch", "plot")]
    with tempfile.TemporaryDirectory(prefix="fbuf-dist-") as name:
        home = pathlib.Path(name)
        tree, wheel = matrix.build(home / "build")
        sdist = tree.with_name(f"{tree.name}.tar.gz")
        check_wheel(wheel)
        check_sdist(sdist)
        for extras in environments:
            python = install(home / "venv", sdist if extras == () else wheel, extras)
            try_out(python, tree, extras, quick=given.quick)
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for file in (sdist, wheel):
            print(shutil.copy(file, DIST))
    return 0


def version() -> str:
    """The version that the code states."""
    return re.findall(r'VERSION = "(.+)"', (ROOT / "fbuf" / "_versions.py").read_text())[0]


def check_tag(tag: str, stated: str, changelog: str) -> None:
    """Refuse to publish under another version, or without a dated section of changes."""
    if tag != f"v{stated}":
        raise SystemExit(f"the tag is {tag}, and fbuf/_versions.py states {stated}: tag v{stated}")
    if not re.search(rf"(?m)^## \[{re.escape(stated)}\] - \d{{4}}-\d\d-\d\d$", changelog):
        raise SystemExit(f"CHANGELOG.md has no line: ## [{stated}] - and the date of today")


def check_wheel(wheel: pathlib.Path) -> None:
    """The two packages with their marks of types, the license, and what an index shows."""
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        about = f"fbuf-{version()}.dist-info/"
        strangers = [n for n in names if not n.startswith(("fbuf/", "fbuf_adapters/", about))]
        assert not strangers, f"the wheel has files of neither package: {strangers}"
        wanted = {"fbuf/py.typed", "fbuf_adapters/py.typed", f"{about}licenses/LICENSE"}
        assert wanted <= set(names), f"the wheel lacks {wanted - set(names)}"
        metadata = Metadata.from_email(file.read(f"{about}METADATA"), validate=True)
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description.startswith("# fbuf\n")


def check_sdist(sdist: pathlib.Path) -> None:
    """The license, the tests and the examples; nothing that is built."""
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = {"LICENSE", "README.md", "PKG-INFO", "tests/dist.py", "fbuf/py.typed"}
    assert wanted <= names, f"the source distribution lacks {wanted - names}"
    built = [name for name in names if name.startswith((".venv", "site/", "dist/", "outputs/"))]
    assert not built, f"the source distribution has {built}"


def install(home: pathlib.Path, file: pathlib.Path, extras: tuple[str, ...]) -> str:
    """Install a file with extras into a new environment; return its interpreter."""
    what = f"{file}[{','.join(extras)}]" if extras else str(file)
    print(f"== {file.name} [{', '.join(extras)}]", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    python = str(home / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    pins = ["--constraint", str(ROOT / "requirements.lock")]
    run([*pip, "install", "-qq", *pins, what, *BESIDE], home)
    run([*pip, "check"], home)
    return python


def try_out(python: str, tree: pathlib.Path, extras: tuple[str, ...], quick: bool) -> None:
    """Use what is installed: import it, call it, run the README and the small examples."""
    with tempfile.TemporaryDirectory(prefix="fbuf-user-") as name:
        user = pathlib.Path(name)
        modules = ", ".join(["fbuf", "fbuf_adapters", *(EXTRAS[extra] for extra in extras)])
        stated = f"assert fbuf.__version__ == {version()!r}, fbuf.__version__"
        run([python, "-c", f"import {modules}; {stated}"], user)
        run([str(pathlib.Path(python).with_name("fbuf")), "--help"], user, quiet=True)
        (user / "readme.py").write_text(program(python, tree / "README.md"))
        run([python, "readme.py"], user)
        left = 1 if quick else None
        for example in sorted((tree / "examples" / "small").glob("*.py"))[:left]:
            lacking = absent(python, imported(example))
            if lacking:
                print(f"left out: {example.name} needs {', '.join(lacking)}", flush=True)
                continue
            run([python, shutil.copy(example, user)], user)


def program(python: str, page: pathlib.Path) -> str:
    """The blocks of a page that can run there, one after the other; there is at least one."""
    found = BLOCK.findall(page.read_text())
    there = [code for needs, code in found if not absent(python, re.findall(r"\w+", needs))]
    assert there, f"{page.name} has no block that can run"
    return "\n".join(there)


def imported(example: pathlib.Path) -> list[str]:
    """The modules that a program imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(example.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "fbuf_adapters":
            names.update(f"fbuf_adapters.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return sorted(names)


LACKING = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith("fbuf"):
            raise  # the package lacks a file of its own
        print(name)
"""


def absent(python: str, modules: list[str]) -> list[str]:
    """Those of some modules that an interpreter cannot import, because of another package."""
    command = [python, "-I", "-c", LACKING, *modules]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def run(command: list[str], where: pathlib.Path, quiet: bool = False) -> None:
    """Run a command as a user would: in a folder of their own, and without our paths."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    print("$", *(pathlib.Path(command[0]).name, *command[1:]), flush=True)
    output = subprocess.DEVNULL if quiet else None
    environment = {**kept, "MPLBACKEND": "Agg"}
    subprocess.run(command, cwd=where, env=environment, check=True, stdout=output)


if __name__ == "__main__":
    sys.exit(main())
