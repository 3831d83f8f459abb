"""A history of a buffer over a mesh, in one program: the same on any devices, in any process."""

from __future__ import annotations

import dataclasses
import hashlib

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf import sharded
from support.programs import emitters

SHARDS, ENVS, CAPACITY, BATCH = 8, 8, 8 * 24, 32
ITEM = {
    "obs": jnp.zeros(2),
    "goal": jnp.zeros(1, jnp.int8),
    "achieved_goal": jnp.zeros(1, jnp.int8),
    "action": jnp.zeros((), jnp.bfloat16),
    "reward": 0.0,
    "done": jnp.zeros((), bool),
    "seen": jnp.int32(0),
}


def mesh(devices):
    return jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("data",))


def reached(achieved, goal):
    return jnp.where(jnp.all(achieved == goal), 0.0, -1.0)


VIEWS = {
    "item": fbuf.Item(),
    "fields": fbuf.Item(fields=("obs", "done")),
    "transition": fbuf.Transition(),
    "n_step": fbuf.NStep(2, gamma=0.9),
    "n_steps": fbuf.NStep((1, 4), gamma=0.9),
    "sequence": fbuf.Sequence(2, burn_in=1),
    "padded": fbuf.Sequence(3, boundary="pad"),
    "time_major": fbuf.Sequence(2, time_major=True),
    "led_to": fbuf.Sequence(3, boundary="cross", next_of="obs", time_major=True),
    "frames": fbuf.FrameStack(2, field="obs"),
    "offsets": fbuf.Window({"obs": (-1, 2)}, pad="zero"),
    "return": fbuf.ReturnToGo(0.9),
    "hindsight": fbuf.Hindsight(reached, strategy="future"),
    "episode": fbuf.Hindsight(reached, strategy="episode"),
    "goals": fbuf.Hindsight(
        reached, strategy={"current": 1, "future": 2, "final": 1}, discount=0.7, copies=2
    ),
}

OF_PROCESSES = {
    "uniform": (
        "fields",
        "transition",
        "n_step",
        "n_steps",
        "padded",
        "frames",
        "return",
        "episode",
    ),
    "window": ("sequence", "time_major"),
}
"""By which views several processes draw; all others by two more."""


def views_of(name):
    """The views of a sampler in several processes."""
    return OF_PROCESSES.get(name, ("item", "hindsight"))


SAMPLERS = {
    "uniform": fbuf.Uniform(),
    "window": fbuf.Uniform(window=3),
    "stride": fbuf.Uniform(window=2, stride=2),
    "episode": fbuf.Uniform(window=2, by="episode"),
    "prioritized": fbuf.Prioritized(),
    "priority_window": fbuf.Prioritized(window=3, normalize="buffer"),
    "stratified": fbuf.Prioritized(draws="stratified", alpha=1.0),
    "largest_ever": fbuf.Prioritized(new_priority="largest_ever", beta=0.5),
    "shuffled": fbuf.Shuffled(),
    "shuffled_window": fbuf.Shuffled(window=3),
    "shuffled_episode": fbuf.Shuffled(window=2, by="episode"),
    "mixture": fbuf.Mixture(recent=0.3, recent_rows=16),
    "mixture_window": fbuf.Mixture(priorities=fbuf.Prioritized(window=2)),
}


def rows(rng, steps, uneven=False):
    """Rows `[ENVS, steps]`, flags, priorities; with some environments of far higher priority."""
    shape = (ENVS, steps)
    ends = rng.random(shape) < 0.15
    made = {
        name: rng.integers(0, 3, (*shape, *np.shape(leaf))).astype(jnp.asarray(leaf).dtype)
        for name, leaf in ITEM.items()
    }
    made["obs"] = rng.standard_normal((*shape, 2)).astype(np.float32)
    priority = rng.random(shape).astype(np.float32)
    if uneven:
        priority *= (np.arange(ENVS) ** 4 * 0.01)[:, None].astype(np.float32)
    cut = ends & (rng.random(shape) < 0.5)
    return {
        "items": made,
        "terminated": ends & ~cut,
        "truncated": cut,
        "next_observation": made["obs"] + 1,
        "priority": priority,
    }


