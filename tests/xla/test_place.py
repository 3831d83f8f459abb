"""A buffer made inside `jax.default_device` stays there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.few import few

import fbuf

ITEM, ROWS = {"x": jnp.zeros(3)}, {"x": jnp.ones((4, 3))}
ENDS = np.array([False, True, False, True])


def other():
    return jax.devices()[-1]


def filled():
    return fbuf.add(fbuf.init(ITEM, 16), ROWS, terminated=ENDS)


def loaded(path, **options):
    fbuf.save(path, filled())
    return fbuf.load(path, **options).state


MAKERS = {
    "init": lambda _: fbuf.init(ITEM, 16, sampler=fbuf.Prioritized(), next_of="x"),
    "load": loaded,
    "load_into": lambda path: loaded(path, capacity=8),
    "resize": lambda _: fbuf.resize(filled(), 32),
    "split": lambda _: fbuf.split(filled(), None, 0.5)[1],
    "extend": lambda _: fbuf.extend(filled(), filled()),
    "clear": lambda _: fbuf.clear(filled()),
}


@pytest.mark.parametrize("maker", few(MAKERS, "load"))
def test_a_buffer_made_on_another_device_stays_there(maker, tmp_path):
    with jax.default_device(other()):
        state = MAKERS[maker](tmp_path)
    options = {} if state.next_obs is None else {"next_observation": ROWS["x"]}
    rows = jax.tree.map(lambda leaf: leaf[:2], ROWS)
    options = jax.tree.map(lambda leaf: leaf[:2], options)
    after = fbuf.add(state, rows, **options)
    assert all(leaf.devices() == {other()} for leaf in jax.tree.leaves(after))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state)), "it was copied"
    batch = fbuf.sample(after, jax.random.key(0), 2)
    assert batch.data["x"].devices() == {other()}


@pytest.mark.parametrize("maker", few(MAKERS, "load_into"))
def test_a_buffer_on_the_default_device_is_free_to_be_taken_along(maker, tmp_path):
    state = MAKERS[maker](tmp_path)
    with jax.default_device(jax.local_devices()[0]):
        same = MAKERS[maker](tmp_path / "again")
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    weights = jax.device_put(jnp.ones(2), NamedSharding(mesh, P("data")))
    for made in (state, same):
        assert not any(leaf.committed for leaf in jax.tree.leaves(made))
        jax.jit(lambda state, weights: (fbuf.size(state), weights))(made, weights)


def test_where_everybody_has_another_default_nothing_is_committed():
    before = jax.config.jax_default_device
    jax.config.update("jax_default_device", other())
    try:
        state = fbuf.init(ITEM, 16)
    finally:
        jax.config.update("jax_default_device", before)
    assert state.fault.devices() == {other()}
    assert not state.fault.committed


def test_a_platform_by_name_is_its_first_device():
    with jax.default_device("cpu"):
        assert not fbuf.init(ITEM, 16).fault.committed
