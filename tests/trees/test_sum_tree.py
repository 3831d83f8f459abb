"""The trees by themselves: poisonous values, poisonous random numbers, both platform forms."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import inside

from fbuf.storage.ring import Span
from fbuf.trees import sum_tree
from fbuf.trees.sum_tree import Aggregate

ALL = tuple(Aggregate)
LARGEST_U = np.float32(1 - 2**-24)


def run(function, *args):
    """Compiled anew, as the form that is traced depends on the test."""
    return jax.jit(lambda *args: function(*args))(*args)


def filled(values, keeps=(Aggregate.SUM,)):
    values = jnp.asarray(values, jnp.float32)
    tree = sum_tree.empty(values.shape[0], keeps)
    slots = jnp.arange(values.shape[0], dtype=jnp.int32)
    return sum_tree.write(tree, slots, values)


@pytest.fixture(params=["cpu", "gpu"])
def form(request):
    """The form XLA gets on CPU, and the one it gets on GPU, both run here."""
    if request.param == "cpu":
        yield request.param
        return
    with inside.forms_of_other_platforms():
        yield request.param


CPU = pytest.mark.parametrize(
    "form", ["cpu", pytest.param("gpu", marks=pytest.mark.sweep)], indirect=True
)

CASES = {
    "one": np.eye(1, 300, 123)[0],
    "first": np.eye(1, 300, 0)[0],
    "last": np.eye(1, 300, 299)[0],
    "zero_ends": np.r_[np.zeros(40), np.ones(200), np.zeros(60)],
    "wide": 10.0 ** np.linspace(-30, 30, 300),
    "rounding": np.full(300, 0.1),
    "alternating": np.tile([0.0, 1e-38, 3.0], 100),
}


def stratified(tree, fractions, uniforms):
    """The slots at fractions of the total, and their values."""
    positions = sum_tree.Points(fractions, jnp.full_like(fractions, 2.0**-24))
    return sum_tree.draw_stratified(tree, positions, uniforms)[:2]


def test_no_random_number_lands_on_zero(form):
    poison = [0.0, 2.0**-24, 0.25, 0.5, 0.9999999, LARGEST_U]
    grid = np.stack(np.meshgrid(poison, poison), -1).reshape(-1, 2).T.astype(np.float32)

    @jax.jit
    def both(values, grid):
        tree = filled(values)
        assert sum_tree.picks(tree) == 2
        return sum_tree.draw(tree, grid), stratified(tree, grid[0], grid)

    for case in CASES.values():
        values = case.astype(np.float32)
        for slots, drawn in both(values, grid):
            assert (values[np.asarray(slots)] > 0).all()
            np.testing.assert_array_equal(drawn, values[np.asarray(slots)])


@CPU
@pytest.mark.parametrize(
    "rows", [17, *(pytest.param(rows, marks=pytest.mark.sweep) for rows in (2, 20, 32))]
)
def test_rounding_at_the_top_lands_on_no_zero(rows, form):
    """Rows of the top whose sums are lost in rounding, and some that are 0 in between."""
    values = np.zeros(256 * rows - 1, np.float32)  # there is a spare leaf
    values[0 : 256 * min(rows, 16) : 256] = 2.0**20
    values[256 * 16 : 256 * 18 : 256] = 1.0
    tree = run(filled, values)
    assert tree.nodes[-1].shape[0] == rows
    u = np.random.default_rng(0).random((sum_tree.picks(tree), 4000), np.float32)
    u[0, :2000] = LARGEST_U - np.arange(2000, dtype=np.float32) * np.float32(2.0**-24)
    u[:, 0] = LARGEST_U
    for function, args in (
        (sum_tree.draw, (u,)),
        (stratified, (u[0], u)),
    ):
        slots, drawn = run(function, tree, *map(jnp.asarray, args))
        assert (values[np.asarray(slots)] > 0).all()
        np.testing.assert_array_equal(drawn, values[np.asarray(slots)])


def test_an_empty_tree_gives_slots_in_range(form):
    tree = sum_tree.empty(37)
    u = jnp.full((sum_tree.picks(tree), 4), LARGEST_U)
    assert (np.asarray(run(sum_tree.draw, tree, u)[0]) < 37).all()
    assert float(sum_tree.total(tree)) == 0


@pytest.mark.sweep
def test_the_ends_of_the_uniform_range_reach_the_ends_of_the_tree(form):
    tree = run(filled, np.ones(5000))
    ends = jnp.tile(jnp.array([0, LARGEST_U]), (sum_tree.picks(tree), 1))
    assert run(sum_tree.draw, tree, ends)[0].tolist() == [0, 4999]


@pytest.mark.parametrize(("capacity", "batch"), [(1, 200), (16, 1500), (300, 200), (10_000, 1500)])
def test_the_last_of_duplicates_wins(capacity, batch, form):
    rng = np.random.default_rng(capacity)
    slots = rng.integers(0, min(capacity, 60) + 1, batch).astype(np.int32)
    slots = np.where(slots == min(capacity, 60), capacity, slots)  # some are to be left out
    new = rng.random(batch).astype(np.float32)
    expected = np.zeros(capacity + 1, np.float32)
    for slot, value in zip(slots, new, strict=True):
        expected[slot] = value
    write = lambda slots, new: sum_tree.write(sum_tree.empty(capacity, ALL), slots, new)
    tree = run(write, slots, new)
    np.testing.assert_array_equal(inside.values(tree), expected[:-1])
    inside.check(tree)
    assert float(sum_tree.aggregate(tree, Aggregate.LARGEST)) == expected[:-1].max()


LARGE = 2**21 + 5
"""The slots of a tree whose leaves, and the nodes above them, are larger than a core's cache."""


