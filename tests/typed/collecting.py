"""Collects with a policy, into a buffer and into a store."""

from __future__ import annotations

from typing import Any, assert_type

import gymnasium
import jax
import numpy as np
from fbuf_adapters.gymnasium import Collector, ProcessCollector

import fbuf
from fbuf.host import HostStore


def policy(observation: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return (observation[:, 2] > 0).astype(np.int64)


def main() -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")
    with Collector(envs, policy, seed=0, info={"is_success": np.bool_(False)}) as collector:
        state = fbuf.init(collector.item, 4000, next_of="observation", **collector.options)
        state = collector.collect(state, 100)
        capacity: int = state.capacity
        batch = fbuf.sample(state, jax.random.key(0), 32, view=fbuf.NStep(3, gamma=0.99))
        assert_type(batch.data.reward, jax.Array)
        print(batch.data.reward.mean(), collector.stats()["mean_return"], capacity)
    with ProcessCollector(
        lambda: gymnasium.make("CartPole-v1"), policy, processes=2, envs_per_process=2
    ) as several:
        store = HostStore(several.item, 4000, **several.options)
        store = several.drain(store, at_least=10)
        print(store.size(), store.sample(jax.random.key(0), 8).weight.sum())


if __name__ == "__main__":
    main()
