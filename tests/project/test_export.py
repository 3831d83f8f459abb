"""Programs with a buffer in them, exported and serialised."""

import subprocess
import sys
from typing import NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from support.few import few

import fbuf

pytest.importorskip("flatbuffers")  # jax.export wants it, and does not bring it along

SAMPLERS = {
    "window": fbuf.Uniform(window=2),
    "episode": fbuf.Uniform(window=2, by="episode"),
    "prioritized": fbuf.Prioritized(normalize="buffer"),
    "priority_window": fbuf.Prioritized(window=2, new_priority="largest_ever"),
    "mixture": fbuf.Mixture(0.5, recent=2, priorities=fbuf.Prioritized(alpha=0.5)),
    "shuffled": fbuf.Shuffled(),
    "fifo": fbuf.Fifo(),
    "fresh": fbuf.FreshFirst(fbuf.Uniform(window=2)),
    "fresh_apart": fbuf.FreshFirst(fbuf.Uniform(window=2, strict=False)),
    "grouped": fbuf.Grouped("group", 3, shares=(1.0, 2.0, 0.5)),
    "limited": fbuf.Limited(fbuf.Prioritized(), max_uses=3, version="group"),
    "reservoir": fbuf.Reservoir(),
    "lowest": fbuf.EvictLowest(),
}
ITEM = {
    "group": jnp.int32(0),
    "obs": (jnp.zeros(2), [jnp.zeros((), jnp.bfloat16), None]),
    "reward": jnp.zeros(()),
}


def program(view):
    def step(state, words):
        one = jax.tree.map(lambda leaf: jnp.ones((2, *leaf.shape), leaf.dtype), ITEM)
        if state.sampler.places:
            state = fbuf.add(state, one)
            return state, fbuf.sample(state, jax.random.wrap_key_data(words), 2)
        state = fbuf.add(state, one, next_observation=one["obs"])
        if state.sampler.notes_draws:
            return fbuf.draw(state, jax.random.wrap_key_data(words), 2, view=view)
        if state.sampler.is_queue:
            return fbuf.pop(state, 2)
        number = 0 if state.sampler.without_replacement else None
        key = jax.random.wrap_key_data(words)
        batch = fbuf.sample(state, key, 2, view=view, step=number)
        return fbuf.after(state, batch), batch

    return step


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", few(SAMPLERS, "prioritized"))
def test_a_step_comes_back(sampler):
    kind = SAMPLERS[sampler]
    lanes = {} if kind.places else {"num_envs": 2, "next_of": "obs"}
    lanes |= {"lockstep": False} if sampler.endswith("apart") else {}
    state = fbuf.init(ITEM, 8, sampler=kind, **lanes)
    words = jax.random.key_data(jax.random.key(0))
    step = program(fbuf.Transition())
    exported = jax.export.export(jax.jit(step))(state, words)
    again = jax.export.deserialize(exported.serialize())
    assert (again.in_tree, again.out_tree) == (exported.in_tree, exported.out_tree)
    for one, other in zip(
        jax.tree.leaves(again.call(state, words)),
        jax.tree.leaves(jax.jit(step)(state, words)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "view",
    [
        fbuf.NStep(2, gamma=0.9),
        fbuf.ReturnToGo(gamma=0.9),
        fbuf.Sequence(2, boundary="pad"),
        fbuf.Sequence(2, boundary="pad", time_major=True),
        fbuf.Hindsight(lambda a, g: 0.0, goal="reward", achieved="reward"),
    ],
    ids=lambda view: type(view).__name__,
)
def test_what_views_return_comes_back(view):
    state = jax.eval_shape(lambda: fbuf.init(ITEM, 8, num_envs=2, next_of="obs"))
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    exported = jax.export.export(jax.jit(program(view)))(state, words)
    assert jax.export.deserialize(exported.serialize()).out_tree == exported.out_tree


def test_rollouts_and_targets_come_back():
    def learn(state):
        batch = fbuf.rollout(state)
        rate = {"gamma": 0.9, "lambda_": 0.9}
        reward = batch.data["reward"]
        by_lambda = fbuf.targets.lambda_returns(batch, reward, reward, **rate)
        return batch, fbuf.targets.gae(batch, reward, reward, **rate), by_lambda

    state = jax.eval_shape(lambda: fbuf.init(ITEM, 8, num_envs=2))
    exported = jax.export.export(jax.jit(learn))(state)
    assert jax.export.deserialize(exported.serialize()).out_tree == exported.out_tree


def test_a_pace_comes_back():
    counter = fbuf.Pace(4).init()
    exported = jax.export.export(jax.jit(lambda counter: counter))(counter)
    assert jax.export.deserialize(exported.serialize()).in_tree == jax.tree.structure(
        ((counter,), {})
    )


@pytest.mark.sweep
def test_another_process_needs_nothing_but_the_import():
    state = jax.eval_shape(lambda: fbuf.init({"x": jnp.zeros(2)}, 8))
    data = jax.export.export(jax.jit(fbuf.size))(state).serialize()
    script = """
import sys
import jax.export, jax.numpy as jnp, fbuf
exported = jax.export.deserialize(bytearray(sys.stdin.buffer.read()))
state = fbuf.add(fbuf.init({"x": jnp.zeros(2)}, 8), {"x": jnp.ones((3, 2))})
assert int(exported.call(state)) == 3
"""
    subprocess.run([sys.executable, "-c", script], input=bytes(data), check=True)


class Row(NamedTuple):
    x: jax.Array


class Mine(fbuf.Uniform):
    """A sampler that no other process knows."""


def test_what_has_only_a_name_is_refused():
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    for state, match in (
        (fbuf.init(Row(jnp.zeros(2)), 8), "items of this buffer are made of .*Row.*; make the"),
        (fbuf.init(jnp.zeros(2), 8, sampler=Mine()), "sampler of your own, .*Mine, .*; export"),
    ):
        with pytest.raises(TypeError, match=match):
            jax.export.export(jax.jit(lambda state, _: state.fault))(state, words).serialize()
