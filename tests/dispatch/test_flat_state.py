"""A state is one node of JAX's trees; to its user it is a frozen dataclass like any other."""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import pickle
import threading
import weakref

import chex
import jax
import jax.numpy as jnp
import pytest
from support import programs

import fbuf
from fbuf.dispatch import flat_state
from fbuf.dispatch.flat_state import held

ITEM = {"x": jnp.zeros(3), "n": jnp.int32(0)}
ROWS = {"x": jnp.arange(6.0).reshape(2, 3), "n": jnp.arange(2, dtype=jnp.int32)}


def returned(capacity=8):
    """A state that a call returned, and that nobody has looked into."""
    state = fbuf.add(fbuf.init(ITEM, capacity, sampler=fbuf.Prioritized()), ROWS)
    assert "ring" not in vars(state)
    return state


def of_fields(capacity=8):
    """The same, made of its fields."""
    empty = fbuf.init(ITEM, capacity, sampler=fbuf.Prioritized())
    state = fbuf.State(**jax.jit(fbuf.add)(empty, ROWS).__getstate__())
    assert "ring" in vars(state)
    assert "_held" not in vars(state)
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
def test_looking_shows_what_the_fields_show(look):
    chex.assert_trees_all_equal(look(returned()), look(of_fields()))


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
    state = Noted(**of_fields().__getstate__(), note=jnp.float32(7))
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
    assert size == 2 == fbuf.size(of_fields())


def test_states_of_one_structure_share_programs():
    form = held(returned(capacity=9))[1]
    assert held(of_fields(capacity=9))[1] is form
    batches, made = [], []
    for make in (returned, of_fields):
        for size, more in (((4,), {}), ((), {"batch_size": 4})):
            batches.append(fbuf.sample(make(9), jax.random.key(0), *size, **more))
            made.append(dict(form.programs))
    assert made[1:] == made[:1] * 3
    assert programs.count_for(returned(capacity=9), "sample") == 1
    for batch in batches[1:]:
        chex.assert_trees_all_equal(batch, batches[0])


def test_the_arrays_lie_in_the_order_of_the_fields_and_have_the_names_of_their_ways():
    state = fbuf.init(ITEM, 8, sampler=fbuf.Mixture(0.5, recent=2, priorities=fbuf.Prioritized()))
    names = [field.name for field in dataclasses.fields(fbuf.State) if field.name != "sampler"]
    nested = [
        (f".{name}{jax.tree_util.keystr(way)}", leaf)
        for name in names
        for way, leaf in jax.tree.leaves_with_path(getattr(state, name))
    ]
    found = jax.tree.leaves_with_path(state)
    assert [jax.tree_util.keystr(way) for way, _ in found] == [name for name, _ in nested]
    assert all(one is other for (_, one), (_, other) in zip(found, nested, strict=True))


@pytest.mark.parametrize("leaf", [None, (1, 2), {"a": 1}, jax.ShapeDtypeStruct((), jnp.int32)])
def test_arrays_may_become_anything(leaf):
    other = jax.tree.map(lambda _: leaf, returned())
    assert jax.tree.leaves(other) == jax.tree.leaves([leaf] * len(jax.tree.leaves(returned())))
    assert other.fault == leaf
    again = jax.tree.map(lambda one: one, other)
    assert jax.tree.structure(again) == jax.tree.structure(other)


def test_states_made_at_once_in_many_threads_have_one_form():
    sampler = fbuf.Uniform(window=7)
    fields = [fbuf.init(ITEM, 29, sampler=sampler).__getstate__() for _ in range(16)]
    flat_state.form_of.cache_clear()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        forms = list(pool.map(lambda each: held(fbuf.State(**each))[1], fields))
    assert len(set(map(id, forms))) == 1


def test_a_form_that_the_cache_has_lost_is_the_same_while_somebody_has_it():
    form = held(returned())[1]
    flat_state.form_of.cache_clear()
    assert held(of_fields())[1] is form
    state = jax.lax.fori_loop(0, 2, lambda _, each: fbuf.State(**each.__getstate__()), returned())
    assert fbuf.size(state) == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_the_structure_has_the_form_of_the_state(copied):
    state = returned()
    fbuf.size(state)  # the form has programs
    structure = jax.tree.structure(state)
    assert copied(structure) == structure
    assert copied(held(state)[1]) is held(state)[1]


def test_a_signal_handler_may_ask_for_a_form_amid_the_making_of_another(monkeypatch):
    """It runs in the same thread, whose lock must not wait for itself."""
    one, other = (fbuf.init(ITEM, capacity).__getstate__() for capacity in (8, 9))
    forms: list[flat_state.Form] = []
    flat_state.form_of.cache_clear()

    class Interrupted(weakref.WeakValueDictionary):
        def setdefault(self, *given):
            if not forms:
                forms.append(None)
                forms.extend(held(fbuf.State(**fields))[1] for fields in (one, other))
            return super().setdefault(*given)

    monkeypatch.setattr(flat_state, "_forms", Interrupted())
    form = []
    asking = threading.Thread(target=lambda: form.append(held(fbuf.State(**one))[1]), daemon=True)
    asking.start()
    asking.join(10)
    assert form == forms[1:2]
    assert forms[1] is not forms[2]


def test_two_states_of_other_forms_differ_in_words():
    one, other = returned(), fbuf.init(ITEM, 8, sampler=fbuf.Prioritized(alpha=0.7))
    with pytest.raises(TypeError, match=r"(?s)alpha=0\.6.*alpha=0\.7"):
        jax.lax.cond(True, lambda: one, lambda: other)


def test_a_copy_lives_on_when_its_state_is_consumed():
    state = returned()
    kept = copy.deepcopy(state)
    fbuf.add(state, ROWS)
    assert repr(state) == "State(consumed)"
    assert fbuf.size(kept) == 2
