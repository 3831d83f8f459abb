"""Episodes whose every row is known, for the tests of data sets."""

import dataclasses
import functools
import types
from typing import Any

import jax
import numpy as np

import fbuf


@dataclasses.dataclass(frozen=True)
class Episode:
    """One observation more than there are steps."""

    observation: Any
    action: Any
    reward: Any
    terminated: bool  # or truncated

    def __len__(self):
        return len(self.reward)

    @property
    def flags(self):
        """Flags of each step: terminated and truncated."""
        last = np.arange(len(self)) == len(self) - 1
        return last & self.terminated, last & (not self.terminated)


def observations(kind, first, count):
    """Return observations of a kind of space; no two are alike."""
    number = np.arange(first, first + count)
    vector = np.stack([number, -number, number / 7], -1)
    if kind == "vector":
        return vector.astype(np.float32)
    if kind == "wide":
        return vector
    if kind == "image":
        pixels = np.random.default_rng(first).integers(0, 256, (count, 32, 32, 3))
        return pixels.astype(np.uint8)
    camera = observations("image", first, count)
    joints = vector.astype(np.float32)
    return {"camera": camera, "joints": (joints, number.astype(np.int32))}


def episodes(lengths, kind="vector"):
    """Every third one terminates."""
    made, first = [], 0
    for number, steps in enumerate(lengths):
        made.append(
            Episode(
                observations(kind, first, steps + 1),
                np.arange(first, first + steps) % 5,
                np.arange(first, first + steps) / 3,
                number % 3 == 0,
            )
        )
        first += steps + 1
    return made


def flat(made, following=True):
    """The rows of all episodes side by side: fields, flags, and what the steps led to."""
    join = lambda *parts: np.concatenate(parts)
    fields = {
        "observation": jax.tree.map(
            join, *[jax.tree.map(lambda a: a[:-1], e.observation) for e in made]
        ),
        "action": join(*[e.action for e in made]),
        "reward": join(*[e.reward for e in made]),
    }
    later = [jax.tree.map(lambda a: a[1:], e.observation) for e in made]
    terminated, truncated = (join(*flag) for flag in zip(*[e.flags for e in made], strict=True))
    return fields, terminated, truncated, jax.tree.map(join, *later) if following else None


def assert_same(left, right):
    """Bit for bit, in values and dtypes."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def assert_holds(state, made, unknown=(), following=True):
    """The rows of a buffer are those of the episodes.

    Nobody knows what came after `unknown` ends: where they are truncated they are masked, and where
    they terminated their own observation stands in.
    """
    fields, terminated, truncated, later = flat(made)
    fields["action"] = fields["action"].astype(np.int32)
    fields["reward"] = fields["reward"].astype(np.float32)
    if isinstance(state, fbuf.State):
        names = "raise_on_fault", "size", "newest_ids", "read"
        store = types.SimpleNamespace(
            **{name: functools.partial(getattr(fbuf, name), state) for name in names}
        )
    else:
        store = state
    store.raise_on_fault()
    count = int(store.size())
    rows = store.read(store.newest_ids(count))
    assert_same(rows.data, fields)
    assert rows.mask.all()
    assert_same((rows.terminated, rows.truncated), (terminated, truncated))
    if not following:
        return
    led = store.read(store.newest_ids(count), view=fbuf.Transition())
    ends = np.cumsum([len(e) for e in made]) - 1
    lacking = np.isin(np.arange(count), [ends[number] for number in unknown])
    known = ~(lacking & truncated)
    assert_same(led.mask, known)

    def stands_in(own, leaf):
        there = (lacking & terminated).reshape(-1, *(1,) * (leaf.ndim - 1))
        return np.where(there, own, leaf)

    later = jax.tree.map(stands_in, fields["observation"], later)
    known_rows = lambda leaf: np.asarray(leaf)[known]
    assert_same(
        jax.tree.map(known_rows, led.data.next_observation), jax.tree.map(known_rows, later)
    )
