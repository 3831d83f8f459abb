"""The statistics of episodes: each return is of its own rewards, whatever these are."""

import math

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from fbuf_adapters.gymnasium._chunk import StepChunk
from fbuf_adapters.gymnasium._episodes import EpisodeStats


def chunk(reward, terminated, fresh=False):
    none = np.zeros_like(terminated)
    return StepChunk(None, None, reward, terminated, none, None, {}, 0, fresh)


@pytest.mark.parametrize("dummies", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_returns_and_lengths_are_those_of_the_rewards(dummies, seed):
    rng, envs = np.random.default_rng(seed), 3
    followed = EpisodeStats(envs, "next_step" if dummies else "same_step")
    open_, returns, lengths = [[] for _ in range(envs)], [], []
    skipped = [False] * envs
    for _ in range(12):
        steps = int(rng.integers(0, 9))
        rewards, often = [1.0, -2.5, 1e20, np.nan, np.inf], [0.5, 0.4, 0.04, 0.03, 0.03]
        reward = rng.choice(rewards, (steps, envs), p=often)
        ended = rng.random((steps, envs)) < 0.3
        fresh = bool(rng.random() < 0.1)
        if fresh:
            open_, skipped = [[] for _ in range(envs)], [False] * envs
        for s in range(steps):
            for e in range(envs):
                if skipped[e]:
                    reward[s, e], ended[s, e], skipped[e] = 0, False, False
                    continue
                open_[e].append(reward[s, e])
                if ended[s, e]:
                    returns.append(float(np.sum(open_[e])))
                    lengths.append(len(open_[e]))
                    open_[e], skipped[e] = [], bool(dummies)
        with np.errstate(all="raise"):
            followed.see(chunk(reward.astype(np.float32), ended, fresh))
    assert followed.count == len(returns) > 20
    np.testing.assert_allclose(followed._returns, np.float32(returns[-100:]), rtol=1e-6)
    assert list(followed._lengths) == lengths[-100:]
    finite = [gained for gained in returns[-100:] if math.isfinite(gained)]
    np.testing.assert_allclose(followed.stats()["mean_return"], np.mean(finite), rtol=1e-5)


def test_without_a_finite_return_there_is_no_mean():
    followed = EpisodeStats(1, "same_step")
    followed.see(chunk(np.array([[np.inf], [-np.inf]], np.float32), np.ones((2, 1), bool)))
    assert followed.stats() == {"episodes": 2, "mean_return": None, "mean_length": 1.0}
