"""Programs for CPU alone, and for other platforms."""

from __future__ import annotations

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import fbuf
from fbuf.xla import platform

pytestmark = pytest.mark.skipif(
    {device.platform for device in jax.devices()} != {"cpu"}, reason="wants CPUs alone"
)


@jax.jit
def step(state: fbuf.State, key: jax.Array) -> fbuf.State:
    state = fbuf.add(state, {"x": jnp.float32(1)})
    batch = fbuf.sample(state, key, 4)
    return fbuf.update_priority(state, batch.ids, jnp.ones(4))


def prioritized() -> fbuf.State:
    return fbuf.init({"x": jnp.float32(0)}, 512, sampler=fbuf.Prioritized())


def test_where_all_devices_are_cpus_their_form_alone_is_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = (prioritized(), jax.random.key(0))
    assert "platform_index" not in str(step.trace(*given).jaxpr)
    monkeypatch.setattr(platform, "backends", lambda: {"cpu": None, "cuda": None})
    jax.clear_caches()
    assert "platform_index" in str(step.trace(*given).jaxpr)
    monkeypatch.undo()
    jax.clear_caches()


def test_a_program_exported_for_a_gpu_has_no_loops_of_a_cpu() -> None:
    """Though the same function was compiled for CPU before, and is so again after."""
    given = (prioritized(), jax.random.key(0))
    loops = lambda: len(re.findall("stablehlo.while", step.lower(*given).as_text()))
    before = loops()
    assert before > 3
    with fbuf.any_platform():
        exported = jax.export.export(step, platforms=["cuda"])(*given)
        assert loops() == before  # of this CPU
    # What is left there are the rounds of the random bits, where it is written as a loop at all.
    assert exported.mlir_module().count("stablehlo.while") <= 1
    assert loops() == before


@pytest.mark.sweep
def test_shapes_are_asked_for_before_jax_has_devices() -> None:
    """`jax.distributed.initialize` has to be called before there are any."""
    program = """
import jax, jax.numpy as jnp, fbuf
from jax._src import xla_bridge
item = {"x": jax.ShapeDtypeStruct((3,), jnp.float32)}
fbuf.nbytes(item, 100, sampler=fbuf.Prioritized())
assert not xla_bridge.backends_are_initialized()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
