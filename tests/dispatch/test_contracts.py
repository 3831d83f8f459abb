"""Contracts of the compiled programs: one trace, in place, no copies, the same under vmap."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support.contracts import (
    BATCH,
    ITEM,
    PRIORITIZED,
    UNIFORM,
    add_draw_expire,
    add_draw_remove,
    add_sample,
    add_sample_remove,
    add_sample_update,
    apart,
    clear_between,
    draw_update_add,
    in_place,
    next_observations,
    other_rows,
    row_by_row,
    rows,
    sample_end_episode,
    sample_remove_add,
    sample_spread_update_add,
    sample_thin_update_add,
    sample_update_add,
    sample_write_add,
    shuffled,
    update_some_remove_others,
    update_twice,
    windows,
    with_masks,
)
from support.programs import WAYS, built, operations

import fbuf

SEQUENCE = fbuf.Sequence(3, boundary="stop")
HINDSIGHT = fbuf.Hindsight(
    lambda a, g: jnp.abs(a - g).sum(), strategy="episode", goal="obs", achieved="obs"
)
GOALS = fbuf.Hindsight(
    lambda a, g: jnp.abs(a - g).sum(),
    strategy={"future": 0.5, "episode": 0.2, "random": 0.3},
    discount=0.9,
    copies=2,
    goal="obs",
    achieved="obs",
)
MIXTURE = fbuf.Mixture(0.4, prioritized=0.3, recent=0.3, priorities=fbuf.Prioritized(window=3))
BY_EPISODE, WINDOW = fbuf.Uniform(window=3, by="episode"), fbuf.Prioritized(window=3)
LIMITED = fbuf.Limited(WINDOW, max_uses=3, max_age=999, version="made")
GROUPED = fbuf.Grouped("done", 2, window=2)
FRESH = fbuf.FreshFirst(WINDOW)
SHORT_FRESH = fbuf.FreshFirst(fbuf.Uniform(window=3, strict=False))
APART = {"num_envs": 16, "lockstep": False}
SHARED = {"next_of": "obs"}
COMMON = [
    (with_masks, PRIORITIZED),
    (row_by_row, BY_EPISODE),
    (windows(SEQUENCE, then_remove=True), MIXTURE),
    (next_observations(fbuf.NStep(3, gamma=0.9, next_of="obs")), fbuf.Uniform(window=3), SHARED),
    (apart, WINDOW, APART),
    (other_rows(lambda s, ids: fbuf.update_priority(s, ids, jnp.ones(BATCH))), PRIORITIZED),
    (other_rows(lambda s, ids: fbuf.write(s, ids, {"reward": jnp.ones(BATCH)})), UNIFORM),
    (row_by_row, WINDOW),
    (draw_update_add, FRESH),
    (sample_write_add, GROUPED),
    (add_draw_expire, LIMITED),
    (add_sample_remove, fbuf.Reservoir()),
    (add_sample_update, fbuf.EvictLowest()),
]
SWEPT = [
    (windows(fbuf.ReturnToGo(0.9), then_remove=True), UNIFORM),
    (shuffled, fbuf.Shuffled()),
    (windows(SEQUENCE, then_remove=True), fbuf.Uniform(window=3)),
    (windows(SEQUENCE, then_remove=True), BY_EPISODE),
    (apart, BY_EPISODE, APART),
    (next_observations(fbuf.Transition("obs")), UNIFORM, SHARED),
    (windows(SEQUENCE, then_remove=True), WINDOW),
    (windows(fbuf.NStep(3, gamma=0.9, next_observation="obs"), then_remove=True), UNIFORM),
    (windows(fbuf.FrameStack(3, field="obs"), then_remove=True), UNIFORM),
    (windows(fbuf.ReturnToGo(0.9), then_remove=False), UNIFORM),
    (sample_remove_add(HINDSIGHT), UNIFORM),
    (sample_remove_add(fbuf.Item()), BY_EPISODE),
    (update_some_remove_others, PRIORITIZED),
    (sample_end_episode, UNIFORM),
    (other_rows(fbuf.remove), PRIORITIZED),
    (add_sample_update, PRIORITIZED),
    (sample_update_add, PRIORITIZED),
    (sample_thin_update_add, PRIORITIZED),
    (sample_spread_update_add, PRIORITIZED),
    (sample_spread_update_add, WINDOW),
    (add_sample_remove, PRIORITIZED),
    (update_twice, PRIORITIZED),
    (update_twice, fbuf.Prioritized(new_priority="largest_ever")),
    (clear_between, PRIORITIZED),
    (add_sample, UNIFORM),
    (add_sample_remove, UNIFORM),
    (clear_between, UNIFORM),
    (add_draw_remove, fbuf.FreshFirst()),
    (add_draw_remove, FRESH),
    (windows(fbuf.Window({"obs": (-2, 0, 3)}), then_remove=True), UNIFORM),
    (windows(fbuf.NStep((1, 3), gamma=0.9, next_observation="obs"), then_remove=True), UNIFORM),
    (sample_remove_add(GOALS), UNIFORM),
    (sample_remove_add(GOALS), UNIFORM, APART),
    (add_draw_remove, SHORT_FRESH, APART),
    (add_draw_remove, SHORT_FRESH, {"num_envs": 16}),
]
QUICK = (3, 5, 6, 7, 8, 9, 10, 11, 12)
"""The places of `make test`, by their numbers."""
PLACES = [
    *(
        pytest.param(case, 0, id=f"common{n}", marks=[pytest.mark.sweep] * (n not in QUICK))
        for n, case in enumerate(COMMON)
    ),
    *(pytest.param(case, 8, marks=pytest.mark.sweep) for case in (*COMMON[:3], *COMMON[8:10])),
    *(
        pytest.param(case, 0, id=f"swept{n:02}", marks=pytest.mark.sweep)
        for n, case in enumerate(SWEPT)
    ),
    *(pytest.param(case, 8, marks=pytest.mark.sweep) for case in SWEPT[::4]),
]
"""Alone, and under vmap; each takes long to compile, so that most are for `make sweep`."""


@pytest.mark.first(5)
@pytest.mark.parametrize(("case", "seeds"), PLACES)
def test_every_byte_is_in_place(case, seeds):
    step, sampler, options = case if len(case) == 3 else (*case, None)
    in_place(step, sampler, options, seeds)


@pytest.mark.parametrize("sampler", [pytest.param(UNIFORM, marks=pytest.mark.sweep), PRIORITIZED])
def test_eager_calls_write_into_the_memory_they_are_given(sampler):
    state = fbuf.init(ITEM, 1000, sampler=sampler)
    state = fbuf.add(state, rows(16))
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    state = fbuf.add(state, rows(16))
    state = fbuf.add(state, items=rows(16))
    batch = fbuf.sample(state, jax.random.key(0), 8)
    if sampler is PRIORITIZED:
        state = fbuf.update_priority(state, batch.ids, batch.weight)
    state = fbuf.clear(fbuf.remove(state, batch.ids))
    assert pointers == [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]


@pytest.mark.parametrize("by", ["add", "update_priority", "remove", "write", "clear"])
def test_a_consumed_state_says_so(by):
    state = fbuf.add(fbuf.init(ITEM, 10, sampler=PRIORITIZED), rows(1))
    ids = fbuf.Ids(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    {
        "add": lambda: fbuf.add(state, rows(2)),
        "update_priority": lambda: fbuf.update_priority(state, ids, jnp.ones(1)),
        "remove": lambda: fbuf.remove(state, ids),
        "write": lambda: fbuf.write(state, ids, {"reward": jnp.ones(1)}),
        "clear": lambda: fbuf.clear(state),
    }[by]()
    for call in (
        lambda: fbuf.add(state, rows(2)),
        lambda: fbuf.sample(state, jax.random.key(0), 2),
        lambda: fbuf.update_priority(state, ids, jnp.ones(1)),
        lambda: fbuf.remove(state, ids),
        lambda: fbuf.clear(state),
        lambda: fbuf.size(state),
        lambda: fbuf.stats(state),
        lambda: fbuf.raise_on_fault(state),
    ):
        with pytest.raises(RuntimeError, match=r"consumed.*donate=False"):
            call()


def test_donate_false_keeps_the_state():
    state = fbuf.init(ITEM, 10)
    later = fbuf.add(state, rows(2), donate=False)
    assert (int(fbuf.size(state)), int(fbuf.size(later))) == (0, 2)


def test_flags_that_nobody_gave_are_not_computed_with_beforehand():
    """XLA would take seconds for many rows, and would say so."""
    rows = 4096
    state = fbuf.init(jnp.zeros(()), rows, sampler=fbuf.Uniform(window=4))

    def sums(**flags):
        step = jax.jit(lambda state, rows, flags: fbuf.add(state, rows, **flags))
        text = step.lower(state, jnp.zeros(rows), flags).compile().as_text()
        return text.count("reduce-window(")

    assert sums() == sums(terminated=jnp.zeros(rows, bool)) > 0


def test_one_trace_serves_all_calls():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(state, key, alpha, beta):
        state = fbuf.add(state, rows(4), priority=jnp.ones(4), alpha=alpha)
        batch = fbuf.sample(state, key, 8, beta=beta)
        return fbuf.update_priority(state, batch.ids, batch.weight, alpha=alpha)

    state = fbuf.init(ITEM, 10, sampler=PRIORITIZED)
    for i in range(3):
        state = step(state, jax.random.key(i), 0.1 * i, jnp.float32(0.2 * i))


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", [UNIFORM, PRIORITIZED])
def test_vmap_is_the_same_as_one_by_one(sampler):
    step = add_sample_remove if sampler is UNIFORM else with_masks
    keys = jax.random.split(jax.random.key(0), (5, 8))
    one = fbuf.init(ITEM, 50, sampler=sampler)
    many = jax.tree.map(lambda x: jnp.stack([x] * 8), one)
    many, seen = jax.jit(lambda s, k: lax.scan(jax.vmap(step), s, k))(many, keys)
    alone = jax.jit(lambda s, k: lax.scan(step, s, k))
    for i in range(8):
        state, values = alone(one, keys[:, i])
        chex.assert_trees_all_equal(state, jax.tree.map(lambda x, i=i: x[i], many))
        np.testing.assert_allclose(values, seen[:, i], rtol=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sampler", "spec"),
    [
        (PRIORITIZED, PartitionSpec("x")),
        (UNIFORM, PartitionSpec()),
        (UNIFORM, PartitionSpec("x")),
        (PRIORITIZED, PartitionSpec()),
    ],
)
def test_two_devices_draw_the_same_batch(sampler, spec):
    state = fbuf.add(fbuf.init(ITEM, 64, sampler=sampler), rows(40))
    expected = fbuf.sample(state, jax.random.key(3), 16)
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("x",))
    storage = jax.device_put(state.storage, NamedSharding(mesh, spec))
    rest = jax.device_put(
        dataclasses.replace(state, storage=()), NamedSharding(mesh, PartitionSpec())
    )
    spread = dataclasses.replace(rest, storage=storage)
    key = jax.device_put(jax.random.key(3), NamedSharding(mesh, PartitionSpec()))
    chex.assert_trees_all_equal(fbuf.sample(spread, key, 16), expected)
    later = jax.jit(fbuf.add)(spread, rows(10))
    chex.assert_trees_all_equal(
        jax.tree.map(np.asarray, later), jax.tree.map(np.asarray, fbuf.add(state, rows(10)))
    )


def in_a_shard(sampler, options):
    """A run of a buffer that is made inside `shard_map`, under JAX's default checks."""

    def run(keys, numbers):
        state = fbuf.init({"x": jnp.float32(0)}, 64, sampler=sampler, **options)
        following = {"next_observation": numbers[:4]} if options else {}

        def step(state, key):
            ends = numbers[:4] > 30
            state = fbuf.add(state, {"x": numbers[:4]}, truncated=ends, **following)
            batch = fbuf.sample(state, key, 8, step=0 if sampler.without_replacement else None)
            if sampler.keeps_priorities:
                state = fbuf.update_priority(state, batch.ids, batch.weight)
            state = fbuf.remove(state, jax.tree.map(lambda x: x[:1], batch.ids))
            return fbuf.end_episode(state), batch.data["x"]

        state, drawn = lax.scan(step, state, jax.random.split(keys[0], 3))
        state, later = lax.scan(step, fbuf.clear(state), jax.random.split(keys[0], 3))
        return jnp.concatenate([drawn, later])[None], fbuf.size(state)[None]

    return run


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (PRIORITIZED, {}),
        (UNIFORM, SHARED | {"next_of": "x"}),
        (BY_EPISODE, {}),
        (WINDOW, {}),
        (MIXTURE, {}),
        (fbuf.Shuffled(), {}),
    ],
)
def test_a_buffer_made_inside_shard_map(sampler, options):
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("x",))
    run, spec = in_a_shard(sampler, options), PartitionSpec("x")
    keys, numbers = jax.random.split(jax.random.key(0), 2), jnp.arange(80.0, dtype=jnp.float32)
    spread = jax.shard_map(run, mesh=mesh, in_specs=(spec, spec), out_specs=(spec, spec))
    drawn, sizes = jax.jit(spread)(keys, numbers)
    for shard in range(2):
        alone = jax.jit(run)(keys[shard][None], numbers[40 * shard :][:40])
        np.testing.assert_array_equal(drawn[shard], alone[0][0])
        assert sizes[shard] == alone[1][0]
    # One key for all shards, which JAX knows to be the same on each.
    alike = jax.shard_map(run, mesh=mesh, in_specs=(PartitionSpec(), spec), out_specs=(spec, spec))
    drawn, _ = jax.jit(alike)(keys[:1], numbers)
    np.testing.assert_array_equal(drawn[1], jax.jit(run)(keys[:1], numbers[40:])[0][0])


