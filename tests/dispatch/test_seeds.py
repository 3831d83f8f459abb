"""Many seeds by `vmap`: what does not depend on data stays one value, and no array is copied."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.contracts import CAPACITY, consumed
from support.few import few
from support.programs import copies

import fbuf
from fbuf.trees import bit_tree, sum_tree

KEYS = jax.random.split(jax.random.key(0), 3)
ITEM = {"obs": jnp.zeros(3), "reward": jnp.zeros(())}
SAMPLERS = {
    "uniform": fbuf.Uniform(),
    "prioritized": fbuf.Prioritized(),
    "floor": fbuf.Prioritized(eps=0, floor=0.1),
    "mixture": fbuf.Mixture(0.5, prioritized=0.3, recent=0.2),
    "fresh first": fbuf.FreshFirst(fbuf.Prioritized()),
    "shuffled": fbuf.Shuffled(),
}
ASKING = {
    "windows": fbuf.Prioritized(window=3),
    "no eps": fbuf.Prioritized(eps=0),
    "first steps": fbuf.Prioritized(first_only=True),
    "strides": fbuf.Uniform(stride=2),
    "by priority alone": fbuf.Mixture(0, prioritized=1, priorities=fbuf.Prioritized(eps=0)),
}
"""Samplers for which a buffer can have rows, and none to draw."""


def rows(key, count=4):
    return {"obs": jax.random.normal(key, (count, 3)), "reward": jnp.ones(count)}


def learns(state, key):
    if isinstance(state.sampler, fbuf.FreshFirst):
        state, batch = fbuf.draw(state, key, 16)
    else:
        batch = fbuf.sample(state, key, 16, step=0 if state.sampler.without_replacement else None)
    if state.sampler.keeps_priorities:
        state = fbuf.update_priority(state, batch.ids, jnp.abs(batch.data["obs"].sum(-1)))
    else:
        state = fbuf.write(state, batch.ids, {"reward": batch.data["reward"] + 1})
    return state, consumed(batch)


def rests(state, key):
    return state, 0.0


def may_learn(state):
    return fbuf.can_sample(state, 12)


def large_enough(state):
    return fbuf.size(state) >= 12


def asks_a_field(state):
    return state.ring.live() >= 12


def trained(sampler, capacity, ready, turns=8):
    """A seed, as users write it."""

    def train(key):
        state = fbuf.init(ITEM, capacity, sampler=sampler)

        def turn(state, key):
            truncated = jax.random.bernoulli(key, 0.2, (4,))
            state = fbuf.add(state, rows(key), truncated=truncated)
            return lax.cond(ready(state), learns, rests, state, key)

        return lax.scan(turn, state, jax.random.split(key, turns))

    return train


def conditions(program, *args):
    """The predicates of all branches that give a buffer: their shapes."""
    found = []

    def look(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "cond" and len(equation.outvars) > 1:
                found.append(equation.invars[0].aval.shape)
            for value in equation.params.values():
                for one in value if isinstance(value, tuple | list) else (value,):
                    inner = getattr(one, "jaxpr", one)
                    if hasattr(inner, "eqns"):
                        look(inner)

    look(jax.make_jaxpr(program)(*args).jaxpr)
    return found


@pytest.mark.parametrize("ready", [may_learn, large_enough, asks_a_field])
@pytest.mark.parametrize("sampler", few(SAMPLERS, "prioritized", "mixture"))
def test_a_condition_on_the_size_is_one_for_all_seeds(sampler, ready):
    program = jax.vmap(trained(SAMPLERS[sampler], 64, ready))
    assert conditions(program, KEYS) == [()]


@pytest.mark.parametrize("sampler", few(ASKING, "windows"))
def test_so_is_one_on_the_size_where_rows_may_not_be_drawn(sampler):
    assert conditions(jax.vmap(trained(ASKING[sampler], 64, large_enough)), KEYS) == [()]
    assert not conditions(jax.vmap(trained(ASKING[sampler], 64, may_learn)), KEYS)  # a select


@pytest.mark.parametrize("sampler", few({**SAMPLERS, **ASKING}, "mixture", "strides"))
def test_each_seed_is_what_it_is_alone(sampler):
    train = trained({**SAMPLERS, **ASKING}[sampler], 16, may_learn)
    together = jax.jit(jax.vmap(train))(KEYS)
    alone = [jax.jit(train)(key) for key in KEYS]
    for number, one in enumerate(alone):
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(one), strict=True):
            if jnp.issubdtype(a.dtype, jnp.floating):
                np.testing.assert_allclose(a[number], b, rtol=1e-5)
            elif a is not together[0].ring.cursor:  # its tag is drawn anew
                np.testing.assert_array_equal(a[number], b)


@pytest.mark.parametrize("sampler", ASKING)
def test_rows_that_cannot_be_drawn_are_not_to_sample(sampler):
    sampler = ASKING[sampler]
    state = fbuf.init(ITEM, 8, sampler=sampler)
    given = jnp.zeros(2) if sampler.keeps_priorities and sampler.window == 1 else None
    if getattr(sampler, "first_only", False):
        state = fbuf.add(state, rows(KEYS[0], 9))  # the first step is gone
        given = None
    state = fbuf.add(state, rows(KEYS[0], 2), priority=given)
    if sampler.stride == 2:
        state = fbuf.remove(state, fbuf.ids_at(state, jnp.int32([0])))
    assert int(fbuf.size(state)) > 0
    assert not fbuf.can_sample(state)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_row_is_enough_to_sample(sampler):
    state = fbuf.init(ITEM, 8, sampler=SAMPLERS[sampler])
    assert not fbuf.can_sample(state)
    given = jnp.zeros(1) if state.sampler.keeps_priorities else None
    state = fbuf.add(state, rows(KEYS[0], 1), priority=given)
    assert fbuf.can_sample(state)
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.int32([0])))
    assert not fbuf.can_sample(state)


@pytest.mark.parametrize("removed", [(), (1,), (0, 1, 2)])
def test_draws_of_one_with_holes_are_those_of_each_alone(removed):
    def history(key, slots):
        state = fbuf.add(fbuf.init(ITEM, 8), rows(KEYS[0], 6))
        state = fbuf.remove(state, fbuf.ids_at(state, slots))
        batch = fbuf.sample(state, key, 64)
        return batch.ids.slot, batch.probability, fbuf.can_sample(state)

    slots = jnp.stack([jnp.where(n in removed, jnp.int32([2, 4]), 9) for n in range(3)])
    together, one = jax.jit(jax.vmap(history))(KEYS, slots), jax.jit(history)
    for n in range(3):
        for a, b in zip(together, one(KEYS[n], slots[n]), strict=True):
            np.testing.assert_array_equal(a[n], b)
        if n in removed:
            assert not np.isin(together[0][n], [2, 4]).any()


def test_removed_rows_are_counted_for_each_seed():
    def history(key, slots):
        state = fbuf.init(ITEM, 8)
        state = fbuf.add(state, rows(key, 6))
        state = fbuf.remove(state, fbuf.ids_at(state, slots))
        sizes = [fbuf.size(state)]
        for count in (3, 4, 5):
            state = fbuf.add(state, rows(key, count))
            sizes.append(fbuf.size(state))
        return jnp.stack(sizes)

    slots = jnp.int32([[0, 1], [5, 5], [9, 9]])
    together = jax.jit(jax.vmap(history))(KEYS, slots)
    one = jax.jit(history)
    alone = jnp.stack([one(*each) for each in zip(KEYS, slots, strict=True)])
    np.testing.assert_array_equal(together, alone)
    # Slots that all seeds share, and a mask that they do not.
    np.testing.assert_array_equal(
        jax.vmap(history, (0, None))(KEYS, slots[0]), np.tile(alone[0], (3, 1))
    )


def test_rows_left_out_by_a_mask_are_counted_for_each_seed():
    def history(key, mask):
        state = fbuf.add(fbuf.init(ITEM, 8), rows(key, 6))
        state = fbuf.remove(state, fbuf.ids_at(state, jnp.int32([0, 3])))
        return fbuf.size(fbuf.add(state, rows(key, 4), mask=mask))

    masks = jnp.array([[1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]], bool)
    together = jax.jit(jax.vmap(history))(KEYS, masks)
    np.testing.assert_array_equal(together, [7, 5, 6])


def test_next_steps_that_are_dummies_are_counted_for_each_seed():
    def history(key, ends):
        state = fbuf.init(ITEM, 4, num_envs=1, autoreset="next_step")
        sizes = []
        for end in ends:
            state = fbuf.add(state, rows(key, 1), truncated=end[None])
            sizes.append(fbuf.size(state))
        return jnp.stack(sizes)

    ends = jnp.array([[0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [1, 0, 1, 0, 1, 0, 0]], bool)
    together = jax.jit(jax.vmap(history))(KEYS, ends)
    alone = [history(key, each) for key, each in zip(KEYS, ends, strict=True)]
    np.testing.assert_array_equal(together, np.stack(alone))


# --- in place ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler", few({**SAMPLERS, "windows": fbuf.Prioritized(window=3)}, "windows")
)
def test_seeds_of_their_own_conditions_write_in_place_with_masks(sampler):
    sampler = {**SAMPLERS, "windows": fbuf.Prioritized(window=3)}[sampler]

    def turn(state, key):
        due = jax.random.bernoulli(key)
        state = fbuf.add(state, rows(key), mask=jnp.broadcast_to(due, (4,)))
        if isinstance(state.sampler, fbuf.FreshFirst):
            state, batch = fbuf.draw(state, key, 16)
        else:
            step = 0 if state.sampler.without_replacement else None
            batch = fbuf.sample(state, key, 16, step=step)
        if state.sampler.keeps_priorities:
            state = fbuf.update_priority(state, batch.ids, batch.weight, mask=due)
        return state, consumed(batch)

    make = lambda _: fbuf.init(ITEM, CAPACITY, sampler=sampler)
    states = jax.eval_shape(jax.vmap(make), jnp.arange(3))
    keys = jax.eval_shape(lambda: jax.random.split(KEYS[0], (3, 4)))
    steps = jax.vmap(lambda state, keys: lax.scan(turn, state, keys))
    assert not copies(steps, states, keys)


# --- trees of several buffers --------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_trees_of_several_buffers_are_written_and_drawn_from_as_each_alone(nested):
    capacity, batch = 700, 33
    shape = (2, 3) if nested else (3,)
    draw = np.random.default_rng(0)
    slots = jnp.int32(draw.integers(0, capacity + 1, (*shape, batch)))
    values = jnp.float32(draw.random((*shape, batch)))
    uniforms = jnp.float32(draw.random((*shape, 3, 40)))
    ranks = jnp.int32(draw.integers(0, 5, (*shape, 9)))

    def run(slots, values, uniforms, ranks):
        tree = sum_tree.write(sum_tree.empty(capacity), slots, values)
        tree = sum_tree.write(tree, slots[::-1], values * 2)
        bits = bit_tree.empty(capacity)
        inside = jnp.unique(jnp.minimum(slots, capacity - 1), size=batch, fill_value=-1)
        bits = bit_tree.change(bits, jnp.maximum(inside, 0), (inside >= 0).astype(jnp.int32))
        found = sum_tree.draw(tree, uniforms[: sum_tree.picks(tree)])
        ordered = bit_tree.select(bits, ranks), bit_tree.rank(bits, slots)
        first = bit_tree.select_first(bits, ranks, ranks[0])[:1]
        return tree, bits, found, ordered, bit_tree.select_unless(bits, inside, slots), first

    together = jax.vmap(jax.vmap(run)) if nested else jax.vmap(run)
    found = jax.jit(together)(slots, values, uniforms, ranks)
    one = jax.jit(run)
    for at in np.ndindex(shape):
        alone = one(slots[at], values[at], uniforms[at], ranks[at])
        *made, first = jax.tree.map(lambda leaf, at=at: leaf[at], found)
        *expected, _ = alone
        for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(a, b)
        if ranks[at][0] > 0:
            np.testing.assert_array_equal(first, alone[-1])


SPREAD = (
    SAMPLERS
    | ASKING
    | {
        "uniform windows": fbuf.Uniform(window=3),
        "uniform first steps": fbuf.Uniform(first_only=True),
        "episodes": fbuf.Uniform(window=2, by="episode"),
    }
)


def drawing(sampler, add, sample, init):
    """Return a few steps of one seed, as a function of the seed."""

    def train(seed):
        state = init({"x": jnp.float32(0)}, 64, num_envs=4, sampler=sampler)
        for number in range(5):
            rows = {"x": jnp.arange(4.0) + 10 * number + 100 * seed.astype(jnp.float32)}
            state = add(state, rows, terminated=jnp.arange(4) == (number + seed) % 4)
        return sample(state, jax.random.key(seed))

    return train


@pytest.mark.parametrize("name", few(SPREAD, "uniform windows", "prioritized", "windows"))
def test_seeds_over_devices_draw_what_each_draws_alone(name):
    """`shard_map` around `vmap`: for JAX, what is made inside does not differ by itself."""
    sampler = SPREAD[name]
    count = {"step": 0} if sampler.without_replacement else {}

    def sample(state, key):
        if sampler.notes_draws:
            return fbuf.draw(state, key, 8)[1].data["x"]
        return fbuf.sample(state, key, 8, **count).data["x"]

    train = drawing(sampler, fbuf.add, sample, fbuf.init)
    mesh = jax.make_mesh((1,), ("seeds",), axis_types=(jax.sharding.AxisType.Auto,))
    along = jax.sharding.PartitionSpec("seeds")
    over = jax.shard_map(jax.vmap(train), mesh=mesh, in_specs=along, out_specs=along)
    found = jax.jit(over)(jnp.arange(3))
    np.testing.assert_array_equal(found, [jax.jit(train)(seed) for seed in jnp.arange(3)])


@pytest.mark.parametrize("window", [1, 3])
def test_seeds_whose_buffers_lie_over_a_mesh_draw_what_each_draws_alone(window):
    mesh = jax.make_mesh((1,), ("data",))
    init = lambda *given, **more: fbuf.sharded.init(*given, mesh=mesh, shards=2, **more)
    sample = lambda state, key: fbuf.sharded.sample(state, key, 8).data["x"]
    train = drawing(fbuf.Uniform(window=window), fbuf.sharded.add, sample, init)
    found = jax.jit(jax.vmap(train))(jnp.arange(3))
    np.testing.assert_array_equal(found, [jax.jit(train)(seed) for seed in jnp.arange(3)])
