"""Many rows at once: on CPU each field is gathered by itself, and invalid rows are made zeros."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fbuf
from fbuf.storage.masks import zeroed

KEY = jax.random.key(0)
ITEM = {
    "observation": jnp.zeros(20),
    "small": jnp.zeros((3, 2), jnp.bfloat16),
    "byte": jnp.zeros(5, jnp.uint8),
    "flag": jnp.bool_(False),
    "reward": jnp.float32(0),
}
WIDE = {"observation": jnp.zeros(20), "action": jnp.int32(0), "reward": jnp.float32(0)}


def filled(item, capacity, seed=0):
    rng = np.random.default_rng(seed)
    make = lambda leaf: jnp.asarray(rng.integers(0, 100, (capacity, *leaf.shape)), leaf.dtype)
    rows = jax.tree.map(make, item)
    return fbuf.add(fbuf.init(item, capacity), rows), rows


@pytest.mark.parametrize("item", [ITEM, WIDE], ids=["dtypes", "wide"])
@pytest.mark.parametrize("count", [511, 512, 2001, 9000])
def test_rows_are_those_that_were_added(item, count):
    state, rows = filled(item, 1000)
    slots = np.random.default_rng(1).integers(0, 1000, count)
    ids = fbuf.ids_at(state, jnp.asarray(slots, jnp.int32))
    for read in (fbuf.read, jax.jit(fbuf.read)):
        found = read(state, ids).data
        same = jax.tree.map(lambda x, y: np.array_equal(x, np.asarray(y)[slots]), found, rows)
        assert all(jax.tree.leaves(same))


def test_some_fields_of_rows_are_those_of_these_rows():
    state, rows = filled(WIDE, 1000)
    slots = jnp.arange(999, 99, -1, dtype=jnp.int32)
    view = fbuf.Item(("observation", "reward"))
    found = fbuf.read(state, fbuf.ids_at(state, slots), view=view).data
    for name in ("observation", "reward"):
        np.testing.assert_array_equal(found[name], rows[name][slots])


def test_rows_of_several_buffers_are_each_buffers_own():
    states, rows = zip(*(filled(WIDE, 600, seed) for seed in range(3)), strict=True)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    slots = jnp.asarray(np.random.default_rng(2).integers(0, 600, (3, 700)), jnp.int32)
    read = lambda state, slots: fbuf.read(state, fbuf.ids_at(state, slots)).data
    found = jax.jit(jax.vmap(read))(stacked, slots)
    for number, own in enumerate(rows):
        for name, leaf in own.items():
            np.testing.assert_array_equal(found[name][number], leaf[slots[number]])


# --- windows, whose steps are zeros where they are not valid --------------------------------------


def windows_of(state, key, count=64):
    view = fbuf.Sequence(9, boundary="pad")
    return fbuf.sample(state, key, count, view=view).data


def as_expected(data, rows):
    """Whether steps are rows, from the first on, where they are valid, and zeros elsewhere."""
    valid = np.asarray(data.valid)
    found, first = np.asarray(data.item["observation"]), np.asarray(data.item["reward"])[:, 0]
    at = np.argmax(np.asarray(rows["reward"])[None] == first[:, None], axis=1)
    at = np.minimum(at[:, None] + np.arange(valid.shape[1]), len(rows["reward"]) - 1)
    wanted = np.where(valid[..., None], np.asarray(rows["observation"])[at], 0)
    return np.array_equal(found, wanted) and not found[~valid].any()


@functools.cache
def numbered(seed=0):
    count = 200
    rows = {
        "observation": jnp.asarray(np.random.default_rng(seed).normal(size=(count, 20)), "float32"),
        "action": jnp.zeros(count, jnp.int32),
        "reward": jnp.arange(count, dtype=jnp.float32) + 1,
    }
    ends = jnp.arange(count) % 10 == 9
    return fbuf.add(fbuf.init(WIDE, count), rows, truncated=ends), rows


FORMS = {
    "eager": windows_of,
    "jit": jax.jit(windows_of),
    "cond": jax.jit(
        lambda state, key: lax.cond(state.fault == 0, windows_of, windows_of, state, key)
    ),
    "scan": jax.jit(
        lambda state, key: jax.tree.map(
            lambda leaf: leaf[0],
            lax.scan(lambda s, k: (s, windows_of(s, k)), state, jnp.stack([key]))[1],
        )
    ),
    "vmap": jax.jit(
        lambda state, key: jax.tree.map(
            lambda leaf: leaf[1], jax.vmap(windows_of, (None, 0))(state, jax.random.split(key))
        )
    ),
    "checkpoint": jax.jit(jax.checkpoint(windows_of)),
}


@pytest.mark.parametrize("form", FORMS)
def test_invalid_steps_are_zeros_in_every_form(form):
    state, rows = numbered()
    data = FORMS[form](state, KEY)
    assert 0.3 < data.valid.mean() < 0.9
    assert as_expected(data, rows)


def test_a_loss_has_a_gradient_through_windows():
    state, _ = numbered()

    def loss(weight):
        data = windows_of(state, KEY)
        return jnp.sum((data.item["observation"] @ weight) ** 2)

    weight = jnp.ones(20)
    whole = windows_of(state, KEY).item["observation"].reshape(-1, 20)
    np.testing.assert_allclose(
        jax.jit(jax.grad(loss))(weight), 2 * whole.T @ (whole @ weight), rtol=1e-4, atol=1e-3
    )


DTYPES = ("float32", "int8", "bool", "bfloat16", "complex64", "uint32")


@pytest.mark.parametrize("shape", [(6,), (6, 4)])
@pytest.mark.parametrize("holds", ["some", "all", "none"])
def test_zeros_are_where_a_mask_is_false(holds, shape):
    mask = {"some": np.arange(24) % 3 > 0, "all": np.ones(24, bool), "none": np.zeros(24, bool)}
    mask = mask[holds][: np.prod(shape)].reshape(shape)
    leaves = [jnp.ones((*shape, *more), dtype) for dtype in DTYPES for more in ((), (2, 3))]
    for make in (zeroed, jax.jit(zeroed), jax.vmap(zeroed)):
        for found, leaf in zip(make(mask, leaves), leaves, strict=True):
            wide = mask.reshape(*shape, *(1,) * (leaf.ndim - len(shape)))
            assert found.dtype == leaf.dtype
            assert (np.asarray(found) == np.where(wide, np.asarray(leaf), 0)).all()


# --- in place -------------------------------------------------------------------------------------


def step(state, key):
    state = fbuf.add(state, jax.tree.map(lambda leaf: jnp.ones((4, *leaf.shape), leaf.dtype), WIDE))
    batch = fbuf.sample(state, key, 64, view=fbuf.Sequence(9))
    error = jnp.abs(batch.data.item["reward"]).sum(axis=1)
    return fbuf.update_priority(state, batch.ids, error), batch.data.item["observation"].sum()


def skipped(state, key):
    return state, jnp.float32(0)


STEPS = {
    "plain": step,
    "cond": lambda state, key: lax.cond(fbuf.can_sample(state), step, skipped, state, key),
    "scan": lambda state, key: lax.scan(step, state, jax.random.split(key, 3)),
    "seeds": jax.vmap(step),
}


@pytest.mark.parametrize("form", STEPS)
def test_a_step_with_many_windows_copies_no_array_of_its_buffer(form):
    make, keys = lambda _: fbuf.init(WIDE, 2**14, sampler=fbuf.Prioritized(window=9)), KEY
    if form == "seeds":
        make, keys = jax.vmap(make), jax.random.split(KEY, 2)
    state = jax.eval_shape(make, jnp.arange(2))
    fbuf.check_in_place(jax.jit(STEPS[form], donate_argnums=0), state, keys)
