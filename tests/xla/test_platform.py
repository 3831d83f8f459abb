"""Programs for CPU, and for other platforms."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from support import meshes

import fbuf
from fbuf import sharded
from fbuf.xla import platform

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
    """A step of a training with a buffer."""
    state = fbuf.add(state, {"x": jnp.ones(16, jnp.float32)}, terminated=jnp.ones(16, bool))
    batch = fbuf.sample(state, key, 4, step=0 if state.sampler.without_replacement else None)
    if state.sampler.keeps_priorities:
        state = fbuf.update_priority(state, batch.ids, jnp.ones(4, jnp.float32))
    return fbuf.remove(state, batch.ids)


def loops(function: Any, *given: Any, platforms: Sequence[str]) -> int:
    """Count the loops of a program for these platforms."""
    traced = jax.jit(lambda *given: function(*given)).trace(*given)
    return len(re.findall("stablehlo.while", traced.lower(lowering_platforms=platforms).as_text()))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "sampler",
    SAMPLERS,
)
def test_a_program_for_another_platform_has_no_loops_of_a_cpu(sampler: str) -> None:
    given = (buffer(sampler), jax.random.key(0))
    on_cpu = loops(step, *given, platforms=("cpu",))
    assert on_cpu >= 3
    for name in ("cuda", "rocm", "tpu"):
        assert loops(step, *given, platforms=(name,)) < on_cpu / 3


@pytest.mark.sweep
def test_an_export_for_several_platforms_has_both_forms() -> None:
    given = (buffer(), jax.random.key_data(jax.random.key(0)))
    program = jax.jit(lambda state, words: step(state, jax.random.wrap_key_data(words)).fault)
    module = jax.export.export(program, platforms=("cpu", "cuda"))(*given).mlir_module()
    assert "stablehlo.case" in module
    assert "stablehlo.while" in module


def test_the_form_for_other_platforms_is_traced_for_them_alone() -> None:
    traced: list[str] = []

    def form(name: str, function: Any) -> Any:
        return lambda x: traced.append(name) or function(x)

    def both(x: jax.Array) -> jax.Array:
        return platform.by_platform(
            x, cpu=form("cpu", lambda x: x + 1), default=form("other", lambda x: 1 + x)
        )

    lowered = jax.jit(both).trace(jnp.ones(3))
    lowered.lower().compile()
    assert traced == ["cpu"]
    lowered.lower(lowering_platforms=("cuda",))
    assert traced == ["cpu", "other"]


@pytest.mark.parametrize("seeds", [False, True])
def test_a_gpu_may_have_a_form_of_its_own(seeds: bool) -> None:
    forms = dict(cpu=lambda x: x + 1, default=lambda x: x * 2, gpu=lambda x: x**3)

    def chosen(x: jax.Array) -> jax.Array:
        return platform.by_platform(x, **forms)

    def without(x: jax.Array) -> jax.Array:
        return platform.by_platform(x, cpu=forms["cpu"], default=forms["default"])

    def operation(function: Any, name: str) -> str:
        traced = jax.jit(jax.vmap(function) if seeds else function).trace(jnp.ones(3))
        text = traced.lower(lowering_platforms=(name,)).as_text()
        (found,) = set(re.findall(r"stablehlo\.(add|multiply)", text))
        # A cube is two products.
        return "cube" if text.count("stablehlo.multiply") == 2 else found

    for name in ("cuda", "rocm"):
        assert operation(chosen, name) == "cube"
        assert operation(without, name) == "multiply"
    assert operation(chosen, "tpu") == "multiply"
    assert operation(chosen, "cpu") == "add"


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """All forms are traced, and have to agree in shapes, dtypes, and how they vary on a mesh."""
    count = [0]
    bound = platform._bound  # pyright: ignore[reportPrivateUsage]

    def all_forms(arrays: Any, cpu: Any, default: Any, gpu: Any) -> Any:
        count[0] += 1
        avals = [jax.make_jaxpr(form)(*arrays).out_avals for form in (cpu, default, gpu)]
        mine, *others = [[aval.strip_weak_type() for aval in each] for each in avals]
        assert others == [mine, mine]
        return bound(arrays, cpu, default, gpu)

    monkeypatch.setattr(platform, "_bound", all_forms)
    jax.clear_caches()
    yield count
    jax.clear_caches()
    assert count[0] > 3


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["plain", "vmap", "x64"])
@pytest.mark.parametrize(
    "sampler",
    SAMPLERS,
)
def test_both_forms_have_the_same_shapes_and_dtypes(
    sampler: str, way: str, compared: list[int]
) -> None:
    with jax.enable_x64(way == "x64"):
        state, key = buffer(sampler), jax.random.key(0)
        if way != "vmap":
            jax.eval_shape(step, state, key)
            return
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
        jax.eval_shape(jax.vmap(step), many, jax.random.split(key))


@pytest.mark.sweep
@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
@pytest.mark.parametrize("sampler", ["prioritized", "window"])
def test_both_forms_vary_alike_over_a_mesh(sampler: str, compared: list[int]) -> None:
    state = sharded.init(
        {"x": jnp.float32(0)}, 512, mesh=meshes.mesh(8), num_envs=8, sampler=SAMPLERS[sampler]
    )
    jax.eval_shape(on_all, state, jax.random.key(0))


def on_all(state: Any, key: jax.Array) -> Any:
    """A step over a mesh."""
    state = sharded.add(state, {"x": jnp.ones(8)}, terminated=jnp.ones(8, bool))
    batch = sharded.sample(state, key, 8)
    if state.blocks.sampler.keeps_priorities:
        state = sharded.update_priority(state, batch.ids, jnp.ones(8))
    return sharded.remove(state, batch.ids)


@pytest.mark.sweep
@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
def test_over_a_mesh_the_form_follows_the_platform() -> None:
    state = sharded.init(
        {"x": jnp.float32(0)}, 512, mesh=meshes.mesh(8), num_envs=8, sampler=fbuf.Prioritized()
    )
    given = (state, jax.random.key(0))
    of_cpu = loops(on_all, *given, platforms=("cpu",))
    assert loops(on_all, *given, platforms=("cuda",)) < of_cpu / 3


def test_derivatives_go_through_the_form_for_cpu() -> None:
    both = lambda x, n: platform.by_platform(
        x, n, cpu=lambda x, n: (x * x, n + 1), default=lambda x, n: (x**2, n + 1)
    )
    x, n = jnp.float32(3), jnp.int32(1)
    gradient = jax.jit(jax.grad(lambda x: both(x, n)[0]))(x)
    assert float(gradient) == 6
    # The rest does not depend on it, and has no gradient.
    assert float(jax.jit(jax.grad(lambda y: both(x, n)[0] * y))(x)) == 9


def test_under_vmap_an_axis_that_is_not_mapped_stays_so() -> None:
    both = lambda x, y: platform.by_platform(
        x, y, cpu=lambda x, y: x[:, None] + y[None], default=lambda x, y: x[:, None] + y[None]
    )
    x, y = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones(4, np.float32)
    found = jax.jit(jax.vmap(both, (0, None)))(x, y)
    np.testing.assert_array_equal(found, x[:, :, None] + y)
    found = jax.jit(jax.vmap(both, (None, 0)))(y, x)
    np.testing.assert_array_equal(found, np.ones((2, 4, 1), np.float32) + x[:, None])
    traced = jax.jit(jax.vmap(both, (0, None))).trace(x, y)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "tensor<2x3x4xf32>" in text.splitlines()[-4]


@pytest.mark.parametrize("nested", [False, True])
def test_under_vmap_a_result_that_depends_on_no_batch_is_no_batch(nested: bool) -> None:
    def form(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x + y, y + 1

    both = lambda x, y: platform.by_platform(x, y, cpu=form, default=form)
    outer = lambda x, y: platform.by_platform(x, y, cpu=both, default=both)
    run = jax.vmap(outer if nested else both, (0, None), (0, None))
    x, y = jnp.arange(3.0), jnp.float32(2)
    added, kept = jax.jit(run)(x, y)
    np.testing.assert_array_equal(added, x + 2)
    assert kept.shape == ()
    assert float(kept) == 3
    # In the form for another platform it stays so, too.
    jax.jit(run).trace(x, y).lower(lowering_platforms=("cuda",))
    # A condition on such a result stays a condition.
    chosen = jax.vmap(lambda x: jax.lax.cond(both(x, y)[1] > 0, jnp.sin, jnp.cos, x))
    assert "cond[" in str(jax.make_jaxpr(chosen)(x))


def test_an_argument_without_a_tangent_gets_none() -> None:
    @jax.custom_jvp
    def refuses(y: jax.Array) -> jax.Array:
        return y

    def derivative(primals: Any, tangents: Any) -> Any:
        raise AssertionError("differentiated")

    refuses.defjvp(derivative, symbolic_zeros=True)
    form = lambda x, y: x * refuses(y)
    both = lambda x, y: platform.by_platform(x, y, cpu=form, default=form)
    x, y = jnp.float32(3), jnp.float32(2)
    assert float(jax.jit(jax.grad(both))(x, y)) == 2
    with pytest.raises(AssertionError, match="differentiated"):
        jax.jit(jax.grad(both, argnums=1))(x, y)


def test_without_jit_the_form_is_that_of_the_device() -> None:
    with jax.disable_jit():
        found = platform.by_platform(jnp.ones(2), cpu=lambda x: x, default=lambda x: x * 0)
        np.testing.assert_array_equal(found, [1, 1])
        both = lambda x: platform.by_platform(x, cpu=lambda x: x, default=lambda x: x * 0)
        np.testing.assert_array_equal(jax.vmap(both)(jnp.ones(2)), [1, 1])


def test_a_number_within_a_trace_lies_on_no_device() -> None:
    """JAX keeps it beside the operations, where the trace is evaluated without `jit`."""
    plus = lambda x: platform.by_platform(
        x, jnp.float32(2), cpu=lambda x, number: x + number, default=lambda x, number: x
    )
    traced = jax.custom_batching.custom_vmap(plus)
    traced.def_vmap(lambda size, batched, x: (plus(x), True))
    with jax.disable_jit():
        np.testing.assert_array_equal(traced(jnp.ones(2)), [3, 3])


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