class Step(NamedTuple):
    frame: jax.Array
    extras: dict[str, jax.Array | None]


def pairwise(cases, others):
    """Half of the cases, each with one of the others in turn; all are for `make sweep`."""
    return [
        pytest.param(
            case, other, marks=[pytest.mark.sweep] * ((n + m) % len(others) > 0 or n % 2 == 0)
        )
        for n, case in enumerate(cases)
        for m, other in enumerate(others)
    ]


DTYPES = ["bool", "uint8", "int8", "int16", "bfloat16", "float16", "float32", "complex64"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("dtype", "way"),
    [
        *pairwise(DTYPES[::2], WAYS),
        *(pytest.param(dtype, "eager", marks=pytest.mark.sweep) for dtype in DTYPES[1::2]),
    ],
)
def test_any_dtype_and_the_users_own_tree_come_back(dtype, way):
    run = operations(way)
    item = Step(
        jnp.zeros((2, 3), dtype), {"none": None, "empty": jnp.zeros((0,)), "x": jnp.int32(0)}
    )
    state = fbuf.init(jax.eval_shape(lambda: item), 7)
    new = jnp.arange(4 * 6).reshape(4, 2, 3).astype(dtype)
    extras = {"none": None, "empty": jnp.zeros((4, 0)), "x": jnp.arange(4, dtype=jnp.int32)}
    state = run.add(state, Step(new, extras))
    batch = run.sample(state, jax.random.key(0), batch_size=20)
    assert isinstance(batch.data, Step)
    assert batch.data.frame.dtype == new.dtype
    np.testing.assert_array_equal(batch.data.frame, new[batch.data.extras["x"]])
    assert batch.data.extras["empty"].shape == (20, 0)


