"""Sizes known beforehand: the capacity that fits, and what no device has room for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fbuf
from fbuf.checks import sizes

ITEM = {"x": jax.ShapeDtypeStruct((24,), jnp.float32), "done": jax.ShapeDtypeStruct((), bool)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        *(
            pytest.param(more, marks=pytest.mark.sweep)
            for more in (
                {"sampler": fbuf.Prioritized(normalize="buffer"), "num_envs": 6},
                {"sampler": fbuf.Uniform(window=8, by="episode", stride=3), "num_envs": 5},
            )
        ),
        {
            "sampler": fbuf.Mixture(
                1.0, prioritized=1.0, priorities=fbuf.Prioritized(window=4, stride=2)
            )
        },
        {"next_of": "x", "max_ends": 1000, "lockstep": False, "num_envs": 4},
    ],
)
def test_the_capacity_is_the_largest_that_fits(options: dict[str, Any]) -> None:
    capacity = fbuf.capacity_for("3 MB", ITEM, **options)
    fbuf.init(ITEM, capacity, **options)
    assert fbuf.nbytes(ITEM, capacity, **options) <= 3_000_000
    sampler = options.get("sampler", fbuf.Uniform())
    step = options.get("num_envs", 1) * sampler.stride
    assert fbuf.nbytes(ITEM, capacity + step, **options) > 3_000_000


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (7, 7),
        ("7", 7),
        ("7B", 7),
        ("24GiB", 24 * 2**30),
        ("24 gib", 24 * 2**30),
        ("1.5TB", 1_500_000_000_000),
        ("10_000 kB", 10_000_000),
        (" 2 MiB ", 2**21),
        ("24G", 24 * 2**30),
        ("24Gi", 24 * 2**30),
        ("512m", 512 * 2**20),
    ],
)
def test_sizes_as_people_write_them(size: int | str, expected: int) -> None:
    assert sizes.size("f", "size", size) == expected


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        ("24 Gigabytes", ValueError, "with a unit such as '24GiB' or '500 MB', got '24 Gigabytes'"),
        ("", ValueError, "got ''"),
        ("-1GB", ValueError, "got '-1GB'"),
        ("1e9", ValueError, "got '1e9'"),
        (0, ValueError, "at least 1 byte, got 0"),
        (1e9, TypeError, "an int or a str such as '24GiB', got 1000000000.0"),
        (True, TypeError, "got True"),
        (None, TypeError, "got None"),
        (100, ValueError, "size 100 is too small: the smallest buffer with these options has a"),
    ],
)
def test_what_is_no_size_is_refused(size: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=r"fbuf\.capacity_for: size") as caught:
        fbuf.capacity_for(size, ITEM)
    assert message in str(caught.value)


def test_options_are_those_of_init() -> None:
    with pytest.raises(TypeError, match="capacity_for: got an unexpected keyword argument 'rows'"):
        fbuf.capacity_for("1GB", ITEM, rows=1)


def test_what_does_not_fit_is_said_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the asked size, the free size and a capacity that fits; and it fits."""
    monkeypatch.setattr(sizes, "free", lambda device: 3_000_000)
    with pytest.raises(MemoryError) as caught:
        fbuf.init(ITEM, 10**9, sampler=fbuf.Prioritized())
    fitting = fbuf.capacity_for(3_000_000, ITEM, sampler=fbuf.Prioritized())
    for part in ("1000000000 rows take", "2.9 MiB free", f"capacity={fitting} would fit"):
        assert part in str(caught.value)
    state = fbuf.init(ITEM, fitting, sampler=fbuf.Prioritized())
    assert state.capacity == fitting
    with pytest.raises(MemoryError, match=r"2\.9 MiB free"):
        fbuf.init(ITEM, fitting + 1, sampler=fbuf.Prioritized())
    jax.eval_shape(lambda: fbuf.init(ITEM, 10**9))  # allocates nothing


def test_no_room_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "free", lambda device: 10)
    with pytest.raises(MemoryError, match="not one row would fit"):
        fbuf.init(ITEM, 100)


def test_the_host_says_how_much_is_free() -> None:
    """On Linux; on this machine at least what the tests take."""
    free = sizes.free(jax.devices("cpu")[0])
    assert free is None or 2**20 < free < 2**50


@pytest.mark.parametrize("sampler", [fbuf.Uniform(), fbuf.Prioritized(window=3)])
def test_a_buffer_counts_its_own_bytes(sampler):
    state = fbuf.init(ITEM, 120, num_envs=4, sampler=sampler)
    assert fbuf.nbytes(state) == fbuf.nbytes(ITEM, 120, num_envs=4, sampler=sampler)
    with pytest.raises(TypeError, match="give a buffer alone"):
        fbuf.nbytes(state, 120)
    with pytest.raises(TypeError, match="capacity is missing"):
        fbuf.nbytes(ITEM)
