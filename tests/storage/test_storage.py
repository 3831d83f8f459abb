"""The store by itself: what is written comes back bit for bit, however it is packed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf.storage import store
from fbuf.storage.ring import Ring

NARROW = ["bool", "uint8", "int8", "float8_e4m3fn", "bfloat16", "int16", "float16", "float32"]
NEVER = ["complex64", "int4"]
ITEMS = [  # every dtype, in words of each width; empty, odd, narrow and wide shapes
    [((), dtype) for dtype in NARROW],
    [((3,), dtype) for dtype in reversed(NARROW + NEVER)],
    [((5,), "uint8"), ((), "bool"), ((2, 0), "float32"), ((3, 1, 2), "int8")],
    [((5,), "bfloat16"), ((3,), "bool"), ((), "int16"), ((4, 5), "float8_e4m3fn")],
    [((65,), "uint8"), ((2,), "float32"), ((5, 5, 5), "int16"), ((), "int8"), ((257,), "float32")],
    [((0,), "bool")],
    [((2, 5), "float16"), ((), "uint8"), ((5, 3, 4), "float32"), ((1,), "int8")],
    [((), "complex64"), ((2,), "int4"), ((3,), "int16")],
]


def random(shape, dtype, rng):
    """Any bits at all, NaNs included, where that can be."""
    if dtype in ("bool", "complex64", "int4"):
        return jnp.asarray(rng.integers(0, 2, shape).astype(jnp.dtype(dtype)))
    dtype = jnp.dtype(dtype)
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return jnp.asarray(raw.view(dtype).reshape(shape))


def bits(x):
    if x.dtype in (jnp.bool_, jnp.complex64, jnp.int4):
        return np.asarray(x)
    return np.asarray(x).view(f"u{x.dtype.itemsize}")


@jax.jit
def written_and_read(storage, rows):
    storage = storage.write(jnp.array([7, 9, 0, 3]), rows)
    return storage, storage.read(jnp.array([3, 0, 7, 3])), storage.read(jnp.arange(9))


@jax.jit
def fields_of_rows(storage):
    """Each leaf by itself, and with the one behind it."""
    numbers, slots = range(len(storage.layout.fields)), jnp.array([3, 0, 7, 3])
    alone = [storage.read_leaves(slots, [number])[0] for number in numbers]
    pairs = [storage.read_leaves(slots, [number + 1, number])[1] for number in numbers[:-1]]
    return alone, pairs


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(x, marks=[pytest.mark.sweep] * (n not in (1, 4, 5)))
        for n, x in enumerate(ITEMS)
    ],
    ids=str,
)
def test_rows_come_back_bit_for_bit(fields):
    rng = np.random.default_rng(0)
    item = [jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype)) for shape, dtype in fields]
    rows = [random((4, *shape), dtype, rng) for shape, dtype in fields]
    storage, read, everything = written_and_read(store.empty(item, 9), rows)
    for was, now, all_, spec in zip(rows, read, everything, item, strict=True):
        assert (now.shape, now.dtype) == ((4, *spec.shape), spec.dtype)
        np.testing.assert_array_equal(bits(now), bits(was)[[3, 2, 0, 3]])
        np.testing.assert_array_equal(bits(all_)[[3, 0, 7, 3]], bits(now))
        assert not bits(all_)[[1, 2, 4, 5, 6, 8]].any()
    alone, pairs = fields_of_rows(storage)
    for one, leaf in zip([*alone, *pairs], [*read, *read], strict=False):
        np.testing.assert_array_equal(bits(one), bits(leaf))
    assert [(leaf.shape, leaf.dtype) for leaf in storage.item] == [
        (spec.shape, spec.dtype) for spec in item
    ]


@pytest.mark.parametrize(
    ("dtypes", "word", "words"),
    [
        (["uint8", "bool"], "uint8", 2),
        (["uint8", "int16"], "uint16", 2),
        (["float32", "int16", "uint8", "bool"], "uint32", 3),
        (["complex64"], "uint8", 0),
    ],
)
def test_a_word_is_as_wide_as_the_widest_number(dtypes, word, words):
    item = [jnp.zeros((), dtype) for dtype in dtypes]
    storage = store.empty(item, 5)
    assert (storage.words.dtype, storage.words.shape) == (word, (5, words))
    assert len(storage.wide) == dtypes.count("complex64")


def test_images_have_an_array_of_their_own():
    storage = store.empty({"frame": jnp.zeros((84, 84, 4), jnp.uint8), "x": jnp.zeros(3)}, 2)
    assert [leaf.shape for leaf in storage.wide] == [(2, 84, 84, 4)]
    assert storage.words.shape == (2, 3)


def test_64_bit_numbers_are_two_words():
    with jax.enable_x64(True):
        item = {"a": jnp.zeros(2), "b": jnp.int64(0), "c": jnp.zeros((), bool)}
        rows = {"a": jnp.array([[np.pi, -0.0]]), "b": jnp.array([-(2**40)]), "c": jnp.ones(1, bool)}
        storage = jax.jit(store.Storage.write)(store.empty(item, 2), jnp.array([1]), rows)
        assert storage.words.shape == (2, 7)
        read = jax.jit(store.Storage.read)(storage, jnp.array([1]))
        for was, now in zip(jax.tree.leaves(rows), jax.tree.leaves(read), strict=True):
            np.testing.assert_array_equal(was, now)


@pytest.mark.parametrize(("head", "newest"), [(10**9, 10**9 - 1), (0, 15 * 10**8 - 1)])
def test_the_newest_row_of_a_ring_of_more_than_2_to_the_30(head, newest):
    cursor = jnp.array([[head], [1], [10**9], [0], [0]], jnp.int32)
    flags = jax.ShapeDtypeStruct((15 * 10**8,), jnp.uint8)  # only its length is looked at
    options = {"removed": jnp.int32(0), "open": None, "writes": None, "num_envs": None}
    ring = Ring(cursor, flags=flags, lockstep=True, autoreset="same_step", **options)
    assert ring.newest().tolist() == [newest]


def test_many_rows_are_packed_in_parts_and_come_back():
    """Six parts and a rest, of which some rows are left out; a part takes memory, not all rows."""
    count, capacity = 6 * 2**12 + 5, 40_000
    rng = np.random.default_rng(0)
    rows = {"a": jnp.asarray(rng.random((count, 24), np.float32)), "b": jnp.ones(count, bool)}
    item = jax.tree.map(lambda leaf: leaf[0], rows)
    slots = rng.permutation(capacity)[:count].astype(np.int32)
    slots[[3, 4097, count - 1]] = capacity
    write = jax.jit(store.Storage.write, donate_argnums=0)
    program = write.lower(store.empty(item, capacity), jnp.asarray(slots), rows).compile()
    stored = program(store.empty(item, capacity), jnp.asarray(slots), rows)
    expected = np.zeros((capacity, 24), np.float32)
    expected[slots[slots < capacity]] = np.asarray(rows["a"])[slots < capacity]
    read = jax.jit(store.Storage.read)(stored, jnp.arange(capacity))
    np.testing.assert_array_equal(read["a"], expected)
    assert read["b"].sum() == count - 3
    if jax.default_backend() == "cpu":
        assert program.memory_analysis().temp_size_in_bytes < rows["a"].nbytes / 2


@pytest.mark.parametrize("count", [3, 100])
def test_a_count_of_removed_rows_stays_int32_where_x64_is_on(count):
    with jax.enable_x64(True):
        state = fbuf.init(jnp.zeros(2, jnp.float32), 256)
        rows = jnp.ones((count, 2), jnp.float32)
        add = lambda state, _: (fbuf.add(state, rows), None)
        state = jax.jit(lambda state: jax.lax.scan(add, state, None, 3)[0])(state)
    assert state.ring.removed.dtype == jnp.int32
