"""The quick tests under switches of JAX's own: `make switches`, or `make switches ARGS="x64"`.

    python tests/switches.py              all of them
    python tests/switches.py rbg leaks    some
    python tests/switches.py --quick      those of `.ci/run`

Rank and dtype promotion are strict in every run of the tests, see `conftest.py`. Each switch here
runs the core files that it can break. Under 64-bit types these are files that make their own rows
of 32 bits. Where nothing is compiled they are files that take a second and not minutes.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent

OPERATIONS = (
    *("test_errors", "test_extend", "test_fifo", "test_mixture", "test_resize", "test_split"),
    *("test_shuffled", "test_stats", "test_storage", "test_transition", "test_views"),
)
SHORT = ("test_switches", "test_explicit", "test_pace", "test_stats")


class Switch(NamedTuple):
    """A switch, the files that run under it, and whether every change can afford it."""

    environment: dict[str, str]
    files: tuple[str, ...]
    quick: bool = False


SWITCHES = {
    "leaks": Switch({"JAX_CHECK_TRACER_LEAKS": "1"}, SHORT),
    "rbg": Switch({"JAX_DEFAULT_PRNG_IMPL": "rbg"}, ("test_switches", "test_stats"), quick=True),
    "unsafe_rbg": Switch({"JAX_DEFAULT_PRNG_IMPL": "unsafe_rbg"}, ("test_switches", "test_stats")),
    "threefry": Switch(
        {"JAX_THREEFRY_PARTITIONABLE": "0"}, ("test_switches", "test_views"), quick=True
    ),
    "nans": Switch({"JAX_DEBUG_NANS": "1"}, ("test_switches", "test_pace", "test_storage")),
    "x64": Switch({"JAX_ENABLE_X64": "1"}, ("test_switches", "test_sum_tree", "test_bit_tree")),
    "together": Switch({"JAX_ENABLE_X64": "1"}, ("test_switches_together",)),
    "guard": Switch({"FBUF_TEST_GUARDED": "1"}, (*OPERATIONS, "test_windows")),
    "eager": Switch({"JAX_DISABLE_JIT": "1"}, ("test_switches",)),
}


def main(arguments: list[str]) -> int:
    """Run some or all; what fails does not keep the others from running."""
    quick = "--quick" in arguments
    named = [argument for argument in arguments if not argument.startswith("-")]
    chosen = named or [name for name, switch in SWITCHES.items() if switch.quick or not quick]
    failed: list[str] = []
    for name in chosen:
        switch = SWITCHES[name]
        print(f"{name}: {switch.environment}", flush=True)
        files = [str(next(TESTS.rglob(f"{file}.py"))) for file in switch.files]
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not sweep", *files]
        environment = {**os.environ, **switch.environment}
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(name)
    print(f"failed under: {', '.join(failed)}" if failed else "all pass")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
