"""Looking into a state: the one place in the tests that knows how it is laid out."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf.trees import bit_tree
from fbuf.trees.sum_tree import Aggregate
from fbuf.xla import platform


@contextlib.contextmanager
def forms_of_other_platforms():
    """A program traced in here has the forms for other platforms, and runs here all the same."""
    picked = []

    def pick(arrays, cpu, default, gpu):
        del gpu
        picked.append(default)
        return default(*arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "_bound", pick)
        yield
    assert picked, "nothing was traced anew"


@jax.jit
def rows(state):
    """All rows as the item's tree, leaves `[capacity, ...]`."""
    return state.storage.read(jnp.arange(state.capacity))


def names(state, slots):
    """The ids of stored rows."""
    return fbuf.ids_at(state, jnp.asarray(slots, jnp.int32))


def start_tree(index):
    """The tree of the starts of a sampler that keeps one, None of another."""
    index = getattr(index, "starts", index)
    return getattr(index, "bits", None)


def priority_tree(index):
    """The tree of the priorities of a sampler that keeps them."""
    return getattr(index, "priorities", index).tree


def episode_trees(index):
    """The trees of the first and the last starts of episodes, and how many episodes there are."""
    return index.segments.firsts, index.segments.lasts, index.segments.count


def lane_by_lane(oracle, slot):
    """Where a slot lies in the trees of episodes, one shard's behind the other's."""
    row, own = divmod(slot, oracle.lanes_of_shard)
    shard, step = divmod(row, oracle.length)
    return (shard * oracle.lanes_of_shard + own) * oracle.length + step


def marks(tree):
    """Which slots are marked; every node must count the marks under it."""
    nodes, (lowest, *levels) = np.asarray(tree.nodes), bit_tree._levels(tree.capacity)
    words = nodes[: lowest.size].view(np.uint32)
    marked = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    counts, span = [words.view(np.int32)], 32
    for level in levels:
        span *= 16
        padded = np.zeros(level.size * span, int)
        padded[: marked.size] = marked.reshape(-1)
        counts.append(padded.reshape(level.size, span).sum(axis=1))
    np.testing.assert_array_equal(nodes, np.concatenate(counts))
    assert not marked.reshape(-1)[tree.capacity :].any()
    return marked.reshape(-1)[: tree.capacity].astype(bool)


def leaves(tree):
    """The leaves of a tree of priorities, as they are: `[capacity]`."""
    return np.asarray(tree.leaves).reshape(-1)[: tree.capacity]


def values(tree):
    """The value of every slot, as far as it can be reached from the top: `[capacity]`."""
    levels = _levels(tree)
    reached = levels[-1][..., 0].reshape(-1) != 0
    for level in reversed(levels[:-1]):
        sums = level[..., 0].reshape(-1) * np.repeat(reached[: level.shape[0]], level.shape[1])
        reached = sums != 0
    return sums[: tree.capacity]


def check(tree):
    """Every node that can be reached is what its row says, and none is negative."""
    levels = [level.astype(np.float64) for level in _levels(tree)]
    for level in levels[1:] if tree.inactive else levels:
        assert (level >= 0).all()
    reached = np.ones(levels[-1].shape[0], bool)
    for parent, level in zip(levels[:0:-1], levels[-2::-1], strict=True):
        nodes = parent.reshape(-1, parent.shape[-1])[: level.shape[0]]
        reached = np.repeat(reached, 16)[: level.shape[0]] & (nodes[:, 0] > 0)
        row = level[reached]
        total = np.maximum(row[..., 0], 0).sum(axis=1)
        np.testing.assert_allclose(nodes[reached, 0], total, rtol=1e-6)
        for at, which in enumerate(tree.keeps):
            part = row[..., 0 if row.shape[-1] == 1 else at]
            if which is Aggregate.LARGEST:
                np.testing.assert_array_equal(nodes[reached, at], np.maximum(part, 0).max(axis=1))
            if which is Aggregate.LARGEST_INVERSE and row.shape[-1] == 1:
                inverse = np.where(part > 0, 1 / np.where(part > 0, part, 1), 0).max(axis=1)
                np.testing.assert_allclose(nodes[reached, at], inverse, rtol=1e-6)


def _levels(tree):
    """The levels of a tree of priorities, from the bottom up: `[rows, FANOUT, aggregates]` each."""
    levels = [np.asarray(level) for level in (tree.leaves, *tree.nodes)]
    return [level if level.ndim == 3 else level[..., None] for level in levels]
