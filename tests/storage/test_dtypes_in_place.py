"""Rows of every dtype are written in place, and come back bit for bit, NaNs included."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from support import meshes
from support.programs import emitters

import fbuf
from fbuf import sharded
from fbuf.host import HostStore
from fbuf.host.transitions import Transitions
from fbuf.storage import store, words
from fbuf.xla.program import Program, array_of
from fbuf.xla.whole import written_whole

SMALL = ["int2", "uint2", "int4", "uint4", "float4_e2m1fn"]
FLOATS = [
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16", "float16", "float32"),
]
OTHERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "complex64"]
DTYPES = [*SMALL, *FLOATS, *OTHERS]
WIDE = 301
"""Numbers of a wide field: its row ends in the midst of a byte."""


def item_of(dtypes):
    """An item with a narrow and a wide field of each dtype; no two arrays have one size."""
    return {
        name: {"narrow": jnp.zeros(3, name), "wide": jnp.zeros((WIDE + 8 * at,), name)}
        for at, name in enumerate(dtypes)
    }


# --- nothing is copied ---------------------------------------------------------------------------

CAPACITY = 2**12
BATCH = 8


def zeros(item, *lead):
    return jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), item)


def add(state, rows):
    return fbuf.add(state, rows)


def write(state, rows):
    slots = jnp.arange(0, 5 * BATCH, 5, dtype=jnp.int32)
    return fbuf.write(state, fbuf.ids_at(state, slots), rows)


def add_with_next(state, rows):
    ends = jnp.arange(BATCH) % 3 == 0
    return fbuf.add(state, rows, next_observation=rows["obs"], terminated=ends)


def update_and_move(state, rows):
    """Rows are read, changed and written to other slots."""
    read = fbuf.read(state, fbuf.newest_ids(state, BATCH)).data
    return fbuf.add(write(fbuf.after(state, read), rows), read)


def scanned(state, rows):
    return lax.scan(lambda state, _: (fbuf.add(state, rows), None), state, length=3)[0]


def over_seeds(state, rows):
    return jax.vmap(fbuf.add, in_axes=(0, None))(state, rows)


STEPS = (add, write, add_with_next, update_and_move, scanned, over_seeds)


def refuse_copies(step, state, rows, devices=1):
    """Raise if the compiled step copies an array, or takes much memory beside its own."""
    jitted = jax.jit(step, donate_argnums=0)
    program = jitted.lower(state, rows).compile(compiler_options=emitters(True))
    arrays = {
        jax.tree_util.keystr(path): array_of((leaf.size // devices,), leaf.dtype)
        for path, leaf in jax.tree.leaves_with_path(state)
        if leaf.size * leaf.dtype.itemsize // devices >= 2**16
    }
    text = Program(program.as_text())
    assert not written_whole(text, arrays.values())
    assert not text.not_in_place(arrays.values())
    given = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(rows))
    assert program.memory_analysis().temp_size_in_bytes < 8 * given + 2**16


def checked(dtypes, step):
    item = item_of(dtypes)
    options = {}
    if step is add_with_next:
        item, options = {"obs": item}, {"next_of": "obs", "max_ends": CAPACITY // 2}

    def make(_):
        return fbuf.init(item, CAPACITY, **options)

    seeds = jnp.zeros(3)
    empty = jax.vmap(make) if step is over_seeds else make
    refuse_copies(step, jax.eval_shape(empty, seeds), zeros(item, BATCH))


@pytest.mark.parametrize("step", STEPS)
def test_no_step_copies_an_array(step):
    checked(DTYPES, step)


@pytest.mark.sweep
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_step_copies_an_array_of_one_dtype(dtype, step):
    checked([dtype], step)


def test_no_step_over_a_mesh_copies_an_array():
    mesh = meshes.mesh(2)
    item = item_of(["uint2", "int4", "float8_e5m2", "bfloat16"])
    state = sharded.init(item, CAPACITY, mesh=mesh, shards=2)
    rows = jax.device_put(zeros(item, BATCH), jax.NamedSharding(mesh, jax.P("data")))

    def step(state, rows):
        state = sharded.add(state, rows)
        batch = sharded.sample(state, jax.random.key(0), BATCH)
        return sharded.write(state, batch.ids, batch.data)

    refuse_copies(step, state, rows, devices=2)


# --- every bit comes back ------------------------------------------------------------------------

COUNT = 64
ENDS = np.arange(COUNT) % 5 == 2
CHANGED = np.arange(0, COUNT, 2)
SOME = ["uint2", "int4", "float4_e2m1fn", "float8_e5m2", "bfloat16", "bool", "complex64"]


def square_too(dtypes):
    return {
        name: fields | {"square": jnp.zeros((9, 11), name)}
        for name, fields in item_of(dtypes).items()
    }


def every_bit(spec, rng):
    """Rows of any bits; all that a number of up to 8 bits can have are among them."""
    shape, dtype = (COUNT, *spec.shape), np.dtype(spec.dtype)
    size = int(np.prod(shape))
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    width = words.width(dtype)
    if width <= 8:
        numbers = rng.permutation(np.arange(size) % 2**width)
        return numbers.astype(np.uint8).view(dtype).reshape(shape)
    numbers = rng.integers(0, 256, (size, dtype.itemsize)).astype(np.uint8)
    # Half of them have all bits of the exponent: infinities, and NaNs of every kind.
    numbers[::2, -1] |= 0x7F
    numbers[::2, -2] |= rng.choice(np.uint8([0x80, 0xF8]), len(numbers[::2]))
    return numbers.reshape(-1).view(dtype).reshape(shape)


def rows_of(item, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: every_bit(leaf, rng), item)


def same_bits(tree, other):
    named = zip(jax.tree.leaves_with_path(tree), jax.tree.leaves(other), strict=True)
    for (path, leaf), its in named:
        where = jax.tree_util.keystr(path)
        leaf, its = np.asarray(leaf), np.asarray(its)
        assert (leaf.dtype, leaf.shape) == (its.dtype, its.shape), where
        mine, theirs = (np.ascontiguousarray(of).reshape(-1).view(np.uint8) for of in (leaf, its))
        np.testing.assert_array_equal(mine, theirs, where)


@jax.jit
def written_and_read(storage, slots, rows):
    storage = storage.write(slots, rows)
    return storage.read(slots), storage.copy(slots, slots + COUNT)


def test_every_bit_of_every_dtype_comes_back_from_the_store():
    item = square_too(DTYPES)
    slots = np.random.default_rng(0).permutation(COUNT).astype(np.int32)
    rows = rows_of(item, 1)
    read, storage = written_and_read(store.empty(item, 2 * COUNT), slots, rows)
    same_bits(read, rows)
    same_bits(jax.jit(store.Storage.read)(storage, slots + COUNT), rows)


class History:
    """A buffer of rows of which some were written later, and what is in it."""

    def __init__(self, dtypes):
        self.item = {"obs": square_too(dtypes)}
        self.rows = rows_of(self.item, 0)
        self.next, self.later = (rows_of(self.item, seed)["obs"] for seed in (1, 2))
        self.stored = jax.tree.map(np.copy, self.rows)
        self.following = jax.tree.map(np.copy, self.next)
        kept = ENDS | (np.arange(COUNT) == COUNT - 1)
        trees = self.stored["obs"], self.following, self.later
        for row, following, later in zip(*map(jax.tree.leaves, trees), strict=True):
            row[CHANGED] = later[CHANGED]
            following[~kept] = row[1:][~kept[:-1]]
        self.options = {"capacity": 80, "next_of": "obs", "max_ends": 20}
        self.ends = {"next_observation": self.next, "terminated": ENDS}
        self.changes = {"obs": jax.tree.map(lambda leaf: leaf[CHANGED], self.later)}

    def check(self, read, newest):
        transitions = read(newest(COUNT), view=fbuf.Transition()).data
        same_bits(transitions.item, self.stored)
        same_bits(transitions.next_observation, self.following)

    def made(self):
        state = fbuf.add(fbuf.init(self.item, **self.options), self.rows, **self.ends)
        return fbuf.write(state, changed(fbuf.newest_ids(state, COUNT)), self.changes)


def changed(ids):
    return jax.tree.map(lambda leaf: leaf[CHANGED], ids)


def of_state(state):
    return functools.partial(fbuf.read, state), functools.partial(fbuf.newest_ids, state)


@pytest.mark.parametrize("dtypes", [SOME, pytest.param(DTYPES, marks=pytest.mark.sweep)], ids=len)
def test_every_bit_comes_back_from_a_buffer_and_a_file(dtypes, tmp_path):
    history = History(dtypes)
    state = history.made()
    history.check(*of_state(state))
    saved = fbuf.save(tmp_path, state)
    history.check(*of_state(fbuf.load(tmp_path, episodes="keep").state))
    taken = Transitions(saved).take(np.arange(COUNT)[::-1])  # as NumPy sees it
    same_bits(taken.leaves, jax.tree.leaves(history.stored))
    same_bits(taken.following, jax.tree.leaves(history.following))
    opened, _ = HostStore.open(tmp_path, episodes="keep")
    history.check(opened.read, functools.partial(fbuf.newest_ids, opened.contents.index))


@pytest.mark.sweep
@pytest.mark.parametrize("dtypes", [SOME, DTYPES], ids=len)
def test_every_bit_comes_back_from_another_size_and_from_the_host(dtypes, tmp_path):
    history = History(dtypes)
    history.check(*of_state(fbuf.resize(history.made(), 100)))
    hosted = HostStore(history.item, **history.options)
    newest = lambda count: fbuf.newest_ids(hosted.contents.index, count)
    hosted.add(history.rows, **history.ends)
    hosted.write(changed(newest(COUNT)), history.changes)
    history.check(hosted.read, newest)
    hosted.save(tmp_path)
    history.check(*of_state(fbuf.load(tmp_path, episodes="keep").state))


@pytest.mark.sweep
@pytest.mark.parametrize("dtypes", [SOME, DTYPES], ids=len)
def test_every_bit_comes_back_of_seeds_and_of_a_mesh(dtypes):
    item = {"number": jnp.int32(0), "x": square_too(dtypes)}
    rows = rows_of(item, 0) | {"number": np.arange(COUNT, dtype=np.int32)}
    seeds = jax.vmap(lambda _: fbuf.init(item, COUNT))(jnp.arange(2))
    seeds = jax.jit(jax.vmap(fbuf.add, in_axes=(0, None)))(seeds, rows)
    for seed in range(2):
        same_bits(fbuf.rows(jax.tree.map(lambda leaf, seed=seed: leaf[seed], seeds)).data, rows)
    mesh = meshes.mesh(2)
    given = jax.device_put(rows, jax.NamedSharding(mesh, jax.P("data")))
    state = sharded.add(sharded.init(item, COUNT, mesh=mesh, shards=2), given)
    drawn = sharded.sample(state, jax.random.key(0), COUNT).data
    numbers = np.asarray(drawn["number"])
    same_bits(drawn, jax.tree.map(lambda leaf: leaf[numbers], rows))


@pytest.mark.parametrize("name", ["float6_e2m3fn", "float6_e3m2fn"])
def test_numbers_of_six_bits_are_refused(name):
    with pytest.raises(TypeError, match=f"{name}, and a buffer stores no numbers of 6 bits"):
        fbuf.init(jax.ShapeDtypeStruct((), getattr(ml_dtypes, name)), 4)


@pytest.mark.parametrize("name", ["int1", "uint1"])
def test_a_dtype_that_jax_has_no_arrays_of_is_refused(name):
    with pytest.raises(TypeError, match=f"{name}, which JAX has no arrays of"):
        fbuf.init(jax.ShapeDtypeStruct((), getattr(ml_dtypes, name)), 4)
