"""Programs for CPU alone, and for other platforms."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.backend
import jax.numpy as jnp
import pytest
from support import meshes

import fbuf
from fbuf import sharded
from fbuf.xla import platform

pytestmark = pytest.mark.skipif(
    platform.compiles_for_others() or set(jax.extend.backend.backends()) != {"cpu"},
    reason="wants a JAX that knows CPUs alone",
)

SAMPLERS = {
    "window": fbuf.Uniform(window=3),
    "uniform": fbuf.Uniform(),
    "prioritized": fbuf.Prioritized(),
    "stride": fbuf.Uniform(window=4, stride=4),
    "episode": fbuf.Uniform(window=3, by="episode"),
    "priority_window": fbuf.Prioritized(window=3),
    "shuffled": fbuf.Shuffled(),
    "mixture": fbuf.Mixture(0.5),
}


def buffer(sampler: str = "prioritized") -> fbuf.State[Any]:
    return fbuf.init({"x": jnp.float32(0)}, 512, sampler=SAMPLERS[sampler])


def step(state: fbuf.State[Any], key: jax.Array) -> fbuf.State[Any]:
    """What a training does with a buffer."""
    state = fbuf.add(state, {"x": jnp.ones(16, jnp.float32)}, terminated=jnp.ones(16, bool))
    batch = fbuf.sample(state, key, 4, step=0 if state.sampler.in_order else None)
    if state.sampler.keeps_priorities:
        state = fbuf.update_priority(state, batch.ids, jnp.ones(4, jnp.float32))
    return fbuf.remove(state, batch.ids)


def both_forms(function: Any, *given: Any) -> bool:
    """Whether both are traced. They are compared then, and differ in nothing, or this raises."""
    return "platform_index" in str(jax.jit(lambda *given: function(*given)).trace(*given).jaxpr)


@pytest.fixture(scope="module")
def traced_anew() -> Iterator[None]:
    """Nothing that was traced outside is used inside, and the other way about."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture
def other_platforms(traced_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX can compile for others."""
    monkeypatch.setattr(platform, "compiles_for_others", lambda: True)


def test_where_jax_knows_cpus_alone_only_their_form_is_traced() -> None:
    assert not both_forms(step, buffer(), jax.random.key(0))


def test_where_there_is_another_device_both_are_traced(
    traced_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "backends", lambda: {"cpu": None, "cuda": None})
    assert both_forms(step, buffer(), jax.random.key(0))


def test_plugins_are_found_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = platform.compiles_for_others.__wrapped__
    assert not found()
    plugin = importlib.metadata.EntryPoint("xla_cuda13", "jax_plugins.xla_cuda13", "jax_plugins")
    of_group = lambda group: [plugin] if group == "jax_plugins" else []
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", of_group)
        assert found()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name if name == "libtpu" else None
    )
    assert found()


def test_with_a_plugin_a_program_for_a_gpu_has_no_loops_of_a_cpu(other_platforms: None) -> None:
    given = (buffer(), jax.random.key(0))
    jitted = jax.jit(lambda *given: step(*given))
    loops = lambda platform: len(
        re.findall(
            "stablehlo.while", jitted.trace(*given).lower(lowering_platforms=(platform,)).as_text()
        )
    )
    assert loops("cuda") < loops("cpu") / 3


@pytest.mark.parametrize("way", ["plain", "vmap", "x64"])
@pytest.mark.parametrize(
    "sampler",
    [n if n == "window" else pytest.param(n, marks=pytest.mark.sweep) for n in SAMPLERS],
)
def test_both_forms_have_the_same_shapes_and_dtypes(
    sampler: str, way: str, other_platforms: None
) -> None:
    with jax.enable_x64(way == "x64"):
        state, key = buffer(sampler), jax.random.key(0)
        if way != "vmap":
            assert both_forms(step, state, key)
            return
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
        assert both_forms(jax.vmap(step), many, jax.random.split(key))


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
@pytest.mark.parametrize(
    "sampler", ["prioritized", pytest.param("window", marks=pytest.mark.sweep)]
)
def test_both_forms_vary_alike_over_a_mesh(sampler: str, other_platforms: None) -> None:
    state = sharded.init(
        {"x": jnp.float32(0)}, 512, mesh=meshes.mesh(8), num_envs=8, sampler=SAMPLERS[sampler]
    )

    def on_all(state: Any, key: jax.Array) -> Any:
        state = sharded.add(state, {"x": jnp.ones(8)}, terminated=jnp.ones(8, bool))
        batch = sharded.sample(state, key, 8)
        if SAMPLERS[sampler].keeps_priorities:
            state = sharded.update_priority(state, batch.ids, jnp.ones(8))
        return sharded.remove(state, batch.ids)

    assert both_forms(on_all, state, jax.random.key(0))


@pytest.mark.sweep
def test_sizes_can_be_asked_for_before_jax_has_devices() -> None:
    """`jax.distributed.initialize` has to be called before there are any."""
    program = """
import jax, jax.numpy as jnp, fbuf
from jax._src import xla_bridge
item = {"x": jax.ShapeDtypeStruct((3,), jnp.float32)}
for sampler in (fbuf.Uniform(window=2), fbuf.Prioritized(), fbuf.Shuffled()):
    fbuf.nbytes(item, 100, sampler=sampler)
assert not xla_bridge.backends_are_initialized()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