COUNTS = [(3, 1), (16, 17), (40, 39), (40, 100)]
MORE = [(1, 3), (16, 16), (1, 1), (3, 100)]


@pytest.mark.parametrize(
    ("counts", "way"),
    [
        *pairwise(COUNTS, WAYS),
        *(pytest.param(counts, "eager", marks=pytest.mark.sweep) for counts in MORE),
    ],
)
def test_the_newest_rows_are_kept(counts, way):
    run, (capacity, count) = operations(way), counts
    state = fbuf.init(jnp.int32(0), capacity, sampler=PRIORITIZED)
    state = run.add(state, jnp.array([-1], jnp.int32))
    state = run.add(state, jnp.arange(count, dtype=jnp.int32))
    batch = run.sample(state, jax.random.key(0), batch_size=2000)
    expected = ([-1, *range(count)])[-capacity:]
    assert sorted(set(np.asarray(batch.data).tolist())) == expected
    assert int(run.size(state)) == len(expected)


@pytest.mark.sweep
def test_a_single_long_row_is_read_before_it_is_written_over():
    """Read where it is used, it would keep the old storage alive: all of it would be copied."""
    item = {"x": jnp.zeros(300), "image": jnp.zeros((84, 84), jnp.uint8)}
    state = fbuf.init(item, 2000)

    def step(state, key):
        batch = fbuf.sample(state, key, 1)
        state = fbuf.after(state, batch)
        return fbuf.add(state, jax.tree.map(jnp.ones_like, item)), batch.data

    program = built(jax.jit(step, donate_argnums=0), state, jax.random.key(0))
    assert program.memory_analysis().temp_size_in_bytes < 100_000


