"""Batches in words: what a notebook shows of one, whatever its arrays are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf.storage import shown

ROWS = {
    "observation": jnp.arange(12.0).reshape(2, 3, 2),
    "reward": jnp.array([1.0, jnp.nan]),
    "short": jnp.ones((2, 2), jnp.bfloat16),
}
ITEM = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), ROWS)
PADDED = fbuf.Sequence(2, boundary="pad")
LINES = {
    "data['observation']": "float32[2, 3, 2] 0 to 11",
    "data['reward']": "float32[2] all 1; 1 NaN or infinite",
    "data['short']": "bfloat16[2, 2] all 1",
    "ids.slot": "int32[2] 0 to 1",
    "ids.generation": "int32[2] all 0",
    "mask": "bool[2] 2 True",
    "terminated": "bool[2] 0 True",
    "truncated": "bool[2] 1 True",
}


@pytest.fixture(scope="module")
def state():
    return fbuf.add(fbuf.init(ITEM, 8), ROWS, truncated=np.array([False, True]))


@pytest.fixture
def batch(state):
    return fbuf.read(state, fbuf.newest_ids(state, 2))


def entries(batch):
    """The lines by name."""
    first, *lines, last = repr(batch).splitlines()
    assert (first, last) == (f"{type(batch).__name__}(", ")")
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


def without_figures(lines):
    """The lines without the ranges."""
    return {name: said[: said.index("]") + 1] for name, said in lines.items()}


def test_each_array_has_a_line(batch):
    assert entries(batch) == LINES
    assert f"{batch}" == repr(batch)


def test_numbers_of_numpy(batch):
    assert entries(jax.device_get(batch)) == LINES


def test_tensors(batch):
    pytest.importorskip("torch")
    from fbuf_adapters.pytorch import to_torch

    assert entries(to_torch(batch)) == LINES


def test_shapes_alone(batch):
    assert entries(jax.eval_shape(lambda: batch)) == without_figures(LINES)


def test_traced(batch):
    seen = []
    jax.jit(lambda batch: seen.append(entries(batch)) or batch.mask)(batch)
    assert seen == [without_figures(LINES)]
    jax.vmap(lambda batch: seen.append(entries(batch)) or batch.mask)(batch)
    assert seen[1]["mask"] == "bool[]"


def test_an_array_that_was_consumed(batch):
    repr(batch)
    mask = batch.data["observation"]
    place = mask.unsafe_buffer_pointer()
    changed = jax.jit(lambda leaf: leaf + 1, donate_argnums=0)(mask)
    assert changed.unsafe_buffer_pointer() == place  # nothing held its memory
    expected = LINES | {"data['observation']": "float32[2, 3, 2] consumed"}
    assert entries(batch) == expected


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (np.zeros((0, 3), np.float32), "float32[0, 3]"),
        (np.full(2, np.inf, np.float32), "float32[2] 2 NaN or infinite"),
        (np.ones(2, np.complex64), "complex64[2]"),
        (np.array([-3, 5], np.int8), "int8[2] -3 to 5"),
        (3, "3"),
        (object(), "builtins.object"),
    ],
)
def test_any_leaf(leaf, said):
    assert shown.of(leaf) == said


def test_keys_have_no_range():
    assert shown.of(jax.random.key(0)) == "key<fry>[]"


def test_many_arrays_are_not_all_named():
    batch = fbuf.Batch({f"x{n:02}": np.ones(1) for n in range(60)}, *[np.ones(1)] * 4)
    lines = repr(batch).splitlines()
    assert len(lines) == 43
    assert lines[-2] == "  and 24 more arrays"


N_STEP = fbuf.NStep(1, gamma=0.9, next_observation="observation")


@pytest.mark.parametrize(
    "make",
    [
        lambda state: fbuf.sample(state, jax.random.key(0), 4, view=PADDED).data,
        pytest.param(lambda state: fbuf.rollout(state), marks=pytest.mark.sweep),
        pytest.param(
            lambda state: fbuf.sample_mixed([(state, 1.0), (state, 1.0)], jax.random.key(0), 4),
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            lambda state: fbuf.sample(state, jax.random.key(0), 4, view=N_STEP),
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_every_kind_of_batch(state, make):
    """Static parts have their value."""
    batch = make(state)
    lines = entries(batch)
    leaves = [jax.tree_util.keystr(path)[1:] for path, _ in jax.tree.leaves_with_path(batch)]
    assert list(lines)[: len(leaves)] == leaves
    assert "Array(" not in repr(batch)
    if isinstance(batch, fbuf.MixedSample):
        assert lines["counts"] == "(2, 2)"


@pytest.mark.sweep
def test_over_a_mesh():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "data")
    state = fbuf.sharded.init({"x": 0.0}, 8, mesh=mesh, shards=2)
    state = fbuf.sharded.add(state, {"x": jnp.arange(4.0)})
    lines = entries(fbuf.sharded.sample(state, jax.random.key(0), 4))
    assert lines["ids.shard"].startswith("int32[4] ")
    assert lines["fault"] == "uint32[] all 0"
