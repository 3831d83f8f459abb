"""Two CPU devices, strict promotion, and the ways in which every behaviour is run."""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
).strip()

import functools
from types import SimpleNamespace

import hypothesis
import jax
import pytest

import fbuf

DEVICE = os.environ.get("FBUF_TEST_DEVICE", "cpu")
"""Where tests of `any_device` keep arrays and tensors: `cpu` or `cuda`."""

hypothesis.settings.register_profile(
    "fbuf", deadline=None, derandomize=True, max_examples=40, database=None
)
hypothesis.settings.load_profile("fbuf")


@functools.cache
def _compiled(name: str, donate: bool, static: tuple[tuple[str, object], ...]):
    function = functools.partial(getattr(fbuf, name), **dict(static))
    return jax.jit(function, donate_argnums=(0,) if donate else ())


def _call(name: str, donate: bool):
    def call(state, *args, **kwargs):
        static = {k: kwargs.pop(k) for k in ("view", "batch_size") if k in kwargs}
        return _compiled(name, donate, tuple(sorted(static.items())))(state, *args, **kwargs)

    return call


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Each holds some memory maps, of which a process can have 65,530."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _place(request):
    """On a machine with a GPU: most tests are of the CPU, some of where FBUF_TEST_DEVICE says."""
    if jax.default_backend() == "cpu":
        yield
        return
    there = DEVICE == "cuda" and request.node.get_closest_marker("any_device")
    with jax.default_device(jax.devices("gpu" if there else "cpu")[0]):
        yield


WRITES = ("add", "update_priority", "remove", "clear")
READS = ("sample", "size", "can_sample", "stats")


@pytest.fixture(params=["eager", "eager_keep", "jit", "jit_donate"])
def run(request):
    """The functions of fbuf, called in one of four ways."""
    way = request.param
    if way == "eager":
        verbs = {name: getattr(fbuf, name) for name in WRITES}
    elif way == "eager_keep":
        verbs = {name: functools.partial(getattr(fbuf, name), donate=False) for name in WRITES}
    else:
        verbs = {name: _call(name, way == "jit_donate") for name in WRITES}
    reads = {
        name: getattr(fbuf, name) if way.startswith("eager") else _call(name, False)
        for name in READS
    }
    return SimpleNamespace(way=way, **verbs, **reads)
