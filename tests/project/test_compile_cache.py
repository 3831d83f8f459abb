"""Programs of fbuf are found in JAX's persistent cache by other processes and other clones."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import fbuf

PROGRAM = """
import jax

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))

import jax.numpy as jnp

import fbuf

state = fbuf.init({"obs": jnp.zeros(3), "reward": jnp.zeros(())}, 64, sampler=fbuf.Prioritized())
state = fbuf.add(state, {"obs": jnp.ones((8, 3)), "reward": jnp.ones(8)})
for turn in range(2):
    batch = fbuf.sample(state, jax.random.key(turn), 4)
    state = fbuf.update_priority(state, batch.ids, jnp.ones(4))
step = jax.jit(lambda state: fbuf.after(state, fbuf.sample(state, jax.random.key(0), 4)))
step(state)
print(events.count("cache_hits"), events.count("cache_misses"))
"""


def run(package, cache):
    """The hits and the misses of a process with this copy of the package."""
    named = {
        "PYTHONPATH": str(package),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env={**os.environ, **named},
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(map(int, done.stdout.split()))


@pytest.mark.sweep
def test_another_process_and_another_clone_compile_nothing(tmp_path):
    package = pathlib.Path(fbuf.__file__).parent
    clone = tmp_path / "elsewhere"
    shutil.copytree(package, clone / "fbuf", ignore=shutil.ignore_patterns("__pycache__"))
    hits, compiled = run(package.parent, tmp_path / "cache")
    assert hits == 0
    assert compiled > 3
    assert run(package.parent, tmp_path / "cache") == (compiled, 0)
    assert run(clone, tmp_path / "cache") == (compiled, 0)
