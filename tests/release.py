"""Build the wheel and the source distribution, and try both where no clone is.

    python tests/release.py               two environments: the core; PyTorch and two extras more
    python tests/release.py --quick       the same, with one small example
    python tests/release.py --all         an environment for each extra
    python tests/release.py --tag v0.4.0  first check that this tag may publish this version

Each environment is new, and lies outside the clone. The core is installed from the source
distribution, and the rest from the wheel. The versions are those of `requirements.lock`. In each
one the command starts, and the blocks of the README run in order. Each small example runs in the
first environment that has its extras, after the packages that its docstring names are installed,
too. Examples that need other extras are named; with `--all` there must be none. The two files stay
in `dist/`.

The extras `cuda12` and `cuda13` are left out: gigabytes, for a GPU. They ask for the same versions
of JAX as the core, which `tests/project/test_packaging.py` checks.
"""

from __future__ import annotations

import argparse
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
    "plot": "fbuf.doctor.picture",
    "tensordict": "fbuf_adapters.tensordict",
    "gymnasium": "fbuf_adapters.gymnasium",
    "sb3": "fbuf_adapters.sb3",
    "datasets": "fbuf_adapters.datasets",
    "lerobot": "fbuf_adapters.datasets",
    "brax": "fbuf_adapters.brax",
    "ray": "fbuf_adapters.ray",
}
"""Each extra, and a module that needs it."""
DEFAULT = ((), ("torch", "gymnasium", "plot"))
PIP = ("-m", "pip", "--disable-pip-version-check")
PINS = ("--constraint", str(ROOT / "requirements.lock"))
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
    environments = ((), *((extra,) for extra in EXTRAS)) if given.all else DEFAULT
    with tempfile.TemporaryDirectory(prefix="fbuf-dist-") as name:
        home = pathlib.Path(name)
        tree, wheel = matrix.build(home / "build")
        sdist = tree.with_name(f"{tree.name}.tar.gz")
        check_wheel(wheel)
        check_sdist(sdist)
        examples = sorted((tree / "examples" / "small").glob("*.py"))[: 1 if given.quick else None]
        for extras in environments:
            python = install(home / "venv", wheel if extras else sdist, extras)
            try_out(python, tree / "README.md", extras)
            for example in [one for one in examples if needs(one)[0] <= set(extras)]:
                run_example(python, example)
                examples.remove(example)
        if examples:
            print("examples that did not run:", *(example.name for example in examples))
        if examples and given.all:
            raise SystemExit("with --all every small example must run")
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
        wanted |= {"fbuf/testing/__init__.py"}
        assert wanted <= set(names), f"the wheel lacks {wanted - set(names)}"
        metadata = Metadata.from_email(file.read(f"{about}METADATA"), validate=True)
    assert metadata.metadata_version == "2.4"  # what the action that publishes knows
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description.startswith("# fbuf\n")


def check_sdist(sdist: pathlib.Path) -> None:
    """The license, the tests and the examples; nothing that is built."""
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = {"LICENSE", "README.md", "PKG-INFO", "tests/release.py", "fbuf/py.typed"}
    assert wanted <= names, f"the source distribution lacks {wanted - names}"
    built = [name for name in names if name.startswith((".venv", "site/", "dist/", "outputs/"))]
    assert not built, f"the source distribution has {built}"


def install(home: pathlib.Path, file: pathlib.Path, extras: tuple[str, ...]) -> str:
    """Install a file with extras into a new environment; return its interpreter."""
    what = f"{file}[{','.join(extras)}]" if extras else str(file)
    print(f"== {file.name} [{', '.join(extras)}]", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    python = str(home / "bin" / "python")
    run([python, *PIP, "install", "-qq", *PINS, what])
    run([python, *PIP, "check"])
    return python


def try_out(python: str, readme: pathlib.Path, extras: tuple[str, ...]) -> None:
    """Use what is installed: import it, call the command, run the README."""
    modules = ", ".join(
        ["fbuf", "fbuf.testing", "fbuf_adapters", *(EXTRAS[extra] for extra in extras)]
    )
    stated = f"assert fbuf.__version__ == {version()!r}, fbuf.__version__"
    run([python, "-c", f"import {modules}; {stated}"])
    run([str(pathlib.Path(python).with_name("fbuf")), "--help"], quiet=True)
    run([python, "-c", program(python, readme)], shown=f"the blocks of {readme.name}")


def needs(example: pathlib.Path) -> tuple[set[str], list[str]]:
    """The extras and the other packages of the line in an example that says how to install them."""
    (line,) = re.findall(r"Needs `pip install ([^`]+)`", example.read_text())
    extras, packages = re.fullmatch(r"\"?fbuf(?:\[([\w,]+)\])?\"?(.*)", line).groups()
    return set((extras or "").split(",")) - {""}, packages.split()


def run_example(python: str, example: pathlib.Path) -> None:
    """Install what else an example asks for, and run it."""
    packages = needs(example)[1]
    if packages:
        run([python, *PIP, "install", "-qq", *PINS, *packages])
    run([python, str(example)])


def program(python: str, page: pathlib.Path) -> str:
    """The blocks of a page that can run there, one after the other; there is at least one."""
    found = BLOCK.findall(page.read_text())
    there = [code for packages, code in found if has(python, re.findall(r"\w+", packages))]
    assert there, f"{page.name} has no block that can run"
    return "\n".join(there)


def has(python: str, packages: list[str]) -> bool:
    """Whether an interpreter finds all of some packages."""
    code = "import sys, importlib.util as u; sys.exit(None in map(u.find_spec, sys.argv[1:]))"
    return subprocess.run([python, "-I", "-c", code, *packages]).returncode == 0


def run(command: list[str], shown: str = "", quiet: bool = False) -> None:
    """Run a command as a user would: in an empty folder, and without our paths."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    print("$", shown or " ".join([pathlib.Path(command[0]).name, *command[1:]]), flush=True)
    output = subprocess.DEVNULL if quiet else None
    environment = {**kept, "MPLBACKEND": "Agg"}
    with tempfile.TemporaryDirectory(prefix="fbuf-user-") as folder:
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=output)


if __name__ == "__main__":
    sys.exit(main())
