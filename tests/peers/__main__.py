"""Run the peers' own tests with fbuf in place of their buffers: `make peers-tests`.

Each file beside this one is a suite. Its `tests()` finds the peer's test files, where the package
is installed or fetched. Its `replace()` puts fbuf's class in the place of the peer's. `KNOWN` names
the tests that cannot pass, each with its reason. Another failure is an error, and so is a known
test that passes.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.peers.plugin import SUITE

ROOT = Path(__file__).parents[2]
PYTEST = ["-p", "tests.peers.plugin", "-p", "no:cacheprovider", "-c", os.devnull, "-rxX", "-q"]
PYTEST += ["-m", "not expensive"]  # a mark of Stable-Baselines3's, which leaves them out, too

QUICK = {
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",  # threads that wait for each other on a busy machine
    # Most of the time would be XLA making fast kernels, which then run for a millisecond.
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
}

SUITES = ("sb3", "sbx", "cleanrl", "flashbax", "flashbax_shapes", "brax")
if "FLASHBAX" in os.environ:  # a clone, which alone has the notebooks
    SUITES = (*SUITES, "flashbax_notebooks")


def run(name: str, options: list[str]) -> int:
    """Run one suite in a process of its own, and return pytest's exit status."""
    print(f"== {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        files = importlib.import_module(f"tests.peers.{name}").tests(Path(folder))
        paths = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
        return subprocess.run(
            [sys.executable, "-m", "pytest", *PYTEST, "--rootdir", folder, *options, *files],
            cwd=folder,
            env=os.environ | QUICK | {SUITE: name, "PYTHONPATH": paths},
        ).returncode


def main() -> int:
    """Run the suites named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(SUITES)}")
    arguments, options = parser.parse_known_args()
    return max([run(name, options) for name in arguments.names or SUITES])


if __name__ == "__main__":
    sys.exit(main())
