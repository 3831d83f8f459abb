"""Buffers on a mesh of explicit axes, where types of arrays say how they lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.few import few

import fbuf
from fbuf import sharded

SAMPLERS = {
    "uniform": fbuf.Uniform(),
    "prioritized": fbuf.Prioritized(),
    "window": fbuf.Uniform(window=2),
    "episode": fbuf.Uniform(window=2, by="episode"),
    "mixture": fbuf.Mixture(0.5),
    "shuffled": fbuf.Shuffled(),
    "fifo": fbuf.Fifo(),
}
ROWS = {"x": jnp.ones((4, 3))}


def mesh(kind=AxisType.Explicit):
    return jax.make_mesh((2,), ("data",), axis_types=(kind,), devices=jax.devices()[:2])


def buffer(sampler="uniform"):
    state = fbuf.init({"x": jnp.zeros(3)}, 64, sampler=SAMPLERS[sampler], next_of="x")
    return jax.device_put(state, NamedSharding(mesh(), P()))


def everything(state):
    """Take a state through every operation, and ask every question of it."""
    added = {"next_observation": ROWS["x"], "terminated": jnp.ones(4, bool)}
    state = fbuf.add(state, ROWS, **added)
    if isinstance(state.sampler, fbuf.Fifo):
        state, batch = fbuf.pop(state, 2)
    else:
        step = 0 if state.sampler.without_replacement else None
        batch = fbuf.sample(state, jax.random.key(0), 4, step=step, view=fbuf.Transition())
        state = fbuf.remove(fbuf.after(state, batch), batch.ids)
        state = fbuf.write(state, batch.ids, {"x": ROWS["x"]})
    if state.sampler.keeps_priorities:
        state = fbuf.update_priority(state, batch.ids, batch.weight)
        batch = fbuf.thin(batch, jax.random.key(1), 4, jnp.ones(4))
    found = [
        fbuf.size(state),
        fbuf.can_sample(state, 3),
        fbuf.stats(state, detailed=True),
        fbuf.rows(state),
        fbuf.rollout(state),
        fbuf.newest_ids(state, 2),
        fbuf.ids_at(state, jnp.arange(3, dtype=jnp.int32)),
        fbuf.neighbours(state, fbuf.newest_ids(state, 2), (-1, 1)),
        fbuf.read(state, batch.ids),
        fbuf.resize(state, 128),
        fbuf.extend(state, state),
    ]
    return fbuf.end_episode(fbuf.clear(state)), (batch, found)


@pytest.mark.parametrize("sampler", few(SAMPLERS, "prioritized"))
def test_every_verb_takes_it(sampler):
    state = buffer(sampler)
    traced, _ = jax.eval_shape(everything, state)
    assert jax.tree.structure(traced) == jax.tree.structure(state)
    assert {leaf.sharding.spec for leaf in jax.tree.leaves(traced)} <= {
        P(*[None] * ndim) for ndim in range(5)
    }
    turn = lambda state, _: (everything(state)[0], None)
    jax.eval_shape(lambda state: jax.lax.scan(turn, state, None, length=2), state)


def test_it_holds_what_a_buffer_on_one_device_holds(tmp_path):
    here, there = fbuf.init({"x": jnp.zeros(3)}, 64, next_of="x"), buffer()
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    apart = jax.device_put(rows, NamedSharding(mesh(), P("data")))
    ends = jnp.array([False, True, False, True])
    here = fbuf.add(here, {"x": rows}, next_observation=rows, terminated=ends)
    there = fbuf.add(there, {"x": apart}, next_observation=apart, terminated=ends)
    assert there.storage.words.sharding.mesh.axis_types == (AxisType.Explicit,)
    assert there.storage.words.is_fully_replicated
    key = jax.random.key(0)
    for one, other in zip(
        jax.tree.leaves((here, fbuf.sample(here, key, 4))),
        jax.tree.leaves((there, fbuf.sample(there, key, 4))),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    there = fbuf.save(tmp_path, there)
    np.testing.assert_array_equal(fbuf.load(tmp_path).state.storage.words, here.storage.words)


@pytest.mark.sweep
def test_inside_set_mesh():
    with jax.set_mesh(mesh()):
        state = fbuf.init({"x": jnp.zeros(3)}, 64, next_of="x")
        jax.eval_shape(everything, state)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_over_a_mesh_the_kind_of_its_axes_makes_no_difference(kind):
    state = sharded.init({"x": jnp.zeros(3)}, 64, mesh=mesh(kind), num_envs=8)

    def step(state):
        state = sharded.add(state, {"x": jnp.ones((8, 3))})
        return sharded.remove(state, sharded.sample(state, jax.random.key(0), 8).ids)

    jax.eval_shape(step, state)
