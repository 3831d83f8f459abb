"""Arguments as other libraries have them: the message says what to write here."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fbuf
from fbuf.host import HostStore

FLAGS = np.zeros(3, bool)
OBJECTS = np.array([1.0, 2.0, 3.0], object)


def state():
    return fbuf.init({"x": 0.0}, 8, sampler=fbuf.Prioritized())


ROWS = {"x": np.ones(3, np.float32)}
NAMES = {
    "done": (lambda: fbuf.add(state(), ROWS, done=FLAGS), "give terminated=..., where the task "),
    "dones": (lambda: fbuf.add(state(), ROWS, dones=FLAGS), "and truncated=... for limits of time"),
    "timeouts": (lambda: fbuf.add(state(), ROWS, timeouts=FLAGS), "give truncated=..., where an "),
    "next_obs": (
        lambda: fbuf.add(state(), ROWS, next_obs=1.0),
        "give next_observation=..., to a buffer made with next_of",
    ),
    "td_error": (
        lambda: fbuf.update_priority(state(), fbuf.newest_ids(state(), 1), td_error=1.0),
        "give priority=..., one for each row",
    ),
    "rng": (lambda: fbuf.sample(state(), rng=jax.random.key(0)), "give key=..., such as"),
    "size": (lambda: fbuf.add(state(), ROWS, size=3), "it takes state, items, terminated, "),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_other_libraries(name):
    call, said = NAMES[name]
    with pytest.raises(TypeError) as error:
        call()
    assert f"got an unexpected keyword argument {name!r}; " in str(error.value)
    assert said in str(error.value)


def test_a_name_is_not_explained_by_one_that_a_function_lacks():
    with pytest.raises(TypeError, match=r"'done'; it takes state, key, batch_size"):
        fbuf.sample(state(), jax.random.key(0), 3, done=FLAGS)


def test_save_with_its_arguments_swapped(tmp_path):
    with pytest.raises(TypeError, match=r"path comes first.*: state = fbuf\.save\(path, state\)"):
        fbuf.save(state(), tmp_path)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "data")
    sharded = fbuf.sharded.init({"x": 0.0}, 8, mesh=mesh)
    with pytest.raises(TypeError, match=r"path comes first.*: state = fbuf\.save\(path, state\)"):
        fbuf.save(sharded, tmp_path)
    with pytest.raises(TypeError, match=r"fbuf\.State or a ShardedState, got str"):
        fbuf.save(tmp_path, "state")


def calls(value):
    """Every way of a value into a buffer."""
    from fbuf_adapters.datasets import from_arrays

    ways = [
        lambda: fbuf.add(state(), value),
        lambda: fbuf.init(value, 8),
        lambda: HostStore({"x": 0.0}, 8).add(value),
        lambda: from_arrays(value, terminated=FLAGS),
    ]
    for way in ways:
        with pytest.raises((TypeError, ValueError)) as error:
            way()
        yield str(error.value)


def test_tables_of_pandas():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": np.ones(3, np.float32)})
    for said in calls(table):
        assert "give a dict of arrays, one for each field: {name: " in said
        assert "[name].to_numpy() for name in " in said
    for said in calls({"x": table["x"]}):
        assert "got Series; give " in said
        assert ".to_numpy()" in said


@pytest.mark.parametrize("value", [OBJECTS, np.array([[1], [2, 3], [4]], object)])
def test_columns_of_objects(value):
    for said in calls({"x": value}):
        assert "dtype object" in said
        assert "give np.stack(list(" in said
        assert ".astype('float32') for one of numbers" in said


def test_other_values_are_refused_as_before():
    with pytest.raises(TypeError, match=r"items\['x'\] must be an array, got str$"):
        fbuf.add(state(), {"x": "y"})
    with pytest.raises(TypeError, match=r"dtype <U1, which JAX has no arrays of; give numbers$"):
        fbuf.add(state(), {"x": np.array(["y"])})
