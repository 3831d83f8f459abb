"""Next observations that are kept aside."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

import fbuf
from fbuf.storage.append import append
from fbuf.storage.next_obs import NextObs
from fbuf.storage.store import Storage


def test_they_are_written_once_those_of_the_rows_before_are_read(monkeypatch):
    """Also at a place that XLA knows, as that of the only lane. On a GPU it copied them all."""
    state = fbuf.init({"frame": jnp.zeros(300, jnp.uint8)}, 16, next_of="frame")
    flags, rows = jnp.zeros(2, jnp.uint8), jnp.ones((2, 300), jnp.uint8)
    ring, span = append(state.ring, flags, None, before=state.fault)
    waits = []

    @jax.custom_batching.custom_vmap
    def seen(slots):
        return slots

    @seen.def_vmap
    def _(size, batched, slots):
        waits.append(batched[0])
        return slots, batched[0]

    def add(wide):
        """A buffer of which only what is kept differs: so does all that waits for it."""
        kept = dataclasses.replace(state.next_obs.rows, wide=(wide,))
        next_obs = dataclasses.replace(state.next_obs, rows=kept)
        next_obs.add(ring, span, flags, rows, observation=rows)

    known = lambda self, ring, slots, ends, newest, write: (write(jnp.arange(2)), 0)
    monkeypatch.setattr(NextObs, "_keep", known)
    monkeypatch.setattr(Storage, "write", lambda storage, slots, rows: seen(slots))
    (wide,) = state.next_obs.rows.wide
    jax.vmap(add)(jnp.stack([wide, wide + 1]))
    assert waits == [True]
