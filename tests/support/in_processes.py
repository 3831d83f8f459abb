"""Functions that tests run in processes. They import no JAX and no PyTorch, and start quickly."""

import ctypes
import os
import random
import signal
import sys
import threading
import time

import gymnasium
import numpy as np
from gymnasium import spaces

TAKEN = ("jax", "torch", "fbuf", "tensordict")
"""Modules that no process imports by itself."""


class Counting(gymnasium.Env):
    """Observes its seed, its steps in all, its episode, the step in it; and facts of its process.

    Its action is stored as it is. Its episodes are of 5 steps, and end and are cut off by turns.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (9,), np.float64)
    action_space = spaces.Discrete(1000)

    def __init__(self, fails=None, at=12, seeds=None, seconds=0.0, slow=None, reuses=False):
        self.metadata, self.room = {}, np.zeros(9) if reuses else None
        self.fails, self.fails_at, self.seeds = fails, at, seeds
        self.seconds, self.slow = seconds, slow
        self.seed = self.total = self.episode = -1
        if fails == "constructor":
            raise ValueError("no such game")
        if fails == "space":
            self.observation_space = spaces.Text(5)

    def observation(self):
        found = np.array(
            [
                self.seed,
                self.total,
                self.episode,
                self.step_in_it,
                self.draws[0],
                self.draws[1],
                any(name in sys.modules for name in TAKEN),
                os.environ["CUDA_VISIBLE_DEVICES"] == "" and os.environ["JAX_PLATFORMS"] == "cpu",
                os.getpid(),
            ]
        )
        if self.room is None:
            return found
        self.room[:] = found
        return self.room

    def reset(self, *, seed=None, options=None):
        if self.fails == "reset" and self.seeds == (seed,):
            raise ValueError("no such level")
        if seed is not None:
            # The test is about numbers drawn from the global generators.
            self.seed, self.draws = seed, (random.random(), np.random.rand())  # noqa: NPY002
        self.episode, self.step_in_it = self.episode + 1, 0
        self.total += 1
        return self.observation(), {}

    def step(self, action):
        self.total += 1
        self.step_in_it += 1
        if self.slow is None or self.seed in self.slow:
            time.sleep(self.seconds)
        if self.total >= self.fails_at and (self.seeds is None or self.seed in self.seeds):
            wrong = self.fail()
            if wrong is not None:
                return wrong
        ends = self.step_in_it == 5
        cut = self.episode % 2 == 1
        return self.observation(), float(action), ends and not cut, ends and cut, {}

    def fail(self):
        if self.fails == "raises":
            raise ValueError("the game is broken")
        if self.fails == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fails == "exits":
            os._exit(7)
        if self.fails == "hangs":
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1)
        if self.fails == "hangs in C":
            ctypes.PyDLL(None).sleep(1000)  # with Python's lock, so no other thread runs
        if self.fails == "shape":
            return np.zeros(3), 0.0, False, False, {}
        if self.fails == "values":
            return np.zeros(9), 0.0
        return None


class Policy:
    """Acts as its weights say, and says what it did."""

    def __init__(self, fails=None):
        self.action, self.calls, self.fails = 0, 0, fails

    def load(self, weights):
        if self.fails == "load":
            raise KeyError("no such weight")
        self.action = int(weights["layers"][0][1])

    def __call__(self, observation):
        self.calls += 1
        if self.fails and self.calls > 6:
            if self.fails == "raises":
                raise KeyError("no such weight")
            return np.zeros(len(observation) + 1, np.int64)
        action = np.full(len(observation), self.action)
        return action, {"calls": np.full(len(observation), self.calls, np.int32)}


class Drawing:
    """Draws actions from a generator of its own."""

    def __init__(self):
        self.seeds, self.random = [], np.random.default_rng(0)

    def seed(self, number):
        self.seeds.append(number)
        self.random = np.random.default_rng(number)

    def __call__(self, observation):
        return self.random.integers(1000, size=len(observation))


class Seeded(Policy):
    """Says in each row the number that it was seeded with, if it was seeded once."""

    seeds = None

    def seed(self, number):
        self.seeds = number if self.seeds is None else -1

    def __call__(self, observation):
        action, extras = super().__call__(observation)
        return action, {**extras, "seeds": np.full(len(observation), self.seeds)}


def weights(version):
    return {"layers": [np.full(3, version, np.float32), ()], "bias": np.float32(version)}
