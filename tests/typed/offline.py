"""Learns from a data set, and goes on to collect."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import numpy as np
from fbuf_adapters.datasets import from_arrays, from_d4rl, to_npz

import fbuf


def main() -> None:
    rows = {"observation": np.zeros((100, 4), np.float32), "reward": np.ones(100, np.float32)}
    ends = np.arange(100) % 10 == 9
    state: fbuf.State[Any] = from_arrays(
        rows, terminated=ends, truncated=False, next_of="observation", sampler=fbuf.Shuffled()
    )
    for step in range(10):
        batch = fbuf.sample(state, jax.random.key(0), 32, step=step, view=fbuf.ReturnToGo(0.9))
        assert_type(batch.data.return_to_go, jax.Array)
        print(batch.data.return_to_go.mean())
    train, rest = fbuf.split(state, jax.random.key(1), 0.8)
    print(train.capacity, rest.capacity, fbuf.stats(train)["size"])
    to_npz(train, "train.npz")
    walks = from_d4rl("walks.hdf5", max_episode_steps=1000, casts={"reward": "float32"})
    print(fbuf.rows(walks).terminated.sum())


if __name__ == "__main__":
    main()
