"""Counts beyond 2**31, held against Python's integers, and the choice of one of many shards."""

import bisect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fbuf
from fbuf.mesh import count
from fbuf.samplers import shards
from fbuf.samplers.chance import wide
from fbuf.samplers.chance.wide import Wide
from tests.support import meshes

LARGEST = 2**31 - 1
COUNTS = {
    "one": [LARGEST],
    "two": [LARGEST, LARGEST],
    "empty between": [0, 5, 0, 0, LARGEST, 0],
    "none": [0, 0, 0],
    "carries": [2**16 - 1, 1, 2**31 - 2**16, 2**16, 2**30] * 3,
    "most shards": [LARGEST] * 2**16,
}


def ints(numbers: Wide) -> list[int]:
    high, low = (np.asarray(word).ravel().tolist() for word in numbers)
    return [upper << 32 | lower for upper, lower in zip(high, low, strict=True)]


def words(numbers: list[int]) -> Wide:
    high = jnp.asarray(np.array([number >> 32 for number in numbers], np.uint32))
    return Wide(high, jnp.asarray(np.array([number & 0xFFFFFFFF for number in numbers], np.uint32)))


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param(
            counts,
            id=name,
            marks=[pytest.mark.sweep] * (name in ("one", "two", "none", "empty between")),
        )
        for name, counts in COUNTS.items()
    ],
)
def test_running_sums_and_ranks(counts: list[int]) -> None:
    array = jnp.array(counts, jnp.int32)
    ends = list(itertools.accumulate(counts))
    assert ints(wide.running_sums(array)) == ends
    assert float(shards.sum_of_counts(array)) == pytest.approx(ends[-1], rel=2**-23)

    edges = {edge + by for edge in [0, *ends[:50], *ends[-50:]] for by in (-1, 0, 1)}
    ranks = sorted(rank for rank in edges if 0 <= rank < ends[-1])
    if ranks:
        shard, inside = shards.of_rank(array, words(ranks))
        expected = [bisect.bisect_right(ends, rank) for rank in ranks]
        assert shard.tolist() == expected
        assert inside.tolist() == [
            rank - (ends[at] - counts[at]) for rank, at in zip(ranks, expected, strict=True)
        ]


@pytest.mark.parametrize("total", [0, 1, 3, 2**31, 2**32 - 1, 2**32, 2**47 + 12345, 2**63 + 1])
def test_integers_below_a_total_are_the_upper_words_of_a_product(total: int) -> None:
    random = np.random.default_rng(total % 1000)
    bits = random.integers(0, 2**32, (3, 500), np.uint32)
    edges = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    bits = np.concatenate([bits, np.array(list(itertools.product(edges, repeat=3))).T], axis=1)
    scalar = Wide(jnp.uint32(total >> 32), jnp.uint32(total & 0xFFFFFFFF))
    expected = [
        (int(upper) << 64 | int(middle) << 32 | int(lower)) * total >> 96
        for upper, middle, lower in bits.T
    ]
    assert ints(wide.below(jnp.asarray(bits), scalar)) == expected


@pytest.mark.sweep
def test_one_of_a_thousand_full_shards_is_chosen_as_often_as_each_other() -> None:
    counts = jnp.full(1000, LARGEST, jnp.int32)
    draw = jax.jit(lambda key: shards.by_count(counts, key, jnp.zeros((2, 2**19), jnp.uint32)))
    shard, rank = draw(jax.random.key(0))
    assert stats.chisquare(np.bincount(shard, minlength=1000)).pvalue > 1e-3
    # Which part of its shard, in 256: the upper bits of 31.
    assert stats.chisquare(np.bincount(rank >> 23, minlength=256)).pvalue > 1e-3
    # And the lowest ones, where a number of 24 bits would have none.
    assert stats.chisquare(np.bincount(rank & 255, minlength=256)).pvalue > 1e-3


@pytest.mark.sweep
def test_shards_are_chosen_by_their_totals() -> None:
    totals = np.random.default_rng(0).random(1000).astype(np.float32)
    totals[::7] = 0
    totals[5] = 100
    draw = jax.jit(lambda key: shards.by_total(jnp.asarray(totals), key, 2**19))
    drawn = np.bincount(draw(jax.random.key(0)), minlength=1000)
    assert not drawn[totals == 0].any()
    some = totals > 0
    share = totals[some].astype(np.float64)
    expected = share / share.sum() * drawn.sum()
    assert stats.chisquare(drawn[some], expected).pvalue > 1e-3


@pytest.mark.on_cpu
@pytest.mark.parametrize("rows", [0, 5, 2**30, LARGEST])
def test_the_rows_of_all_shards_are_counted_beyond_int32(rows: int) -> None:
    mesh = meshes.mesh(8)
    state = jax.eval_shape(lambda: fbuf.sharded.init(jnp.zeros(()), 2**33, mesh=mesh))
    assert count.is_wide(state)
    assert isinstance(jax.eval_shape(fbuf.sharded.size, state), fbuf.sharded.Count)
    each = jax.NamedSharding(mesh, jax.P("data"))
    total = jax.jit(
        jax.shard_map(
            lambda counts: count.total(state, counts),
            mesh=mesh,
            in_specs=jax.P("data"),
            out_specs=jax.P(),
        )
    )(jax.device_put(np.full(8, rows, np.int32), each))
    assert int(total) == 8 * rows
    for least in {0, 5, LARGEST}:
        assert bool(count.at_least(total, jnp.int32(least))) is (8 * rows >= least)
