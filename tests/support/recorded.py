"""A buffer with a random history, and the oracle that has seen it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from support.oracle import Oracle, told

ITEM = {"n": jnp.int32(0), "obs": jnp.int32(0)}
EXACT = {"alpha": 1.0, "eps": 0.0}


@functools.partial(jax.jit, static_argnames="following")
def seen(state, following):
    """All rows, how likely each is, and what each led to."""
    batch = fbuf.rows(state)
    led_to = fbuf.rows(state, view=fbuf.Transition()) if following else None
    return batch, led_to, fbuf.probability(state, batch.ids)


class Recorded:
    """A state, and an oracle of the same history. The rows are numbered from `first` on."""

    def __init__(
        self, length, envs, sampler, seed, autoreset="same_step", lockstep=True, next_of=True,
        first=0,
    ):  # fmt: skip
        self.lanes, self.shape = envs or 1, (envs,) if envs else ()
        self.state = fbuf.init(
            ITEM, length * self.lanes, num_envs=envs, sampler=sampler, autoreset=autoreset,
            lockstep=lockstep, next_of="obs" if next_of else None,
            max_ends=length * self.lanes if next_of else None,
        )  # fmt: skip
        self.keeps, self.next_of, self.lockstep = sampler.keeps_priorities, next_of, lockstep
        self.oracle = Oracle(length, self.lanes, autoreset)
        self.rng, self.number = np.random.default_rng(seed), first

    def step(self):
        """A step of all environments, or of some."""
        rng, lanes, given, told = self.rng, self.lanes, {}, {}
        n = self.number + np.arange(lanes, dtype=np.int32)
        self.number += lanes
        ends = rng.random(lanes)
        told = {"terminated": ends < 0.15, "truncated": ends > 0.9}
        if self.keeps:
            told["priority"] = rng.integers(1, 9, lanes).astype(np.float32)
        if not self.lockstep:
            told["mask"] = rng.random(lanes) < 0.7
        given = {name: value.reshape(self.shape) for name, value in told.items()}
        if self.next_of:
            given["next_observation"] = (n + 1000).reshape(self.shape)
        items = {"n": n.reshape(self.shape), "obs": (n + 500).reshape(self.shape)}
        self.state = fbuf.add(self.state, items, **given)
        self.oracle.add(n[None], **{name: value[None] for name, value in told.items()})

    def change(self):
        """Something is done to what is there."""
        what = self.rng.choice(["remove", "priority", "end", "nothing", "nothing"])
        if what == "end":
            mask = self.rng.random(self.lanes) < 0.3
            self.state = fbuf.end_episode(self.state, mask=mask.reshape(self.shape))
            self.oracle.end_episode(mask)
        stored = self.oracle.stored()
        if what not in ("remove", "priority") or not stored:
            return
        slot = int(self.rng.choice(stored))
        named = [(slot, self.oracle.at(slot).generation)]
        ids = fbuf.Ids(*(jnp.int32([value]) for value in named[0]))
        if what == "remove":
            self.state = fbuf.remove(self.state, ids)
            self.oracle.remove(named)
        elif self.keeps:
            new = float(self.rng.integers(1, 9))
            self.state = fbuf.update_priority(self.state, ids, jnp.float32([new]))
            self.oracle.update_priority(named, [new])

    def steps(self, count):
        for _ in range(count):
            self.step()
            self.change()
        return self


def likely(oracle, sampler):
    """Return the oracle's probability of each slot."""
    if isinstance(sampler, fbuf.Fifo):
        return {}
    options = (sampler.window, sampler.stride, sampler.first_only, sampler.strict) if not (
        isinstance(sampler, fbuf.Mixture)
    ) else (sampler.priorities.window,)  # fmt: skip
    starts = oracle.starts(*options)
    if isinstance(sampler, fbuf.Mixture):
        uniform, by_priority = oracle.evenly(starts), oracle.by_priority(starts)
        return oracle.mixed([(0.5, uniform), (0.5, by_priority)])
    if isinstance(sampler, fbuf.Prioritized):
        return oracle.by_priority(starts)
    return oracle.by_episode(*options) if sampler.by == "episode" else oracle.evenly(starts)


def next_observation(oracle, slot):
    """Return the successor of a row: the row behind it, if that is of the same episode."""
    rows, at = oracle.place(slot)
    last = rows[at].end or at == len(rows) - 1
    return rows[at].number + 1000 if last else rows[at + 1].number + 500


def agrees(state, oracle, following):
    """The state has the rows of the oracle, and each is as likely."""
    batch, led_to, probability = jax.tree.map(np.asarray, seen(state, following))
    found = {}
    for at in zip(*np.nonzero(batch.mask), strict=True):
        slot, n = int(batch.ids.slot[at]), int(batch.data["n"][at])
        found[slot] = n, int(batch.ids.generation[at]), batch.terminated[at], batch.truncated[at]
        assert batch.data["obs"][at] == n + 500
        if following:
            assert led_to.mask[at]
            assert led_to.data.next_observation[at] == next_observation(oracle, slot), n
    rows = {slot: oracle.at(slot) for slot in oracle.stored()}
    expected = {s: (r.number, r.generation, r.terminated, r.truncated) for s, r in rows.items()}
    assert found == expected
    wanted = likely(oracle, state.sampler)
    for at in zip(*np.nonzero(batch.mask), strict=True):
        slot = int(batch.ids.slot[at])
        np.testing.assert_allclose(probability[at], wanted.get(slot, 0), rtol=1e-5, err_msg=slot)
    assert told(state.fault) == oracle.fault
    assert int(fbuf.size(state)) == len(rows)
