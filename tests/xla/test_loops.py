"""Gathers by halves, rows read beforehand, random bits: they keep a draw in one thread."""

from __future__ import annotations

import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import inside
from support.programs import built

import fbuf
from fbuf.samplers import random_bits
from fbuf.xla.loop import by_halves, fetched, gathered, in_one_turn, with_room
from fbuf.xla.rows import read_rows

TABLE = np.arange(3000, dtype=np.float32).reshape(300, 10)


@pytest.mark.parametrize(
    "count", [17, *(pytest.param(n, marks=pytest.mark.sweep) for n in (1, 2, 16, 40))]
)
def test_by_halves_is_what_the_whole_is(count: int) -> None:
    """Few slots, an even and an odd number of more slots, also under vmap."""
    slots = jnp.arange(count, dtype=jnp.int32) * 7 % 300
    table = jnp.asarray(TABLE)
    read = jax.jit(lambda slots: by_halves(gathered, table, slots))
    np.testing.assert_array_equal(read(slots), TABLE[slots])
    both = jnp.stack([slots, slots + 1])
    np.testing.assert_array_equal(jax.vmap(read)(both), TABLE[both])
    np.testing.assert_array_equal(jax.vmap(jax.vmap(read))(both[None]), TABLE[both][None])
    few = jax.jit(lambda slots: with_room(gathered, table, slots))
    np.testing.assert_array_equal(few(slots), TABLE[slots])
    np.testing.assert_array_equal(jax.vmap(few)(both), TABLE[both])
    plus = lambda table, some, by: gathered(table, some)[:, 0] + by
    two = lambda slots, by: by_halves(plus, table, slots, by)
    by = jnp.arange(count, dtype=jnp.float32)
    np.testing.assert_array_equal(two(slots, by), TABLE[slots, 0] + np.arange(count))


@pytest.mark.sweep
@pytest.mark.parametrize("columns", [None, (0, 3), (4, 9), (9, 10)])
def test_read_rows_reads_the_columns_asked_for(columns: tuple[int, int] | None) -> None:
    """Some of them, or all; of a few rows, of a single one and of many."""
    first, last = columns or (0, 10)
    for slots in (jnp.array([5, 0, 299, 5]), jnp.array([299]), jnp.arange(17) * 17):
        found = read_rows(jnp.asarray(TABLE), slots, columns)
        np.testing.assert_array_equal(found, TABLE[np.asarray(slots), first:last])


@pytest.mark.parametrize("shape", [(300_000, 3, 4), (300_000, 16), (300_000, 20)])
def test_fetched_changes_nothing(shape: tuple[int, ...]) -> None:
    """The result is right for every width of a row, and if a read number is NaN."""
    array = jnp.full(shape, jnp.nan)
    rows, batch = jnp.array([0, 299_999, 7]), jnp.array([1.0, 2.0, jnp.nan])
    np.testing.assert_array_equal(jax.jit(fetched)(array, rows, batch), batch)


@pytest.mark.parametrize(
    ("width", "columns", "expected"),
    [(25, None, 3), (32, None, 2), (32, (10, 20), 2), (8, None, 0), (16, None, 1)],
)
def test_every_cache_line_of_a_row_is_looked_at(
    width: int, columns: tuple[int, int] | None, expected: int
) -> None:
    """A number of each, and the last one where a row may begin anywhere in a line."""
    array = jax.ShapeDtypeStruct((300_000, width), jnp.float32)
    rows = jnp.zeros(64, jnp.int32)
    look = jax.jit(lambda array, rows: fetched(array, rows, rows, columns))
    program = look.lower(array, rows).as_text()
    assert program.count('"stablehlo.gather"(') == expected


