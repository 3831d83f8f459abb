"""A large batch thinned: equal to a list of its rows, and as often as errors say."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats

import fbuf
import fbuf.ops.thin

KEY = jax.random.key(0)
SAMPLERS = {
    "uniform": fbuf.Uniform(),
    "prioritized": fbuf.Prioritized(alpha=1.0, beta=0.7, eps=0.0),
    "window": fbuf.Mixture(priorities=fbuf.Prioritized(window=2)),
}
LARGE = 96
NAN, INF = float("nan"), float("inf")


def buffer(sampler="prioritized", rows=20):
    state = fbuf.init({"x": jnp.float32(0)}, 24, sampler=SAMPLERS[sampler])
    numbers = jnp.arange(rows, dtype=jnp.float32)
    ends = {"terminated": numbers % 5 == 4, "truncated": numbers % 7 == 6}
    if SAMPLERS[sampler].keeps_priorities:
        ends["priority"] = 1 + numbers
    return fbuf.add(state, {"x": numbers}, **ends)


def large_batch(sampler="prioritized", size=LARGE, **options):
    """A batch whose data has the place of each row, too."""
    batch = fbuf.sample(buffer(sampler), KEY, size, **options)
    return dataclasses.replace(batch, data={**batch.data, "at": jnp.arange(size, dtype=jnp.int32)})


def listed(batch, error):
    """The share of each row, its weight and its probability, looked up row by row in float64."""
    error = np.asarray(error, np.float64)
    counts = [
        bool(m) and math.isfinite(e) and e >= 0 for m, e in zip(batch.mask, error, strict=True)
    ]
    kept = [e if c else 0.0 for e, c in zip(error, counts, strict=True)]
    if not any(kept):
        kept = [float(c) for c in counts]
    number, total = sum(counts), sum(kept)
    share = np.array(kept) / max(total, 1e-300)
    times = np.where(share > 0, share * number, 1)
    weight = np.where(share > 0, np.asarray(batch.weight, np.float64) / times, 0)
    return share, weight, np.asarray(batch.probability, np.float64) * times, counts


def errors(kind, size=LARGE):
    rng = np.random.default_rng(7)
    error = rng.gamma(0.5, 2.0, size)
    error[rng.random(size) < 0.2] = 0
    if kind == "bad":
        error[::6], error[1::9], error[2::11] = NAN, -1.0, INF
    if kind == "nothing":
        error[:] = 0
    if kind == "nothing and bad":
        error[:], error[::2], error[1] = 0, NAN, -2.0
    if kind == "huge":
        error = np.where(error > 1, 3.4e38, error * 1e38)
    if kind == "tiny":
        error = np.where(error > 0, 2e-38 + error * 1e-37, 0)
    return jnp.asarray(error.astype(np.float32))


@jax.jit
def many(batch, error):
    """200,000 draws, which are a hundred thin batches."""
    keys = jax.random.split(jax.random.key(3), 100)
    return lax.map(lambda key: fbuf.thin(batch, key, 2000, error), keys)


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", ["good", "bad", "nothing", "nothing and bad", "huge", "tiny"])
@pytest.mark.parametrize(
    "sampler", ["prioritized", pytest.param("uniform", marks=pytest.mark.sweep)]
)
def test_rows_are_drawn_as_often_as_their_errors_say(sampler, kind):
    batch, error = large_batch(sampler, count=90), errors(kind)
    share, weight, probability, counts = listed(batch, error)
    assert sum(counts) < 91
    thin = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1), many(batch, error))
    at = thin.data["at"]
    frequency = np.bincount(at, minlength=LARGE)
    assert frequency[share == 0].sum() == 0
    likely = share > 0
    assert stats.chisquare(frequency[likely], share[likely] * at.size).pvalue > 1e-4
    assert thin.mask.all()
    np.testing.assert_allclose(thin.weight, weight[at], rtol=2e-5)
    np.testing.assert_allclose(thin.probability, probability[at], rtol=2e-5)
    whole = jax.tree.map(np.asarray, batch)
    np.testing.assert_array_equal(thin.data["x"], whole.data["x"][at])
    np.testing.assert_array_equal(thin.ids.slot, whole.ids.slot[at])
    np.testing.assert_array_equal(thin.ids.generation, whole.ids.generation[at])
    np.testing.assert_array_equal(thin.terminated, whole.terminated[at])
    np.testing.assert_array_equal(thin.truncated, whole.truncated[at])


def test_the_expected_mean_is_that_of_the_large_batch():
    """Over each row that can come, its share times its weighted value is the mean, exactly."""
    batch, error = large_batch("prioritized", count=80), errors("good")
    thin = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1), many(batch, error))
    share, *_, counts = listed(batch, error)
    value = np.asarray(error, float) * np.cos(np.arange(LARGE))  # 0 where the error is
    seen = np.zeros(LARGE)
    seen[thin.data["at"]] = thin.weight
    assert (seen[share > 1e-3] > 0).all()
    rare = (share > 0) & (seen == 0)
    found = (share * seen * value).sum()
    expected = (np.asarray(batch.weight, float) * value)[counts & ~rare].sum() / sum(counts)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_the_probability_makes_up_for_both_draws(sampler):
    """Over many large batches, `1 / probability` finds the sum over the rows of the buffer."""
    state, rows = buffer(sampler), np.arange(20)

    def one(key):
        first, second = jax.random.split(key)
        large = fbuf.sample(state, first, 16)
        return fbuf.thin(large, second, 1, large.data["x"] ** 2)

    keys = jax.random.split(jax.random.key(5), 20_000)
    thin = jax.jit(lambda keys: lax.map(one, keys, batch_size=500))(keys)
    value = np.asarray(thin.data["x"] * jnp.sin(thin.data["x"]), float)
    estimates = [(value / np.asarray(thin.probability), (rows * np.sin(rows)).sum())]
    if sampler == "uniform":
        estimates.append((value * np.asarray(thin.weight), (rows * np.sin(rows)).mean()))
    for found, expected in estimates:
        assert abs(found.mean() - expected) < 4 * found.std() / len(keys) ** 0.5


def test_a_batch_without_rows_is_masked():
    empty = fbuf.init({"x": jnp.float32(0)}, 8, sampler=SAMPLERS["prioritized"])
    batch = fbuf.sample(empty, KEY, 12)
    nothing = [(batch, jnp.ones(12)), (large_batch(size=12), jnp.full(12, NAN))]
    nothing.append((large_batch(size=12, count=0), jnp.ones(12)))
    for large, error in nothing:
        ended = jnp.ones_like(large.mask)
        large = dataclasses.replace(large, terminated=ended, truncated=ended)
        thin = fbuf.thin(large, KEY, 3, error)
        assert not thin.mask.any()
        assert thin.weight.tolist() == thin.probability.tolist() == [0.0] * 3
        assert thin.ids.slot.tolist() == [-1] * 3
        assert not (thin.terminated | thin.truncated).any()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(thin))
    state = fbuf.update_priority(empty, thin.ids, jnp.ones(3))
    assert int(state.fault) == 0


@pytest.mark.first(2)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 600])
def test_large_batches_of_any_size(size):
    batch = large_batch("uniform", size=size)
    for at in {0, size // 2, size - 1}:  # one row alone has an error
        thin = fbuf.thin(batch, KEY, 4, jnp.zeros(size).at[at].set(2.0))
        assert thin.data["at"].tolist() == [at] * 4
        np.testing.assert_allclose(thin.weight, 1 / size, rtol=1e-6)


def test_sequences_are_cut_whole():
    state = buffer("uniform")
    view = fbuf.Sequence(3, boundary="pad")
    batch = fbuf.sample(state, KEY, 32, view=view)
    error = fbuf.sequence_priority(batch.data.item["x"], batch.data.loss_mask)
    thin = fbuf.thin(batch, jax.random.key(1), 8, error)
    again = fbuf.read(state, thin.ids, view=view)
    for one, other in zip(jax.tree.leaves(thin.data), jax.tree.leaves(again.data), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(thin.terminated, again.terminated)
    assert thin.data.item["x"].shape == (8, 3)


@pytest.mark.first(2)
@pytest.mark.parametrize("form", ["steps", "within", "traced", "mesh", "host"])
def test_as_many_sequences_as_steps_are_cut_whole(form):
    """`SequenceSteps.time_major` says that the rows come first."""
    view = fbuf.Sequence(8, boundary="pad")
    thin: Any = fbuf.thin
    if form == "mesh":
        state = fbuf.sharded.init({"x": jnp.float32(0)}, 24, mesh=jax.make_mesh((1,), ("data",)))
        state = fbuf.sharded.add(state, {"x": jnp.arange(20.0)})
        batch, thin = (
            fbuf.sharded.sample(state, KEY, 8, view=view),
            functools.partial(fbuf.sharded.thin, state),
        )
    elif form == "host":
        store = fbuf.host.HostStore({"x": jnp.float32(0)}, 24)
        store.add({"x": jnp.arange(20.0)})
        batch = store.sample(KEY, 8, view=view)
    else:
        batch = fbuf.sample(buffer("uniform"), KEY, 8, view=view)
    if form == "within":
        batch = dataclasses.replace(batch, data={"steps": (batch.data, batch.ids.slot)})
    if form == "traced":
        thin = jax.jit(fbuf.thin, static_argnames="count")
    error = jnp.zeros(8).at[5].set(1.0)
    found = thin(batch, jax.random.key(1), count=3, error=error)
    data, large = (of.data["steps"][0] if form == "within" else of.data for of in (found, batch))
    large = jax.tree.map(np.asarray, large)
    assert not np.array_equal(large.item["x"], large.item["x"].T)
    for a, b in zip(jax.tree.leaves(data), jax.tree.leaves(large), strict=True):
        np.testing.assert_array_equal(a, np.broadcast_to(b[5], (3, *b.shape[1:])))
    np.testing.assert_array_equal(found.ids.slot, np.broadcast_to(batch.ids.slot[5], 3))


def test_rows_that_a_view_masks_are_never_drawn():
    state = fbuf.init({"x": jnp.float32(0)}, 32, next_of="x", max_ends=1)
    numbers = jnp.arange(32, dtype=jnp.float32)
    state = fbuf.add(
        state, {"x": numbers}, next_observation=numbers + 1, truncated=numbers % 4 == 3
    )
    batch = fbuf.sample(state, KEY, 64, view=fbuf.Transition())
    assert 0 < int(batch.mask.sum()) < 64
    thin = fbuf.thin(batch, KEY, 500, jnp.ones(64))
    assert thin.mask.all()
    np.testing.assert_allclose(thin.weight, 1, rtol=1e-6)
    assert (thin.ids.slot >= 0).all()


def test_it_is_the_same_in_every_way():
    batch, error = large_batch(size=32), errors("bad", 32)
    thin = functools.partial(fbuf.thin, count=6)
    keys = jax.random.split(KEY, 3)
    eager = jax.tree.map(
        lambda *leaves: np.stack(leaves), *[thin(batch, key=key, error=error) for key in keys]
    )
    one = lambda key: fbuf.thin(batch, key, 6, error)
    ways = [
        jax.jit(lambda keys: lax.scan(lambda _, key: (0, one(key)), 0, keys)[1])(keys),
        jax.jit(jax.vmap(one))(keys),
        jax.vmap(lambda b, k, e: fbuf.thin(b, k, 6, e), (None, 0, None))(batch, keys, error),
        jax.jit(jax.vmap(lambda key: jax.jit(fbuf.thin, static_argnums=2)(batch, key, 6, error)))(
            keys
        ),
    ]
    for way in ways:
        for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(way), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_host_arrays_and_wide_types():
    batch = jax.tree.map(np.asarray, large_batch(size=16))
    error = np.asarray(errors("good", 16))
    expected = fbuf.thin(large_batch(size=16), KEY, 5, error)
    found = fbuf.thin(batch, KEY, 5, error)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    for dtype in (jnp.float16, jnp.bfloat16, jnp.int32, jnp.uint8):
        thin = fbuf.thin(batch, KEY, 5, (10 * error).astype(dtype))
        assert thin.weight.dtype == thin.probability.dtype == jnp.float32
    with jax.enable_x64(True):
        wide = fbuf.thin(large_batch(size=16), KEY, 5, error.astype(np.float64))
        assert wide.ids.slot.dtype == jnp.int32
        assert wide.weight.dtype == wide.probability.dtype == jnp.float32
        np.testing.assert_array_equal(wide.ids.slot, expected.ids.slot)


def test_the_error_gets_no_gradient():
    batch = large_batch(size=8)

    def loss(scale):
        thin = fbuf.thin(batch, KEY, 4, jnp.abs(scale * batch.data["x"]) + 1)
        return (thin.weight * scale * thin.data["x"]).mean()

    thin = fbuf.thin(batch, KEY, 4, jnp.abs(2 * batch.data["x"]) + 1)
    np.testing.assert_allclose(
        jax.grad(loss)(2.0), (thin.weight * thin.data["x"]).mean(), rtol=1e-6
    )


def test_what_is_refused():
    state, batch = buffer("uniform"), large_batch(size=6)
    view = fbuf.Sequence(4, boundary="pad", time_major=True)
    turned = fbuf.sample(state, KEY, 6, view=view)
    turned_square = fbuf.sample(state, KEY, 4, view=view)
    square = fbuf.sample(state, KEY, 4, view=dataclasses.replace(view, time_major=False))
    square = dataclasses.replace(square, data=square.data.item)
    mixed = fbuf.sample_mixed([(state, 1.0)], KEY, 6)
    wrong = dataclasses.replace(batch, data=jnp.zeros((5, 6)))
    cases = [
        (turned, 6, ValueError, r"batch\.data\.item\['x'\] is of shape \(4, 6\).*time_major out"),
        (turned_square, 4, ValueError, "time first.*time_major out"),
        (square, 4, ValueError, "4 rows of 4 steps.*another number of rows"),
        (wrong, 6, ValueError, r"batch\.data is of shape \(5, 6\)"),
        (mixed, 6, TypeError, "got MixedSample; thin a batch of each buffer"),
        (fbuf.rows(state), 24, TypeError, "must be a fbuf.Sample, got Batch; give what"),
        (state, 6, TypeError, "must be a fbuf.Sample, got State"),
    ]
    for given, size, error, message in cases:
        with pytest.raises(
            error, match=r"fbuf\.thin: batch" + ".*" + message.removeprefix("batch")
        ):
            fbuf.thin(given, KEY, 2, jnp.ones(size))
    mesh = jax.make_mesh((1,), ("data",))
    spread = fbuf.sharded.init(jnp.float32(0), 8, mesh=mesh)
    spread = fbuf.sharded.add(spread, jnp.arange(4.0))
    drawn = fbuf.sharded.sample(spread, KEY, 4)
    with pytest.raises(TypeError, match=r"got ShardedSample; over a mesh use fbuf\.sharded\.thin"):
        fbuf.thin(drawn, KEY, 2, jnp.ones(4))
    plain = fbuf.sample(state, KEY, 4)
    with pytest.raises(
        TypeError, match=r"sharded\.thin: batch must be a .*ShardedSample, got Sample"
    ):
        fbuf.sharded.thin(spread, plain, KEY, 2, jnp.ones(4))
    with pytest.raises(ValueError, match=r"sharded\.thin: error must be of shape \(4,\)"):
        fbuf.sharded.thin(spread, drawn, KEY, 2, jnp.ones(5))


ITEM = {
    "x": jnp.float32(0),
    "image": jnp.zeros((3, 5), jnp.uint8),
    "half": jnp.bfloat16(0),
    "flag": jnp.bool_(0),
}


def over_shards(devices):
    """A buffer over eight shards, a large batch of it with masked rows, and errors."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("data",))
    sampler = fbuf.Prioritized(alpha=1.0, beta=0.7)
    state = fbuf.sharded.init(ITEM, 64, mesh=mesh, shards=8, sampler=sampler)
    x = np.arange(48)
    rows = {
        "x": -x.astype(np.float32),  # one is -0.0
        "image": (x[:, None, None] + np.arange(15).reshape(3, 5)).astype(np.uint8),
        "half": jnp.asarray(x, jnp.bfloat16),
        "flag": x % 3 == 0,
    }
    priority = 1 + x.astype(np.float32)
    state = fbuf.sharded.add(state, rows, priority=priority, truncated=x % 4 == 1)
    batch = fbuf.sharded.sample(state, KEY, 64)
    mask = jax.device_put(np.arange(64) % 5 > 0, batch.mask.sharding)
    batch = dataclasses.replace(batch, mask=mask)
    error = np.random.default_rng(0).random(64).astype(np.float32)
    error[[6, 7, 8]] = NAN, INF, -1
    return state, batch, jax.device_put(error, mask.sharding)


