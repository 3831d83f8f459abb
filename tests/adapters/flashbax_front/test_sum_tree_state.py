"""The priorities of the front by the fields of flashbax's sum tree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters import flashbax as fbx

import fbuf


def nodes_of(leaves):
    """Return the sums of leaves from the root on, in NumPy: node i has children 2i+1 and 2i+2."""
    width = 1 << (len(leaves) - 1).bit_length()
    nodes = np.concatenate([np.zeros(width - 1), leaves, np.zeros(width - len(leaves))])
    for node in reversed(range(width - 1)):
        nodes[node] = nodes[2 * node + 1] + nodes[2 * node + 2]
    return nodes


def test_leaves_are_the_windows_of_each_environment_in_order():
    """A window of 4 begins at each second of 12 steps: 6 to an environment, and 5 are whole."""
    buffer = fbx.make_prioritised_trajectory_buffer(
        3, 4, 4, 2, 4, max_length_time_axis=12, priority_exponent=0.5
    )
    state = buffer.init(jnp.float32(0))
    tree = state.sum_tree_state
    assert (tree.capacity, tree.tree_depth, tree.dtype) == (18, 5, jnp.float32)
    assert float(tree.max_recorded_priority) == 1
    np.testing.assert_array_equal(tree.nodes, np.zeros(63))
    state = buffer.add(state, jnp.zeros((3, 12)))
    steps, environments = jnp.array([0, 4, 8]), jnp.array([1, 2, 0])
    indices = fbuf.ids_at(state.buffer, steps * 3 + environments)
    state = buffer.set_priorities(state, indices, jnp.array([9.0, 16.0, 0.0]))
    leaves = np.array([[1.0] * 5 + [0]] * 3)  # of the last window two steps are stored
    leaves[environments, steps // 2] = [3, 4, 0]
    np.testing.assert_array_equal(state.sum_tree_state.nodes, nodes_of(leaves.reshape(-1)))
    assert float(state.sum_tree_state.max_recorded_priority) == 4


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_of_any_capacity(capacity):
    buffer = fbx.make_prioritised_item_buffer(capacity, 1, sample_batch_size=1)
    state = buffer.add(buffer.init(jnp.float32(0)), jnp.float32(0))
    leaves = np.array([1.0] + [0.0] * (capacity - 1))
    np.testing.assert_array_equal(state.sum_tree_state.nodes, nodes_of(leaves))


def test_of_stacked_states():
    buffer = fbx.make_prioritised_item_buffer(3, 1, sample_batch_size=1)

    @jax.vmap
    def stored(priority):
        state = buffer.add(buffer.init(jnp.float32(0)), jnp.float32(0))
        indices = fbuf.ids_at(state.buffer, jnp.array([0]))
        return buffer.set_priorities(state, indices, priority[None])

    tree = stored(jnp.array([1.0, 0.0])).sum_tree_state
    np.testing.assert_array_equal(tree.nodes[:, 0], [1, 0])
    np.testing.assert_array_equal(tree.max_recorded_priority, [1, 1])
