"""Taking a buffer apart: every episode is in exactly one part, as it was."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tags
from support.oracle import Oracle
from support.recorded import EXACT, ITEM, Recorded, agrees

import fbuf

SWEEP = pytest.mark.sweep

CASES = [  # environments, sampler, autoreset, in lockstep, next observations
    (3, fbuf.Prioritized(window=2, first_only=True, **EXACT), "next_step", False, True),
    (None, fbuf.Uniform(window=3, strict=False), "same_step", True, True),
    (None, fbuf.Prioritized(**EXACT), "same_step", True, True),
    (2, fbuf.Uniform(window=2, by="episode"), "next_step", True, False),
    (2, fbuf.Shuffled(window=2, stride=2), "same_step", True, False),
]


def expected(episodes, state):
    """An oracle of the part that holds these episodes."""
    oracle = Oracle(state.capacity)
    rows = [dataclasses.replace(row) for episode in episodes for row in episode]
    oracle.lanes = [[dataclasses.replace(row, generation=0) for row in rows]]
    lap = int(state.ring.lap[0]) - len(rows) // state.capacity
    oracle.laps = [lap]
    for at, row in enumerate(oracle.lanes[0]):
        row.generation = tags.generation(lap + at // state.capacity)
    return oracle


@SWEEP
@pytest.mark.parametrize(("envs", "sampler", "autoreset", "lockstep", "next_of"), CASES)
def test_each_episode_is_in_one_part(envs, sampler, autoreset, lockstep, next_of):
    for seed, steps in (1, 8), (2, 20):
        whole = Recorded(10, envs, sampler, seed, autoreset, lockstep, next_of).steps(steps)
        episodes = whole.oracle.episodes()
        for key, fraction in ((None, 0.6), (jax.random.key(seed), 0.5)):
            parts = fbuf.split(whole.state, key, fraction)
            number = min(max(round(fraction * len(episodes)), 1), len(episodes) - 1)
            firsts = [[row.number for row in episode if not row.removed] for episode in episodes]
            got = [[n for n in firsts if n[0] in items(part)] for part in parts]
            assert [len(of) for of in got] == [number, len(episodes) - number]
            if key is None:
                assert got[0] == firsts[:number]
            for part, own in zip(parts, got, strict=True):
                chosen = [e for e, n in zip(episodes, firsts, strict=True) if n in own]
                agrees(part, expected(chosen, part), next_of)
        together = fbuf.extend(fbuf.resize(parts[0], whole.state.capacity + 2), parts[1])
        assert sorted(items(together)) == sorted(n for of in firsts for n in of)
        agrees(whole.state, whole.oracle, next_of)  # it is as it was


def items(state):
    batch = fbuf.rows(state)
    return np.asarray(batch.data["n"])[np.asarray(batch.mask)].tolist()


def of_episodes(count, length=2, **options):
    n = jnp.arange(count * length, dtype=jnp.int32)
    state = fbuf.init(ITEM, 40, **options)
    return fbuf.add(state, {"n": n, "obs": n}, terminated=n % length == length - 1)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("count", "fraction", "sizes"),
    [
        pytest.param(2, 0.01, (1, 1), marks=SWEEP),
        pytest.param(2, 0.99, (1, 1), marks=SWEEP),
        pytest.param(10, 0.9, (9, 1), marks=SWEEP),
        pytest.param(10, 0.999, (9, 1), marks=SWEEP),
        (7, 0.5, (4, 3)),
    ],
)
def test_how_many_episodes_each_part_has(count, fraction, sizes):
    parts = fbuf.split(of_episodes(count), None, fraction)
    assert tuple(part.capacity // 2 for part in parts) == sizes
    assert items(parts[0]) + items(parts[1]) == list(range(2 * count))


@pytest.mark.sweep
def test_the_key_decides_and_parts_take_rows():
    state = of_episodes(10)
    one, same, other = (fbuf.split(state, jax.random.key(k), 0.5)[0] for k in (0, 0, 1))
    assert items(one) == items(same) == sorted(items(one))
    assert items(one) != items(other)
    row = {"n": jnp.int32(99), "obs": jnp.int32(99)}
    assert items(fbuf.add(fbuf.resize(one, 20), row))[-2:] == [items(one)[-1], 99]
    batch = fbuf.sample(other, jax.random.key(0), 64)
    assert set(batch.data["n"].tolist()) <= set(items(other))
    short = fbuf.split(of_episodes(2, sampler=fbuf.Uniform(window=5)), None, 0.5)[0]
    assert (short.capacity, bool(fbuf.can_sample(short))) == (5, False)


def batched():
    return jax.tree.map(lambda leaf: leaf[None], of_episodes(3))


def consumed():
    state = of_episodes(3)
    fbuf.clear(state)
    return state


KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: fbuf.split({}, KEY, 0.5), TypeError, "fbuf.split: state must be a fbuf.State"),
        (lambda: fbuf.split(of_episodes(3), 0.5, 0.5), TypeError, "fbuf.split: key must be"),
        (lambda: fbuf.split(of_episodes(3), KEY, 0.0), ValueError,
         "fbuf.split: fraction must be above 0 and below 1, so that both parts have an episode"),
        (lambda: fbuf.split(of_episodes(3), KEY, 1), ValueError, "above 0 and below 1"),
        (lambda: fbuf.split(of_episodes(3), KEY, -0.1), ValueError, "fraction must be"),
        (lambda: fbuf.split(of_episodes(3), KEY, "half"), TypeError, "must be a Python number"),
        (lambda: fbuf.split(of_episodes(1), KEY, 0.5), ValueError,
         "fbuf.split: two parts need two episodes, and the buffer has 1; mark where episodes end"),
        (lambda: fbuf.split(fbuf.init(ITEM, 4), None, 0.5), ValueError, "the buffer has 0"),
        (lambda: fbuf.split(of_episodes(3, sampler=fbuf.Fifo()), KEY, 0.5), ValueError,
         "fbuf.split: the rows of Fifo are used once, in their order; take them with fbuf.pop"),
        (lambda: fbuf.split(batched(), KEY, 0.5), ValueError, "split each by itself"),
        (lambda: jax.jit(lambda s: fbuf.split(s, KEY, 0.5))(of_episodes(3)), TypeError,
         "fbuf.split: state or key is traced; call fbuf.split outside of jit"),
        (lambda: fbuf.split(consumed(), KEY, 0.5), RuntimeError, "this state was consumed"),
    ],
)  # fmt: skip
def test_misuse(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