@pytest.mark.sweep
@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
@pytest.mark.parametrize("devices", [2, pytest.param(8, marks=pytest.mark.sweep)])
def test_a_batch_over_a_mesh_is_thinned_as_one_batch(devices):
    state, batch, error = over_shards(devices)
    thin = fbuf.sharded.thin(state, batch, jax.random.key(1), 16, error)
    assert all(leaf.sharding == batch.mask.sharding for leaf in (thin.mask, thin.data["x"]))
    found, large = jax.tree.map(np.asarray, (thin, batch))
    fields = ("data", "mask", "terminated", "truncated", "probability", "weight")
    ids = fbuf.Ids(large.ids.slot + 100 * large.ids.shard, large.ids.generation)
    plain = fbuf.Sample(ids=ids, **{name: getattr(large, name) for name in fields})
    plain = jax.tree.map(jnp.asarray, plain)
    expected = fbuf.thin(plain, jax.random.key(1), 16, np.asarray(error))
    for name in fields:
        for a, b in zip(
            jax.tree.leaves(getattr(found, name)),
            jax.tree.leaves(getattr(expected, name)),
            strict=True,
        ):
            np.testing.assert_array_equal(a.view(np.uint8), np.asarray(b).view(np.uint8))
    np.testing.assert_array_equal(found.ids.slot + 100 * found.ids.shard, expected.ids.slot)
    np.testing.assert_array_equal(found.ids.generation, expected.ids.generation)
    none = fbuf.sharded.thin(state, batch, jax.random.key(1), 16, jnp.full(64, NAN))
    assert not none.mask.any()
    assert (none.ids.slot == -1).all()
    assert (none.ids.shard == -1).all()


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_a_part_of_a_batch_is_thinned_inside_shard_map():
    state, batch, error = over_shards(2)
    spec, data = fbuf.sharded.specs(state), jax.P("data")
    of_batch = jax.tree.map(lambda _: data, batch)
    of_batch = dataclasses.replace(of_batch, fault=jax.P())
    inside = jax.shard_map(
        lambda state, batch, error: fbuf.sharded.thin(state, batch, jax.random.key(1), 16, error),
        mesh=state.mesh,
        in_specs=(spec, of_batch, data),
        out_specs=of_batch,
    )
    outside = fbuf.sharded.thin(state, batch, jax.random.key(1), 16, error)
    for a, b in zip(
        jax.tree.leaves(jax.jit(inside)(state, batch, error)),
        jax.tree.leaves(outside),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match=r"count must be a multiple of the 2 devices.*take 4"):
        fbuf.sharded.thin(state, batch, jax.random.key(1), 3, error)


def test_an_error_that_is_nothing_beside_another_counts_as_0():
    """Its weight would be infinite: it could be drawn by the smallest random number."""
    batch = large_batch("uniform", size=16)
    error = jnp.full(16, 1e-15).at[3].set(1e10)
    thin = fbuf.thin(batch, KEY, 4, error)
    assert thin.data["at"].tolist() == [3] * 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            fbuf.ops.thin.random_bits, "uniforms", lambda _, shape, after: jnp.zeros(shape)
        )
        thin = jax.jit(lambda *given: fbuf.thin(given[0], KEY, 4, given[1]))(batch, error)
    assert thin.data["at"].tolist() == [3] * 4
