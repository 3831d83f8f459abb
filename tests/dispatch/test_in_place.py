"""Reads before writes: what a trace ties by itself, and what `after` ties."""

from __future__ import annotations

import gc
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from support.contracts import CAPACITY, ITEM, consumed, rows
from support.few import few
from support.programs import copies

import fbuf

KEY = jax.random.key(0)
PRIORITIZED, UNIFORM = fbuf.Prioritized(), fbuf.Uniform()
SAMPLERS = [UNIFORM, pytest.param(PRIORITIZED, marks=pytest.mark.sweep)]


def large(sampler=UNIFORM, **options):
    return jax.eval_shape(lambda: fbuf.init(ITEM, CAPACITY, sampler=sampler, **options))


def drawn(state, key):
    return fbuf.sample(state, key, 32)


# --- what is tied within one trace ---------------------------------------------------------------


def sample_then_add(state, key):
    batch = drawn(state, key)
    return fbuf.add(state, rows(4)), consumed(batch)


def thrice(step):
    def steps(state, key):
        total = 0.0
        for number in range(3):
            state, used = step(state, jax.random.fold_in(key, number))
            total += used
        return state, total

    return steps


def only_data(state, key):
    """The batch itself is gone when the rows are added."""
    data = fbuf.sample(state, key, 32).data
    return fbuf.add(state, rows(4)), consumed(data)


def two_batches(state, key):
    """The update waits for the batch whose ids it takes, and must wait for the other one, too."""
    first, second = drawn(state, key), drawn(state, jax.random.fold_in(key, 1))
    if state.sampler.keeps_priorities:
        state = fbuf.update_priority(state, first.ids, first.weight)
    else:
        state = fbuf.write(state, first.ids, {"reward": first.weight})
    return fbuf.end_episode(state), consumed((first, second))


def ends_after(state, key):
    batch = drawn(state, key)
    return fbuf.end_episode(state), consumed(batch)


def others_written(state, key):
    batch = drawn(state, key)
    ids = fbuf.newest_ids(state, 4)
    return fbuf.write(state, ids, {"reward": jnp.ones(4)}), consumed(batch)


def asked_then_added(state, key):
    """Reads that are no draw."""
    ids = fbuf.ids_at(state, jax.random.randint(key, (4,), 0, 99, jnp.int32))
    looked = fbuf.read(state, ids), fbuf.probability(state, ids), fbuf.newest_ids(state, 8).slot
    return fbuf.add(state, rows(4)), consumed(looked)


def mixed(state, key):
    batch = fbuf.sample_mixed([(state, 16), (state, 16)], key, 32)
    return fbuf.add(state, rows(4)), consumed(batch.data)


TIED = [sample_then_add, only_data, two_batches, ends_after, others_written, asked_then_added]


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("step", few(TIED, two_batches))
def test_reads_and_writes_of_one_trace_are_tied(step, sampler):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not copies(thrice(step), large(sampler), KEY)


@pytest.mark.sweep
def test_so_they_are_under_vmap_and_from_several_buffers():
    states = jax.eval_shape(
        lambda: jax.vmap(lambda _: fbuf.init(ITEM, CAPACITY))(jnp.arange(2)),
    )
    assert not copies(jax.vmap(sample_then_add), states, jax.random.split(KEY, 2))


def test_so_they_are_over_a_mesh():
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    sharded = fbuf.sharded
    state = sharded.init({"obs": jnp.zeros(4)}, 2**18, mesh=mesh)

    def step(state, key):
        batch = sharded.sample(state, key, 32)
        return sharded.add(state, {"obs": jnp.ones((4, 4))}), consumed(batch.data)

    fbuf.check_in_place(jax.jit(step, donate_argnums=0), state, KEY)


def test_a_read_is_tied_in_its_own_trace_only():
    """A batch of a branch is no value outside of it: such a read is told, and not tied."""

    def step(state, key):
        total = lax.cond(key[0] > 0, lambda: consumed(fbuf.sample(state, KEY, 4)), lambda: 0.0)
        return fbuf.add(state, rows(4)), total

    with pytest.warns(UserWarning, match=r"fbuf\.add: .* fbuf\.after\(state, batch\)") as told:
        jax.eval_shape(step, large(), jnp.zeros(2))
    assert told[0].filename == __file__


@pytest.mark.sweep
def test_a_read_within_a_gradient_is_one_of_the_same_trace():
    """Within `grad` the arrays read are other tracers than those of the buffer."""

    def step(state, key):
        def loss(weight):
            batch = drawn(state, key)
            return (batch.data["obs"].sum(axis=1) * weight).sum(), batch.ids

        gradient, ids = jax.grad(loss, has_aux=True)(1.0)
        state = fbuf.update_priority(state, ids, jnp.ones(32))
        batch_gradient = jax.grad(lambda w: (drawn(state, key).data["obs"] * w).sum())(1.0)
        return fbuf.add(state, rows(4)), gradient + batch_gradient

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not copies(step, large(PRIORITIZED), KEY)


