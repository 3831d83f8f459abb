"""A small world with a law: carts that are pushed, in several environments at once."""

from __future__ import annotations

import jax
import numpy as np

import fbuf

ENVS, LIMIT = 4, 40


def run(steps=240, *, envs=ENVS, seed=0, noise=1.0, discrete=False, seeds=None):
    """Steps of all environments, as a right program stores them: leaves `[envs, steps, ...]`.

    A cart has a place and a speed. It begins near the middle; the reward is its nearness to the
    middle, less the push. An episode terminates where the cart leaves, and is truncated after some
    steps.

    Args:
        steps: The number of steps.
        envs: The number of environments.
        seed: The seed of the run.
        noise: The share of pushes that are random; the others pull to the middle.
        discrete: Whether a push is one of three.
        seeds: The seed of each environment; None gives each one of its own.

    Returns:
        Fields, among them the next observation, and the flags.
    """
    made = [np.random.default_rng([seed, e if seeds is None else seeds[e]]) for e in range(envs)]
    begin = lambda rng: rng.uniform(-0.3, 0.3, 2)
    state, age = np.stack([begin(rng) for rng in made]), np.zeros(envs, int)
    out = {name: [] for name in ("observation", "action", "reward", "next_observation")}
    flags = {"terminated": [], "truncated": []}
    for _ in range(steps):
        push = np.array([rng.uniform(-1, 1) for rng in made])
        push = noise * push + (1 - noise) * np.clip(-state[:, 0] - state[:, 1], -1, 1)
        action = np.where(push < -0.33, 0, np.where(push > 0.33, 2, 1)) if discrete else push
        force = action - 1 if discrete else action
        speed = state[:, 1] + 0.4 * force
        later = np.stack([state[:, 0] + 0.4 * speed, speed], 1)
        age += 1
        ends, cut = np.abs(later[:, 0]) > 2, age >= LIMIT
        out["observation"].append(state.astype(np.float32))
        out["action"].append(action.astype(np.int32 if discrete else np.float32))
        out["reward"].append((1 - later[:, 0] ** 2 - 0.3 * force**2).astype(np.float32))
        out["next_observation"].append(later.astype(np.float32))
        flags["terminated"].append(ends)
        flags["truncated"].append(cut & ~ends)
        over = ends | cut
        state = np.where(over[:, None], [begin(rng) for rng in made], later)
        age = np.where(over, 0, age)
    stacked = lambda of: {name: np.stack(each, axis=1) for name, each in of.items()}
    return stacked(out), stacked(flags)


def buffer(rows, flags, *, stored="field", sampler=None, **options):
    """A buffer of these rows: the next observation is a field, kept by `next_of`, or left out."""
    rows, given = dict(rows), dict(flags)
    following = rows.pop("next_observation")
    if stored == "field":
        rows["next_observation"] = following
    elif stored == "kept":
        given["next_observation"] = following
        options |= {"next_of": "observation", "max_ends": rows["reward"].size}
    envs = rows["reward"].shape[0]
    item = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), rows)
    capacity = rows["reward"].size
    state = fbuf.init(item, capacity, num_envs=envs, sampler=sampler or fbuf.Uniform(), **options)
    return fbuf.add(state, rows, **given)
