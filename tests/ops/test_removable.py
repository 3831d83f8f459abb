"""A buffer whose rows cannot be removed is any other one, as long as no row is removed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf import sharded
from fbuf.samplers.index import start_index

ENVS, STEPS, BATCH = 3, 2, 8
ITEM = {"x": jnp.zeros(2), "version": jnp.int32(0), "group": jnp.int32(0)}
PLAIN = {
    "uniform": fbuf.Uniform(),
    "prioritized": fbuf.Prioritized(),
    "window": fbuf.Uniform(window=3),
    "mixture": fbuf.Mixture(recent=0.3, recent_rows=6),
    "limited": fbuf.Limited(fbuf.Uniform(), max_uses=2, version="version"),
    "shuffled": fbuf.Shuffled(),
    "first": fbuf.FreshFirst(fbuf.Uniform()),
    "episode": fbuf.Uniform(window=2, by="episode"),
    "priority_window": fbuf.Prioritized(window=3, normalize="buffer"),
    "limited_priorities": fbuf.Limited(fbuf.Prioritized(), max_age=3),
    "limited_mixture": fbuf.Limited(fbuf.Mixture(recent=0.3, recent_rows=6), max_uses=3),
    "nested": fbuf.Limited(fbuf.FreshFirst(fbuf.Uniform()), max_uses=2),
    "grouped": fbuf.Grouped("group", groups=4),
    "fifo": fbuf.Fifo(),
    "reservoir": fbuf.Reservoir(),
    "lowest": fbuf.EvictLowest(),
}
SHAPES = {"together": {}, "apart": {"lockstep": False}}


def made(sampler, removable, **options):
    if not sampler.places:
        options = {"num_envs": ENVS} | options
    return fbuf.init(ITEM, 24, sampler=sampler, removable=removable, **options)


def history(sampler, apart):
    """A function of a buffer: random adds, draws, changes; it returns all that came out."""
    keeps, envs = sampler.keeps_priorities, 1 if sampler.places else ENVS

    def step(state, given):
        key, number = given
        keys = jax.random.split(key, 6)
        lead = (STEPS * ENVS,) if sampler.places else (STEPS, envs)
        count = number * STEPS * ENVS + jnp.arange(STEPS * ENVS, dtype=jnp.int32).reshape(lead)
        ends = jax.random.bernoulli(keys[0], 0.2, lead)
        mask = jax.random.bernoulli(keys[1], 0.8, lead if apart or sampler.places else lead[:1])
        rows = {
            "x": jnp.stack([count, -count], axis=-1).astype(jnp.float32),
            "version": count // 9,
            "group": count % 4,
        }
        options = {"terminated": ends, "mask": mask, "time_major": not sampler.places}
        state = fbuf.add(state, rows, **options)
        if sampler.is_queue:
            state, batch = fbuf.pop(state, 1)
        elif sampler.notes_draws:
            state, batch = fbuf.draw(state, keys[2], BATCH)
        else:
            batch = fbuf.sample(state, keys[2], BATCH, step=(0, number) if fresh(sampler) else None)
        if keeps:
            priority = jax.random.uniform(keys[3], batch.ids.slot.shape)
            state = fbuf.update_priority(state, batch.ids, priority)
        state = fbuf.write(state, batch.ids, {"x": jnp.ones((*batch.ids.slot.shape, 2))})
        if not sampler.places:
            state = fbuf.end_episode(state, mask=jax.random.bernoulli(keys[4], 0.1, (envs,)))
        likely = () if sampler.is_queue else fbuf.probability(state, batch.ids)
        return state, (batch, likely, fbuf.size(state), fbuf.can_sample(state), figures(state))

    return step


def fresh(sampler):
    return sampler.without_replacement


def figures(state):
    return {name: value for name, value in fbuf.stats(state).items() if name != "bytes"}


def played(sampler, removable, apart=False):
    state = made(sampler, removable, **({"lockstep": False} if apart else {}))
    keys = jax.random.split(jax.random.key(1), 12)
    numbers = jnp.arange(12, dtype=jnp.int32)
    step = history(sampler, apart)
    state, out = jax.jit(lambda state: jax.lax.scan(step, state, (keys, numbers)))(state)
    return state, out


def same(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.first(4)
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("apart", [False, True])
def test_nothing_else_differs(name, apart):
    sampler = PLAIN[name]
    if apart and (sampler.places or "mixture" in name):
        pytest.skip("the rows of this sampler have no lanes of their own")
    (one, from_one), (two, from_two) = (played(sampler, kind, apart) for kind in (True, False))
    same(from_one, from_two)
    same(fbuf.rows(one), fbuf.rows(two))
    cleared = [fbuf.clear(state) for state in (one, two)]
    same(*map(figures, cleared))


@pytest.mark.parametrize("sampler", [fbuf.Uniform(), fbuf.Prioritized()])
def test_it_lies_in_less_memory(sampler):
    one, two = (made(sampler, kind) for kind in (True, False))
    assert fbuf.nbytes(two) < fbuf.nbytes(one)
    assert len(jax.tree.leaves(two)) < len(jax.tree.leaves(one))
    assert "State(" in repr(two)


def test_an_add_reads_no_flag_where_no_row_can_be_removed():
    for kind in (True, False):
        add = jax.jit(lambda state: fbuf.add(state, rows_of(2), time_major=True))
        lines = add.lower(made(fbuf.Uniform(), kind)).as_text().splitlines()
        assert any("gather" in line and "tensor<24xui8>" in line for line in lines) == kind


REFUSED = {
    "remove": lambda state: fbuf.remove(state, fbuf.newest_ids(state, 1)),
    "traced": lambda state: jax.jit(fbuf.remove)(state, fbuf.newest_ids(state, 1)),
    "extend": lambda state: fbuf.extend(state, made(fbuf.Uniform(), True)),
    "of others": lambda state: fbuf.extend(state, fbuf.init(ITEM, 8, removable=False)),
}


@pytest.mark.parametrize("how", REFUSED)
def test_removal_is_refused_and_the_buffer_stays(how):
    state = fbuf.add(made(fbuf.Uniform(), False), rows_of(4), time_major=True)
    with pytest.raises(ValueError, match="removable=True"):
        REFUSED[how](state)
    assert int(fbuf.size(state)) == 4 * ENVS


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="next_step"):
        fbuf.init(ITEM, 8, autoreset="next_step", removable=False)
    with pytest.raises(TypeError, match="removable"):
        fbuf.init(ITEM, 8, removable=0)


def rows_of(steps, envs=ENVS):
    numbers = jnp.arange(steps * envs, dtype=jnp.int32).reshape(steps, envs)
    x = jnp.stack([numbers, numbers], -1).astype(jnp.float32)
    return {"x": x, "version": numbers, "group": numbers}


def test_other_buffers_of_it_are_alike(tmp_path):
    states = []
    for kind in (True, False):
        state = fbuf.add(made(fbuf.Prioritized(), kind), rows_of(5), time_major=True)
        other = fbuf.add(made(fbuf.Prioritized(), kind), rows_of(3), time_major=True)
        joined = fbuf.extend(state, other)
        smaller = fbuf.resize(joined, 12)
        parts = fbuf.split(joined, jax.random.key(0), 0.5)
        fbuf.save(tmp_path / str(kind), joined)
        loaded = fbuf.load(tmp_path / str(kind)).state
        found = [joined, smaller, *parts, loaded]
        assert [of.ring.removable for of in found] == [kind] * len(found)
        states.append(found)
    for one, two in zip(*states, strict=True):
        same(fbuf.rows(one), fbuf.rows(two))
        same(figures(one), figures(two))


def test_the_size_of_many_seeds_is_one_number():
    state = made(fbuf.Uniform(), False)
    rows = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), rows_of(2))
    size = lambda rows: fbuf.size(fbuf.add(state, rows, time_major=True))
    assert int(jax.vmap(size, out_axes=None)(rows)) == 2 * ENVS


def test_over_a_mesh():
    mesh = jax.make_mesh((1,), ("data",))
    rows = {name: jnp.swapaxes(leaf, 0, 1) for name, leaf in rows_of(3, 2).items()}
    found = []
    for kind in (True, False):
        state = sharded.init(ITEM, 24, mesh=mesh, shards=2, num_envs=2, removable=kind)
        state = sharded.add(state, rows)
        batch = sharded.sample(state, jax.random.key(0), 8)
        found.append((batch.data, batch.mask, sharded.size(state), sharded.stats(state)["removed"]))
    same(*found)
    with pytest.raises(ValueError, match="removable=True"):
        sharded.remove(state, batch.ids)


def test_a_sampler_that_takes_rows_out_by_itself_is_refused():
    state, slots = made(fbuf.Uniform(), False), jnp.zeros(1, jnp.int32)
    for take_out in (state.sampler.retire, state.sampler.remove):
        with pytest.raises(ValueError, match=r"a sampler takes rows out.*removable=True"):
            take_out(state.index, state.ring, slots)


def test_windows_count_removed_rows_in_any_case():
    """On CPU an add of windows is faster with the read of the flags."""
    assert made(fbuf.Prioritized(window=2), False).ring.removed is not None
    assert made(fbuf.Prioritized(), False).ring.removed is None


def test_a_slot_without_a_row_is_no_start_where_there_are_no_bits():
    state = fbuf.init({"x": 0.0}, 8, removable=False)
    state = fbuf.add(state, {"x": jnp.ones(3)})
    assert state.index.starts.bits is None
    found = start_index.is_start(state.index.starts, state.ring, jnp.arange(8, dtype=jnp.int32))
    assert found.tolist() == [True] * 3 + [False] * 5
