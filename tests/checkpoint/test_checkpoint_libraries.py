"""States saved with flax and orbax: what is restored goes on bit for bit as the original does."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf


def flax():
    """Imported where it is used: most processes of the tests need neither."""
    return pytest.importorskip("flax.serialization")


@pytest.fixture(autouse=True)
def _before_a_buffer_is_made(request):
    """As docs/know/saving.md says of flax."""
    if "flax" in request.node.name:
        flax()


def orbax():
    return pytest.importorskip("orbax.checkpoint")


ITEM = {
    "obs": jnp.zeros(3),
    "frame": jnp.zeros((40, 30), jnp.uint8),  # wide: an array of its own
    "half": jnp.bfloat16(0),
    "done": jnp.bool_(False),
}
ENVS, STEPS, CAPACITY = 2, 11, 16


def make(**options):
    return fbuf.init(ITEM, CAPACITY, num_envs=ENVS, **options)


def rollout(seed, steps):
    """Rows that are all different, and an end of an episode now and then."""
    key = jax.random.key(seed)
    items = {
        name: jax.random.randint(jax.random.fold_in(key, i), (ENVS, steps, *leaf.shape), 0, 200)
        for i, (name, leaf) in enumerate(ITEM.items())
    }
    items = {name: items[name].astype(leaf.dtype) for name, leaf in ITEM.items()}
    return items, jax.random.bernoulli(key, 0.3, (ENVS, steps))


def draw(state, seed):
    return fbuf.sample(state, jax.random.key(seed), 8)


def begin(seed):
    """Full, overwritten in part, with priorities of its own, and ids that are still to be used."""
    state = make(sampler=fbuf.Prioritized(window=2), next_of="obs")
    items, terminated = rollout(seed, STEPS)
    following = items["obs"] + 1
    state = fbuf.add(state, items, terminated=terminated, next_observation=following)
    ids = draw(state, seed).ids
    state = fbuf.update_priority(state, ids, jnp.linspace(0.5, 4, 8))
    state = fbuf.remove(state, jax.tree.map(lambda x: x[:1], ids))
    return state, draw(state, 0).ids


def go_on(state, ids):
    """Return the results of the next steps, with ids from before the save."""
    first = draw(state, 1)
    state = fbuf.update_priority(state, ids, jnp.linspace(2, 3, 8))
    items, terminated = rollout(7, 1)
    following = items["obs"] + 1
    state = fbuf.add(state, items, terminated=terminated, next_observation=following)
    return first, draw(state, 2), fbuf.remove(state, ids)


@functools.cache
def running():
    """Three seeds, what they drew, and the compiled rest of the program."""
    state, ids = jax.jit(jax.vmap(begin))(jnp.arange(3))
    return state, ids, jax.jit(jax.vmap(go_on))


def with_flax(state, like, path):
    return flax().from_bytes(like, flax().to_bytes(state))


def with_orbax(state, like, path):
    with orbax().StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "state", state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path / "state", like)


@pytest.mark.sweep
@pytest.mark.parametrize("save", [with_flax, with_orbax])
def test_several_seeds_go_on_bit_for_bit(save, tmp_path):
    state, ids, rest = running()
    restored = save(state, jax.eval_shape(lambda: state), tmp_path)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(restored))
    chex.assert_trees_all_equal(restored, state, strict=True)
    expected = rest(state, ids)
    assert np.all(expected[0].mask)
    chex.assert_trees_all_equal(rest(restored, ids), expected, strict=True)


@pytest.mark.sweep
@pytest.mark.parametrize("save", [pytest.param(with_flax, marks=pytest.mark.sweep), with_orbax])
def test_what_is_restored_is_apart_from_the_original_and_written_in_place(save, tmp_path):
    state = fbuf.add(make(), rollout(0, STEPS)[0])
    kept = jax.tree.map(np.array, state)
    restored = save(state, make(), tmp_path)
    # Memory that a library lent to JAX is copied once, at the first write.
    written = fbuf.add(restored, rollout(7, STEPS)[0])
    before = pointers(written)
    assert before.isdisjoint(pointers(state))
    written = fbuf.add(written, rollout(8, STEPS)[0])
    assert pointers(written) == before
    chex.assert_trees_all_equal(state, kept)


def pointers(state):
    return {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)}


@pytest.mark.sweep
def test_flax_saves_a_state_inside_other_things():
    state = fbuf.add(make(), rollout(0, STEPS)[0])
    run = {"params": jnp.ones(2), "buffers": [state], "step": 3}
    like = {"params": jnp.zeros(2), "buffers": [make()], "step": 0}
    restored = flax().from_bytes(like, flax().to_bytes(run))
    chex.assert_trees_all_equal(restored["buffers"][0], state)
    assert restored["step"] == 3


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (lambda: fbuf.init(ITEM, 18, num_envs=ENVS), "storage.* was saved as uint32 of shape"),
        (lambda: fbuf.init(jnp.zeros(3), 16, num_envs=ENVS), "storage.w"),
        (lambda: make(sampler=fbuf.Prioritized()), "They differ in .*index.tree"),
    ],
)
def test_flax_refuses_a_state_that_was_made_otherwise(like, message):
    saved = flax().to_bytes(make())
    with pytest.raises(ValueError, match=f"(?s)same item, capacity and options.*{message}"):
        flax().from_bytes(like(), saved)
