"""A learner in JAX: add, sample and update in one compiled step."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import jax.numpy as jnp

import fbuf

Item = dict[str, jax.Array]


def loss(params: jax.Array, batch: fbuf.Sample[fbuf.NStepTransition[Item]]) -> jax.Array:
    step = batch.data
    value = step.item["obs"] @ params
    target = step.reward + step.discount * (step.next_observation @ params)
    return jnp.mean(batch.weight * (target - value) ** 2)


@jax.jit
def train(
    state: fbuf.State[Item], params: jax.Array, rows: Item, key: jax.Array
) -> tuple[fbuf.State[Item], jax.Array]:
    state = fbuf.add(state, rows, next_observation=rows["obs"], terminated=rows["done"] > 0)
    batch = fbuf.sample(state, key, 32, view=fbuf.NStep(3, gamma=0.99))
    grad = jax.grad(loss)(params, batch)
    state = fbuf.update_priority(state, batch.ids, jnp.abs(batch.data.reward))
    return state, params - 0.1 * grad


def main() -> None:
    item = {"obs": jnp.zeros(4), "reward": jnp.zeros(()), "done": jnp.zeros(())}
    sampler = fbuf.Prioritized(window=3)
    state = fbuf.init(item, 1000, num_envs=4, sampler=sampler, next_of="obs")
    params, key = jnp.zeros(4), jax.random.key(0)
    rows = {"obs": jnp.ones((4, 4)), "reward": jnp.ones(4), "done": jnp.zeros(4)}
    for step in range(10):
        state, params = train(state, params, rows, jax.random.fold_in(key, step))
    plain = fbuf.sample(state, key, 8)
    assert_type(plain.weight, jax.Array)
    assert_type(plain.ids.slot, jax.Array)
    windows = fbuf.sample(state, key, 8, view=fbuf.Sequence(3))
    assert_type(windows.data.loss_mask, jax.Array)
    found = fbuf.read(state, windows.ids, view=fbuf.ReturnToGo(0.9))
    assert_type(found.data.return_to_go, jax.Array)
    assert_type(fbuf.rows(state, view=fbuf.Transition()), fbuf.Batch[fbuf.TransitionStep[Any]])
    print(plain.data["reward"].sum(), windows.mask.sum(), found.mask.sum(), int(fbuf.size(state)))
    fbuf.raise_on_fault(state)
    fbuf.save("run", state, extra={"params": params})
    checkpoint = fbuf.load("run")
    print(checkpoint.state.capacity)


if __name__ == "__main__":
    main()