def test_the_same_key_gives_the_same_batch(run):
    state = fbuf.add(fbuf.init(ITEM, 50, sampler=PRIORITIZED), rows(40))
    expected = fbuf.sample(state, jax.random.key(7), 32)
    chex.assert_trees_all_equal(run.sample(state, jax.random.key(7), batch_size=32), expected)
    other = run.sample(state, jax.random.key(8), batch_size=32)
    assert (np.asarray(other.ids.slot) != np.asarray(expected.ids.slot)).any()


@pytest.mark.sweep
def test_counters_do_not_overflow():
    state = fbuf.init(jnp.int32(0), 5, sampler=PRIORITIZED)
    cursor = state.ring.cursor.at[:3].set(jnp.array([[0], [2**31 - 1], [5]], jnp.int32))
    ring = dataclasses.replace(state.ring, cursor=cursor)
    state = fbuf.add(dataclasses.replace(state, ring=ring), jnp.arange(4, dtype=jnp.int32))
    before = fbuf.sample(state, jax.random.key(0), 8)
    state = fbuf.add(state, jnp.arange(3, dtype=jnp.int32))  # the lap goes around to -2**31
    assert int(state.ring.lap[0]) == -(2**31)
    batch = fbuf.sample(state, jax.random.key(1), 8)
    state = fbuf.update_priority(state, batch.ids, jnp.ones(8))
    fbuf.raise_on_fault(state, ignore=fbuf.Fault(0))
    state = fbuf.update_priority(state, before.ids, jnp.ones(8))
    assert fbuf.Fault(int(state.fault)) == fbuf.Fault.STALE_ID