@pytest.mark.parametrize(
    "sampler",
    [
        PRIORITIZED,
        pytest.param(fbuf.Mixture(0.5), marks=pytest.mark.sweep),
        pytest.param(fbuf.Uniform(window=2), marks=pytest.mark.sweep),
    ],
)
@pytest.mark.parametrize(
    "body", [thrice(two_batches), pytest.param(sample_then_add, marks=pytest.mark.sweep)]
)
def test_no_trace_outlives_its_function(body, sampler):
    """Notes of a read are freed with the state that was read; so are the forms of a platform."""
    alive = []

    def step(state, key):
        alive.append(weakref.ref(state.fault))
        return body(state, key)

    jax.jit(step).lower(fbuf.init(ITEM, 64, sampler=sampler), KEY)
    gc.collect()
    assert len(alive) >= 1
    assert all(of() is None for of in alive)


# --- what `after` ties ---------------------------------------------------------------------------


def add_then_sample(state, key):
    state = fbuf.add(state, rows(4))
    batch = drawn(state, key)
    return fbuf.after(state, batch), consumed(batch)


@jax.jit
def sample_apart(state, key):
    return drawn(state, key)


@jax.jit
def add_apart(state):
    return fbuf.add(state, rows(4))


def with_a_sampling_helper(state, key):
    batch = sample_apart(state, key)
    return fbuf.add(fbuf.after(state, batch), rows(4)), consumed(batch)


def with_an_adding_helper(state, key):
    batch = drawn(state, key)
    return add_apart(fbuf.after(state, batch)), consumed(batch)


def adds_in_a_loop(state, key):
    batch = drawn(state, key)
    state = fbuf.after(state, batch)
    state, _ = lax.scan(lambda s, _: (fbuf.add(s, rows(2)), None), state, length=3)
    return state, consumed(batch)


def in_remat(state, key):
    return jax.checkpoint(add_then_sample)(state, key)


def scanned(step, unroll=1):
    return lambda state, key: lax.scan(step, state, jax.random.split(key, 4), unroll=unroll)


def nested(step):
    return lambda state, key: lax.scan(scanned(step), state, jax.random.split(key, 2))


def in_fori_loop(step):
    def run(state, key):
        def body(number, carry):
            state, used = step(carry[0], jax.random.fold_in(key, number))
            return state, carry[1] + used

        return lax.fori_loop(0, 4, body, (state, 0.0))

    return run


def in_while_loop(step):
    def run(state, key):
        def body(carry):
            number, state, total = carry
            state, used = step(state, jax.random.fold_in(key, number))
            return number + 1, state, total + used

        return lax.while_loop(lambda carry: carry[0] < 4, body, (0, state, 0.0))

    return run


FORMS = {
    "unrolled": scanned(add_then_sample, unroll=2),
    "sampling helper": scanned(with_a_sampling_helper),
    "adding helper": scanned(with_an_adding_helper),
    "inner loop": scanned(adds_in_a_loop),
    "nested": nested(add_then_sample),
    "remat": scanned(in_remat),
    "fori_loop": in_fori_loop(add_then_sample),
    "while_loop": in_while_loop(add_then_sample),
    "python loop": thrice(add_then_sample),
}


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("form", FORMS)
def test_after_keeps_every_form_of_a_step_in_place(form, sampler):
    assert not copies(FORMS[form], large(sampler), KEY)


@pytest.mark.sweep
@pytest.mark.parametrize("form", ["unrolled", "inner loop", "fori_loop"])
def test_so_it_does_for_several_seeds(form):
    states = jax.eval_shape(lambda: jax.vmap(lambda _: fbuf.init(ITEM, CAPACITY))(jnp.arange(2)))
    assert not copies(jax.vmap(FORMS[form]), states, jax.random.split(KEY, 2))


# --- one row, and rows that end an episode -------------------------------------------------------


@pytest.mark.parametrize("num_envs", [None, 1])
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.sweep)])
def test_a_row_alone_is_kept_with_its_next_observation_in_place(num_envs, count):
    """XLA would read a single number again behind the write, and copy the array for that."""
    item = {"observation": jnp.zeros(4), "reward": jnp.float32(0)}
    state = fbuf.init(item, 20_000, num_envs=num_envs, next_of="observation")
    lead = (count,) if num_envs is None else (num_envs, count)

    def step(state, given):
        observation = jnp.full((*lead, 4), given)
        added = {"observation": observation, "reward": jnp.ones(lead)}
        ends = jnp.full(lead, given > 1)
        return fbuf.add(state, added, terminated=ends, next_observation=observation + 1)

    fbuf.check_in_place(jax.jit(step, donate_argnums=0), state, jnp.float32(0))


def test_a_write_behind_a_row_that_ends_an_episode_is_in_place():
    """The add asks the flags whether a place of an end is free; the write changes them."""
    item = {"observation": jnp.zeros(4), "reward": jnp.float32(0)}
    state = fbuf.init(item, 20_000, next_of="observation")

    def step(state, key):
        rows = {"observation": jnp.ones((4, 4)), "reward": jnp.ones(4)}
        ends = jnp.arange(4) > 2
        state = fbuf.add(state, rows, terminated=ends, next_observation=rows["observation"])
        batch = fbuf.sample(state, key, 2)
        return fbuf.write(state, batch.ids, {"reward": jnp.ones(2)}), batch

    fbuf.check_in_place(jax.jit(step, donate_argnums=0), state, KEY)
