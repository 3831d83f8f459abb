"""Rows that views mask for good: whoever loads or moves them is told, once, how many there are."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf.host import HostStore

N, LENGTH, ROOM = 60, 3, 4
ENDS = np.arange(N) % LENGTH == LENGTH - 1
OBSERVATION = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
ROWS = {"observation": OBSERVATION}
FOLLOWING = np.roll(OBSERVATION, -1, axis=0) + ENDS[:, None].astype(np.float32)
GIVEN = {"truncated": ENDS, "next_observation": FOLLOWING}
MADE = {"item": {"observation": jnp.zeros(2)}, "capacity": N, "next_of": "observation"}
ALL = int(ENDS.sum())
SWEEP = pytest.mark.sweep
MASK = "mask these rows for good; "


def filled(room=ALL, **options):
    """A buffer of 20 episodes, with room for the last observations of some."""
    return fbuf.add(fbuf.init(**MADE, max_ends=room, **options), ROWS, **GIVEN)


def masked(state):
    """The rows that the view masks: the oracle of every count."""
    batch = fbuf.rows(state, view=fbuf.Transition())
    there = np.asarray(fbuf.rows(state).mask)
    return int((there & ~np.asarray(batch.mask)).sum())


def told(make):
    """The result of a call, and its warnings, each of the line of the caller."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make()
    assert all(of.filename == __file__ for of in caught)
    return made, [str(of.message) for of in caught]


FIELD = {"extra": jnp.float32(1)}
LOADS = {
    "fbuf.load": lambda path: fbuf.load(path).state,
    "fbuf.load, fewer": lambda path: fbuf.load(path, capacity=N // 2).state,
    "fbuf.load, fill": lambda path: fbuf.load(path, fill=FIELD, episodes="keep").state,
    "HostStore.load": lambda path: HostStore.load(path)[0],
    "HostStore.open": lambda path: HostStore.open(path)[0],
}


@pytest.mark.parametrize(
    "name", [n if n == "fbuf.load, fewer" else pytest.param(n, marks=SWEEP) for n in LOADS]
)
def test_a_load_counts_them(tmp_path, name):
    """As it does whatever it is asked to change."""
    fbuf.save(tmp_path, filled(ROOM))
    made, (said,) = told(lambda: LOADS[name](tmp_path))
    function, _, how = name.partition(", ")
    lost = masked(made) if isinstance(made, fbuf.State) else ALL - ROOM
    ends = ALL // 2 if how == "fewer" else ALL
    assert said.startswith(f"{function}: the next observations of {lost} of {ends} ends")
    assert MASK in said


@pytest.mark.parametrize(
    "made",
    [
        filled,
        pytest.param(lambda: fbuf.init(0.0, 8), marks=SWEEP),
        pytest.param(lambda: fbuf.init(0.0, 8, sampler=fbuf.Reservoir()), marks=SWEEP),
    ],
)
def test_what_is_whole_is_no_warning(tmp_path, made):
    fbuf.save(tmp_path, made())
    assert told(lambda: fbuf.load(tmp_path))[1] == []


@pytest.mark.sweep
def test_a_resize_counts_those_that_it_has_lost():
    state, said = told(lambda: fbuf.resize(filled(), N, max_ends=ROOM))
    assert said == [said[0]]
    assert said[0].startswith(f"fbuf.resize: the next observations of {masked(state)} of {ALL} ")
    assert masked(state) == ALL - ROOM
    again, said = told(lambda: fbuf.resize(state, 2 * N, max_ends=N))
    assert (masked(again), said) == (ALL - ROOM, [])  # which were told before
    assert int(again.fault) == fbuf.Fault.LOST_NEXT  # and the fault stays


@pytest.mark.sweep
def test_an_extend_counts_them():
    small = fbuf.resize(filled(), 2 * N, max_ends=ALL)
    joined, (said,) = told(lambda: fbuf.extend(small, filled()))
    assert said.startswith(f"fbuf.extend: the next observations of {masked(joined)} of {2 * ALL} ")
    assert masked(joined) == ALL
    assert "fbuf.resize(state, state.capacity, max_ends=...)" in said
    large = fbuf.resize(small, 2 * N, max_ends=2 * ALL)
    assert told(lambda: fbuf.extend(large, filled()))[1] == []


def test_compiled_calls_have_the_fault_alone():
    call = jax.jit(lambda state: fbuf.resize(state, N, max_ends=ROOM))
    state, said = told(lambda: call(filled()))
    assert (int(state.fault), said) == (fbuf.Fault.LOST_NEXT, [])


@pytest.mark.sweep
def test_batches_of_buffers_have_the_fault_alone():
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), filled())
    many, said = told(lambda: jax.vmap(lambda state: fbuf.resize(state, N, max_ends=ROOM))(two))
    assert (many.fault.tolist(), said) == ([fbuf.Fault.LOST_NEXT] * 2, [])


