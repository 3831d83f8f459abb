"""Collectors fill a store on the host and a buffer over a mesh as they fill a plain one."""

import functools

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import jax
from fbuf_adapters.gymnasium import Collector, CollectorError, ProcessCollector
from fbuf_adapters.pytorch import ReplayBuffer
from jax.sharding import Mesh
from support.environments import MODES, Make, policy, vector
from support.few import few

import fbuf
from fbuf.host import HostStore

SHARDS = 2


def mesh():
    return Mesh(np.array(jax.devices()[: min(SHARDS, jax.device_count())]), ("data",))


def plain(collector, **options):
    return fbuf.init(collector.item, 800, **collector.options, **options)


def host(collector, **options):
    return HostStore(collector.item, 800, **collector.options, **options)


def sharded(collector, **options):
    return fbuf.sharded.init(
        collector.item, 800, mesh=mesh(), shards=SHARDS, **collector.options, **options
    )


def columns(buffer):
    """The rows of each environment, in order."""
    if isinstance(buffer, fbuf.sharded.ShardedState):
        return [row for part in shards_of(buffer) for row in columns(part)]
    roll = (
        buffer.rollout if isinstance(buffer, HostStore) else functools.partial(fbuf.rollout, buffer)
    )
    batch = roll(view=fbuf.Transition())
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(batch.data)]
    leaves += [np.asarray(batch.terminated), np.asarray(batch.truncated)]
    mask = np.asarray(batch.mask)
    return [[leaf[env][mask[env]] for leaf in leaves] for env in range(len(mask))]


def shards_of(buffer):
    """Each shard, as a buffer of its own."""
    one = buffer.shard

    def part(number, leaf, spec):
        array = np.asarray(leaf)
        size = array.shape[0] // SHARDS
        return array[number * size : (number + 1) * size].reshape(spec.shape)

    for number in range(SHARDS):
        arrays = jax.tree.map(functools.partial(part, number), buffer.blocks, one)
        yield jax.tree.map(jax.numpy.asarray, arrays)


def same(one, other):
    for mine, its in zip(columns(one), columns(other), strict=True):
        for a, b in zip(mine, its, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", few(MODES, "next_step"))
@pytest.mark.parametrize("kind", few([host, sharded], sharded))
def test_the_rows_are_those_of_a_plain_buffer(kind, mode):
    filled = []
    for make in (plain, kind):
        with Collector(vector(4, mode), policy, chunk=8) as collector:
            buffer = make(collector, next_of="observation", max_ends=800)
            for steps in (5, 19):
                buffer = collector.collect(buffer, steps)
        filled.append(buffer)
    same(*filled)
    assert len(columns(filled[1])[0][0]) > 15


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", [host, sharded])
def test_an_environment_that_raises_leaves_the_whole_steps(kind):
    """And a dummy that is due stays one in another buffer, for an environment did not reset yet."""
    filled = []
    for make in (plain, kind):
        with Collector(vector(4, "next_step", fails=(1, 8)), policy, chunk=8) as collector:
            buffer = make(collector, next_of="observation", max_ends=800)
            buffer = collector.collect(buffer, 1)  # which ends an episode
            buffer = make(collector, next_of="observation", max_ends=800)
            with pytest.raises(ZeroDivisionError):
                buffer = collector.collect(buffer, 30)
            filled.append(collector.collect(collector.recover(), 9))
    same(*filled)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("kind", [host, sharded])
def test_so_do_those_of_processes(kind, mode):
    with ProcessCollector(
        functools.partial(Make(1, {}).__call__), policy, processes=2, envs_per_process=2,
        mode=mode, chunk=8,
    ) as collector:  # fmt: skip
        buffer = kind(collector, next_of="observation", max_ends=800)
        if mode == "async":
            buffer = collector.drain(buffer, at_least=30)
        else:
            buffer = collector.collect(buffer, 30)
    assert min(len(column[0]) for column in columns(buffer)) >= 16


def test_what_a_collector_cannot_fill_says_so():
    collector = Collector(vector(4), policy)
    with pytest.raises(TypeError, match=r"a fbuf.State, a fbuf.sharded.ShardedState or a HostSto"):
        collector.collect({}, 3)
    store = HostStore(collector.item, 800, num_envs=2)
    with pytest.raises(ValueError, match=r"num_envs=2.*num_envs=4; make it with HostStore\("):
        collector.collect(store, 3)
    wrong = fbuf.sharded.init(collector.item, 800, mesh=mesh(), shards=SHARDS, num_envs=2)
    with pytest.raises(ValueError, match=r"num_envs=2.*make it with fbuf.sharded.init\("):
        collector.collect(wrong, 3)
    owned = host(collector)
    buffer = ReplayBuffer(800, host=owned, num_envs=4)
    with pytest.raises(ValueError, match="belongs to a buffer for PyTorch"):
        collector.collect(owned, 3)
    buffer.close()
    consumed = sharded(collector)
    fbuf.sharded.clear(consumed)
    with pytest.raises(RuntimeError, match="consumed"):
        collector.collect(consumed, 3)
    collector.close()
    with pytest.raises(CollectorError, match="closed"):
        collector.collect(host(collector), 3)