def test_a_write_into_large_levels_is_right_and_in_place():
    """It looks at their rows beforehand. Slots are far apart, doubled, or left out."""
    rng = np.random.default_rng(5)
    slots = rng.integers(0, LARGE, 300).astype(np.int32)
    slots[:40], slots[-40:-20], slots[-20:] = LARGE, slots[100:120], LARGE - 1
    new = rng.random(300).astype(np.float32)
    expected = np.zeros(LARGE, np.float32)
    for slot, value in zip(slots, new, strict=True):
        if slot < LARGE:
            expected[slot] = value
    tree = sum_tree.empty(LARGE, ALL[:2])
    compiled = jax.jit(sum_tree.write, donate_argnums=0).lower(tree, slots, new).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    assert memory.temp_size_in_bytes < 100_000
    tree = compiled(tree, slots, new)
    np.testing.assert_array_equal(inside.values(tree), expected)
    inside.check(tree)


@pytest.mark.parametrize(("capacity", "lines"), [(1000, 0), (2**19, 1), (LARGE, 3)])
def test_a_write_looks_at_each_cache_line_of_large_levels_beforehand(capacity, lines):
    """A row of values is a line, and a row of nodes with two aggregates is two."""
    tree = jax.eval_shape(lambda: sum_tree.empty(capacity, ALL[:2]))
    slots, new = jax.ShapeDtypeStruct((64,), jnp.int32), jax.ShapeDtypeStruct((64,), jnp.float32)
    program = jax.jit(sum_tree.write).lower(tree, slots, new).as_text()
    assert program.count('"stablehlo.gather"(') == lines


@jax.jit
def with_span(tree, first, activated):
    """Ten values from a slot on, around the end."""
    slots = (first + jnp.arange(10, dtype=jnp.int32)) % tree.capacity
    span = Span(slots, first, slots >= 0, slots < 0, None, jnp.int32([10]), {}, 10)
    return sum_tree.write_span(tree, span, jnp.full(10, -2.0, jnp.float32), activated)


def test_every_node_above_what_was_written_or_woken_is_brought_up_to_date():
    """Three levels. Some spans begin and end inside a row, and go around an end inside one."""
    tree = sum_tree.empty(9000, ALL[:2], inactive=True)
    tree = run(
        sum_tree.write, tree, jnp.arange(9000, dtype=jnp.int32), jnp.full(9000, -1.0, jnp.float32)
    )
    scattered = jnp.int32([100, 8000]), jnp.float32([-3, -3]), jnp.int32([12, 3000, 9000])
    tree = run(sum_tree.write, tree, *scattered)
    inside.check(tree)
    assert float(sum_tree.total(tree)) == 2
    for first in range(8985, 9000):
        activated = jnp.int32([4000, (first + 3) % 9000, 9000])  # far from the span; in it; none
        tree = with_span(tree, jnp.int32(first), activated)
        inside.check(tree)
        assert float(sum_tree.total(tree)) == 2 + 1 + 2


@pytest.mark.sweep
def test_both_forms_give_the_same_bits():
    def everything():
        rng = np.random.default_rng(0)
        tree = filled(rng.random(5000), ALL)
        slots = jnp.array(rng.integers(0, 5000, 700), jnp.int32)
        tree = sum_tree.write(tree, slots, jnp.array(rng.random(700), jnp.float32))
        consecutive = jnp.arange(40, 140, dtype=jnp.int32)
        always = jnp.ones(100, bool)
        span = Span(
            consecutive,
            jnp.int32(40),
            always,
            ~always,
            None,
            jnp.int32([100]),
            {},
            100,
        )
        tree = sum_tree.write_span(tree, span, jnp.ones(100))
        u = jnp.array(rng.random((sum_tree.picks(tree), 500)), jnp.float32)
        first = dataclasses.replace(span, slots=consecutive - 40, first=jnp.int32(0))
        inactive = sum_tree.empty(5000, ALL, inactive=True)
        activated = jnp.concatenate([jnp.arange(0, 50, 2, dtype=jnp.int32), jnp.int32([5000])])
        spans = sum_tree.write_span(inactive, first, -jnp.ones(100), activated)
        scattered = sum_tree.write(inactive, first.slots, -jnp.ones(100), activated)
        return tree, sum_tree.draw(tree, u), spans, scattered

    on_cpu = run(everything)
    with inside.forms_of_other_platforms():
        on_gpu = run(everything)
    for a, b in zip(jax.tree.leaves(on_cpu), jax.tree.leaves(on_gpu), strict=True):
        np.testing.assert_array_equal(a, b)
    *_, spans, scattered = on_cpu
    for tree in (spans, scattered):
        assert float(sum_tree.total(tree)) == 25
        inside.check(tree)


def test_stratified_draws_take_one_of_each_share():
    values = np.random.default_rng(2).random(1000).astype(np.float32)
    tree, batch = run(filled, values), 64
    positions = (jnp.arange(batch, dtype=jnp.float32) + 0.5) / batch
    u = jnp.full((sum_tree.picks(tree), batch), 0.5)
    slots, _ = run(stratified, tree, positions.astype(jnp.float32), u)
    ends = np.cumsum(values.astype(np.float64)) / values.sum(dtype=np.float64)
    np.testing.assert_array_equal(slots, np.searchsorted(ends, np.asarray(positions)))
