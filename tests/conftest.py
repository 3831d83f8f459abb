"""Eight CPU devices, strict promotion, compiled programs kept, and the ways behaviour is run in."""

import os

from support import cache

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache.folder()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.004")
# XLA would say at length of every program that was kept that it is of this very processor.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# A user with these switches on must be able to use all of the package.
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
# To say of each operation where it was called takes a tenth of the tests' time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import collections
import functools
import gc
import importlib.util
import pathlib
import signal
import zlib

import hypothesis
import jax
import pytest
from support import programs, tags

pytest_plugins = ["support.adapter_fixtures"]

if os.environ.get("FBUF_TEST_GUARDED"):
    from support import guarded

    guarded.begin()

pytest.register_assert_rewrite(
    "support.buffers", "support.contracts", "support.episodes", "support.inside", "support.workers"
)

collect_ignore = ["support/mesh_process.py"]
"""A script of its own, which pytest would import to look for examples."""

DEVICE = os.environ.get("FBUF_TEST_DEVICE", "cpu")
"""Where tests keep arrays and tensors, `cpu` or `cuda`."""

PART = os.environ.get("FBUF_SWEEP_PART", "")
"""Which part of the sweep to run, such as `2/4`; all of it if it is empty."""

MOST_MAPS = 10_000
"""Memory maps at which a process forgets its compiled programs. It then has up to 4 GB.

Each program has about 15 maps. A process can have 65,530, and the largest test makes 4,000.
"""

# Tracing makes millions of objects that live long; to look through them again and again takes a
# fifth of the tests' time.
gc.set_threshold(100_000, 50, 50)

TESTS_A_LOOK = 3
"""The tests from one look at the maps to the next: to count them takes some 10 ms."""

_tests_left = TESTS_A_LOOK

hypothesis.settings.register_profile(
    "fbuf", deadline=None, derandomize=True, max_examples=40, database=None
)
hypothesis.settings.load_profile("fbuf")


def pytest_configure(config):
    """Bound the cache, before any process writes to it."""
    # So a shell starts what it puts into the background.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        cache.bound(pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"]))
    if config.option.markexpr == "not sweep":
        # Each process would import all of the package to find examples that are in the sweep.
        config.option.doctestmodules = False


def pytest_unconfigure():
    """Leave what is still there: pytest would look for garbage in it five times, for seconds."""
    gc.freeze()


def pytest_runtest_logreport(report):
    """Say at once what failed: a run that is cut off has said it, too."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} failed: {report.longreprtext[-2000:]}", flush=True)


@pytest.fixture
def random_tags():
    """Buffers have tags as users have them, and not all the same one."""
    with tags.as_users_have_them():
        yield


@pytest.fixture(autouse=True)
def _forget_compiled_programs():
    """Only where there are very many: what is kept need not be compiled by the next test."""
    yield
    global _tests_left
    _tests_left -= 1
    if _tests_left > 0:
        return
    _tests_left = TESTS_A_LOOK
    with open("/proc/self/maps", "rb") as maps:
        count = sum(1 for _ in maps)
    if count > MOST_MAPS:
        jax.clear_caches()
        gc.collect()  # functions that hold programs hold each other


@pytest.fixture(autouse=True)
def _place(request):
    """On a machine with a GPU, stay where FBUF_TEST_DEVICE says, or on the CPU."""
    if DEVICE == "cuda" and request.node.get_closest_marker("on_cpu"):
        pytest.skip("asks about memory of the CPU, or about several devices")
    if jax.default_backend() == "cpu":
        yield
        return
    there = DEVICE == "cuda"
    with jax.default_device(jax.devices("gpu" if there else "cpu")[0]):
        yield


@pytest.hookimpl(tryfirst=True)  # before it is decided by marks what runs
def pytest_collection_modifyitems(config, items):
    """Put long tests into the sweep; some run only where they are asked for."""
    if importlib.util.find_spec("brax") is None:  # its module can be imported all the same
        items[:] = [item for item in items if not is_example_of(item, "brax")]
    cases = collections.Counter()
    for item in items:
        # Examples in docstrings each compile their own programs.
        if isinstance(item, pytest.DoctestItem) or item.get_closest_marker("optimised"):
            item.add_marker(pytest.mark.sweep)
        if isinstance(item, pytest.DoctestItem):
            item.add_marker(pytest.mark.example)
            # No fixture of this folder reaches it.
            item.runtest = functools.partial(as_it_comes, item.runtest)
        elif (first := item.get_closest_marker("first")) and not swept(item):
            cases[item.parent, item.originalname] += 1
            if cases[item.parent, item.originalname] > first.args[0]:
                item.add_marker(pytest.mark.sweep)
        if item.get_closest_marker("soak") and "soak" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip("takes minutes: ask for it with -m soak"))
    if PART:
        part, parts = map(int, PART.split("/"))
        others = [item for item in items if swept(item) and crc32(item.nodeid) % parts != part - 1]
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


def pytest_sessionfinish(session, exitstatus):
    """Let a part of the sweep pass that has no test of a kind, such as of the optimised ones."""
    if PART and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def is_example_of(item, package):
    """Tell whether a test is an example that imports a package."""
    return isinstance(item, pytest.DoctestItem) and f"from {package} " in item.dtest.docstring


def as_it_comes(run):
    """Run an example of a docstring: its reader has JAX as it comes."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        run()


def swept(item):
    """Whether a test is in the sweep."""
    return item.get_closest_marker("sweep") is not None


def crc32(name):
    """A number for a test that stays the same."""
    return zlib.crc32(name.encode())


SWEPT = [pytest.param(way, marks=pytest.mark.sweep) for way in ("eager_keep", "jit", "jit_donate")]


@pytest.fixture(params=["eager", *SWEPT])
def run(request):
    """The functions of fbuf, called in one of four ways."""
    return programs.operations(request.param)
