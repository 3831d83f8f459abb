"""Leaves of other shapes than those of `init`: stored as flashbax stores them, or refused.

Where flashbax is installed, `make peers-tests` holds the same table against flashbax itself.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters import flashbax as fbx
from fbuf_adapters.flashbax.buffers import _broadcast

WINDOWS = {
    "add_batch_size": 4,
    "sample_batch_size": 16,
    "sample_sequence_length": 2,
    "period": 1,
    "min_length_time_axis": 2,
    "max_length_time_axis": 16,
}
QUEUE = {
    "max_length_time_axis": 16,
    "add_batch_size": 4,
    "add_sequence_length": 1,
    "sample_sequence_length": 2,
}
ITEMS = {"max_length": 64, "min_length": 1, "sample_batch_size": 16}
LANES, STEPS = ("add_batch_size",), ("steps",)
KINDS = {
    "item": ("item_buffer", ITEMS, ()),
    "item, batches": ("item_buffer", ITEMS, ("batch",)),
    "item, sequences": ("item_buffer", ITEMS, STEPS),
    "item, both": ("prioritised_item_buffer", ITEMS, ("batch", *STEPS)),
    "flat": ("prioritised_flat_buffer", ITEMS, ()),
    "flat, batches": ("flat_buffer", ITEMS, LANES),
    "flat, sequences": ("flat_buffer", ITEMS, STEPS),
    "flat, both": ("prioritised_flat_buffer", ITEMS, LANES + STEPS),
    "trajectory": ("trajectory_buffer", WINDOWS, LANES + STEPS),
    "prioritised trajectory": ("prioritised_trajectory_buffer", WINDOWS, LANES + STEPS),
    "queue": ("trajectory_queue", QUEUE, LANES + STEPS),
}
"""The function that makes a buffer, its arguments, and the axes of a batch."""

TAKEN = {  # the shape of the item's leaf, and that of a row that is added
    "right": ((2, 3), (2, 3)),
    "one": ((2,), (1,)),
    "column": ((2, 3), (2, 1)),
    "line": ((2, 3), (1, 3)),
    "all": ((2, 3), (1, 1)),
}
TAKEN_OF_ONE_ROW = {
    "missing 1": ((1,), ()),
    "scalar": ((2,), ()),
    "no line": ((2, 3), (3,)),
    "nothing": ((2, 3), ()),
}
REFUSED = {
    "trailing 1": ((), (1,)),
    "leading 1": ((2,), (1, 2)),
    "wrong": ((2,), (3,)),
    "wrong axis": ((2, 3), (2, 2)),
    "turned": ((2, 3), (3, 2)),
    "flat": ((2, 3), (6,)),
    "more": ((6,), (2, 3)),
}
SEVERAL = {"add_batch_size": 4, "batch": 4, "steps": 5}  # no size is that of a leaf
ONE = dict.fromkeys(SEVERAL, 1)
SIZES = pytest.mark.parametrize("sizes", [SEVERAL, ONE], ids=["several rows", "one row"])
EVERY_KIND = pytest.mark.parametrize("kind", list(KINDS))


def made(module, kind, sizes):
    name, options, axes = KINDS[kind]
    options = dict(options)
    if "item" in name:
        options["add_batches"] = "batch" in axes
    if "add_batch_size" in axes:
        options["add_batch_size"] = sizes["add_batch_size"]
    if "item" in name or "flat" in name:
        options["add_sequences"] = "steps" in axes
    return getattr(module, f"make_{name}")(**options)


def lead_of(kind, sizes):
    return tuple(sizes[axis] for axis in KINDS[kind][2])


def taken_of(kind, sizes):
    one_row = np.prod(lead_of(kind, sizes)) == 1
    return TAKEN | TAKEN_OF_ONE_ROW if one_row else TAKEN


def refused_of(kind, sizes):
    one_row = np.prod(lead_of(kind, sizes)) == 1
    return REFUSED if one_row else REFUSED | TAKEN_OF_ONE_ROW


def item_of(cases):
    return {name: jnp.zeros(item, jnp.float32) for name, (item, _) in cases.items()}


def batch_of(kind, sizes, cases, start=1, only=None):
    """Return a batch of numbers of which none comes twice in a leaf."""
    lead, batch = lead_of(kind, sizes), {}
    for name, (item, row) in cases.items():
        shape = (*lead, *(row if only in (None, name) else item))
        numbers = np.arange(np.prod(shape, dtype=int), dtype=np.float32) + start
        batch[name] = jnp.asarray(numbers.reshape(shape))
    return batch


def placed(kind, sizes, leaf, feature):
    """Return numbers as they lie in the buffer, repeated by NumPy: `[lanes, steps, ...]`."""
    lead = lead_of(kind, sizes)
    whole = np.broadcast_to(leaf, (*lead, *feature))
    lanes = sizes["add_batch_size"] if "add_batch_size" in KINDS[kind][2] else 1
    return whole.reshape(lanes, -1, *feature)


def filled(module, kind, sizes, cases):
    """Return a state with two batches, its buffer, and the rows that must lie in it."""
    buffer = made(module, kind, sizes)
    state, parts = buffer.init(item_of(cases)), []
    for start in (1, 1001):
        batch = batch_of(kind, sizes, cases, start)
        state = buffer.add(state, batch)
        parts.append({n: placed(kind, sizes, leaf, cases[n][0]) for n, leaf in batch.items()})
    return buffer, state, jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *parts)


def drawn_from(buffer, state, kind):
    """Return drawn rows, leaves `[rows, ...]`, and the shapes and dtypes of the batch."""
    batch = buffer.sample(state)[1] if kind == "queue" else buffer.sample(state, jax.random.key(0))
    ends = getattr(batch.experience, "_fields", ()) == ("first", "second")
    parts = list(batch.experience) if ends else [batch.experience]
    form = [{n: (leaf.shape, leaf.dtype) for n, leaf in part.items()} for part in parts]
    axes = len(parts[0]["right"].shape) - 2
    flat = lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[axes:])
    flat = [{n: flat(leaf) for n, leaf in part.items()} for part in parts]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *flat), form


def assert_rows(state, rows):
    for name, expected in rows.items():
        stored = np.asarray(state.experience[name])
        assert stored.shape[2:] == expected.shape[2:], name
        np.testing.assert_array_equal(stored[:, : expected.shape[1]], expected, err_msg=name)


def assert_drawn(drawn, rows):
    """Each row that is drawn is one of those that lie in the buffer, whole."""
    stored = {n: leaf.reshape(-1, *leaf.shape[2:]) for n, leaf in rows.items()}
    where = {float(row[0, 0]): number for number, row in enumerate(stored["right"])}
    numbers = [where[float(row[0, 0])] for row in drawn["right"]]
    for name, leaf in drawn.items():
        np.testing.assert_array_equal(leaf, stored[name][numbers], err_msg=name)


@EVERY_KIND
@SIZES
@pytest.mark.first(11)
def test_numbers_are_repeated_in_their_own_row(kind, sizes):
    cases = taken_of(kind, sizes)
    with pytest.warns(UserWarning, match=r"fbuf\.add: batch\['") as told:
        buffer, state, rows = filled(fbx, kind, sizes, cases)
    assert_rows(state, rows)
    drawn, _ = drawn_from(buffer, state, kind)
    assert_drawn(drawn, rows)
    for name, (item, row) in cases.items():
        lead = lead_of(kind, sizes)
        wanted = f"['{name}'] is of shape {(*lead, *row)} instead of {(*lead, *item)}"
        found = [warning for warning in told if wanted in str(warning.message)]
        assert len(found) == 2 * (row != item), name
        how = "reshaped" if np.prod(row) == np.prod(item) else "repeated"
        assert all(f"its numbers are {how}" in str(warning.message) for warning in found)
        assert all(Path(warning.filename) == Path(__file__) for warning in found)


@EVERY_KIND
@SIZES
def test_all_other_shapes_are_refused(kind, sizes):
    cases = refused_of(kind, sizes)
    state = (buffer := made(fbx, kind, sizes)).init(item_of(cases))
    for name in cases:
        with pytest.raises(ValueError, match=r"^fbuf\.add: .* must be ") as caught:
            buffer.add(state, batch_of(kind, sizes, cases, only=name))
        assert ("of shape [" in str(caught.value)) == (len(cases[name][0]) != len(cases[name][1]))


@pytest.mark.filterwarnings("ignore:fbuf.add.*as in flashbax")
@pytest.mark.parametrize("form", ["jit", "scan", "cond", "vmap"])
@pytest.mark.parametrize(
    "kind", ["item, batches", "flat", "trajectory", "prioritised trajectory", "queue"]
)
@pytest.mark.first(6)
def test_in_compiled_programs(kind, form):
    cases = taken_of(kind, SEVERAL)
    buffer = made(fbx, kind, SEVERAL)
    _, called, rows = filled(fbx, kind, SEVERAL, cases)
    batches = [batch_of(kind, SEVERAL, cases, start) for start in (1, 1001)]
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    state = buffer.init(item_of(cases))
    if form == "scan":
        step = lambda state, batch: (buffer.add(state, batch), None)
        state, _ = jax.jit(lambda state, both: jax.lax.scan(step, state, both))(state, both)
    elif form == "vmap":
        states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
        # Two seeds, of which the second one gets the batches in the other order.
        turned = jax.tree.map(lambda leaf: leaf[::-1], both)
        for pair in (both, turned):
            states = jax.jit(jax.vmap(buffer.add))(states, pair)
        other = jax.tree.map(lambda leaf: leaf[1], states)
        order = np.roll(np.arange(rows["one"].shape[1]), rows["one"].shape[1] // 2)
        assert_rows(other, jax.tree.map(lambda leaf: leaf[:, order], rows))
        state = jax.tree.map(lambda leaf: leaf[0], states)
    else:
        branch = lambda state, batch: jax.lax.cond(
            batch["one"].sum() > 0, buffer.add, lambda state, _: state, state, batch
        )
        add = jax.jit(buffer.add if form == "jit" else branch)
        for batch in batches:
            state = add(state, batch)
    assert_rows(state, rows)
    same = lambda one, other: np.testing.assert_array_equal(one, other)
    jax.tree.map(same, state.experience, called.experience)


def test_a_batch_of_the_right_shapes_is_passed_on():
    state = made(fbx, "trajectory", SEVERAL).init(item_of(TAKEN))
    right = {name: (item, item) for name, (item, _) in TAKEN.items()}
    batch = batch_of("trajectory", SEVERAL, right)
    passed = _broadcast.as_stored(state.buffer.storage.item, batch, KINDS["trajectory"][2])
    assert passed is batch


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (np.ones((4, 5, 1)), "JAX would silently make it float32"),
        (np.ones((4, 5, 1), np.int32), "must be float32"),
        (np.ma.array(np.ones((4, 5, 1), np.float32), mask=True), "whose mask would be lost"),
        (jnp.ones((4, 5, 1), jnp.int32), "must be float32"),
    ],
)
@pytest.mark.filterwarnings("ignore:fbuf.add.*as in flashbax")
def test_numbers_that_are_repeated_are_checked_like_others(leaf, message):
    buffer = made(fbx, "trajectory", SEVERAL)
    with pytest.raises(TypeError, match=message):
        buffer.add(buffer.init(jnp.zeros(2, jnp.float32)), leaf)


@pytest.mark.filterwarnings("ignore:fbuf.add.*as in flashbax")
def test_an_array_of_numpy_may_be_reused_after_the_call():
    buffer = made(fbx, "trajectory", SEVERAL)
    state, leaf = buffer.init(jnp.zeros(2)), np.full((4, 5, 1), 3, np.float32)
    state = buffer.add(state, leaf)
    leaf[:] = 7
    np.testing.assert_array_equal(np.asarray(state.experience)[:, :5], 3)


@pytest.mark.filterwarnings("ignore:fbuf.add.*as in flashbax")
def test_a_gradient_of_repeated_numbers_is_refused():
    buffer = made(fbx, "trajectory", SEVERAL)
    state = buffer.init(jnp.zeros(2))
    with pytest.raises(TypeError, match="gradient"):
        jax.grad(lambda leaf: buffer.add(state, leaf).experience.sum())(jnp.ones((4, 5, 1)))


def test_a_python_number_is_no_row_of_several():
    buffer = made(fbx, "flat", ONE)
    with pytest.raises(ValueError, match=r"of shape \[2\], got \(\)"):
        buffer.add(buffer.init(jnp.zeros(2)), 1.0)


def test_leaves_of_items_have_the_same_batches_and_steps():
    buffer = made(fbx, "item, both", SEVERAL)
    state = buffer.init({"a": jnp.float32(0), "b": jnp.float32(0)})
    with pytest.raises(ValueError, match=r"same \[batch, steps\], got \[\(2, 3\), \(3, 2\)\]"):
        buffer.add(state, {"a": jnp.ones((2, 3)), "b": jnp.ones((3, 2))})


# --- flashbax itself ------------------------------------------------------------------------------


@pytest.fixture
def flashbax():
    pytest.importorskip("flashbax", reason="flashbax comes with .venv-peers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield importlib.import_module("flashbax")


@EVERY_KIND
@SIZES
def test_flashbax_repeats_the_same_numbers(flashbax, kind, sizes):
    cases = taken_of(kind, sizes)
    buffer, state, rows = filled(flashbax, kind, sizes, cases)
    assert_rows(state, rows)
    drawn, form = drawn_from(buffer, state, kind)
    assert_drawn(drawn, rows)
    ours, our_state, _ = filled(fbx, kind, sizes, cases)
    assert drawn_from(ours, our_state, kind)[1] == form
    for name in cases:  # and the zeros behind them
        np.testing.assert_array_equal(state.experience[name], our_state.experience[name])


@EVERY_KIND
@SIZES
def test_flashbax_refuses_the_same_shapes(flashbax, kind, sizes):
    cases = refused_of(kind, sizes)
    state = (buffer := made(flashbax, kind, sizes)).init(item_of(cases))
    for name in cases:
        with pytest.raises((ValueError, AssertionError)):
            buffer.add(state, batch_of(kind, sizes, cases, only=name))


MIXED = [("item, batches", {"batch": 2}), ("trajectory", {"add_batch_size": 2, "steps": 2})]


@pytest.mark.parametrize(("kind", "sizes"), MIXED)
def test_flashbax_mixes_rows_where_an_axis_is_missing(flashbax, kind, sizes):
    """The axes of the batch are as long as that of the item, which NumPy's rules take for them."""
    buffer, cases = made(flashbax, kind, sizes), {"scalar": ((2,), ())}
    batch = batch_of(kind, sizes, cases)
    stored = buffer.add(buffer.init(item_of(cases)), batch).experience["scalar"]
    own = placed(kind, sizes, np.asarray(batch["scalar"])[..., None], (2,))
    assert np.any(np.asarray(stored)[:, :2] != own)


@pytest.mark.parametrize(("kind", "sizes"), MIXED)
def test_rows_are_never_mixed(kind, sizes):
    buffer, cases = made(fbx, kind, sizes), {"scalar": ((2,), ())}
    with pytest.raises(ValueError, match=r"must be of shape \["):
        buffer.add(buffer.init(item_of(cases)), batch_of(kind, sizes, cases))
