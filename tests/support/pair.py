"""A buffer beside the oracle, to which the same is done: with the laws of fbuf, and over a mesh."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf import sharded
from fbuf.testing import pair
from support import meshes, programs
from support.oracle import Oracle

# Environments, the length of a lane, whether they step together.
FLAT, TOGETHER, APART = (None, 9, True), (3, 40, True), (3, 40, False)
WINDOWS = ("window", "stride", "first_only", "strict")
OF_ORACLE = ("alpha", "eps", "floor", "new_priority", *WINDOWS)
"""The options of a sampler that the oracle has, too."""


def itself(numbers):
    """Rows that are their own numbers."""
    return np.asarray(numbers).astype(np.int32)


def priorities_of(sampler):
    """The part of a sampler that keeps priorities, None without one."""
    given = getattr(sampler, "priorities", sampler)
    return given if isinstance(given, fbuf.Prioritized) else None


class Pair(pair.Pair):
    """A buffer and the oracle. `make` turns the numbers of rows into items."""

    shards, operations = 1, programs

    def __init__(
        self, shape, sampler=None, autoreset="same_step", item=None, make=itself, **options
    ):
        self.per = priorities_of(sampler or fbuf.Uniform())
        item = jnp.int32(0) if item is None else item
        super().__init__(shape, sampler, autoreset, item, make, **options)

    def oracle_of(self, length, envs, autoreset):
        before = getattr(self, "oracle", None)
        if before is None:
            given = {name: getattr(self.per, name) for name in OF_ORACLE if self.per}
            return Oracle(length, envs, autoreset, shards=self.shards, **given)
        options = {name: getattr(before, name) for name in OF_ORACLE[:4]}
        oracle = Oracle(length, envs, autoreset, **options)
        oracle.windows = before.windows
        return oracle

    @property
    def keeps_priorities(self):
        return self.per is not None

    def look(self, key, step=None, beta=0.7, *, batch_size):
        """A batch, how many rows there are, whether one can be drawn, stats, and more."""
        return self.operations.look(self.state, key, step, beta, batch_size=batch_size)

    def parts(self):
        """The buffers that this one is made of."""
        return [self.state]


class ShardedPair(Pair):
    """A buffer over a mesh and the oracle, whose slots go on from one shard to the next."""

    shards, operations = 4, programs.over_shards

    @staticmethod
    def empty(item, capacity, **options):
        return sharded.init(item, capacity, mesh=meshes.mesh(2), shards=4, **options)

    @property
    def slots_of_shard(self):
        return self.oracle.capacity // self.shards

    def look(self, *args, batch_size, **options):
        sample, *asked = super().look(*args, batch_size=batch_size, **options)
        return dataclasses.replace(sample, ids=self.names(sample.ids)), *asked

    def names(self, ids):
        """Return ids by slots that go on from shard to shard."""
        slot = np.where(ids.slot < 0, ids.slot, ids.shard * self.slots_of_shard + ids.slot)
        return fbuf.Ids(slot, np.asarray(ids.generation))

    def plain(self, batch):
        """Return a batch as of one buffer."""
        fields = ("data", "mask", "terminated", "truncated", "probability", "weight")
        return fbuf.Sample(ids=self.names(batch.ids), **{n: getattr(batch, n) for n in fields})

    def parts(self):
        return meshes.parts(self.state)

    def ids(self, rng, count=4, odd=False):
        return super().ids(rng, 4, odd)  # as many for each device

    def named(self, ids):
        slot, generation = np.array(ids, np.int32).T
        shard, own = np.divmod(slot, np.int32(self.slots_of_shard))
        return sharded.ShardedIds(shard, np.where(slot == -1, -1, own), generation)
