"""Buffers as a run leaves them: a small world, played and learned from for a while."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import fbuf


def item():
    """The fields of a row."""
    return {
        "observation": jnp.zeros(3),
        "action": jnp.int32(0),
        "reward": jnp.float32(0),
        "task": jnp.int32(0),
    }


def rows(shape, rng):
    """Fields of some rows, and the flags of their episodes."""
    new = {
        "observation": rng.normal(size=(*shape, 3)).astype(np.float32),
        "action": rng.integers(0, 4, shape).astype(np.int32),
        "reward": rng.normal(size=shape).astype(np.float32),
        "task": rng.integers(0, 3, shape).astype(np.int32),
    }
    return new, {"terminated": rng.random(shape) < 0.05, "truncated": rng.random(shape) < 0.01}


def played(sampler=None, *, envs=4, capacity=800, steps=300, updates=True, change=None, **options):
    """A buffer of some steps, each followed by a batch, whose priorities are updated.

    Args:
        sampler: The sampler; None is uniform.
        envs: The number of environments; None is one that is not told apart.
        capacity: The rows that fit.
        steps: The number of steps.
        updates: Whether priorities are updated.
        change: A function of the fields and the flags of 20 steps, `[envs, 20]`, that spoils them.
        options: More arguments of `fbuf.init`.
    """
    sampler, rng = sampler or fbuf.Uniform(), np.random.default_rng(0)
    state = fbuf.init(item(), capacity, num_envs=envs, sampler=sampler, **options)
    shape = (20,) if envs is None else (envs, 20)
    for turn in range(steps // 20):
        new, flags = rows(shape, rng)
        if change is not None:
            new, flags = change(new, flags)
        state = fbuf.add(state, new, **flags)
        if sampler.is_queue:
            state, _ = fbuf.pop(state, 20)
            continue
        key, count = jax.random.key(turn), 30 * (envs or 1)
        if sampler.notes_draws:
            state, batch = fbuf.draw(state, key, count)
        else:
            at = {"step": turn} if sampler.without_replacement else {}
            batch = fbuf.sample(state, key, count, **at)
        if sampler.keeps_priorities and updates:
            error = rng.exponential(size=count).astype(np.float32)
            state = fbuf.update_priority(state, batch.ids, error)
    return state
