"""Checkpoints that older releases wrote, one of each format, kept as they wrote them."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import restored
from test_save import forget, same

import fbuf

KEPT = pathlib.Path(__file__).parents[1] / "checkpoints"
ITEM = {"obs": jnp.zeros(3), "image": jnp.zeros((9, 9), jnp.uint8), "of": (jnp.bfloat16(0),)}


def filled(number, leaf):
    """A field of two rows that hold a number each."""
    number = number.reshape(2, *[1] * leaf.ndim)
    return jnp.broadcast_to(number, (2, *leaf.shape)).astype(leaf.dtype)


def history():
    """What was saved, one after the other: some of every kind of file."""
    state = fbuf.init(
        ITEM, 12, num_envs=2, lockstep=False, sampler=fbuf.Prioritized(window=2), next_of="obs",
        max_ends=2,  # the default of the time
    )  # fmt: skip
    for turn in range(4):
        number = jnp.arange(2) + 2 * turn + 1
        rows = jax.tree.map(functools.partial(filled, number), ITEM)
        state = fbuf.add(
            state, rows, next_observation=rows["obs"] + 2, terminated=np.array([turn == 1, False]),
            priority=number.astype(jnp.float32), mask=np.array([True, turn != 2]),
        )  # fmt: skip
        if turn == 3:
            state = fbuf.write(state, fbuf.ids_at(state, jnp.array([0])), {"obs": jnp.ones((1, 3))})
            state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([2])))
        key = jax.random.key(turn, impl="threefry2x32")
        yield jax.tree.map(jnp.copy, state), {"turn": turn, "key": key}


def without_newest(state):
    """They did not say which row the next observation of each lane's newest row is of."""
    owner = state.next_obs.owner.at[: state.ring.lanes].set(-1)
    fault = state.fault & ~jnp.uint32(fbuf.Fault.BROKEN_EPISODE)
    next_obs = dataclasses.replace(state.next_obs, owner=owner)
    return dataclasses.replace(state, next_obs=next_obs, fault=fault)


@pytest.mark.sweep
@pytest.mark.parametrize("name", [pytest.param("format-1", marks=pytest.mark.sweep), "format-2"])
def test_it_is_read_as_it_was_saved(tmp_path, name):
    """And goes on in today's format."""
    folder = tmp_path / name
    shutil.copytree(KEPT / name, folder)
    *_, (expected, extra) = history()
    state, beside = restored.load(folder)
    same(state, without_newest(expected))
    assert beside["turn"] == extra["turn"]
    assert beside["key"] == extra["key"]
    state = fbuf.end_episode(state)
    fbuf.save(folder, state)
    forget(folder)
    same(restored.load(folder).state, state)
