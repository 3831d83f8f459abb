"""The forms of a program: in each, a step must do the same, in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fbuf
from fbuf.testing.case import Case, draw

BATCH = 8
_TURNS, _ROWS = 3, 4


def check_forms(case: Case, state: Any, make: Callable[[Any], Any], view: Any) -> None:
    """Require that steps give the same results in each form of a program.

    Args:
        case: The case.
        state: A buffer; not consumed.
        make: The function that turns the numbers of rows into items.
        view: The view of the batches.
    """
    step = step_of(state, make, view)
    keys = jax.random.split(jax.random.key(0), (_TURNS, 2))

    def over(body: Any) -> Any:
        return jax.jit(lambda state, keys: lax.scan(body, state, keys))

    with case.doing("a step of an add, a draw and a removal"):
        plain, batches = state, list[Any]()
        for key in keys[:, 0]:
            plain, batch = step(jax.tree.map(jnp.copy, plain), key)
            batches.append(batch)
    expected = plain, jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    with case.doing("a step in jax.jit, donated"):
        donated, batches = jax.tree.map(jnp.copy, state), list[Any]()
        run = jax.jit(step, donate_argnums=0)
        for key in keys[:, 0]:
            donated, batch = run(donated, key)
            batches.append(batch)
    found = donated, jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    case.close(found, expected, "a donated step in jax.jit does something else than one without")
    with case.doing("a step in lax.scan"):
        scanned = over(step)(state, keys[:, 0])
    case.close(scanned, expected, "a step in lax.scan does something else than one in Python")

    def due(state: Any, key: Any) -> Any:
        kept = lambda state, key: (state, step(state, key)[1])
        return lax.cond(jnp.any(jax.random.key_data(key) > 0), step, kept, state, key)

    with case.doing("a step in lax.cond"):
        chosen = over(due)(state, keys[:, 0])
    case.close(chosen, expected, "a step in lax.cond does something else than one without")
    with case.doing("a step in jax.vmap"):
        many = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), state)
        seeds = over(jax.vmap(step))(many, keys)
    for seed in range(2):
        alone = over(step)(state, keys[:, seed])
        one = jax.tree.map(lambda leaf, seed=seed: leaf[seed], seeds[0])
        drawn = jax.tree.map(lambda leaf, seed=seed: leaf[:, seed], seeds[1])
        case.close((one, drawn), alone, "under jax.vmap a seed differs from the same seed alone")


def check_in_place(case: Case, state: Any, make: Callable[[Any], Any], view: Any) -> None:
    """Require that a loop of steps copies no array of the buffer."""
    step = step_of(state, make, view)
    run = jax.jit(lambda state, keys: lax.scan(step, state, keys), donate_argnums=0)
    keys = jax.random.split(jax.random.key(0), _TURNS)
    try:
        fbuf.check_in_place(run, state, keys)
    except RuntimeError as error:
        case.fail(f"a step copies an array of the buffer: {error}", error)


def step_of(state: Any, make: Callable[[Any], Any], view: Any) -> Callable[[Any, Any], Any]:
    """Return a step: an add, a draw, an update of priorities if there are any, and a removal."""
    lanes, one_lane = state.ring.lanes, state.ring.num_envs is None
    numbers = 1 + np.arange(_ROWS if one_lane else lanes)
    items = make(numbers)
    kept = state.next_obs
    led_to = {} if kept is None else {"next_observation": make(numbers + lanes)[kept.field]}

    def step(state: Any, key: Any) -> Any:
        ends = jax.random.bernoulli(key, 0.2, numbers.shape)
        state = fbuf.add(state, items, truncated=ends, **led_to)
        state, batch = draw(state, key, BATCH, view)
        if state.sampler.keeps_priorities:
            new = jax.random.uniform(key, (BATCH,)) * 2
            state = fbuf.update_priority(state, batch.ids, new)
        return fbuf.remove(state, jax.tree.map(lambda leaf: leaf[:1], batch.ids)), batch

    return step
