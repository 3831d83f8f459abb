"""Versions of JAX that are left out: a warning at import, and bounds that agree with it."""

from __future__ import annotations

import importlib.util
import itertools
import pathlib
import re
import subprocess
import sys
import tomllib
import warnings

import jaxlib.version
import pytest

from fbuf import _versions

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("version", "consequence"),
    [
        ("0.10.2", "computes wrong values on CPU, and is slow at scatters on GPU"),
        ("0.11.0", "is slow at scatters on GPU"),
        ("0.11.1", "copies the whole buffer at every step on CPU"),
    ],
)
def test_a_version_left_out_gives_one_sentence(monkeypatch, version, consequence):
    monkeypatch.setattr(jaxlib.version, "__version__", version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.warns(RuntimeWarning) as caught:
        _versions.warn_if_left_out()
    assert [str(warning.message) for warning in caught] == [
        f"fbuf: jaxlib {version} {consequence}; install another version: "
        'pip install "jax!=0.10.2,!=0.11.0,!=0.11.1"'
    ]


def test_with_a_gpu_the_plugin_is_to_be_replaced_too(monkeypatch):
    monkeypatch.setattr(jaxlib.version, "__version__", "0.11.0")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name if name == "jax_cuda13_plugin" else None
    )
    with pytest.warns(RuntimeWarning, match=r'"jax\[cuda13\]!=0\.10\.2,!=0\.11\.0,!=0\.11\.1"'):
        _versions.warn_if_left_out()


@pytest.mark.parametrize("version", ["0.8.0", "0.10.1", "0.11.2", "0.12.0.1", "0.10.20"])
def test_other_versions_are_silent(monkeypatch, version):
    monkeypatch.setattr(jaxlib.version, "__version__", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _versions.warn_if_left_out()


@pytest.mark.sweep
def test_importing_fbuf_warns_at_the_line_that_imports_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, warnings, jax, jaxlib.version\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "jaxlib.version.__version__ = '0.10.2'\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import fbuf\n"
        "ours = [w for w in caught if str(w.message).startswith('fbuf: ')]\n"
        "print(*((w.filename, w.lineno) for w in ours), sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, program, ROOT], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str((str(program), 6))]


def test_asking_loads_no_jax_and_takes_no_time():
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "import importlib.util as u\n"
        "spec = u.spec_from_file_location('v', sys.argv[1] + '/fbuf/_versions.py')\n"
        "v = u.module_from_spec(spec); spec.loader.exec_module(v)\n"
        "t = time.perf_counter(); v.warn_if_left_out(); t = time.perf_counter() - t\n"
        "print('jax' in sys.modules, t < 0.001)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, ROOT], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_the_bounds_leave_out_the_same_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    every = [*project["dependencies"], *itertools.chain(*extras)]
    bounds = {re.sub(r"^jax(\[\w+\])?", "", one) for one in every if one.startswith("jax")}
    assert len(bounds) == 1
    assert set(re.findall(r"!=([\d.]+)", bounds.pop())) == set(_versions._LEFT_OUT)
