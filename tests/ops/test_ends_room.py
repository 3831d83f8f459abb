"""More room for the ends of episodes: no row, id or next observation changes, and none is lost."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import programs

import fbuf
from fbuf.ops.ends_room import free_for_ends, room_for_ends, with_room_for_ends

ITEM = {"observation": jnp.int32(0)}
LANES, STEPS = 2, 12
free = jax.jit(free_for_ends)
grow = jax.jit(with_room_for_ends, static_argnums=1)


def step(state, number, ends):
    """Add a step of all lanes: rows of these numbers, which lead to their negatives at an end."""
    rows = number * LANES + np.arange(LANES, dtype=np.int32)
    led_to = np.where(ends, -rows - 1, rows + LANES)
    return programs.add(
        state, {"observation": rows}, next_observation=led_to, truncated=np.asarray(ends)
    )


def seen(state):
    """Every row by its id, and its next observation; None where it is lost."""
    slots = jnp.arange(state.capacity, dtype=jnp.int32)
    batch = programs.compiled("read", module=Reads)(state, fbuf.ids_at(state, slots))
    kept = np.asarray(batch.mask)
    both = np.asarray(batch.data.item["observation"]), np.asarray(batch.data.next_observation)
    return {int(a): int(b) for a, b in zip(both[0][kept], both[1][kept], strict=True)}


class Reads:
    """Reads through the view."""

    @staticmethod
    def read(state, ids):
        return fbuf.read(state, ids, view=fbuf.Transition())


@pytest.mark.parametrize("lockstep", [pytest.param(True, marks=pytest.mark.sweep), False])
def test_nothing_changes_but_the_room(lockstep):
    """One buffer grows in the midst of its history; another one had all the room from the start."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        make = lambda ends: fbuf.init(
            ITEM, LANES * STEPS, num_envs=LANES, lockstep=lockstep, next_of="observation",
            max_ends=ends,
        )  # fmt: skip
        state, roomy = make(6), make(LANES * STEPS)
        grown_at = int(rng.integers(5, 30))
        for number in range(45):
            if number == grown_at:
                before = seen(state)
                state = grow(state, 18)
                assert room_for_ends(state) == 18
                assert seen(state) == before
            ends = rng.random(LANES) < 0.4
            lost = int(free(state)) < (ends.sum() if lockstep else ends.max())
            fault = int(state.fault)
            state, roomy = step(state, number, ends), step(roomy, number, ends)
            if lost:
                assert int(state.fault) == fbuf.Fault.LOST_NEXT
            else:
                assert int(state.fault) == fault
            if number > grown_at + STEPS:  # all that was lost before has been overwritten
                assert seen(state) == seen(roomy)
        assert int(roomy.fault) == 0


def test_a_removed_row_needs_no_room():
    state = fbuf.init(ITEM, LANES * STEPS, num_envs=LANES, next_of="observation", max_ends=4)
    assert int(free(state)) == 4
    state = step(state, 0, np.array([True, False]))
    assert int(free(state)) == 3
    state = step(step(state, 1, np.array([True, True])), 2, np.array([True, False]))
    assert int(free(state)) == 0
    state = programs.remove(state, fbuf.Ids(jnp.int32([0]), jnp.int32([0])))
    assert int(free(state)) == 1
