"""A state that a call returned holds its arrays; to its user it is a state like any other."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import chex
import jax
import jax.numpy as jnp
import pytest
from support import programs

import fbuf
from fbuf.dispatch.flat_state import held

ITEM = {"x": jnp.zeros(3), "n": jnp.int32(0)}
ROWS = {"x": jnp.arange(6.0).reshape(2, 3), "n": jnp.arange(2, dtype=jnp.int32)}


def returned(capacity=8):
    """A state that a call returned, and that nobody has looked into."""
    state = fbuf.add(fbuf.init(ITEM, capacity, sampler=fbuf.Prioritized()), ROWS)
    assert "ring" not in vars(state)
    return state


def traced(capacity=8):
    """The same as JAX makes it."""
    empty = fbuf.init(ITEM, capacity, sampler=fbuf.Prioritized())
    state = jax.jit(fbuf.add)(empty, ROWS)
    assert "ring" in vars(state)
    return state


@pytest.mark.parametrize(
    "look",
    [
        jax.tree.structure,
        jax.tree.leaves,
        jax.tree.leaves_with_path,
        repr,
        fbuf.rows,
        lambda state: state.ring.stored,
        lambda state: state.fault,
        lambda state: state.capacity,
        lambda state: dataclasses.replace(state, fault=state.fault | 1),
        lambda state: jax.tree.map(jnp.sum, state),
        lambda state: jax.jit(fbuf.stats)(state),
        lambda state: jax.vmap(fbuf.size)(jax.tree.map(lambda leaf: leaf[None], state)),
        copy.copy,
        copy.deepcopy,
        lambda state: pickle.loads(pickle.dumps(state)),
    ],
)
def test_looking_shows_what_jax_would_make(look):
    chex.assert_trees_all_equal(look(returned()), look(traced()))


def test_a_name_that_is_no_field_is_refused():
    with pytest.raises(AttributeError, match="'State' object has no attribute 'rign'"):
        _ = returned().rign
    assert not hasattr(returned(), "__array__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        returned().fault = 0


def test_names_and_pickles_are_those_of_the_fields_in_their_order():
    names = [field.name for field in dataclasses.fields(fbuf.State)]
    assert set(names) < set(dir(returned()))
    assert list(returned().__getstate__()) == names


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class Noted(fbuf.State):
    """A state with a field of its user's."""

    note: jax.Array | None = None


def test_a_subclass_keeps_its_class_and_its_fields():
    state = Noted(**traced().__getstate__(), note=jnp.float32(7))
    state = fbuf.add(fbuf.add(state, ROWS), items=ROWS)
    assert fbuf.size(state) == 6
    for each in (state, copy.deepcopy(state)):
        assert type(each) is Noted
        assert each.note == 7


def test_arrays_are_taken_out_of_a_state_once_and_left_alone():
    state = returned()
    assert held(state) is held(state)
    size = fbuf.size(state)
    assert "ring" not in vars(state)
    assert size == 2 == fbuf.size(traced())


def test_states_of_one_structure_share_programs():
    form = held(returned(capacity=9))[1]
    assert held(traced(capacity=9))[1] is form
    batches, made = [], []
    for make in (returned, traced):
        for size, more in (((4,), {}), ((), {"batch_size": 4})):
            batches.append(fbuf.sample(make(9), jax.random.key(0), *size, **more))
            made.append(dict(form.programs))
    assert made[1:] == made[:1] * 3
    assert programs.count_for(returned(capacity=9), "sample") == 1
    for batch in batches[1:]:
        chex.assert_trees_all_equal(batch, batches[0])


def test_a_copy_lives_on_when_its_state_is_consumed():
    state = returned()
    kept = copy.deepcopy(state)
    fbuf.add(state, ROWS)
    assert repr(state) == "State(consumed)"
    assert fbuf.size(kept) == 2
