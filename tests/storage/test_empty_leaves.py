"""Items with leaves that hold nothing, or one number; and one of everything."""

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest
from support import meshes

import fbuf
from fbuf import sharded
from fbuf.mesh.shards import shards_here

ITEMS = {
    "one_empty": {"x": jnp.zeros(()), "none": jnp.zeros(0)},
    "all_empty": {"x": jnp.zeros((0, 3)), "wide": jnp.zeros((0, 5000), jnp.uint8)},
    "no_leaf": {"x": jnp.zeros(2), "nothing": None, "dict": {}, "tuple": ()},
    "one_number": jnp.zeros(1),
    "wide": {"x": jnp.zeros((600, 1)), "none": jnp.zeros((2, 0, 4), jnp.int8)},
}
SAMPLERS = {
    "uniform": fbuf.Uniform(),
    "prioritized": fbuf.Prioritized(),
    "window": fbuf.Uniform(window=2),
    "mixture": fbuf.Mixture(0.5),
    "shuffled": fbuf.Shuffled(),
    "fifo": fbuf.Fifo(),
}


def rows(item, count):
    return jax.tree.map(lambda leaf: jnp.ones((count, *leaf.shape), leaf.dtype), item)


def shapes(tree):
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def check(state, item, stored):
    """Rows of a buffer of ones are ones, in the shapes and the tree of the item."""
    batch = fbuf.rows(state)
    assert jax.tree.structure(batch.data) == jax.tree.structure(item)
    for leaf, spec in zip(jax.tree.leaves(batch.data), jax.tree.leaves(item), strict=True):
        assert leaf.shape == (state.capacity, *spec.shape)
        assert leaf.dtype == spec.dtype
        held = np.asarray(leaf)[np.asarray(batch.mask)]
        np.testing.assert_array_equal(held, np.ones_like(held))
    assert int(fbuf.size(state)) == stored


def test_rows_without_elements_are_moved():
    item = ITEMS["one_empty"]
    state = fbuf.add(fbuf.init(item, 8), rows(item, 5))
    check(fbuf.resize(state, 16), item, 5)


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("item", ITEMS)
def test_every_verb_takes_them(item, sampler, tmp_path):
    item, sampler = ITEMS[item], SAMPLERS[sampler]
    ends = np.array([False, True, False, True, False])
    state = fbuf.init(item, 8, sampler=sampler)
    state = fbuf.add(state, rows(item, 5), terminated=ends)
    check(state, item, 5)
    step = 0 if sampler.without_replacement else None
    if isinstance(sampler, fbuf.Fifo):
        batch = fbuf.pop(state, 2, donate=False)[1]
    else:
        batch = fbuf.sample(state, jax.random.key(0), 3, step=step)
        for part in fbuf.split(state, None, 0.5):
            assert part.storage.item == state.storage.item
    assert shapes(batch.data) == shapes(rows(item, batch.mask.shape[0]))
    check(
        fbuf.remove(state, batch.ids, episodes=True, donate=False),
        item,
        int(fbuf.size(fbuf.remove(state, batch.ids, episodes=True, donate=False))),
    )
    if isinstance(item, dict):
        check(fbuf.write(state, batch.ids, {"x": batch.data["x"]}, donate=False), item, 5)
    check(fbuf.resize(state, 16), item, 5)
    check(fbuf.extend(state, state), item, 8)
    assert shapes(fbuf.rollout(state).data) == shapes(rows(item, 8))
    state = fbuf.add(fbuf.save(tmp_path, state), rows(item, 2))
    fbuf.save(tmp_path, state)
    example = item if isinstance(item, dict) else None
    check(fbuf.load(tmp_path, item=example).state, item, 7)
    check(fbuf.load(tmp_path, item=example, capacity=4).state, item, 4)


@pytest.mark.skipif(jaxlib.version.__version__ == "0.11.2", reason="its compiler crashes")
@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_shards_without_elements_are_known_by_the_others():
    state = sharded.init(ITEMS["all_empty"], 8, mesh=meshes.mesh(2))
    found = dict(shards_here(state))
    assert found.keys() == {0, 1}
    assert all(shapes(shard) == shapes(state.shard) for shard in found.values())


@pytest.mark.sweep
@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
@pytest.mark.parametrize("item", ITEMS)
def test_over_a_mesh(item, tmp_path):
    item = ITEMS[item]
    empty = any(0 in leaf.shape for leaf in jax.tree.leaves(item))
    if empty and jaxlib.version.__version__ == "0.11.2":  # its compiler crashes
        with pytest.raises(ValueError, match=r"has no elements, and jaxlib 0\.11\.2 crashes"):
            sharded.init(item, 16, mesh=meshes.mesh(2), num_envs=4)
        return
    state = sharded.init(item, 16, mesh=meshes.mesh(2), num_envs=4)
    state = sharded.add(state, rows(item, 4))
    batch = sharded.sample(state, jax.random.key(0), 4)
    assert shapes(batch.data) == shapes(rows(item, 4))
    for leaf in jax.tree.leaves(batch.data):
        np.testing.assert_array_equal(leaf, np.ones_like(leaf))
    state = sharded.save(tmp_path, state)
    state = sharded.load(tmp_path, mesh=meshes.mesh(2), item=item).state
    again = sharded.reshard(state, 4)
    assert int(sharded.size(again)) == 4
    batch = sharded.sample(again, jax.random.key(0), 8)
    assert bool(jnp.all(batch.mask))
    assert shapes(batch.data) == shapes(rows(item, 8))
    for leaf in jax.tree.leaves(batch.data):
        np.testing.assert_array_equal(leaf, np.ones_like(leaf))


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_one_of_everything(sampler):
    """A capacity of one row, a batch of one, one environment, one field, a window of one."""
    sampler = SAMPLERS[sampler] if sampler != "window" else fbuf.Uniform(window=1, by="episode")
    state = fbuf.init({"x": jnp.zeros(1)}, 1, num_envs=1, sampler=sampler, next_of="x", max_ends=1)
    for number in (1.0, 2.0):
        one = jnp.full((1, 1), number)
        state = fbuf.add(state, {"x": one}, next_observation=one + 1, terminated=np.ones(1, bool))
        if isinstance(sampler, fbuf.Fifo):
            state, batch = fbuf.pop(state, 1, view=fbuf.Transition())
            batch = jax.tree.map(lambda leaf: leaf.reshape(1, *leaf.shape[2:]), batch)
        else:
            step = 0 if sampler.without_replacement else None
            batch = fbuf.sample(state, jax.random.key(0), 1, view=fbuf.Transition(), step=step)
        assert batch.mask.tolist() == [True]
        assert batch.data.item["x"].tolist() == [[number]]
        assert batch.data.next_observation.tolist() == [[number + 1]]
    assert int(state.fault) == 0
    assert int(fbuf.size(fbuf.resize(state, 1))) == 1
