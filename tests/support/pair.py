"""A buffer beside the oracle, to which the same is done."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf import sharded
from support import meshes, programs
from support.oracle import Oracle

# Environments, the length of a lane, whether they step together.
FLAT, TOGETHER, APART = (None, 9, True), (3, 40, True), (3, 40, False)
WINDOWS = ("window", "stride", "first_only", "strict")
OF_ORACLE = ("alpha", "eps", "floor", "new_priority", *WINDOWS)
"""The options of a sampler that the oracle has, too."""
NAN, INF = float("nan"), float("inf")


def itself(numbers):
    """Rows that are their own numbers."""
    return np.asarray(numbers).astype(np.int32)


def priorities_of(sampler):
    """The part of a sampler that keeps priorities, None without one."""
    given = getattr(sampler, "priorities", sampler)
    return given if isinstance(given, fbuf.Prioritized) else None


class Pair:
    """A buffer and the oracle. `make` turns the numbers of rows into items."""

    shards, empty, operations = 1, staticmethod(fbuf.init), programs

    def __init__(
        self, shape, sampler=None, autoreset="same_step", item=None, make=itself, **options
    ):
        envs, length, lockstep = shape
        self.sampler = sampler = sampler or fbuf.Uniform()
        self.state = self.empty(
            jnp.int32(0) if item is None else item,
            length * (envs or 1),
            num_envs=envs,
            lockstep=lockstep,
            autoreset=autoreset,
            sampler=sampler,
            **options,
        )
        self.per = priorities_of(sampler)
        given = {n: getattr(self.per, n) for n in OF_ORACLE if self.per}
        self.oracle = Oracle(length, envs or 1, autoreset, shards=self.shards, **given)
        self.make, self.next_of = make, options.get("next_of")
        self.last = [lane + 1 for lane in range(envs or 1)]  # the number of each lane's next row
        self.one_lane, self.whole_steps = envs is None, lockstep and envs is not None
        self.seen: list[tuple[int, int]] = []

    def look(self, key, step=None, beta=0.7, *, batch_size):
        """A batch, how many rows there are, whether one can be drawn, stats, and more."""
        return self.operations.look(self.state, key, step, beta, batch_size=batch_size)

    def parts(self):
        """The buffers that this one is made of."""
        return [self.state]

    def add(self, steps, rng, often=0.0, bad=False, plain=False):
        """Random rows; `plain` leaves out all that can be left out."""
        envs = self.oracle.envs
        shape, options, mask = (steps, envs), {}, None
        ends = np.zeros(shape, bool)
        if not plain:
            ends, by_itself = rng.random((2, *shape)) < [[[often]], [[0.5]]]
            options = {"terminated": ends & by_itself, "truncated": ends & ~by_itself}
            mask = rng.random(shape) < rng.choice([0.3, 0.8, 1.0])
            if self.whole_steps:
                mask[:] = mask[:, :1]
            options["mask"] = mask
            if self.per is not None:
                values = [0.0, 1.0, 2.0, 3.0, 4.0, 0.25] + [NAN, INF, -1.0] * bad
                options["priority"] = rng.choice(values, shape).astype(np.float32)
        # The rows of a lane count up by the number of lanes.
        numbers = np.zeros(shape, int)
        for step, lane in np.argwhere(np.ones(shape) if mask is None else mask):
            numbers[step, lane] = self.last[lane]
            self.last[lane] += envs
        self.oracle.add(numbers, **options)
        if self.next_of:
            options["next_observation"] = self.make(self.after(numbers, ends))[self.next_of]
        given = (self.make(numbers), options)
        if self.one_lane:
            given = jax.tree.map(lambda x: x[:, 0], given)
        items, options = given
        if self.whole_steps and mask is not None:
            options["mask"] = mask[:, 0]
        self.state = self.operations.add(self.state, items, **options, time_major=not self.one_lane)

    def after(self, numbers, ends):
        """Return the successors of rows: the lane's next row; behind an end -n of their own."""
        return np.where(ends, -numbers, numbers + self.oracle.envs)

    def ids(self, rng, count=3, odd=False):
        """Names of stored rows, and with `odd` also stale ones, and such as name nothing."""
        live = [(slot, self.oracle.at(slot).generation) for slot in self.oracle.stored()]
        self.seen = (self.seen + live)[-60:]
        capacity = self.oracle.capacity
        strange = [(-1, 0), (capacity, 0), (-7, 0), (2**31 - 1, 3), (capacity - 1, 0)]
        pools = [live, live, strange, self.seen[-30:]] if odd else [live]
        pools = [pool for pool in pools if pool]
        picked = [pools[n] for n in rng.integers(0, len(pools), count)] if pools else []
        ids = [pool[rng.integers(0, len(pool))] for pool in picked]
        return ids[:-1] + ids[:1] if rng.random() < 0.3 else ids  # some name a row twice

    def named(self, ids):
        slot, generation = np.array(ids, np.int32).T
        return fbuf.Ids(jnp.asarray(slot), jnp.asarray(generation))

    def remove(self, rng, count=3, odd=False):
        ids = self.ids(rng, count, odd)
        if ids:
            mask = rng.random(len(ids)) < 0.7
            self.oracle.remove(ids, mask)
            self.state = self.operations.remove(self.state, self.named(ids), mask=mask)

    def update(self, rng, count=3, odd=False):
        ids = self.ids(rng, count, odd)
        if ids and self.per is not None:
            mask = rng.random(len(ids)) < 0.7
            values = [0.0, 1.0, 3.0, 50.0] + [NAN, INF, -1.0] * odd
            new = rng.choice(values, len(ids)).astype(np.float32)
            self.oracle.update_priority(ids, new.tolist(), mask)
            self.state = self.operations.update_priority(
                self.state, self.named(ids), new, mask=mask
            )

    def end(self, rng):
        lanes = rng.random(self.oracle.envs) < 0.5
        self.oracle.end_episode(lanes)
        mask = lanes[0] if self.one_lane else lanes
        self.state = self.operations.end_episode(self.state, mask=jnp.asarray(mask))

    def clear(self):
        self.oracle.clear()
        self.state = self.operations.clear(self.state)

    def resize(self, length):
        """Return how many rows of each lane were left behind."""
        old, state = self.oracle, fbuf.resize(self.state, length * self.oracle.envs)
        self.state = state
        options = {name: getattr(old, name) for name in ("alpha", "eps", "new_priority")}
        self.oracle = Oracle(length, old.envs, old.autoreset, **options)
        self.oracle.windows = old.windows
        for lane in range(old.envs):
            lap = int(state.ring.lap[lane % state.ring.heads])
            self.oracle.laps[lane] = lap - len(old.kept(lane)[-length:]) // length
        self.oracle.extend(old)
        self.seen = []
        pairs = zip(old.lanes, self.oracle.lanes, strict=True)
        return [len(before) - len(after) for before, after in pairs]

    def step(self, rng, sizes, often, odd=False):
        """One random operation; `sizes` are the steps of an add, the first of a plain one."""
        kind = rng.choice(
            ["add", "plain", "remove", "update", "end", "clear"],
            p=[0.4, 0.1, 0.15, 0.12, 0.15, 0.08],
        )
        if kind == "add":
            self.add(int(rng.choice(sizes)), rng, often, bad=odd)
        elif kind == "plain":
            self.add(sizes[0], rng, plain=True)
        elif kind == "clear":
            self.clear()
            if rng.random() < 0.5:  # rows beside what is left from before
                self.add(sizes[0], rng, often)
                self.remove(rng, 3, odd)
        elif kind == "end":
            self.end(rng)
        else:
            getattr(self, kind)(rng, 3, odd)


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
