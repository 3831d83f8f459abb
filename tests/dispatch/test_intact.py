"""A state that other code has changed, or compares, is refused by name."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf import sharded

KEY = jax.random.key(0)
ITEM = {"narrow": jnp.zeros(2), "wide": jnp.zeros(300), "count": 0}


def filled(sampler=fbuf.Prioritized(), **options):
    state = fbuf.init(ITEM, 8, sampler=sampler, **options)
    return fbuf.add(state, rows(), **following(options))


def rows():
    return {
        "narrow": jnp.full((4, 2), 5.4321),
        "wide": jnp.full((4, 300), 5.4321),
        "count": jnp.arange(4, dtype=jnp.int32),
    }


def following(options):
    return {"next_observation": jnp.ones((4, 300))} if options else {}


def is_float(leaf):
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def cast(tree):
    """As mixed precision does with a whole training state."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if is_float(leaf) else leaf, tree)


def averaged(tree):
    """As an average of weights over a whole training state."""
    with jax.numpy_dtype_promotion("standard"):
        return jax.tree.map(lambda leaf: 0.9 * leaf + 0.1 * leaf, tree)


def all_halves(tree):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float16), tree)


def longer(tree):
    return jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]) if leaf.ndim else leaf, tree)


CALLS = {
    "add": lambda state: fbuf.add(state, rows(), donate=False),
    "sample": lambda state: fbuf.sample(state, KEY, 4),
    "update_priority": lambda state: fbuf.update_priority(
        state, fbuf.no_ids(4), jnp.ones(4), donate=False
    ),
    "size": fbuf.size,
    "can_sample": lambda state: fbuf.can_sample(state, 2),
    "rows": fbuf.rows,
    "read": lambda state: fbuf.read(state, fbuf.no_ids(4)),
    "clear": lambda state: fbuf.clear(state, donate=False),
    "save": lambda state: fbuf.save(tempfile.mkdtemp(), state),
    "report": fbuf.report,
}


def refused(call, state, change):
    """The message of a call with a changed state."""
    with pytest.raises(
        TypeError, match="Code that maps over a tree has changed the buffer"
    ) as error:
        call(change(state))
    return str(error.value)


@pytest.mark.parametrize("name", CALLS)
def test_a_cast_is_refused_by_every_function(name):
    message = refused(CALLS[name], filled(), cast)
    assert f"fbuf.{name}: state.storage.wide[0] is bfloat16[8, 300]" in message
    assert "float32[8, 300]" in message


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (averaged, "state.storage.words is float32"),
        (all_halves, "state.storage.words is float16"),
        (longer, "state.ring.cursor is int32[10, 1]"),
    ],
)
def test_each_change_is_named(change, found):
    assert found in refused(fbuf.size, filled(), change)


FORMS = {
    "jit": jax.jit,
    "jit of jit": lambda call: jax.jit(lambda state: jax.jit(call)(state)),
    "scan": lambda call: lambda s: jax.lax.scan(lambda c, _: (c, call(s)), 0, None, length=2),
    "cond": lambda call: lambda s: jax.lax.cond(s.fault == 0, call, call, s),
    "vmap": lambda call: lambda s: jax.vmap(call)(jax.tree.map(lambda leaf: leaf[None], s)),
    "eval_shape": lambda call: lambda s: jax.eval_shape(call, s),
    "numpy": lambda call: lambda s: call(jax.tree.map(np.asarray, s)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_cast_is_refused_in_every_form(form):
    refused(FORMS[form](CALLS["sample"]), filled(), cast)


def test_priorities_alone_are_floats():
    """Where all fields are narrow, a cast changes the tree of priorities and no row."""
    state = fbuf.add(fbuf.init(0.0, 8, sampler=fbuf.Prioritized()), jnp.ones(4))
    message = refused(lambda state: fbuf.sample(state, KEY, 2), state, cast)
    assert "state.index" in message
    assert "it was float32." in message


def test_kept_next_observations_count():
    state = filled(fbuf.Uniform(), next_of="wide")
    change = lambda s: dataclasses.replace(s, next_obs=cast(s.next_obs))
    assert "state.next_obs.rows.wide[0]" in refused(
        fbuf.size, jax.tree.map(jnp.copy, state), change
    )


def test_over_a_mesh():
    mesh = jax.make_mesh((2,), ("data",))
    state = sharded.init(jnp.zeros(300), 8, mesh=mesh, sampler=fbuf.Prioritized())
    message = refused(sharded.size, state, cast)
    assert "fbuf.size: state.blocks.storage.wide[0] is bfloat16" in message


@pytest.mark.parametrize("x64", [False, True])
def test_what_nobody_has_changed_passes(x64):
    """Also a state that is made without 64-bit numbers, and used with them."""
    state = filled(next_of="wide", num_envs=None)
    with jax.enable_x64(x64):
        for call in ("sample", "rows", "size", "clear", "update_priority"):
            CALLS[call](state)
    skipped = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, fbuf.State) else leaf.astype(jnp.bfloat16),
        {"buffer": state, "weights": jnp.ones(3)},
        is_leaf=lambda node: isinstance(node, fbuf.State),
    )
    fbuf.add(skipped["buffer"], rows(), next_observation=jnp.ones((4, 300)))


def test_equality_says_what_compares():
    state = filled()
    batch = fbuf.sample(state, KEY, 2)
    mesh = jax.make_mesh((1,), ("data",))
    over_mesh = sharded.init(0.0, 8, mesh=mesh)
    for one in (state, batch, batch.ids, fbuf.rows(state), fbuf.rollout(state), over_mesh):
        with pytest.raises(TypeError, match=f"two objects of {type(one).__name__}.*chex"):
            assert one == one
        with pytest.raises(TypeError, match="chex"):
            assert one != one
        assert one != 3
        assert one in [one]
        shapes = jax.tree.map(jnp.shape, one)
        assert shapes == jax.tree.map(jnp.shape, one)
        assert shapes != jax.tree.map(lambda leaf: (1, *leaf.shape), one)
        with pytest.raises(TypeError, match="unhashable"):
            hash(one)


def test_a_module_may_be_loaded_again():
    program = (
        "import importlib, fbuf, fbuf.sharded, fbuf.host, jax.numpy as jnp\n"
        "for module in (fbuf, fbuf.sharded, fbuf.host, fbuf): importlib.reload(module)\n"
        "print(int(fbuf.size(fbuf.add(fbuf.init(0.0, 4), jnp.ones(3)))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "3", done.stderr
