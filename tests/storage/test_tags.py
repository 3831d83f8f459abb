"""Ids of one buffer name no row of another one, nor of the buffer as it was loaded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tags

import fbuf
from fbuf.host import HostStore

PRIORITIZED = fbuf.Prioritized(alpha=1.0, eps=0.0)
SAMPLERS = [PRIORITIZED, fbuf.EvictLowest(fbuf.Prioritized())]


@pytest.fixture(autouse=True)
def _as_users_have_them():
    with tags.as_users_have_them():
        yield


def empty(sampler=PRIORITIZED, **options):
    return fbuf.init({"n": jnp.int32(0)}, 8, sampler=sampler, **options)


def filled(state, first=0):
    return fbuf.add(state, {"n": first + jnp.arange(8, dtype=jnp.int32)})


COMPILED = jax.jit(empty)


@jax.jit
def both_in_one_program():
    return empty(), empty()


@jax.jit
def in_a_loop():
    return jax.lax.scan(lambda carry, _: (carry, empty()), 0, None, length=2)[1]


def parts():
    ends = jnp.arange(8) % 2 == 1
    state = fbuf.add(empty(), {"n": jnp.arange(8, dtype=jnp.int32)}, terminated=ends)
    return fbuf.split(state, None, 0.5)


WAYS = {
    "from Python": lambda: (empty(), empty()),
    "a compiled init, called twice": lambda: (COMPILED(), COMPILED()),
    "two in one program": both_in_one_program,
    "in a loop": lambda: [jax.tree.map(lambda x, n=n: x[n], in_a_loop()) for n in (0, 1)],
    "a head for each environment": lambda: [empty(num_envs=2, lockstep=False) for _ in (0, 1)],
}


@pytest.mark.parametrize("way", WAYS)
def test_each_buffer_has_a_tag_of_its_own(way):
    one, other = (np.asarray(state.ring.tag) for state in WAYS[way]())
    assert one[0] != other[0]
    assert (one == one[0]).all()
    assert (other == other[0]).all()


def test_parts_of_a_buffer_are_buffers():
    one, other = parts()
    batch = fbuf.sample(one, jax.random.key(0), 4)
    assert fbuf.read(one, batch.ids).mask.all()
    assert not fbuf.read(other, batch.ids).mask.any()


def change(state, ids):
    """All that changes or reads rows by id."""
    state = fbuf.update_priority(state, ids, jnp.full(ids.slot.shape, 100.0), donate=False)
    state = fbuf.write(state, ids, {"n": jnp.full(ids.slot.shape, 99, jnp.int32)}, donate=False)
    state = fbuf.remove(state, ids, donate=False)
    around = ids if state.sampler.places else fbuf.neighbours(state, ids, (0,))
    found = fbuf.read(state, ids)
    return state, found.mask, fbuf.probability(state, ids), found.ids.slot, around.slot


def in_scan(state, ids):
    turn = lambda state, ids: (lambda changed: (changed[0], changed[1:]))(change(state, ids))
    state, rest = jax.lax.scan(turn, state, jax.tree.map(lambda leaf: leaf[None], ids))
    return state, *jax.tree.map(lambda leaf: leaf[0], rest)


def under_vmap(state, ids):
    batched = jax.tree.map(lambda leaf: leaf[None], (state, ids))
    return jax.tree.map(lambda leaf: leaf[0], jax.vmap(change)(*batched))


FORMS = {
    "eager": change,
    "jit": jax.jit(change),
    "scan": jax.jit(in_scan),
    "vmap": jax.jit(under_vmap),
    "cond": jax.jit(lambda s, i: jax.lax.cond(s.ring.count() > 0, change, change, s, i)),
}


def unchanged(form, state, ids):
    """Nothing happens to any row by these ids, and the buffer says why."""
    before = fbuf.rows(state), fbuf.probability(state, fbuf.ids_at(state, jnp.arange(8)))
    state, mask, likely, found, around = form(state, ids)
    assert not mask.any()
    assert not np.asarray(likely).any()
    assert (found == -1).all()
    assert state.sampler.places or (around == -1).all()
    after = fbuf.rows(state), fbuf.probability(state, fbuf.ids_at(state, jnp.arange(8)))
    np.testing.assert_array_equal(before[0].data["n"], after[0].data["n"])
    np.testing.assert_array_equal(before[1], after[1])
    assert fbuf.Fault(int(state.fault)) == fbuf.Fault.FOREIGN_ID
    with pytest.raises(RuntimeError, match="another buffer"):
        fbuf.raise_on_fault(state)


@pytest.mark.first(2)
@pytest.mark.parametrize("form", FORMS)
def test_ids_of_demonstrations_change_no_online_row(form):
    online, demonstrations = filled(empty()), filled(empty(), first=50)
    ids = fbuf.sample(demonstrations, jax.random.key(0), 4).ids
    unchanged(FORMS[form], online, ids)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_ids_of_a_run_that_was_given_up_read_nothing(sampler, tmp_path):
    state = fbuf.save(tmp_path, filled(empty(sampler)))
    given_up = filled(state, first=100)
    ids = fbuf.sample(given_up, jax.random.key(0), 4).ids
    for _ in range(2):
        unchanged(change, fbuf.load(tmp_path).state, ids)
    unchanged(change, filled(fbuf.load(tmp_path).state, first=200), ids)  # and the run goes on


def test_a_load_is_another_buffer_on_the_host(tmp_path):
    store = HostStore({"n": jnp.int32(0)}, 8)
    store.add({"n": np.arange(8, dtype=np.int32)})
    ids = store.sample(jax.random.key(0), 4).ids
    assert store.read(ids).mask.all()
    store.save(tmp_path)
    for load in (HostStore.load, HostStore.open):
        loaded, _ = load(tmp_path)
        assert not loaded.read(ids).mask.any()
        assert loaded.read(loaded.sample(jax.random.key(0), 4).ids).mask.all()


@pytest.mark.sweep
def test_over_a_mesh(tmp_path):
    mesh = jax.make_mesh((2,), ("data",))
    make = lambda: fbuf.sharded.add(
        fbuf.sharded.init(jnp.int32(0), 8, mesh=mesh, sampler=PRIORITIZED),
        jnp.arange(8, dtype=jnp.int32),
    )
    one, other = make(), make()
    one = fbuf.sharded.save(tmp_path, one)
    ids = fbuf.sharded.sample(one, jax.random.key(0), 4).ids
    loaded = fbuf.sharded.load(tmp_path, mesh=mesh).state
    for state, foreign in ((one, False), (other, True), (loaded, True)):
        state = fbuf.sharded.update_priority(state, ids, jnp.full(4, 9.0))
        expected = fbuf.Fault.FOREIGN_ID if foreign else fbuf.Fault(0)
        assert fbuf.Fault(int(fbuf.sharded.stats(state)["fault"])) == expected


def test_late_ids_of_the_same_buffer_are_late():
    state = filled(empty())
    ids = fbuf.sample(state, jax.random.key(0), 4).ids
    smaller = fbuf.resize(state, 8)
    cleared = filled(fbuf.clear(state))
    for later in (filled(filled(cleared)), smaller):
        later = fbuf.update_priority(later, ids, jnp.ones(4))
        assert fbuf.Fault(int(later.fault)) == fbuf.Fault.STALE_ID


def test_draws_do_not_depend_on_the_tag():
    batches = [
        fbuf.sample(filled(empty(sampler)), jax.random.key(3), 16)
        for sampler in SAMPLERS
        for _ in range(2)
    ]
    for one, other in zip(batches[::2], batches[1::2], strict=True):
        np.testing.assert_array_equal(one.ids.slot, other.ids.slot)
        np.testing.assert_array_equal(one.probability, other.probability)


def test_a_state_of_an_older_version_restores_with_flax():
    serialization = pytest.importorskip("flax.serialization")
    state = filled(empty())
    saved = serialization.to_state_dict(filled(empty(), first=20))
    saved["ring.cursor"] = np.asarray(saved["ring.cursor"])[:4]  # as it was without a tag
    restored = serialization.from_state_dict(state, saved)
    ids = fbuf.sample(restored, jax.random.key(0), 4).ids
    assert fbuf.read(restored, ids).mask.all()
    np.testing.assert_array_equal(fbuf.rows(restored).data["n"], 20 + np.arange(8))
