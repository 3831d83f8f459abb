"""Under `jax.transfer_guard` and beside 64-bit types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import meshes
from support.few import few

import fbuf

KEY = jax.random.key(0)


def buffer(sampler=fbuf.Uniform()):
    state = fbuf.init({"x": 0.0}, 8, sampler=sampler)
    return fbuf.add(state, {"x": jnp.ones(4)}, terminated=jnp.array([0, 1, 0, 1], bool))


def ids(state):
    return fbuf.newest_ids(state, 2)


PER, IN_ORDER = fbuf.Prioritized(), fbuf.Shuffled()
CALLS = {
    "init": (None, lambda _: fbuf.init({"x": 0.0}, 8, next_of="x")),
    "can_sample": (None, lambda state: fbuf.can_sample(state, 3)),
    "beta": (PER, lambda state: fbuf.sample(state, KEY, 2, beta=0.4)),
    "count": (None, lambda state: fbuf.sample(state, KEY, 2, count=1)),
    "step": (IN_ORDER, lambda state: fbuf.sample(state, KEY, 2, step=3)),
    "place": (IN_ORDER, lambda state: fbuf.sample(state, KEY, 2, step=(0, 1))),
    "alpha": (PER, lambda state: fbuf.update_priority(state, ids(state), ONES, alpha=0.5)),
    "mask": (None, lambda state: fbuf.remove(state, ids(state), mask=True)),
    "numbers": (PER, lambda state: fbuf.add(state, {"x": 1.0}, terminated=True, priority=2.0)),
    "write": (None, lambda state: fbuf.write(state, ids(state), {"x": ONES}, mask=True)),
    "neighbours": (None, lambda state: fbuf.neighbours(state, ids(state), (-1, 1))),
    "thin": (None, lambda state: fbuf.thin(fbuf.sample(state, KEY, 2), KEY, 1, ONES)),
    "eta": (None, lambda _: fbuf.sequence_priority(ONES, THERE, eta=0.5)),
    "gae": (
        None,
        lambda state: fbuf.targets.gae(fbuf.rollout(state), EIGHT, EIGHT, gamma=0.9, lambda_=0.9),
    ),
    "resize": (None, lambda state: fbuf.resize(state, 16)),
    "split": (None, lambda state: fbuf.split(state, None, 0.5)),
    "clear": (None, lambda state: fbuf.clear(state)),
    "end_episode": (None, lambda state: fbuf.end_episode(state)),
    "stats": (PER, lambda state: fbuf.stats(state, detailed=True)),
}
EIGHT = jnp.ones(8)
ONES, TWOS, THERE = jnp.ones(2), jnp.full(2, 2.0), jnp.ones(2, bool)


@pytest.mark.parametrize("call", few(CALLS, "can_sample", "beta"))
def test_numbers_cross_because_the_call_says_so(call):
    sampler, run = CALLS[call]
    state = buffer(sampler or fbuf.Uniform())
    expected = run(jax.tree.map(jnp.copy, state))
    with jax.transfer_guard("disallow"):
        found = run(state)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_shards_are_saved_loaded_and_divided_anew(tmp_path):
    mesh, item = meshes.mesh(2), jax.ShapeDtypeStruct((), jnp.float32)
    rows = jax.device_put(jnp.arange(12.0).reshape(4, 3), jax.NamedSharding(mesh, jax.P("data")))
    with jax.transfer_guard("disallow"):
        state = fbuf.sharded.init(item, 16, mesh=mesh, num_envs=4)
        state = fbuf.sharded.add(state, rows)
        saved = fbuf.sharded.save(tmp_path, state)
        loaded = fbuf.sharded.load(tmp_path, mesh=mesh, episodes="keep").state
        anew = fbuf.sharded.reshard(state, 4)
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(saved), strict=True):
        np.testing.assert_array_equal(one, other)
    stored = jax.device_get(anew.blocks.storage.words).view(np.float32).reshape(-1)
    assert set(stored.tolist()) == set(range(12))  # an empty row is zero


def test_a_fault_says_how_long_the_episodes_are():
    state = fbuf.init(jnp.float32(0), 8, sampler=fbuf.Uniform(window=3))
    state = fbuf.add(state, jnp.zeros(16), terminated=jnp.arange(16) % 2 == 1)
    state = fbuf.sample(state, KEY, 2) and fbuf.add(state, jnp.zeros(2))
    with jax.transfer_guard("disallow"), pytest.raises(RuntimeError, match="stored episode has 2"):
        fbuf.raise_on_fault(state)


@pytest.mark.sweep
def test_a_save_and_a_load(tmp_path):
    state = buffer()
    with jax.transfer_guard("disallow"):
        state = fbuf.save(tmp_path, state)
        changed = fbuf.save(tmp_path, fbuf.write(state, ids(state), {"x": ONES}, mask=True))
        fbuf.save(tmp_path, fbuf.add(changed, {"x": ONES}))
        assert fbuf.load(tmp_path).state.capacity == 8


def test_a_number_that_a_field_cannot_hold_is_refused_there_too():
    state = fbuf.init(jnp.uint8(0), 4)
    told = pytest.raises(ValueError, match="items is 300, which uint8 cannot hold")
    with jax.transfer_guard("disallow"), told:
        fbuf.add(state, 300)
    state = fbuf.init({"n": jnp.uint8(0)}, 4)
    told = pytest.raises(ValueError, match=r"fields\['n'\] is -1, which uint8 cannot hold")
    with jax.transfer_guard("disallow"), told:
        fbuf.write(state, fbuf.newest_ids(state, 1), {"n": -1})


@pytest.mark.sweep
def test_a_report_of_faults():
    state = fbuf.init(jnp.zeros(()), 8, sampler=fbuf.Uniform(window=5))
    state = fbuf.add(state, jnp.zeros(8), terminated=jnp.arange(8) % 3 == 2)
    told = pytest.raises(RuntimeError, match="the longest stored episode has 3")
    with jax.transfer_guard("disallow"), told:
        fbuf.raise_on_fault(state)


def test_a_buffer_over_a_mesh():
    mesh = jax.make_mesh((1,), ("data",))
    with jax.transfer_guard("disallow"):
        state = fbuf.sharded.init({"x": 0.0}, 8, mesh=mesh, sampler=PER)
        state = fbuf.sharded.add(state, {"x": ONES}, priority=TWOS)
        batch = fbuf.sharded.sample(state, KEY, 2, beta=0.4)
        state = fbuf.sharded.update_priority(state, batch.ids, ONES)
        fbuf.sharded.raise_on_fault(state)
    assert batch.mask.all()


def test_arrays_of_numpy_are_for_you_to_put_there():
    state, rows = buffer(), {"x": np.ones(2, np.float32)}
    with jax.transfer_guard("disallow"):
        with pytest.raises(Exception, match="Disallowed host-to-device"):
            fbuf.add(state, rows, donate=False)
        fbuf.add(state, jax.device_put(rows), donate=False)


@pytest.mark.parametrize("dtype", few(["float64", "int64"], "float64"))
@pytest.mark.parametrize("shape", few([(), (2,), (300,)], (2,)))
def test_rows_of_64_bits_are_not_read_as_others(dtype, shape):
    with jax.enable_x64(True):
        state = fbuf.init({"a": {"x": jnp.zeros(shape, dtype)}}, 4)
        state = fbuf.add(state, {"a": {"x": jnp.ones(shape, dtype)}})
        kept = fbuf.rows(state).data["a"]["x"]
        assert kept.dtype == dtype
    for call in (
        lambda: fbuf.sample(state, KEY, 2),
        lambda: fbuf.rows(state),
        lambda: fbuf.rollout(state),
        lambda: fbuf.resize(state, 8),
        lambda: fbuf.extend(state, state),
    ):
        with pytest.raises(TypeError, match=rf"item\['a'\]\['x'\] of this buffer is {dtype}, .*on"):
            call()
    rows = {"a": {"x": np.ones(shape, dtype)}}
    with pytest.raises(TypeError, match=rf"for one of {dtype} .*'jax_enable_x64', True"):
        fbuf.add(state, rows, donate=False)
    assert int(fbuf.size(state)) == 1  # what reads no row may be asked
