"""Errors: misuse is refused by name, bad values are skipped and recorded."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import inside
from support.programs import WAYS, operations

import fbuf

ITEM = {"obs": jnp.zeros(4), "action": jnp.int32(0)}
NEW = {"obs": jnp.ones((3, 4)), "action": jnp.ones(3, jnp.int32)}
EXACT = fbuf.Prioritized(alpha=1.0, eps=0.0)


def state_of(sampler=EXACT):
    return fbuf.add(fbuf.init(ITEM, 8, sampler=sampler), NEW)


def drawn(state):
    return fbuf.sample(state, jax.random.key(0), 2).ids


MISUSE = {
    "capacity_zero": (lambda: fbuf.init(ITEM, 0), "init.*capacity.*1 to"),
    "capacity_large": (lambda: fbuf.init(ITEM, 2**31), "init.*capacity"),
    "capacity_float": (lambda: fbuf.init(ITEM, 10.0), "init.*capacity.*int"),
    "no_arrays": (lambda: fbuf.init({}, 8), "init.*item"),
    "string": (lambda: fbuf.init({"a": "b"}, 8), r"init.*item\['a'\]"),
    "float64": (lambda: fbuf.init({"a": np.zeros(2)}, 8), r"item\['a'\].*float64.*astype"),
    "prng_key": (lambda: fbuf.init({"k": jax.random.key(0)}, 8), "key_data"),
    "alpha": (lambda: fbuf.Prioritized(alpha=-1.0), "Prioritized.*alpha"),
    "alpha_nan": (lambda: fbuf.Prioritized(alpha=float("nan")), "Prioritized.*alpha"),
    "beta": (lambda: fbuf.Prioritized(beta=float("inf")), "Prioritized.*beta"),
    "eps": (lambda: fbuf.Prioritized(eps=-1e-3), "Prioritized.*eps"),
    "floor": (lambda: fbuf.Prioritized(floor=-1.0), "Prioritized.*floor.*at least 0"),
    "floor_text": (lambda: fbuf.Prioritized(floor="1"), "Prioritized.*floor.*number"),
    "floor_large": (
        lambda: fbuf.init(ITEM, 8, sampler=fbuf.Prioritized(1.0, floor=1e38)),
        r"init.*Prioritized\(floor=1e\+38, alpha=1.0\).*8 rows.*smaller floor",
    ),
    "floor_power": (
        lambda: fbuf.init(
            ITEM, 8, sampler=fbuf.Mixture(priorities=fbuf.Prioritized(900.0, floor=10.0))
        ),
        "init.*Prioritized.*stores inf.*smaller floor",
    ),
    "option": (lambda: fbuf.Prioritized(draws="sorted"), "Prioritized.*draws.*one of"),
    "tree": (lambda: fbuf.add(state_of(), {"obs": jnp.ones((3, 4))}), "add.*items.*tree"),
    "shape": (
        lambda: fbuf.add(state_of(), {**NEW, "obs": jnp.ones((3, 1))}),
        r"add.*items\['obs'\].*\(3, 1\).*never broadcast",
    ),
    "batch": (
        lambda: fbuf.add(state_of(), {**NEW, "obs": jnp.ones((2, 4))}),
        r"add.*items\['obs'\].*B is 3",
    ),
    "dtype": (
        lambda: fbuf.add(state_of(), {**NEW, "action": jnp.ones(3)}),
        r"add.*items\['action'\].*int32.*float32.*astype",
    ),
    "narrow": (
        lambda: fbuf.add(state_of(), {**NEW, "obs": np.ones((3, 4))}),
        r"add.*items\['obs'\].*float64",
    ),
    "empty": (lambda: fbuf.add(state_of(), jax.tree.map(lambda x: x[:0], NEW)), "add.*empty"),
    "mask_shape": (lambda: fbuf.add(state_of(), NEW, mask=jnp.ones(2, bool)), "add.*mask.*(3,)"),
    "mask_dtype": (lambda: fbuf.add(state_of(), NEW, mask=jnp.ones(3)), "add.*mask.*bool"),
    "flag": (lambda: fbuf.add(state_of(), NEW, terminated=jnp.ones(3)), "add.*terminated.*bool"),
    "priority": (lambda: fbuf.add(state_of(), NEW, priority=jnp.ones(2)), "add.*priority.*(3,)"),
    "uniform": (
        lambda: fbuf.add(state_of(fbuf.Uniform()), NEW, priority=jnp.ones(3)),
        "add.*Uniform.*Prioritized",
    ),
    "uniform_update": (
        lambda: fbuf.update_priority(
            state_of(fbuf.Uniform()), drawn(state_of(fbuf.Uniform())), jnp.ones(2)
        ),
        "update_priority.*Uniform",
    ),
    "batch_size": (lambda: fbuf.sample(state_of(), jax.random.key(0), 0), "sample.*batch_size"),
    "batch_type": (lambda: fbuf.sample(state_of(), jax.random.key(0), 2.0), "sample.*batch_size"),
    "call_beta": (
        lambda: fbuf.sample(state_of(), jax.random.key(0), 2, beta=-0.1),
        "sample.*beta.*at least 0",
    ),
    "call_alpha": (
        lambda: fbuf.update_priority(state_of(), drawn(state_of()), jnp.ones(2), alpha=-1),
        "update_priority.*alpha",
    ),
    "alpha_vector": (
        lambda: fbuf.add(state_of(), NEW, priority=jnp.ones(3), alpha=jnp.ones(3)),
        "add.*alpha.*one real number",
    ),
    "ids": (
        lambda: fbuf.update_priority(state_of(), jnp.zeros(2, jnp.int32), jnp.ones(2)),
        "update_priority.*ids.*batch.ids",
    ),
    "update_shape": (
        lambda: fbuf.update_priority(state_of(), drawn(state_of()), jnp.ones(3)),
        r"update_priority.*priority.*\(2,\)",
    ),
    "update_dtype": (
        lambda: fbuf.update_priority(state_of(), drawn(state_of()), jnp.ones(2, bool)),
        "update_priority.*priority.*real",
    ),
    "remove_mask": (
        lambda: fbuf.remove(state_of(), drawn(state_of()), mask=jnp.ones(2)),
        "remove.*mask.*bool",
    ),
    "mask_list": (
        lambda: fbuf.add(state_of(), NEW, mask=[True, False, True]),
        "add.*mask.*list.*jnp.array",
    ),
    "priority_list": (
        lambda: fbuf.update_priority(state_of(), drawn(state_of()), [1.0, 2.0]),
        "update_priority.*priority.*list",
    ),
    "key": (lambda: fbuf.sample(state_of(), 0, 2), "sample.*key must be a random key"),
    "keys": (
        lambda: fbuf.sample(state_of(), jax.random.split(jax.random.key(0)), 2),
        "sample.*key must be one random key.*vmap",
    ),
    "int_wraps": (lambda: fbuf.add(fbuf.init(jnp.uint8(0), 4), 300), "add.*300.*uint8"),
    "empty_ids": (
        lambda: fbuf.update_priority(
            state_of(), fbuf.Ids(jnp.zeros(0, jnp.int32), jnp.zeros(0, jnp.int32)), jnp.zeros(0)
        ),
        "update_priority.*ids is empty",
    ),
    "neighbours_none": (
        lambda: fbuf.neighbours(state_of(), drawn(state_of()), ()),
        "neighbours.*steps must have at least one",
    ),
    "neighbours_float": (
        lambda: fbuf.neighbours(state_of(), drawn(state_of()), (0.5,)),
        "neighbours.*each of steps must be an int, got 0.5",
    ),
    "neighbours_far": (
        lambda: fbuf.neighbours(state_of(), drawn(state_of()), (-9,)),
        "neighbours.*steps span 10 steps.*room for 8.*fewer steps",
    ),
    "thin_batch": (
        lambda: fbuf.thin(fbuf.rows(state_of()), jax.random.key(0), 2, jnp.ones(8)),
        "thin.*batch must be a fbuf.Sample, got Batch.*fbuf.sample",
    ),
    "thin_error": (
        lambda: fbuf.thin(
            fbuf.sample(state_of(), jax.random.key(0), 4), jax.random.key(0), 2, jnp.ones(3)
        ),
        r"thin.*error.*\(4,\).*batch.ids.slot",
    ),
    "thin_count": (
        lambda: fbuf.thin(
            fbuf.sample(state_of(), jax.random.key(0), 4), jax.random.key(0), 0, jnp.ones(4)
        ),
        "thin.*count.*from 1",
    ),
    "alpha_text": (lambda: fbuf.Prioritized(alpha="x"), "Prioritized.*alpha"),
    "sampler_class": (lambda: fbuf.init(ITEM, 8, sampler=fbuf.Uniform), "init.*sampler.*call it"),
    "fresh_most": (lambda: fbuf.FreshFirst(most=0), "FreshFirst.*most"),
    "fresh_sampler": (lambda: fbuf.FreshFirst(fbuf.Uniform), "FreshFirst.*sampler.*call it"),
    "fresh_shuffled": (lambda: fbuf.FreshFirst(fbuf.Shuffled()), "FreshFirst.*Shuffled.*Uniform"),
    "fresh_twice": (lambda: fbuf.FreshFirst(fbuf.FreshFirst()), "FreshFirst.*FreshFirst.*Uniform"),
    "fresh_limited": (
        lambda: fbuf.FreshFirst(fbuf.Limited(max_uses=2)),
        r"FreshFirst.*limits.*outside: fbuf.Limited\(fbuf.FreshFirst",
    ),
    "fresh_every": (lambda: fbuf.FreshFirst(every=0), "FreshFirst.*every"),
    "fresh_every_of_stride": (
        lambda: fbuf.FreshFirst(fbuf.Uniform(stride=2), every=3),
        "FreshFirst.*every=3.*multiple.*stride, 2",
    ),
    "fresh_every_of_lane": (
        lambda: fbuf.init(ITEM, 8, sampler=fbuf.FreshFirst(every=3)),
        "init.*every=3.*divide.*lane, 8",
    ),
    "fresh_sample": (
        lambda: fbuf.sample(state_of(fbuf.FreshFirst()), jax.random.key(0), 2),
        "sample.*FreshFirst remembers.*state, batch = fbuf.draw",
    ),
    "fresh_mixed": (
        lambda: fbuf.sample_mixed([(state_of(fbuf.FreshFirst()), 1.0)], jax.random.key(0), 2),
        "sample_mixed.*FreshFirst",
    ),
    "plain_draw": (
        lambda: fbuf.draw(state_of(fbuf.Uniform()), jax.random.key(0), 2),
        "draw.*Uniform does not remember.*fbuf.sample.*max_uses",
    ),
    "not_a_state": (lambda: fbuf.size({}), "size.*State"),
    "batch_of_states": (
        lambda: fbuf.size(jax.vmap(lambda _: fbuf.init(ITEM, 8))(jnp.arange(2))),
        "size.*jax.vmap",
    ),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_refused_by_name(name):
    call, message = MISUSE[name]
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        call()


def test_misuse_is_refused_inside_jit_too():
    with pytest.raises(ValueError, match=r"add.*items\['obs'\]"):
        jax.jit(fbuf.add)(state_of(), {**NEW, "obs": jnp.ones((3, 1))})
    with pytest.raises(TypeError, match=r"batch_size.*static_argnames"):
        jax.jit(fbuf.sample)(state_of(), jax.random.key(0), 2)
    with pytest.raises(TypeError, match="host"):
        jax.jit(fbuf.raise_on_fault)(state_of())
    with pytest.raises(TypeError, match="beta= to sample"):
        jax.jit(lambda a: fbuf.Prioritized(alpha=a))(0.5)


BAD = [float("nan"), float("inf"), -float("inf"), -1.0]


@pytest.mark.parametrize(("bad", "way"), list(zip(BAD, WAYS, strict=True)))
def test_bad_priorities_are_skipped(bad, way):
    run = operations(way)
    state = run.add(fbuf.init(ITEM, 8, sampler=EXACT), NEW, priority=jnp.array([2.0, bad, 5.0]))
    np.testing.assert_array_equal(inside.values(state.index.tree)[:4], [2, 1, 5, 0])
    ids = fbuf.Ids(jnp.array([0, 1, 2], jnp.int32), jnp.zeros(3, jnp.int32))
    state = run.update_priority(state, ids, jnp.array([7.0, bad, 9.0]))
    np.testing.assert_array_equal(inside.values(state.index.tree)[:4], [7, 1, 9, 0])
    with pytest.raises(RuntimeError, match="NaN, infinite, negative"):
        fbuf.raise_on_fault(state)
    fbuf.raise_on_fault(run.clear(state))


def test_priorities_too_large_to_be_summed_are_bad():
    state = fbuf.init(ITEM, 8, sampler=fbuf.Prioritized(alpha=2.0, eps=0.0))
    state = fbuf.add(state, NEW, priority=jnp.array([1e30, 1e-30, 1.0]))
    assert int(state.fault) == fbuf.Fault.BAD_PRIORITY
    stored = inside.values(state.index.tree)
    assert np.isfinite(stored).all()
    assert (stored[:3] > 0).all()
    state = fbuf.add(fbuf.init(ITEM, 8, sampler=EXACT), NEW, priority=jnp.full(3, 3e38))
    assert int(state.fault) == fbuf.Fault.BAD_PRIORITY  # each is finite, their sum is not


NOTHING = [(-2, 2), (8, 2), (2**31 - 1, 2), (5, 4), (-1, 0)]


@pytest.mark.parametrize(("slot", "fault"), NOTHING)
def test_ids_that_name_nothing_are_skipped(slot, fault):
    run, state = operations(WAYS[slot % 2 * 3]), state_of()
    ids = fbuf.Ids(jnp.array([slot, 1], jnp.int32), jnp.zeros(2, jnp.int32))
    state = run.update_priority(state, ids, jnp.array([9.0, 4.0]))
    np.testing.assert_array_equal(inside.values(state.index.tree)[:4], [1, 4, 1, 0])
    assert int(state.fault) == fault


def test_late_updates_are_ignored(run):
    state = state_of()
    old = drawn(state)
    for _ in range(3):
        state = run.add(state, NEW)
    state = run.update_priority(state, old, jnp.array([50.0, 50.0]))
    assert inside.values(state.index.tree).max() == 1
    assert int(state.fault) == fbuf.Fault.STALE_ID
    fbuf.raise_on_fault(state)
    with pytest.raises(RuntimeError, match="overwritten or removed"):
        fbuf.raise_on_fault(state, ignore=fbuf.Fault(0))


def test_nothing_to_draw_is_masked_and_harmless(run):
    state = fbuf.init(ITEM, 8, sampler=EXACT)
    assert not run.can_sample(state)
    batch = run.sample(state, jax.random.key(0), batch_size=5)
    assert not batch.mask.any()
    assert (np.asarray(batch.weight) == 0).all()
    state = run.update_priority(state, batch.ids, jnp.full(5, jnp.nan))
    assert int(state.fault) == 0


@pytest.mark.sweep
def test_new_rows_follow_the_largest_priority_as_it_goes(run):
    state = fbuf.init(ITEM, 3, sampler=EXACT)
    one = jax.tree.map(lambda x: x[0], NEW)
    state = run.add(state, one, priority=100.0)
    state = run.add(state, one, priority=50.0)
    state = run.add(state, one)
    assert inside.values(state.index.tree).tolist() == [100, 50, 100]
    state = run.add(state, one, priority=1.0)  # over the first one
    ids = fbuf.Ids(jnp.array([2], jnp.int32), jnp.array([0], jnp.int32))
    state = run.remove(state, ids)
    assert inside.values(state.index.tree).tolist() == [1, 50, 0]
    state = run.add(state, one)  # over the second one, which was the largest until then
    assert inside.values(state.index.tree).tolist() == [1, 50, 0]
    assert float(run.stats(state)["new_priority"]) == 50


@pytest.mark.sweep
@pytest.mark.parametrize(
    "bad",
    [float("nan"), *(pytest.param(x, marks=pytest.mark.sweep) for x in (-1.0, float("inf")))],
)
def test_a_traced_exponent_that_cannot_be_right_does_no_harm(bad):
    sample = jax.jit(lambda s, b: fbuf.sample(s, jax.random.key(0), 8, beta=b))
    state = fbuf.init(ITEM, 8, sampler=EXACT)
    state = fbuf.add(state, NEW, priority=jnp.array([1.0, 2.0, 4.0]))
    np.testing.assert_array_equal(sample(state, jnp.float32(bad)).weight, 1)
    add = jax.jit(lambda s, a: fbuf.add(s, NEW, priority=jnp.array([1.0, 2.0, 8.0]), alpha=a))
    state = add(state, jnp.float32(bad))
    assert int(state.fault) == fbuf.Fault.BAD_PRIORITY
    np.testing.assert_array_equal(inside.values(state.index.tree)[3:6], 4)


WINDOW = fbuf.Prioritized(window=2)
STRATIFIED = fbuf.Prioritized(window=2, draws="stratified", normalize="buffer")
HINDSIGHT = fbuf.Hindsight(jnp.equal, goal="x", achieved="x")
GOALS = dataclasses.replace(
    HINDSIGHT, strategy={"future": 1, "episode": 2, "random": 1}, discount=0.9, copies=2
)
EVERYTHING = [
    (
        fbuf.Mixture(1, prioritized=1, recent=1, priorities=WINDOW),
        {"next_of": "x"},
        fbuf.Transition("x"),
    ),
    (STRATIFIED, {}, fbuf.NStep(2, gamma=0.9)),
    (fbuf.Uniform(window=2, by="episode"), {"lockstep": False}, fbuf.Sequence(2)),
    (fbuf.Shuffled(window=2), {"autoreset": "next_step"}, HINDSIGHT),
    (fbuf.Prioritized(), {}, fbuf.Sequence(2, boundary="pad")),
    (fbuf.Uniform(), {"lockstep": False}, fbuf.FrameStack(2, field="x")),
    (fbuf.Uniform(window=2), {"autoreset": "next_step"}, fbuf.ReturnToGo(0.9)),
    (fbuf.Prioritized(), {"lockstep": False}, fbuf.Window({"x": (-1, 2)})),
    (fbuf.Uniform(), {"lockstep": False}, GOALS),
    (WINDOW, {"next_of": "x", "lockstep": False}, fbuf.NStep(2, gamma=0.9, next_of="x")),
]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sampler", "options", "view"),
    [
        pytest.param(*case, marks=[pytest.mark.sweep] * (n != 7))
        for n, case in enumerate(EVERYTHING)
    ],
)
def test_everything_works_with_64_bit_types_and_strict_promotion(sampler, options, view):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        item = {
            "x": jnp.zeros((), jnp.float32),
            "y": jnp.zeros((), jnp.float64),
            "reward": jnp.zeros((), jnp.float32),
            "next_observation": jnp.zeros((), jnp.float32),
        }
        state = fbuf.init(item, 40, num_envs=2, sampler=sampler, **options)
        rows = jax.tree.map(lambda x: jnp.ones((2, 5), x.dtype), item)
        more = {"next_observation": rows["x"]} if "next_of" in options else {}
        if not options.get("lockstep", True):
            more["mask"] = jnp.ones((2, 5), bool)
        step = {"step": 3} if isinstance(sampler, fbuf.Shuffled) else {}

        def turn(state, key):
            state = fbuf.add(state, rows, terminated=jnp.zeros((2, 5), bool), **more)
            batch = fbuf.sample(state, key, 4, view=view, **step)
            if isinstance(sampler, fbuf.Prioritized | fbuf.Mixture):
                state = fbuf.update_priority(state, batch.ids, batch.weight)
            state = fbuf.write(state, batch.ids, {"y": jnp.ones(4, jnp.float64)})
            state = fbuf.end_episode(fbuf.remove(state, batch.ids))
            return state, batch.weight

        before = jax.tree.map(jnp.result_type, state)
        run = lambda s: jax.lax.scan(turn, s, jax.random.split(jax.random.key(0), 3))
        # Types are known from tracing; one case is run, too.
        state, weight = run(state) if view == fbuf.Transition("x") else jax.eval_shape(run, state)
        assert jax.tree.map(jnp.result_type, state) == before
        assert weight.dtype == jnp.float32
        for after in (fbuf.clear, fbuf.size, fbuf.stats):
            found = jax.tree.leaves(jax.eval_shape(after, state))
            assert all(jnp.result_type(leaf) != jnp.int64 for leaf in found)
        assert jax.tree.map(jnp.result_type, jax.eval_shape(fbuf.clear, state)) == before
        fill = lambda: fbuf.add(fbuf.init(item, 40), jax.tree.map(lambda x: x[0], rows))
        jax.eval_shape(fill)


def test_a_fault_stays_whatever_is_added_after_it(run):
    state = fbuf.init(jnp.zeros(()), 8, sampler=fbuf.Prioritized())
    state = run.add(state, jnp.zeros(2), priority=jnp.array([jnp.nan, 1.0]))
    for count in (1, 2):
        state = run.add(state, jnp.zeros(count))
    ids = fbuf.Ids(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    state = run.update_priority(state, ids, jnp.ones(1))
    state = run.remove(state, ids)
    assert fbuf.Fault(int(state.fault)) == fbuf.Fault.BAD_PRIORITY


def test_under_vmap_each_buffer_keeps_its_own_faults():
    update = jax.jit(jax.vmap(fbuf.update_priority))
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state_of())
    for slots in ([[0, 9], [0, 1]], [[0, 1], [0, 1]]):
        ids = fbuf.Ids(jnp.array(slots, jnp.int32), jnp.zeros((2, 2), jnp.int32))
        states = update(states, ids, jnp.ones((2, 2)))
    assert states.fault.tolist() == [fbuf.Fault.ID_OUT_OF_RANGE, 0]


def test_a_row_of_priority_0_is_not_the_rarest():
    sampler = fbuf.Prioritized(alpha=1.0, beta=1.0, eps=0.0, normalize="buffer")
    state = fbuf.init(jnp.zeros(()), 4, sampler=sampler)
    state = fbuf.add(state, jnp.arange(3.0), priority=jnp.array([0.0, 4.0, 8.0]))
    batch = fbuf.sample(state, jax.random.key(0), 32)
    np.testing.assert_allclose(batch.weight, np.where(batch.data == 1, 1.0, 0.5), rtol=1e-6)