def test_nbytes_is_what_init_takes():
    for sampler in (UNIFORM, PRIORITIZED):
        state = fbuf.init(ITEM, 1234, sampler=sampler)
        taken = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        assert fbuf.nbytes(ITEM, 1234, sampler=sampler) == taken


@pytest.mark.parametrize(
    "sampler",
    [UNIFORM, *(pytest.param(s, marks=pytest.mark.sweep) for s in (PRIORITIZED, WINDOW))],
    ids=str,
)
def test_under_vmap_the_head_stays_one_for_all_seeds(sampler):
    """It depends on no data, so that conditions on it stay conditions."""

    def step(state, key):
        ends = jax.random.bernoulli(key, 0.1, (16,))
        state = fbuf.add(state, rows(16), terminated=ends)
        batch = fbuf.sample(state, key, BATCH)
        state = fbuf.add(fbuf.after(state, batch), batch.data)
        return fbuf.remove(state, batch.ids).ring.cursor

    state = fbuf.init(ITEM, 1000, sampler=sampler)
    keys = jax.random.split(jax.random.key(0), 8)
    # `out_axes=None` is refused for what differs between seeds.
    cursor = jax.eval_shape(jax.vmap(step, (None, 0), out_axes=None), state, keys)
    assert cursor.shape == state.ring.cursor.shape

    def masked(key):
        mask = jax.random.bernoulli(key, 0.5, (1,))
        return fbuf.add(state, rows(1), mask=mask).ring.cursor

    with pytest.raises(ValueError, match="out_axes"):
        jax.eval_shape(jax.vmap(masked, out_axes=None), keys)
