"""Rows of narrow numbers, read by words: the form for GPUs, run here, has the same bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import meshes
from support.few import few

import fbuf
from fbuf import sharded
from fbuf.xla import rows

NARROW = [
    *("uint8", "int8", "uint16", "int16", "float16", "bfloat16", "float8_e3m4", "float8_e4m3"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    "float8_e8m0fnu",
]
"""The dtypes whose wide rows have a form by words."""
OTHERS = ["bool", "int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float32", "int32"]
"""Dtypes that have none."""
WHOLE = (4, 8, 10)  # 320 numbers: whole loads at one byte a number, at two, and at four
SHORT = (3, 109)  # 327 numbers: no whole load, nor a whole word
ITEM = {"wide": jnp.zeros(WHOLE, jnp.uint8), "at": jnp.int32(0)}


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Have this platform take the form for GPUs. It notes the dtypes and rows read by words."""
    read: list[tuple[str, tuple[int, ...]]] = []
    by_words = rows._gathered_by_words  # pyright: ignore[reportPrivateUsage]

    def noted(leaf: jax.Array, slots: jax.Array) -> jax.Array:
        read.append((leaf.dtype.name, leaf.shape[1:]))
        return by_words(leaf, slots)

    def as_a_gpu(*operands: Any, cpu: Any, default: Any, gpu: Any) -> Any:
        return gpu(*operands)

    monkeypatch.setattr(rows, "_gathered_by_words", noted)
    monkeypatch.setattr(rows, "by_platform", as_a_gpu)
    monkeypatch.setattr(rows, "_WORTH_WORDS", 0)
    jax.clear_caches()
    yield read
    jax.clear_caches()


