"""Reads what an editor shows: public names with their types, and no other."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import jax.numpy as jnp

import fbuf


def main() -> None:
    assert_type(fbuf.__version__, str)
    state = fbuf.init({"observation": jnp.zeros(4)}, 100)
    assert_type(state, fbuf.State[dict[str, jax.Array]])
    assert_type(state.sampler.window, int)
    batch = fbuf.sample(state, jax.random.key(0), 8)
    assert_type(batch.weight, jax.Array)
    assert_type(fbuf.rows(state, view=fbuf.NStep(3, gamma=0.9)).data.reward, jax.Array)
    assert_type(fbuf.size(state), jax.Array)
    store: fbuf.host.HostStore[Any] = fbuf.host.HostStore(jnp.zeros(4), 100)
    assert_type(store.capacity, int)
    # An argument by another name, and a name that is not there, are errors before the program runs.
    fbuf.sample(state, jax.random.key(0), size=8)  # pyright: ignore[reportCallIssue]
    fbuf.samples(state)  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    main()