@pytest.mark.parametrize(
    "shape",
    [
        (2, 2, 5),
        (3, 1000),  # in parts, the last of which overlaps
        (0,),
        *(pytest.param(s, marks=pytest.mark.sweep) for s in ((1,), (4, 256), (5000,))),
    ],
)
def test_random_bits_are_those_of_jax(shape: tuple[int, ...]) -> None:
    """For a key of the new kind and of the old one, of another generator, and for a batch."""
    for key in (jax.random.key(3), jax.random.PRNGKey(4), jax.random.key(5, impl="rbg")):
        expected = jax.random.bits(key, shape, jnp.uint32)
        np.testing.assert_array_equal(random_bits.bits(key, shape), expected)
        after = random_bits.bits(key, shape, jnp.float32(1))
        np.testing.assert_array_equal(after, expected)
    with jax.default_prng_impl("rbg"):
        key = jax.random.PRNGKey(5)
        expected = jax.random.bits(key, shape, jnp.uint32)
        np.testing.assert_array_equal(random_bits.bits(key, shape), expected)
    keys = jax.random.split(jax.random.key(6), 3)
    np.testing.assert_array_equal(
        jax.vmap(lambda key: random_bits.bits(key, shape))(keys),
        jax.vmap(lambda key: jax.random.bits(key, shape, jnp.uint32))(keys),
    )


@pytest.mark.parametrize(
    "shape", [(2, 2, 5), *(pytest.param(s, marks=pytest.mark.sweep) for s in ((1,), (4, 256)))]
)
def test_random_bits_of_other_platforms_are_the_same(shape: tuple[int, ...]) -> None:
    """There each row is made by itself."""
    key = jax.random.key(3, impl="threefry2x32")
    expected = jax.random.bits(key, shape, jnp.uint32)
    with inside.forms_of_other_platforms():
        made = jax.jit(lambda key: random_bits.bits(key, shape))(key)
    np.testing.assert_array_equal(made, expected)