def inputs(seed, turns, steps=3):
    """Return the arguments of each turn of a history: leaves `[turns, ...]`."""
    rng = np.random.default_rng(seed)
    each = [
        {
            "rows": rows(rng, steps, uneven=True),
            "ends": rng.random(ENVS) < 0.1,
            "update": rng.random(BATCH).astype(np.float32),
            "use_priority": np.float32(rng.random() < 0.7),
            "updated": rng.random(BATCH) < 0.9,
            "removed": rng.random(BATCH) < 0.05,
            "written": rng.random(BATCH) < 0.3,
        }
        for _ in range(turns)
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *each)


def turn(operations, sampler, views, state, given, number):
    """Eight operations: add, end, draw by each view, update, write, remove, ask."""
    new = dict(given["rows"])
    priority = new.pop("priority")
    if sampler.keeps_priorities:
        new["priority"] = priority
    state = operations.add(state, new.pop("items"), **new)
    state = operations.end_episode(state, mask=given["ends"])
    step = {"step": number} if sampler.without_replacement else {}
    key = jax.random.fold_in(jax.random.key(7), 0 if sampler.without_replacement else number)
    batches = {
        name: operations.sample(state, key, BATCH, view=VIEWS[name], **step) for name in views
    }
    batch = batches[views[0]]
    if sampler.keeps_priorities:
        state = operations.update_priority(state, batch.ids, given["update"], mask=given["updated"])
    state = operations.write(
        state, batch.ids, {"seen": jnp.arange(BATCH, dtype=jnp.int32)}, mask=given["written"]
    )
    state = operations.remove(state, batch.ids, mask=given["removed"])
    asked = operations.size(state), operations.can_sample(state), operations.stats(state)
    return state, (batches, asked)


def empty(operations, sampler, **where):
    where = {"max_ends": 24, **where}
    return operations.init(ITEM, CAPACITY, num_envs=ENVS, sampler=sampler, next_of="obs", **where)


def _history(module, sampler, views, turns, state, given):
    """All turns, in one scan: the last state, and everything that was drawn and asked."""

    def one(state, this):
        return turn(module, sampler, views, state, *this)

    return jax.lax.scan(one, state, (given, jnp.arange(turns, dtype=jnp.int32)))


QUICK = {"xla_backend_optimization_level": 0, **emitters(False)}
"""Compiles in a third of the time."""

FIXED = (0, 1, 2, 3)
history = jax.jit(_history, static_argnums=FIXED)
quick_history = jax.jit(_history, static_argnums=FIXED, compiler_options=QUICK)


def run(sampler, views, devices, turns=6, seed=0, shards=SHARDS, module=sharded, quick=True):
    """A history on so many devices; on one as a plain buffer if the module is `fbuf`."""
    where = {} if module is fbuf else {"mesh": mesh(devices), "shards": shards}
    state = empty(module, sampler, **where)
    made = quick_history if quick else history
    return made(module, sampler, tuple(views), turns, state, inputs(seed, turns))


def digest(tree):
    """A few letters for all bits of a tree's arrays."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        found.update(np.asarray(leaf).tobytes())
    return found.hexdigest()[:16]


def comparable(found):
    """Return a history's results as those of a plain buffer: no shards, no faults of batches."""
    state, (batches, asked) = found
    state = getattr(state, "blocks", state)
    plain = {
        name: (b.data, b.ids.slot, b.ids.generation, b.mask, b.probability, b.weight)
        for name, b in batches.items()
    }
    size, can, stats = asked
    names = ("fill", "oldest", "priority_total", "num_starts", "num_episodes", "new_priority")
    shared = {name: stats[name] for name in names if name in stats}
    ring = dataclasses.replace(state.ring, shards=1)
    state = dataclasses.replace(state, ring=ring)
    leaves = jax.tree.leaves((plain, size, can, shared, state))
    return [np.asarray(leaf).reshape(-1) for leaf in leaves]  # what is a scalar may have an axis


def parts(state):
    """The shards, each a plain buffer in NumPy."""

    def block(leaf, spec):
        return np.asarray(leaf).reshape(state.num_shards, *spec.shape)

    leaves, tree = jax.tree.flatten(state.blocks)
    blocks = list(map(block, leaves, state.leaves))
    return [
        jax.tree.unflatten(tree, [block[shard] for block in blocks])
        for shard in range(state.num_shards)
    ]


def same(one, other):
    """Equal bit for bit."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
