"""`fbuf.check_in_place` of `jax.pmap`, of which JAX says by leaf what is donated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import fbuf

DEVICES = 2
ROWS = {"reward": jnp.ones(16), "obs": jnp.ones((16, 3))}


def step(state, key):
    state = fbuf.add(state, ROWS)
    batch = fbuf.sample(state, key, 32)
    return fbuf.update_priority(state, batch.ids, batch.data["reward"])


def last(key, state):
    return step(state, key)


def selects(state, key):
    used = fbuf.sample(state, key, 32).data["reward"][0]
    new = fbuf.add(state, ROWS)
    return jax.tree.map(lambda new, old: jnp.where(used > 0, new, old), new, state)


@pytest.fixture(scope="module")
def of_devices():
    def make(_):
        item = jax.tree.map(lambda leaf: leaf[0], ROWS)
        return fbuf.init(item, 2**14, num_envs=16, sampler=fbuf.Prioritized())

    return jax.pmap(make)(jnp.arange(DEVICES)), jax.random.split(jax.random.key(0), DEVICES)


def test_a_step_on_each_device_is_in_place(of_devices):
    state, keys = of_devices
    fbuf.check_in_place(jax.pmap(step, donate_argnums=0), state, keys)
    fbuf.check_in_place(jax.pmap(last, donate_argnums=1), keys, state)


@pytest.mark.parametrize("donated", [(), 1])
def test_a_buffer_that_is_not_donated_is_found(of_devices, donated):
    with pytest.raises(RuntimeError, match="is not donated"):
        fbuf.check_in_place(jax.pmap(step, donate_argnums=donated), *of_devices)


def test_a_copy_on_each_device_is_found(of_devices):
    with pytest.raises(RuntimeError, match="By a select"):
        fbuf.check_in_place(jax.pmap(selects, donate_argnums=0), *of_devices)


@pytest.mark.sweep
def test_seeds_on_each_device_are_in_place(of_devices):
    state, keys = of_devices
    several = jax.pmap(jax.vmap(lambda state, _: state, (None, 0)))
    states = several(state, jnp.zeros((DEVICES, 2)))
    keys = jax.vmap(jax.random.split)(keys)
    fbuf.check_in_place(jax.pmap(jax.vmap(step), donate_argnums=0), states, keys)