def folded(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Fold two numbers into a key, one of them negative: by JAX's own functions, and by ours."""
    theirs = jax.random.fold_in(jax.random.fold_in(key, 2**32 - 3), jnp.int32(-5))
    return theirs, random_bits.fold_in(key, 2**32 - 3, jnp.int32(-5))


def parted(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split a key in three, likewise."""
    return jax.random.split(key, 3), random_bits.split(key, 3)


def same_key(theirs: jax.Array, ours: jax.Array) -> None:
    """Require the same kind of key, and the same bits."""
    assert theirs.dtype == ours.dtype
    np.testing.assert_array_equal(*map(jax.random.key_data, (theirs, ours)))


@pytest.mark.first(1)
@pytest.mark.parametrize("derived", [folded, parted])
def test_derived_keys_are_those_of_jax(derived: Any) -> None:
    """For a key of the new kind and of the old one, of another generator, and for a batch."""
    keys = jax.random.key(3), jax.random.PRNGKey(4), jax.random.key(5, impl="rbg")
    for key in keys:
        same_key(*derived(key))
        same_key(*jax.jit(derived)(key))
    with jax.default_prng_impl("rbg"):
        same_key(*derived(jax.random.PRNGKey(5)))
        same_key(*jax.jit(lambda key: derived(key))(jax.random.key(6, impl="threefry2x32")))
    with jax.threefry_partitionable(False):
        same_key(*jax.jit(lambda key: derived(key))(keys[0]))
    same_key(*jax.vmap(derived)(random_bits.split(keys[0], 4)))
    with inside.forms_of_other_platforms():
        same_key(*jax.jit(lambda key: derived(key))(keys[0]))


def test_several_keys_are_not_taken_for_one() -> None:
    keys = jax.random.split(jax.random.key(3), 4)
    for derive in (lambda: random_bits.split(keys, 2), lambda: random_bits.fold_in(keys, 1)):
        with pytest.raises(ValueError, match="key"):
            derive()


def test_a_key_alike_on_all_devices_takes_a_number_of_each() -> None:
    """Inside `shard_map` JAX tells values that vary from device to device from others."""
    key, numbers = jax.random.key(3), jnp.arange(2, dtype=jnp.uint32)

    def of(numbers: jax.Array) -> jax.Array:
        return jax.random.key_data(random_bits.fold_in(key, numbers[0]))[None]

    along = jax.sharding.PartitionSpec("x")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    made = jax.shard_map(of, mesh=mesh, in_specs=along, out_specs=along)(numbers)
    expected = [jax.random.key_data(jax.random.fold_in(key, number)) for number in numbers]
    np.testing.assert_array_equal(made, jnp.stack(expected))


def test_a_gpu_computes_the_slots_of_wide_rows_before_it_reads_these() -> None:
    """In one kernel it would compute the slot anew for each number of a frame."""
    frame = jnp.zeros((84, 84), jnp.uint8)
    state = jax.eval_shape(lambda: fbuf.init({"frame": frame, "reward": 0.0}, 100_000))
    draw = jax.jit(lambda state, key: fbuf.sample(state, key, 32).data)
    text = draw.trace(state, jax.random.key(0)).lower(lowering_platforms=("cuda",)).as_text()
    (barrier,) = re.findall(r"(%\w+) = stablehlo.optimization_barrier", text)
    read = re.search(r'stablehlo.gather"\(%\w+, (%\w+)\).*tensor<100000x84x84xui8>', text)
    assert read is not None
    assert f"{read[1]} = stablehlo.broadcast_in_dim {barrier}, " in text


@pytest.mark.sweep
@pytest.mark.skipif(
    jax.default_backend() != "cpu" or len(os.sched_getaffinity(0)) == 1,
    reason="wants several CPU cores",
)
@pytest.mark.parametrize(
    ("sampler", "seeds"),
    [
        (fbuf.Prioritized(), None),
        (fbuf.Uniform(), None),
        (fbuf.Uniform(window=4), None),
        (fbuf.Prioritized(), 4),
        (fbuf.Uniform(), 4),
    ],
)
def test_no_part_of_a_step_is_shared_out_among_threads(sampler: Any, seeds: int | None) -> None:
    """XLA notes in the program what it splits."""
    row = {"x": jax.ShapeDtypeStruct((24,), jnp.float32), "done": jax.ShapeDtypeStruct((), bool)}

    def make(_: Any) -> Any:
        return fbuf.init(row, capacity=1_000_000, sampler=sampler), jax.random.key(0)

    def step(state: Any, key: jax.Array) -> Any:
        batch = fbuf.sample(state, key, 256)
        if sampler.keeps_priorities:
            state = fbuf.update_priority(state, batch.ids, batch.data["x"][:, 0])
        return state, batch

    if seeds is not None:
        make, step = jax.vmap(make), jax.vmap(step)
    given = jax.eval_shape(make, jax.ShapeDtypeStruct(() if seeds is None else (seeds,), "int32"))
    program = built(jax.jit(step, donate_argnums=0), *given)
    assert "outer_dimension_partitions" not in (program.as_text() or "")
    table = jax.ShapeDtypeStruct((1_000_000, 25), jnp.float32)
    take = jax.jit(lambda table, at: table[at])
    plain = built(take, table, jnp.zeros(256, jnp.int32))
    assert "outer_dimension_partitions" in (plain.as_text() or ""), (
        "XLA no longer says so: mend the test"
    )


@pytest.mark.parametrize("way", ["jit", "vmap", "eager"])
def test_a_change_in_one_turn_is_the_change(way: str) -> None:
    def change(state: Any, by: jax.Array, times: int) -> tuple[Any, Any]:
        return {"a": state["a"] + by * times, "b": state["b"]}, (by > 1, {"more": by.astype(int)})

    def run(a: jax.Array, by: jax.Array) -> Any:
        state = {"a": a, "b": jnp.zeros(2, jnp.bfloat16)}
        return in_one_turn(change, state, by, 3, known=a[0])

    wrapped: Any = {"jit": jax.jit, "eager": lambda run: run}.get(way, jax.vmap)(run)
    a, by = jnp.arange(6.0).reshape(2, 3), jnp.float32([1, 2])
    given = (a, by) if way == "vmap" else (a[1], by[1])
    state, (large, rest) = wrapped(*given)
    np.testing.assert_array_equal(state["a"], given[0] + 3 * given[1][..., None])
    assert state["b"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(large, given[1] > 1)
    np.testing.assert_array_equal(rest["more"], given[1].astype(int))


def test_a_change_to_another_structure_needs_no_loop() -> None:
    def change(state: Any) -> tuple[Any, Any]:
        return {**state, "b": state["a"] * 2}, None

    run = jax.jit(lambda a: in_one_turn(change, {"a": a}, known=a[0])[0])
    np.testing.assert_array_equal(run(jnp.ones(3))["b"], [2, 2, 2])
