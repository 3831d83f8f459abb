"""Contracts of a step: it writes in place, whatever the sampler and the view."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

import fbuf
from support.programs import built

ITEM = {
    "obs": jnp.zeros(17),
    "reward": jnp.zeros(()),
    "done": jnp.zeros((), bool),
    "made": jnp.int32(0),
}
PRIORITIZED, UNIFORM = fbuf.Prioritized(), fbuf.Uniform()
BATCH = 64


def rows(count):
    return jax.tree.map(lambda x: jnp.ones((count, *x.shape), x.dtype), ITEM)


def consumed(tree):
    return sum(leaf.sum(dtype=jnp.float32) for leaf in jax.tree.leaves(tree))


def add_sample_update(state, key):
    state = fbuf.add(state, rows(16))
    batch = fbuf.sample(state, key, BATCH)
    state = fbuf.update_priority(state, batch.ids, jnp.abs(batch.data["reward"]))
    return state, consumed(batch)


def sample_update_add(state, key):
    batch = fbuf.sample(state, key, BATCH)
    state = fbuf.update_priority(state, batch.ids, jnp.abs(batch.data["reward"]))
    return fbuf.add(state, rows(16)), consumed(batch)


def with_masks(state, key):
    state = fbuf.add(state, rows(16), mask=jax.random.bernoulli(key, 0.5, (16,)))
    batch = fbuf.sample(state, key, BATCH)
    mask = jax.random.bernoulli(key, 0.5, (BATCH,))
    return fbuf.update_priority(state, batch.ids, batch.weight, mask=mask), consumed(batch)


def sample_spread_update_add(state, key):
    ends = jax.random.bernoulli(key, 0.1, (16,))
    batch = fbuf.sample(state, key, BATCH)
    around = fbuf.neighbours(state, batch.ids, range(-4, 1))
    state = fbuf.update_priority(state, around, jnp.ones((BATCH, 5)))
    return fbuf.add(state, rows(16), truncated=ends), consumed(batch)


def sample_thin_update_add(state, key):
    large = fbuf.sample(state, key, 4 * BATCH)
    batch = fbuf.thin(large, key, BATCH, jnp.abs(large.data["reward"]))
    state = fbuf.update_priority(state, batch.ids, jnp.abs(batch.data["reward"]))
    return fbuf.add(state, rows(16)), consumed(batch)


def add_sample(state, key):
    state = fbuf.add(state, rows(16))
    return state, consumed(fbuf.sample(state, key, BATCH))


def add_sample_remove(state, key):
    state = fbuf.add(state, rows(16))
    batch = fbuf.sample(state, key, BATCH)
    return fbuf.remove(state, batch.ids), consumed(batch)


def update_twice(state, key):
    state = fbuf.add(fbuf.add(state, rows(16)), rows(16), priority=jnp.ones(16))
    batch = fbuf.sample(state, key, BATCH)
    state = fbuf.update_priority(state, batch.ids, batch.weight)
    return fbuf.update_priority(state, batch.ids, batch.weight * 2), consumed(batch)


def clear_between(state, key):
    state = fbuf.add(fbuf.clear(fbuf.add(state, rows(16))), rows(16))
    return state, fbuf.size(state)


def windows(view, then_remove):
    def step(state, key):
        ends = jax.random.bernoulli(key, 0.1, (16,))
        state = fbuf.add(state, rows(16), truncated=ends)
        batch = fbuf.sample(state, key, BATCH, view=view)
        if isinstance(state.sampler, fbuf.Prioritized | fbuf.Mixture):
            state = fbuf.update_priority(state, batch.ids, batch.weight)
        if then_remove:
            state = fbuf.remove(state, batch.ids)
        return state, consumed(batch)

    return step


def apart(state, key):
    """Environments that come at times of their own, and a collector that starts anew."""
    items = jax.tree.map(lambda x: x.reshape(16, 1, *x.shape[1:]), rows(16))
    mask, ends = jax.random.bernoulli(key, 0.5, (2, 16, 1))
    state = fbuf.add(state, items, truncated=ends, mask=mask)
    batch = fbuf.sample(state, key, BATCH)
    state = fbuf.remove(state, batch.ids)
    return fbuf.end_episode(state, mask=mask[:, 0]), consumed(batch)


def next_observations(view):
    def step(state, key):
        ends = jax.random.bernoulli(key, 0.1, (16,))
        state = fbuf.add(state, rows(16), truncated=ends, next_observation=rows(16)["obs"])
        batch = fbuf.sample(state, key, BATCH, view=view)
        return fbuf.end_episode(fbuf.remove(state, batch.ids)), consumed(batch)

    return step


def sample_remove_add(view):
    def step(state, key):
        batch = fbuf.sample(state, key, BATCH, view=view)
        return fbuf.add(fbuf.remove(state, batch.ids), rows(16)), consumed(batch)

    return step


def update_some_remove_others(state, key):
    batch = fbuf.sample(state, key, BATCH)
    state = fbuf.update_priority(state, batch.ids, batch.weight)
    others = jax.tree.map(lambda x: x[::-1], batch.ids)
    return fbuf.remove(state, others), consumed(batch)


def sample_end_episode(state, key):
    batch = fbuf.sample(state, key, BATCH)
    return fbuf.end_episode(fbuf.after(state, batch)), consumed(batch)


def other_rows(change):
    """A change of rows that were not drawn, said to come after the batch."""

    def step(state, key):
        batch = fbuf.sample(state, key, BATCH)
        slots = jax.random.randint(key, (BATCH,), 0, CAPACITY, jnp.int32)
        state = fbuf.after(state, batch)
        return change(state, fbuf.ids_at(state, slots)), consumed(batch)

    return step


def row_by_row(state, key):
    """A single row at a time, which XLA treats in ways of its own."""
    ends = jax.random.bernoulli(key, 0.1, (1,))
    state = fbuf.add(state, rows(1), truncated=ends)
    batch = fbuf.sample(state, key, BATCH)
    return fbuf.remove(state, jax.tree.map(lambda x: x[:1], batch.ids)), consumed(batch)


def shuffled(state, key):
    state = fbuf.add(state, rows(16))
    return state, consumed(fbuf.sample(state, key, BATCH, step=jax.random.bits(key) >> 1))


def draw_update_add(state, key):
    """A buffer that remembers what it draws."""
    ends = jax.random.bernoulli(key, 0.1, (16,))
    state, batch = fbuf.draw(state, key, BATCH)
    if state.sampler.keeps_priorities:
        state = fbuf.update_priority(state, batch.ids, batch.weight)
    return fbuf.add(state, rows(16), truncated=ends), consumed(batch)


def add_draw_remove(state, key):
    """The same; rows are removed, and drawn again."""
    state = fbuf.add(state, rows(16))
    state, batch = fbuf.draw(state, key, BATCH)
    state = fbuf.remove(state, batch.ids)
    state, other = fbuf.draw(state, key, BATCH)
    return state, consumed(batch) + consumed(other)


def sample_write_add(state, key):
    """Rows that move from group to group, by their field `done`."""
    ends = jax.random.bernoulli(key, 0.1, (16,))
    batch = fbuf.sample(state, key, BATCH)
    moved = {"done": jax.random.bernoulli(key, 0.5, (BATCH,))}
    state = fbuf.add(fbuf.write(state, batch.ids, moved), rows(16), truncated=ends)
    ids = fbuf.group_ids(state, 0, 4)
    return fbuf.remove(state, ids), consumed(batch)


def add_draw_expire(state, key):
    """Rows that are used up, that grow old, and whose version is dropped."""
    ends = jax.random.bernoulli(key, 0.1, (16,))
    state = fbuf.add(state, rows(16), truncated=ends)
    state, batch = fbuf.draw(state, key, BATCH)
    uses = fbuf.uses(state, batch.ids)
    return fbuf.expire(state, uses.max()), consumed(batch)


CAPACITY = 2**21
"""The smallest array of a state, the marks of `Uniform`, then takes 279,872 bytes."""


def in_place(step, sampler, options=None, seeds=0):
    """The step writes into the state it is given, and copies no array of it."""
    shape = (seeds,) if seeds else ()

    def init():
        make = lambda _: fbuf.init(ITEM, CAPACITY, sampler=sampler, **options or {})
        return jax.vmap(make)(jnp.arange(seeds)) if seeds else make(0)

    state = jax.eval_shape(init)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (3, *shape)))
    body = jax.vmap(step) if seeds else step
    run = jax.jit(lambda s, k: lax.scan(body, s, k), donate_argnums=0)
    analysis = built(run, state, keys).memory_analysis()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert analysis.alias_size_in_bytes == size
    assert analysis.temp_size_in_bytes < 200_000 * max(seeds, 1)
