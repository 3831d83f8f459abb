"""Packages are imported when they are needed, and a missing one is named."""

import importlib
import os
import subprocess
import sys

import pytest


def run(script):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_nothing_is_imported_before_it_is_asked_for():
    run("""
import sys
import fbuf_adapters
assert not {"torch", "jax", "numpy", "tensordict"} & set(sys.modules), "imported too early"
""")


def test_a_process_of_environments_imports_no_jax():
    pytest.importorskip("gymnasium")
    run("""
import sys
import fbuf_adapters.gymnasium._stepper
assert not {"torch", "jax", "fbuf"} & set(sys.modules), "imported too early"
""")


@pytest.mark.sweep
def test_data_sets_import_what_reads_them_when_they_are_read():
    run("""
import sys
import numpy as np
from fbuf_adapters.datasets import from_arrays, from_d4rl, from_lerobot, from_minari
sys.modules["h5py"] = sys.modules["minari"] = None  # as if they were not installed
sys.modules["pyarrow"] = sys.modules["pyarrow.parquet"] = None
from_arrays({"x": np.zeros(3, np.float32)}, terminated=np.zeros(3, bool))
assert not {"torch", "gymnasium", "h5py._hl"} & set(sys.modules), "imported too early"
needs = ((from_d4rl, "h5py", "datasets"), (from_minari, "minari", "datasets"),
         (from_lerobot, "pyarrow", "lerobot"))
for load, package, extra in needs:
    try:
        load(sys.executable)  # a file that is there
    except ImportError as error:
        assert str(error) == f'{load.__name__} needs {package}: pip install "fbuf[{extra}]"', error
    else:
        raise AssertionError("loaded without " + package)
""")


@pytest.mark.sweep
def test_an_actor_of_environments_imports_no_jax():
    pytest.importorskip("gymnasium")
    pytest.importorskip("ray")
    run("""
import sys
import fbuf_adapters.ray._stepping
assert not {"torch", "jax", "fbuf"} & set(sys.modules), "imported too early"
""")


TORCH = 'fbuf_adapters.pytorch needs PyTorch: pip install "fbuf[torch]"'
BOTH = 'fbuf_adapters.tensordict needs PyTorch and TensorDict: pip install "fbuf[tensordict]"'
RAY = 'fbuf_adapters.ray needs Ray and Gymnasium: pip install "fbuf[ray]"'
GYMNASIUM = 'fbuf_adapters.gymnasium needs Gymnasium: pip install "fbuf[gymnasium]"'


@pytest.mark.parametrize(
    ("missing", "module", "message"),
    [
        ("torch", "fbuf_adapters.pytorch", TORCH),
        ("gymnasium", "fbuf_adapters.gymnasium", GYMNASIUM),
        ("ray", "fbuf_adapters.ray", RAY),
        pytest.param("gymnasium", "fbuf_adapters.ray", RAY, marks=pytest.mark.sweep),
        pytest.param("torch", "fbuf_adapters.tensordict", BOTH, marks=pytest.mark.sweep),
        pytest.param("tensordict", "fbuf_adapters.tensordict", BOTH, marks=pytest.mark.sweep),
    ],
)
def test_what_is_missing_is_said_with_what_to_install(missing, module, message):
    if missing == "tensordict":
        pytest.importorskip("torch")
    run(f"""
import importlib, sys
sys.modules[{missing!r}] = None  # as if it were not installed
try:
    importlib.import_module({module!r})
except ImportError as error:
    assert str(error) == {message!r}, error
else:
    raise AssertionError("imported without {missing}")
""")


@pytest.mark.parametrize("module", ["fbuf_adapters.pytorch", "fbuf_adapters.tensordict"])
def test_what_torch_itself_lacks_is_not_called_torch(module):
    run(f"""
import importlib, importlib.abc, sys

class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

sys.meta_path.insert(0, Broken())
try:
    importlib.import_module({module!r})
except ModuleNotFoundError as error:
    assert error.name == "numpy", error
else:
    raise AssertionError("imported with a broken torch")
""")


@pytest.mark.sweep
def test_no_import_makes_jax_look_for_devices():
    """`jax.distributed.initialize` has to be called before there are any."""
    run("""
import importlib, pkgutil, socket
import fbuf, fbuf_adapters
from jax._src import xla_bridge

modules = ["fbuf", "fbuf_adapters"]
for package in (fbuf, fbuf_adapters):
    found = pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda _: None)
    modules += [module.name for module in found if not module.name.endswith("__main__")]
imported = 0
for module in modules:
    try:
        importlib.import_module(module)
    except ImportError as error:
        assert " needs " in str(error) or "torch" in str(error), error
        continue
    imported += 1
    assert not xla_bridge.backends_are_initialized(), module + " computes when it is imported"
assert imported > 150, imported

import jax
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = "127.0.0.1:%d" % free.getsockname()[1]
jax.distributed.initialize(address, num_processes=1, process_id=0)
assert jax.process_count() == 1
jax.distributed.shutdown()
""")


def test_the_old_name_of_rows_on_the_host_says_the_new_one():
    with pytest.raises(ImportError, match=r"from fbuf\.host import HostStore"):
        importlib.import_module("fbuf_adapters.host")