def bits(tree: Any) -> list[np.ndarray[Any, Any]]:
    """The bytes of all arrays: NaNs are compared, too."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if leaf.dtype != jax.float0]
    return [np.ascontiguousarray(leaf).view(np.uint8) for leaf in leaves]


def random_rows(dtype: str, shape: tuple[int, ...], count: int) -> jax.Array:
    """Rows of random bits: of floats every kind of NaN is among them."""
    found = np.random.default_rng(count).integers(0, 256, (count, *shape, 8), np.uint8)
    of = jnp.dtype(dtype)
    if of == jnp.bool_ or "2" in dtype[-5:] or "4" in dtype[-5:]:
        numbers = jnp.asarray(found[..., 0] % (2 if of == jnp.bool_ else 4))
        return numbers.astype(of)
    width = of.itemsize
    return jnp.asarray(np.ascontiguousarray(found[..., :width]).view(of)[..., 0])


def filled(dtype: str, shape: tuple[int, ...], count: int, **options: Any) -> fbuf.State[Any]:
    """A full buffer of such rows, beside a number."""
    item = {"wide": jnp.zeros(shape, dtype), "at": jnp.int32(0)}
    new = {"wide": random_rows(dtype, shape, count), "at": jnp.arange(count, dtype=jnp.int32)}
    return fbuf.add(fbuf.init(item, count, **options), new)


# --- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", few(["uint8", "int8", "uint16", "int16", "float16"], "uint8"))
@pytest.mark.parametrize("batch", few([0, 1, 2, 37], 1, 37))
@pytest.mark.parametrize("capacity", few([1, 33], 33))
@pytest.mark.parametrize("shape", [WHOLE, SHORT, (320,), (328,)])
def test_rows_are_those_of_the_array(
    shape: tuple[int, ...], capacity: int, batch: int, dtype: str, words: list[Any]
) -> None:
    array = random_rows(dtype, shape, capacity)
    slots = np.random.default_rng(batch).integers(0, capacity, batch).astype(np.int32)
    read = jax.jit(lambda array, slots: rows.read_rows(array, slots, by_words=True))
    [found] = bits(read(array, jnp.asarray(slots)))
    assert found.tobytes() == np.asarray(array)[slots].tobytes()
    # A single row is read as two, of which one is dropped: a kernel more, for little.
    whole = math.prod(shape) * array.dtype.itemsize % 16 == 0
    assert words == ([(dtype, shape)] if whole and batch > 1 else [])


@pytest.mark.parametrize(
    "field",
    few(
        [("uint8", SHORT), ("bfloat16", SHORT), *((dtype, WHOLE) for dtype in [*NARROW, *OTHERS])],
        *(("bfloat16", SHORT), ("bfloat16", WHOLE), ("uint8", WHOLE)),
    ),
)
def test_a_drawn_batch_has_the_rows_that_were_added(
    field: tuple[str, tuple[int, ...]], words: list[Any]
) -> None:
    dtype, shape = field
    state = filled(dtype, shape, 9)
    batch = fbuf.sample(state, jax.random.key(1), 16, view=fbuf.Item())
    expected = np.asarray(random_rows(dtype, shape, 9))[np.asarray(batch.data["at"])]  # NaNs, too
    for mine, other in zip(bits(batch.data["wide"]), bits(expected), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert len(words) == (dtype in NARROW and shape == WHOLE)


@pytest.mark.parametrize("sampler", [fbuf.Prioritized(), fbuf.FreshFirst()], ids=["sample", "draw"])
def test_masked_rows_and_some_fields_are_as_without_words(
    sampler: fbuf.Sampler, words: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def batch(state: fbuf.State[Any], seed: int, **options: Any) -> Any:
        key = jax.random.key(seed)
        if sampler.notes_draws:
            _, found = fbuf.draw(state, key, 5, donate=False, **options)
        else:
            found = fbuf.sample(state, key, 5, **options)
        # Without generations: they begin with the random tag of the buffer.
        return found.data, found.mask, found.ids.slot, found.weight

    def batches() -> list[np.ndarray[Any, Any]]:
        state = fbuf.init(ITEM, 8, sampler=sampler)
        found = [batch(state, 0)]  # all rows are masked
        new = {"wide": random_rows("uint8", WHOLE, 3), "at": jnp.arange(3, dtype=jnp.int32)}
        state = fbuf.add(state, new)
        found += [batch(state, 1, count=jnp.int32(2)), batch(state, 2, view=fbuf.Item(("wide",)))]
        return bits(found)

    by_words = batches()
    assert words == [("uint8", WHOLE)] * 3
    monkeypatch.undo()
    jax.clear_caches()
    for mine, other in zip(by_words, batches(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_seeds_read_their_own_rows(words: list[Any]) -> None:
    arrays = random_rows("uint8", WHOLE, 3 * 7).reshape(3, 7, *WHOLE)
    slots = jnp.arange(3 * 5, dtype=jnp.int32).reshape(3, 5) % 7
    read = lambda array, slots: rows.read_rows(array, slots, by_words=True)
    for given, axes in (((arrays, slots), (0, 0)), ((arrays, slots[0]), (0, None))):
        found = np.asarray(jax.jit(jax.vmap(read, axes))(*given))
        for seed, mine in enumerate(found):
            own = given[1][seed] if axes[1] == 0 else given[1]
            np.testing.assert_array_equal(mine, arrays[seed][own])
    assert words


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_over_a_mesh_rows_go_elsewhere_and_are_read_as_they_lie(words: list[Any]) -> None:
    state = sharded.init(ITEM, 16, mesh=meshes.mesh(2), axis="data", shards=2)
    new = {"wide": random_rows("uint8", WHOLE, 16), "at": jnp.arange(16, dtype=jnp.int32)}
    with rows.returned():
        batch = fbuf.sample(fbuf.add(state, new), jax.random.key(0), 8)
    np.testing.assert_array_equal(batch.data["wide"], new["wide"][batch.data["at"]])
    assert not words


# --- only where nothing computes with the rows ---------------------------------------------------


BEFORE = fbuf.Window({"wide": (-1, 0)})


def drawn(state: fbuf.State[Any], key: jax.Array) -> fbuf.Sample[Any]:
    return fbuf.sample(state, key, 5)


@pytest.mark.parametrize(
    ("call", "by_words"),
    {
        "sample": (drawn, True),
        "one row": (lambda state, key: fbuf.sample(state, key, 1), False),
        "read": (lambda state, key: fbuf.read(state, fbuf.newest_ids(state, 5)), False),
        "another view": (lambda state, key: fbuf.sample(state, key, 5, view=BEFORE), False),
        "a program of the user's": (jax.jit(drawn), False),
        "vmap": (lambda state, key: jax.vmap(lambda key: drawn(state, key))(key[None]), False),
    }.values(),
)
def test_words_are_read_only_for_rows_that_are_returned_as_they_are(
    call: Any, by_words: bool, words: list[Any]
) -> None:
    call(filled("uint8", WHOLE, 9), jax.random.key(0))
    assert bool(words) == by_words


def test_a_call_leaves_no_trace_for_the_programs_after_it(words: list[Any]) -> None:
    state, key = filled("uint8", WHOLE, 9), jax.random.key(0)
    mine, other = drawn(state, key), jax.jit(drawn)(state, key)
    assert len(words) == 1  # of the call alone
    for one, same in zip(bits(mine), bits(other), strict=True):
        np.testing.assert_array_equal(one, same)
    with pytest.raises(ValueError, match="no step"):
        fbuf.sample(state, key, 5, step=1)
    assert not rows.are_returned()


def test_few_bytes_are_no_words(words: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_WORTH_WORDS", 5 * 320)
    state = filled("uint8", WHOLE, 9)
    fbuf.sample(state, jax.random.key(0), 5)
    assert not words
    fbuf.sample(state, jax.random.key(0), 6)
    assert words


def test_only_a_program_for_a_gpu_has_words() -> None:
    item = {"frame": jnp.zeros((84, 84, 4), jnp.uint8), "at": jnp.int32(0)}
    given = jax.eval_shape(lambda: (fbuf.init(item, 64), jax.random.key(0)))
    program = rows.returned()(lambda state, key: fbuf.sample(state, key, 32))
    traced = jax.jit(program).trace(*given)
    for platform in ("cuda", "rocm", "tpu", "cpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("tensor<32x7056xui32>" in text) == (platform in ("cuda", "rocm"))
