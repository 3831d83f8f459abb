"""Branches: whatever changes a state in a branch of `lax.cond`, no array of a buffer is copied."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from support.contracts import CAPACITY, consumed
from support.few import few
from support.programs import copies

import fbuf
from fbuf import sharded

KEY = jax.random.key(0)
ITEM = {"obs": jnp.zeros(5), "reward": jnp.zeros(()), "group": jnp.int32(0), "made": jnp.int32(0)}
ANY_BRANCH = jax.__version_info__ >= (0, 11)
"""Whether XLA takes branches apart: up to JAX 0.10 the last branch of two alone writes in place."""

WINDOW = fbuf.Prioritized(window=3)
SAMPLERS = {
    "uniform": fbuf.Uniform(),
    "windows": fbuf.Uniform(window=3),
    "by episode": fbuf.Uniform(window=3, by="episode"),
    "shuffled": fbuf.Shuffled(),
    "fifo": fbuf.Fifo(),
    "prioritized": fbuf.Prioritized(),
    "prioritized windows": WINDOW,
    "mixture": fbuf.Mixture(0.4, prioritized=0.3, recent=0.3, priorities=WINDOW),
    "fresh first": fbuf.FreshFirst(WINDOW),
    "limited": fbuf.Limited(WINDOW, max_uses=3, version="made"),
    "grouped": fbuf.Grouped("group", 2, window=2),
    "reservoir": fbuf.Reservoir(),
    "evict lowest": fbuf.EvictLowest(),
}


def rows(count):
    return jax.tree.map(lambda x: jnp.ones((count, *x.shape), x.dtype), ITEM)


def large(sampler, **options):
    return jax.eval_shape(lambda: fbuf.init(ITEM, CAPACITY, sampler=sampler, **options))


# --- what users do with a buffer -----------------------------------------------------------------


def acts(state, key):
    return fbuf.add(state, rows(4), truncated=jax.random.bernoulli(key, 0.1, (4,))), 0.0


def learns(state, key):
    sampler = state.sampler
    if isinstance(sampler, fbuf.Fifo):
        state, batch = fbuf.pop(state, 8)
        return state, consumed(batch)
    if isinstance(sampler, fbuf.FreshFirst | fbuf.Limited):
        state, batch = fbuf.draw(state, key, 32)
    else:
        batch = fbuf.sample(state, key, 32, step=0 if sampler.without_replacement else None)
    if sampler.keeps_priorities:
        state = fbuf.update_priority(state, batch.ids, batch.data["reward"])
    return state, consumed(batch)


def does_all(state, key):
    state, used = learns(acts(state, key)[0], key)
    return state, used


def writes(state, key):
    batch = fbuf.sample(state, key, 32)
    return fbuf.write(state, batch.ids, {"reward": batch.weight}), consumed(batch)


def removes(state, key):
    batch = fbuf.sample(state, key, 32)
    return fbuf.remove(state, batch.ids), consumed(batch)


def ends(state, key):
    return fbuf.end_episode(state), 0.0


def expires(state, key):
    return fbuf.expire(state, jax.random.randint(key, (), 0, 9)), 0.0


def rests(state, key):
    return state, 0.0


# --- where they do it ----------------------------------------------------------------------------


def due(key):
    return jax.random.bernoulli(key)


def in_cond(change):
    return lambda state, key: lax.cond(due(key), change, rests, state, key)


def in_either(change):
    return lambda state, key: lax.cond(due(key), change, acts, state, key)


def in_the_other(change):
    return lambda state, key: lax.cond(due(key), rests, change, state, key)


def in_switch(change):
    return lambda state, key: lax.switch(due(key).astype(jnp.int32), [rests, change], state, key)


def in_a_branch_of_a_branch(change):
    return in_cond(in_cond(change))


def in_a_branch_with_a_jit(change):
    return in_cond(jax.jit(change))


def in_a_branch_with_a_loop(change):
    return in_cond(lambda state, key: scanned(change)(state, key))


def behind_an_add(change):
    return lambda state, key: in_cond(change)(acts(state, key)[0], key)


def before_an_add(change):
    def step(state, key):
        state, used = in_cond(change)(state, key)
        return acts(state, key)[0], used

    return step


def in_while(change):
    """A branch, as a loop of at most one turn."""

    def step(state, key):
        body = lambda carry: (False, *change(carry[1], key))
        return lax.while_loop(lambda carry: carry[0], body, (due(key), state, 0.0))[1:]

    return step


def in_checkpoint(change):
    return in_cond(jax.checkpoint(change))


BRANCHES = [
    in_cond,
    in_a_branch_with_a_jit,
    in_a_branch_with_a_loop,
    in_switch,
    behind_an_add,
    before_an_add,
    in_while,
    in_checkpoint,
]


def where(supported):
    """A test for some versions of JAX alone."""
    return pytest.mark.skipif(not supported, reason="XLA copies there")


SOME_BRANCHES = [
    pytest.param(in_a_branch_of_a_branch, marks=(where(not ANY_BRANCH), pytest.mark.sweep)),
    pytest.param(in_either, marks=where(ANY_BRANCH)),
    pytest.param(in_the_other, marks=where(ANY_BRANCH)),
]


def scanned(step):
    def run(state, key):
        state, used = lax.scan(step, state, jax.random.split(key, 4))
        return state, used.sum()

    return run


def in_fori_loop(step):
    def body(key, number, carry):
        state, used = step(carry[0], jax.random.fold_in(key, number))
        return state, carry[1] + used

    return lambda state, key: lax.fori_loop(0, 4, lambda *args: body(key, *args), (state, 0.0))


def in_while_loop(step):
    def run(state, key):
        def body(carry):
            number, state, total = carry
            state, used = step(state, jax.random.fold_in(key, number))
            return number + 1, state, total + used

        return lax.while_loop(lambda carry: carry[0] < 4, body, (0, state, 0.0))[1:]

    return run


def at_once(step):
    return step


LOOPS = [scanned, in_fori_loop, in_while_loop, at_once]


# --- none copies ---------------------------------------------------------------------------------


@pytest.mark.first(3)
@pytest.mark.parametrize("sampler", few(SAMPLERS, "prioritized windows", "limited", "reservoir"))
def test_the_arrays_of_every_sampler_stay(sampler):
    assert not copies(scanned(in_cond(does_all)), large(SAMPLERS[sampler]), KEY)


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_they_stay_where_the_branch_learns(sampler):
    assert not copies(scanned(behind_an_add(learns)), large(SAMPLERS[sampler]), KEY)


@pytest.mark.parametrize("sampler", few(["uniform", "prioritized"], "prioritized"))
@pytest.mark.parametrize(
    "branch", [*few(BRANCHES, in_switch, in_while, before_an_add), *SOME_BRANCHES]
)
def test_they_stay_in_every_branch(branch, sampler):
    assert not copies(scanned(branch(does_all)), large(SAMPLERS[sampler]), KEY)


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize("loop", LOOPS)
def test_they_stay_in_every_loop(loop, sampler):
    assert not copies(loop(in_cond(does_all)), large(SAMPLERS[sampler]), KEY)


@pytest.mark.parametrize(
    "case",
    few(
        [
            *((change, name) for change in (writes, removes, ends) for name in list(SAMPLERS)[:1]),
            *((change, "prioritized") for change in (acts, learns, writes, removes, ends)),
            *((change, "prioritized windows") for change in (acts, learns, removes, ends)),
            (expires, "limited"),
        ],
        (writes, "uniform"),
        (removes, "prioritized windows"),
    ),
)
def test_they_stay_whatever_changes(case):
    change, sampler = case
    assert not copies(scanned(in_cond(change)), large(SAMPLERS[sampler]), KEY)


def reads_again(state, key):
    state, _ = does_all(state, key)
    return state, consumed(fbuf.sample(state, jax.random.fold_in(key, 1), 32))


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_the_check_finds_a_branch_that_reads_again(sampler):
    run = jax.jit(scanned(in_cond(reads_again)), donate_argnums=0)
    if sampler == "uniform":
        fbuf.check_in_place(run, large(SAMPLERS[sampler]), KEY)
    else:
        with pytest.raises(RuntimeError, match="a branch"):
            fbuf.check_in_place(run, large(SAMPLERS[sampler]), KEY)


@pytest.mark.sweep
@pytest.mark.parametrize("options", [{"next_of": "obs"}, {"num_envs": 4, "lockstep": False}])
@pytest.mark.parametrize("sampler", ["uniform", "prioritized windows"])
def test_they_stay_with_every_option(sampler, options):
    def change(state, key):
        following = rows(4)["obs"] if "next_of" in options else None
        state = fbuf.add(state, rows(4), next_observation=following)
        return learns(state, key)

    assert not copies(scanned(in_cond(change)), large(SAMPLERS[sampler], **options), KEY)


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "prioritized windows"])
def test_they_stay_for_seeds_with_one_condition(sampler):
    def steps(states, keys, dues):
        def step(state, key, now):
            return lax.cond(now, does_all, rests, state, key)

        def turn(states, now):
            return jax.vmap(step, (0, 0, None))(states, keys, now)

        return lax.scan(turn, states, dues)

    make = jax.vmap(lambda _: fbuf.init(ITEM, CAPACITY, sampler=SAMPLERS[sampler]))
    states = jax.eval_shape(make, jnp.arange(3))
    assert not copies(steps, states, jax.random.split(KEY, 3), jnp.zeros(4, bool))


def acts_on_all(state, key):
    return sharded.add(state, {"obs": jnp.ones((4, 4))}), 0.0


def writes_on_all(state, key):
    batch = sharded.sample(state, key, 32)
    return sharded.write(state, batch.ids, {"obs": jnp.ones((32, 4))}), consumed(batch.data)


def removes_on_all(state, key):
    batch = sharded.sample(state, key, 32)
    return sharded.remove(state, batch.ids), consumed(batch.data)


def learns_on_all(state, key):
    batch = sharded.sample(state, key, 32)
    if state.blocks.sampler.keeps_priorities:
        state = sharded.update_priority(state, batch.ids, jnp.abs(batch.weight))
    return state, consumed(batch.data)


def does_all_on_all(state, key):
    return learns_on_all(acts_on_all(state, key)[0], key)


@pytest.mark.parametrize("shards", [2, pytest.param(4, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    "case",
    few(
        [
            (sampler, change)
            for sampler in ("uniform", "prioritized", "prioritized windows")
            for change in (
                *(acts_on_all, writes_on_all, removes_on_all, learns_on_all),
                does_all_on_all,
            )
        ],
        ("prioritized windows", learns_on_all),
        ("uniform", does_all_on_all),
    ),
)
def test_they_stay_over_a_mesh(case, shards):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    sampler, change = case
    item = {"obs": jnp.zeros(4)}
    state = sharded.init(item, 2**18, mesh=mesh, shards=shards, sampler=SAMPLERS[sampler])
    step = jax.jit(scanned(in_cond(change)), donate_argnums=0)
    fbuf.check_in_place(step, state, KEY)


def test_a_buffer_that_all_devices_share_takes_rows_of_each():
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    state = fbuf.init(jnp.zeros(3), 8, sampler=fbuf.Prioritized())

    def run(state, rows):
        state = fbuf.add(state, rows)
        return jax.lax.psum(fbuf.sample(state, KEY, 4).data.sum(), "data")

    spec = jax.P("data")
    run = jax.shard_map(run, mesh=mesh, in_specs=(jax.P(), spec), out_specs=jax.P())
    rows = jnp.repeat(jnp.float32([1, 2]), 6).reshape(4, 3)
    assert float(jax.jit(run)(state, rows)) == 4 * 3 * (1 + 2)


@pytest.mark.parametrize("sampler", few(SAMPLERS, "prioritized windows"))
def test_a_branch_gives_what_the_calls_give(sampler):
    state = fbuf.init(ITEM, 64, sampler=SAMPLERS[sampler])
    branch = jax.jit(scanned(in_cond(does_all)))
    taken, used = branch(state, KEY)
    total = 0.0
    for key in jax.random.split(KEY, 4):
        if due(key):
            state, more = does_all(state, key)
            total += more
    for a, b in zip(jax.tree.leaves(taken), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(used, total, rtol=1e-6)