def test_a_store_warns_once(tmp_path):
    store = HostStore(**MADE, max_ends=ROOM)
    few = {name: leaf[:3] for name, leaf in GIVEN.items()}
    assert told(lambda: store.add({"observation": OBSERVATION[:3]}, **few))[1] == []
    _, (said,) = told(lambda: store.add(ROWS, **GIVEN))
    assert said.startswith(f"HostStore.add: the next observations of {ALL - ROOM} of {ALL} ")
    assert told(lambda: store.add(ROWS, **GIVEN))[1] == []
    store.save(tmp_path)
    (loaded, _), (said,) = told(lambda: HostStore.load(tmp_path))
    assert said.startswith("HostStore.load: ")
    assert told(lambda: loaded.add(ROWS, **GIVEN))[1] == []


def test_removed_rows_do_not_count(tmp_path):
    state = filled(ROOM)
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.arange(LENGTH)))
    fbuf.save(tmp_path, state)
    loaded, (said,) = told(lambda: fbuf.load(tmp_path).state)
    assert f" {masked(loaded)} of {ALL - 1} ends" in said
    assert masked(loaded) == ALL - 1 - ROOM


@pytest.mark.sweep
def test_over_a_mesh(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "data")
    state = fbuf.sharded.init(
        {"observation": jnp.zeros(2)}, 4 * N, mesh=mesh, shards=4, num_envs=4,
        next_of="observation", max_ends=4 * ROOM,
    )  # fmt: skip
    rows = {"observation": np.stack([OBSERVATION] * 4)}
    ends = np.zeros((4, N), bool)
    ends[0], ends[1, [5, 9]] = ENDS, True
    following = np.stack([np.roll(OBSERVATION, -1, axis=0)] * 4) + ends[..., None]
    state = fbuf.sharded.add(state, rows, truncated=ends, next_observation=following)
    lost = ALL - ROOM
    whole, said = told(lambda: fbuf.sharded.reshard(state, 2))
    assert said == []  # all that are lost were so before
    path = tmp_path / "saved"
    fbuf.sharded.save(path, whole)
    _, (said,) = told(lambda: fbuf.sharded.load(path, mesh=mesh))
    # The last rows of the other environments are ended by the load.
    assert said.startswith("fbuf.sharded.load: the next observations of ")
    assert int(said.split(" of ")[1].split()[0]) >= lost - ROOM


@pytest.mark.parametrize("count", [1, 2])
def test_loaders_of_data_sets_count_them(count):
    datasets = pytest.importorskip("fbuf_adapters.datasets")
    cut = np.zeros(N, bool)
    cut[[N - 1, N // 2][:count]] = True
    load = lambda: datasets.from_arrays(
        ROWS, terminated=np.zeros(N, bool), truncated=cut, next_of="observation"
    )
    state, (said,) = told(load)
    assert masked(state) == count
    rows = "1 row that was" if count == 1 else "2 rows that were"
    assert f"lacks the next observations of {rows} truncated; " in said
    none = lambda: datasets.from_arrays(ROWS, terminated=np.zeros(N, bool), truncated=cut)
    assert told(none)[1] == []
    known = lambda: datasets.from_arrays(
        ROWS, terminated=np.zeros(N, bool), truncated=cut, next_of="observation",
        next_observation=np.roll(OBSERVATION, -1, axis=0),
    )  # fmt: skip
    assert told(known)[1] == []
