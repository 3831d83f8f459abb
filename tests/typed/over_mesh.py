"""Has a buffer of one device and one over a mesh: their batches and ids are of two types."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import jax.numpy as jnp

import fbuf

Tree = dict[str, jax.Array]


def main() -> None:
    item, key = {"x": jnp.zeros(4)}, jax.random.key(0)
    sampler, mesh = fbuf.Prioritized(), jax.make_mesh((1,), ("data",))
    one = fbuf.init(item, 8, sampler=sampler)
    state = fbuf.sharded.init(item, 8, mesh=mesh, sampler=sampler)
    rows = {"x": jnp.ones((8, 4))}
    one, state = fbuf.add(one, rows), fbuf.add(state, rows)
    assert_type(one, fbuf.State[Tree])
    assert_type(state, fbuf.sharded.ShardedState[Tree])
    drawn, batch = fbuf.sample(one, key, 8), fbuf.sample(state, key, 8)
    assert_type(drawn, fbuf.Sample[Any])
    assert_type(batch, fbuf.sharded.ShardedSample[Any])
    assert_type(fbuf.sharded.sample(state, key, 8), fbuf.sharded.ShardedSample[Any])
    assert_type(fbuf.sample(state, key, 8, view=fbuf.NStep(3, gamma=0.9)).data.reward, jax.Array)
    assert_type(batch.ids, fbuf.sharded.ShardedIds)
    assert_type(fbuf.size(one), jax.Array)
    assert_type(fbuf.size(state), jax.Array | fbuf.sharded.Count)
    state = fbuf.update_priority(state, batch.ids, jnp.ones(8))
    state = fbuf.after(fbuf.write(state, batch.ids, {"x": jnp.ones((8, 4))}), batch)
    assert_type(state, fbuf.sharded.ShardedState[Tree])
    assert_type(fbuf.neighbours(state, batch.ids, (-1,)), fbuf.sharded.ShardedIds)
    fbuf.raise_on_fault(batch)
    # Ids of the other kind, and an argument that there is not over a mesh, are errors beforehand.
    fbuf.remove(one, batch.ids)  # pyright: ignore[reportCallIssue, reportArgumentType]
    fbuf.remove(state, drawn.ids)  # pyright: ignore[reportCallIssue, reportArgumentType]
    fbuf.sample(state, key, 8, count=4)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
