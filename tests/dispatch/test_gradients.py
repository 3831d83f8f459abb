"""A gradient through a buffer is an error, and one of a tree that holds a buffer is right."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

ITEM = {"narrow": jnp.zeros(2), "wide": jnp.zeros(600), "half": jnp.bfloat16(0), "count": 0}
KEY = jax.random.key(0)


def rows(x):
    scaled = {
        name: jnp.ones((4, *jnp.shape(leaf)), jnp.result_type(leaf)) for name, leaf in ITEM.items()
    }
    return scaled | {"narrow": scaled["narrow"] * x}


def read(state):
    return fbuf.sample(state, KEY, 4).data["narrow"].sum() + fbuf.rollout(state).data["wide"].sum()


def plain(x, rows):
    return read(fbuf.add(fbuf.init(ITEM, 8), rows(x)))


def in_scan(x, rows):
    step = lambda state, _: (fbuf.add(state, rows(x)), None)
    return read(jax.lax.scan(step, fbuf.init(ITEM, 8), None, length=2)[0])


def in_cond(x, rows):
    add = lambda state: fbuf.add(state, rows(x))
    return read(jax.lax.cond(x > 0, add, lambda state: state, fbuf.init(ITEM, 8)))


def checkpointed(x, rows):
    return jax.checkpoint(lambda x: plain(x, rows))(x)


def inner_jit(x, rows):
    return jax.jit(lambda x: plain(x, rows))(x)


def of_environments(x, rows):
    batch = jax.vmap(lambda _: rows(x))(jnp.arange(2))
    return read(fbuf.add(fbuf.init(ITEM, 16, num_envs=2), batch))


def written(x, rows):
    state = fbuf.add(fbuf.init(ITEM, 8), rows(1.0))
    ids = fbuf.newest_ids(state, 4)
    return read(fbuf.write(state, ids, {"narrow": rows(x)["narrow"]}))


def following(x, rows):
    state = fbuf.init({"narrow": jnp.zeros(2), "wide": jnp.zeros(600)}, 8, next_of="narrow")
    new = {name: rows(1.0)[name] for name in ("narrow", "wide")}
    return read(fbuf.add(state, new, next_observation=rows(x)["narrow"]))


PLACES = {
    plain: r"fbuf.add: items\['narrow'\]",
    in_scan: r"fbuf.add: items\['narrow'\]",
    in_cond: r"fbuf.add: items\['narrow'\]",
    checkpointed: r"fbuf.add: items\['narrow'\]",
    inner_jit: r"fbuf.add: items\['narrow'\]",
    of_environments: r"fbuf.add: items\['narrow'\]",
    written: "fbuf.write: .*narrow",
    following: "fbuf.add: next_observation",
}
DERIVATIVES = {
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.full(2, x)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (1.0,))[1],
    "grad of grad": lambda f: jax.grad(lambda x: jax.grad(f)(x)),
}


CASES = [(place, "grad") for place in PLACES]
CASES += [(place, way) for place in (plain, in_scan) for way in DERIVATIVES if way != "grad"]


@pytest.mark.parametrize(("place", "derivative"), CASES)
def test_a_gradient_through_a_buffer_is_refused_by_name(place, derivative):
    differentiate = DERIVATIVES[derivative]
    with pytest.raises(TypeError, match=PLACES[place] + ".*is differentiated.*stop_gradient"):
        differentiate(lambda x: place(x, rows) * x)(2.0)


@pytest.mark.first(4)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_rows_that_say_so_have_no_gradient(place):
    stopped = lambda x: rows(jax.lax.stop_gradient(x))
    value, slope = jax.jit(jax.value_and_grad(lambda x: place(x, stopped) * x))(2.0)
    assert float(slope) == float(value) / 2 != 0


def test_gradients_that_lead_past_a_buffer_are_right():
    """Rows, ids, keys and numbers that nobody differentiates are as before."""

    def loss(x, state):
        state = fbuf.add(state, rows(3.0))
        batch = fbuf.sample(state, KEY, 4)
        state = fbuf.update_priority(state, batch.ids, jnp.abs(batch.data["narrow"].sum(-1) - x))
        return batch.data["narrow"].sum() * x, state

    state = fbuf.init(ITEM, 8, sampler=fbuf.Prioritized())
    slope, state = jax.jit(jax.grad(loss, has_aux=True))(2.0, state)
    assert float(slope) == 24.0
    assert int(fbuf.size(state)) == 4


@pytest.mark.parametrize("branch", [False, True])
def test_priorities_may_depend_on_what_is_differentiated_twice(branch):
    state = fbuf.add(fbuf.init(ITEM, 8, sampler=fbuf.Prioritized()), rows(3.0))

    def loss(x):
        def learn(state, key):
            batch = fbuf.sample(state, key, 4)
            error = batch.data["narrow"].sum(-1) - x
            return fbuf.update_priority(state, batch.ids, jnp.abs(error)), (error**2).sum()

        def step(state, key):
            if not branch:
                return learn(state, key)
            return jax.lax.cond(key[0] >= 0, learn, lambda state, _: (state, 0.0), state, key)

        return jax.lax.scan(step, state, jax.random.split(jax.random.PRNGKey(0), 3))[1].sum()

    assert float(jax.jit(jax.grad(loss))(2.0)) == 3 * 4 * 2 * (2.0 - 6.0)
    assert float(jax.jit(jax.hessian(loss))(2.0)) == 3 * 4 * 2


def test_a_gradient_outside_of_jit_consumes_no_buffer_of_the_caller():
    def loss(tree):
        batch = fbuf.sample(tree["buffer"], KEY, 4)
        error = batch.data["narrow"].sum(-1) * tree["weight"]
        state = fbuf.update_priority(tree["buffer"], batch.ids, jnp.abs(error))
        state = fbuf.add(state, rows(3.0))
        return fbuf.sample(state, KEY, 4).data["narrow"].sum() * tree["weight"]

    state = fbuf.add(fbuf.init(ITEM, 8, sampler=fbuf.Prioritized()), rows(3.0))
    for _ in range(2):
        slopes = jax.grad(loss, allow_int=True)({"weight": 2.0, "buffer": state})
        assert float(slopes["weight"]) == 24.0
    assert int(fbuf.size(state)) == 4


SAMPLERS = [
    fbuf.Mixture(uniform=0.2, recent=0.3, prioritized=0.5, recent_rows=2),
    fbuf.Uniform(),
    fbuf.Uniform(window=2),
    fbuf.Prioritized(),
    fbuf.Prioritized(window=2),
    fbuf.EvictLowest(fbuf.Prioritized()),
    fbuf.Reservoir(),
    fbuf.FreshFirst(fbuf.Prioritized()),
    fbuf.Limited(fbuf.Prioritized(), max_uses=3),
    fbuf.Grouped("count", groups=4),
]


def swept(samplers):
    """The first is in the quick tests."""
    more = [pytest.param(sampler, marks=pytest.mark.sweep) for sampler in samplers[1:]]
    return [samplers[0], *more]


@pytest.mark.parametrize("sampler", swept(SAMPLERS), ids=repr)
def test_a_differentiated_tree_may_hold_a_buffer(sampler):
    """As a module with a buffer in it, or a whole training state."""
    state = fbuf.init(ITEM, 8, sampler=sampler)

    def loss(tree):
        state = fbuf.add(tree["buffer"], rows(3.0))
        if sampler.notes_draws:
            state, batch = fbuf.draw(state, KEY, 4)
        else:
            batch = fbuf.sample(state, KEY, 4)
        if sampler.keeps_priorities:
            state = fbuf.update_priority(state, batch.ids, jnp.ones(4) * tree["weight"])
        return batch.data["narrow"].sum() * tree["weight"], state

    grad = jax.jit(jax.grad(loss, has_aux=True, allow_int=True))
    slopes, after = grad({"weight": 2.0, "buffer": state})
    assert float(slopes["weight"]) == 24.0
    for leaf in jax.tree.leaves(slopes["buffer"]):
        assert leaf.dtype == jax.dtypes.float0 or not np.asarray(leaf).any()
    assert int(fbuf.size(after)) == 4
