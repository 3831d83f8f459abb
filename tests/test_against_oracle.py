"""Any history of operations, held against the buffer in plain Python; everything is compared."""

from __future__ import annotations

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trees
from hypothesis import given, settings
from oracle import Oracle

import fbuf

BATCH = 6
NAN, INF = float("nan"), float("inf")
priorities = st.lists(
    st.sampled_from([0.0, 0.25, 1.0, 3.0, 50.0, NAN, INF, -1.0]), min_size=BATCH, max_size=BATCH
)
masks = st.lists(st.booleans(), min_size=BATCH, max_size=BATCH)
which = st.lists(st.integers(0, 10**6), min_size=BATCH, max_size=BATCH)
operations = st.one_of(
    st.tuples(st.just("add"), masks, st.one_of(st.none(), priorities), masks),
    st.tuples(st.just("add"), st.none(), st.one_of(st.none(), priorities), masks),
    st.tuples(st.just("chunk"), st.integers(1, 3)),
    st.tuples(st.just("update"), which, priorities, masks),
    st.tuples(st.just("remove"), which, masks),
    st.tuples(st.just("clear")),
)
SAMPLERS = {
    "uniform": fbuf.Uniform(),
    "prioritized": fbuf.Prioritized(alpha=0.7, eps=1e-3),
    "no_eps": fbuf.Prioritized(alpha=1.0, eps=0.0, normalize="buffer"),
    "ever": fbuf.Prioritized(alpha=0.5, eps=0.0, new_priority="largest_ever"),
}


def compare(state, oracle, name):
    assert int(fbuf.size(state)) == oracle.size()
    assert int(state.fault) == oracle.fault
    assert int(state.ring.head[0]) == oracle.head
    expected = np.array(oracle.values(), np.float64)
    if isinstance(state.sampler, fbuf.Uniform):
        stored = int(state.ring.stored[0])
        marked = trees.marks(state.index.starts.tree)
        np.testing.assert_array_equal(marked[:stored], expected[:stored])
    else:
        trees.check(state.index.tree)
        np.testing.assert_allclose(trees.values(state.index.tree), expected, rtol=1e-5)
    assert bool(fbuf.can_sample(state)) == bool(expected.sum() > 0)
    stored = np.asarray(state.storage.rows())
    for slot, row in enumerate(oracle.rows):
        if row and not row.removed:
            assert int(stored[slot]) == row.item
            assert int(state.ring.flags[slot]) & 3 == row.terminated + 2 * row.truncated
    sample = fbuf.sample(state, jax.random.key(oracle.head), 16, beta=0.8)
    slots = np.asarray(sample.ids.slot)
    if expected.sum() == 0:
        assert not sample.mask.any()
        assert (np.asarray(sample.weight) == 0).all()
        assert (slots == -1).all()
        return
    assert sample.mask.all()
    assert (expected[slots] > 0).all()
    share = expected / expected.sum()
    np.testing.assert_allclose(sample.probability, share[slots], rtol=1e-5)
    least = share[share > 0].min() if name == "no_eps" else share[slots].min()
    np.testing.assert_allclose(sample.weight, (share[slots] / least) ** -0.8, rtol=1e-4)
    for i, slot in enumerate(slots):
        row = oracle.rows[slot]
        assert int(sample.ids.generation[i]) == row.generation
        assert int(sample.data[i]) == row.item
        assert bool(sample.terminated[i]) == row.terminated
        assert bool(sample.truncated[i]) == row.truncated


def ids_for(oracle, numbers, history):
    """Live, stale, out of range, and naming nothing."""
    live = [(s, r.generation) for s, r in enumerate(oracle.rows) if r]
    odd = [(-1, 0), (oracle.capacity, 0), (-7, 0), (2**31 - 1, 3), *history[-8:]]
    pool = live * 3 + odd
    return [pool[n % len(pool)] for n in numbers]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("capacity", [1, 5, 17, 300])
@settings(max_examples=10)
@given(history=st.lists(operations, min_size=1, max_size=12))
def test_any_history(name, capacity, history):
    sampler = SAMPLERS[name]
    prioritised = isinstance(sampler, fbuf.Prioritized)
    state = fbuf.init(jnp.int32(0), capacity, sampler=sampler)
    oracle = (
        Oracle(capacity, sampler.alpha, sampler.eps, sampler.new_priority)
        if prioritised
        else Oracle(capacity)
    )
    seen, count = [], 0
    for operation in history:
        kind = operation[0]
        if kind == "add":
            _, mask, priority, flags = operation
            priority = priority if prioritised else None
            items = list(range(count, count + BATCH))
            count += BATCH
            options = {"terminated": flags, "truncated": flags[::-1], "mask": mask}
            oracle.add(items, priority=priority, **options)
            options = {k: None if v is None else jnp.array(v) for k, v in options.items()}
            given_priority = None if priority is None else jnp.array(priority, jnp.float32)
            items = jnp.array(items, jnp.int32)
            state = fbuf.add(state, items, priority=given_priority, **options)
        elif kind == "chunk":
            items = list(range(count, count + 37 * operation[1]))
            count += len(items)
            oracle.add(items)
            state = fbuf.add(state, jnp.array(items, jnp.int32))
        elif kind == "clear":
            oracle.clear()
            state = fbuf.clear(state)
        else:
            ids = ids_for(oracle, operation[1], seen)
            named = fbuf.Ids(
                jnp.array([i[0] for i in ids], jnp.int32), jnp.array([i[1] for i in ids], jnp.int32)
            )
            mask = operation[-1]
            if kind == "remove":
                oracle.remove(ids, mask)
                state = fbuf.remove(state, named, mask=jnp.array(mask))
            elif prioritised:
                oracle.update_priority(ids, operation[2], mask)
                new = jnp.array(operation[2], jnp.float32)
                state = fbuf.update_priority(state, named, new, mask=jnp.array(mask))
        seen += [(s, r.generation) for s, r in enumerate(oracle.rows[:4]) if r]
        compare(state, oracle, name)
