"""A check of a view against the contracts of all views, and against a model of its results."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.host import HostStore
from fbuf.samplers import Sampler
from fbuf.testing import forms
from fbuf.testing.case import Case, check_static, equal, histories
from fbuf.testing.oracle import Oracle
from fbuf.testing.pair import Pair, rows
from fbuf.views import View


class _Anything:
    """The value of `ANY`."""

    def __repr__(self) -> str:
        """Return the name."""
        return "fbuf.testing.ANY"


ANY: Any = _Anything()
"""A part of a result of `expected` that is not compared."""


def check_view(
    view: View[Any],
    *,
    expected: Callable[[Oracle, int], Any] | None = None,
    ends: Callable[[Oracle, int], tuple[Any, Any]] | None = None,
    sampler: Sampler = fbuf.Uniform(),
    rows: Callable[[Any], Any] = rows,
    next_of: str | None = None,
    shapes: Sequence[Sequence[Any]] | None = None,
    seeds: Iterable[int] = range(3),
    operations: int = 8,
    in_place: bool = True,
) -> None:
    """Raise if a view breaks a contract, or does not return what its model says.

    Buffers go through random histories of adds, ends of episodes, removals and clears. After each
    operation all stored rows are read through the view. Then it must hold:

    - the result of each row is the one of `expected`, and its flags are those of `ends`.
    - leaves begin with the axis of the batch; with `time_major` it is the second one.
    - slots without a row are masked.
    - a row has one result, whichever rows are read beside it, and whether it was read or drawn. A
      random view has one for each key.

    After each history, a `fbuf.host.HostStore` with the same rows gives the same results. Eager, in
    `jit`, `scan`, `cond` and under `vmap` a step does the same. No step copies an array of the
    buffer.

    Args:
        view: The view.
        expected: A function of the oracle of the buffer and of a slot that holds a row. It returns
            the data of this row, without an axis for a batch: leaves of NumPy or Python. `ANY` in
            place of a leaf or a subtree is not compared. None says that the view has no result, so
            that the row is masked. Not for random views. Without it the contracts alone are
            checked: they find no view that reads another row than it should.
        ends: A function of the oracle and of a slot, as `expected`. It returns the `terminated` and
            the `truncated` of a batch for this row: bools, or arrays `[T]` of windows. None
            compares neither, only their shapes.
        sampler: The sampler of the buffers.
        rows: A function that turns integers of any shape into rows, leaves `[*shape, ...]`.
        next_of: As for `fbuf.init`. The next observation is then of the row `leads_to`.
        shapes: As for `check_sampler`.
        seeds: The seeds of the histories.
        operations: The operations of a history.
        in_place: Whether to look for copies.

    Raises:
        AssertionError: If the view fails. The message says how, and with which shape and seed.
        ValueError: If a random view comes with `expected` or `ends`.

    Cost: some 20 seconds, most of them for compiling.

    Examples:
        >>> import fbuf
        >>> from fbuf import testing
        >>> def expected(oracle, slot):
        ...     return testing.rows(oracle.at(slot).number)
        >>> def ends(oracle, slot):
        ...     return oracle.at(slot).terminated, oracle.at(slot).truncated
        >>> options = {"shapes": [(None, 6)], "seeds": [0], "operations": 4, "in_place": False}
        >>> testing.check_view(fbuf.Item(), expected=expected, ends=ends, **options)

        A view that returns something else:

        >>> try:
        ...     testing.check_view(fbuf.Item(("reward",)), expected=expected, **options)
        ... except AssertionError as error:
        ...     print(str(error).partition(". ")[0][-37:])
        is another tree than the expected one
    """
    for name, model in (("expected", expected), ("ends", ends)):
        if view.is_random and model is not None:
            raise ValueError(
                f"fbuf.testing.check_view: {name} is given, and the view is random; leave {name} "
                "out, and test the law of the view by itself"
            )
    case = Case("check_view", view)
    check_static(case)
    wanted, first = list(seeds), True
    found = histories(case, sampler, shapes, wanted, operations, make=rows, next_of=next_of)
    for here, pair, rng in found:
        key = jax.random.key(int(rng.integers(2**31)))
        batch = _agree(here, pair, view, key, expected, ends)
        if len(here.done) <= operations:
            continue
        _drawn(here, pair, view, key, batch)
        _on_the_host(here, pair, view, key, batch)
        if first:  # slow to compile
            first = False
            forms.check_forms(here, pair.state, rows, view)
            if in_place:
                forms.check_in_place(here, pair.state, rows, view)


@functools.partial(jax.jit, static_argnames=("view", "backwards"))
def _all(state: Any, view: View[Any], key: Any, backwards: bool = False) -> Any:
    """Read all slots through a view, in reverse order if `backwards`."""
    slots = jnp.arange(state.capacity, dtype=jnp.int32)
    slots = slots[::-1] if backwards else slots
    key = key if view.is_random else None
    return fbuf.read(state, fbuf.ids_at(state, slots), view=view, key=key)


def _agree(
    case: Case,
    pair: Pair,
    view: View[Any],
    key: Any,
    expected: Callable[[Any, int], Any] | None,
    ends: Callable[[Any, int], Any] | None,
) -> Any:
    """Require that each row has the expected result; return the results of all slots."""
    with case.doing("fbuf.read"):
        batch = jax.device_get(_all(pair.state, view, key))
        other = jax.device_get(_all(pair.state, view, key, not view.is_random))
    capacity, stored = pair.oracle.capacity, pair.oracle.stored()
    axis = 1 if view.time_major else 0
    _has_axis(case, batch, axis, capacity)
    for slot in range(capacity):
        if slot not in stored:
            case.require(not batch.mask[slot], f"slot {slot} holds no row, and is not masked")
            continue
        at = slot if view.is_random else capacity - 1 - slot
        again = _row(other, at, axis)
        case.require(
            batch.mask[slot] == other.mask[at],
            f"slot {slot} is masked or not by the rows that are read beside it",
        )
        if batch.mask[slot]:
            what = "with the same key" if view.is_random else "beside other rows"
            sentence = f"slot {slot} has another result if it is read again {what}"
            case.close(_row(batch, slot, axis), again, sentence)
        if expected is not None:
            _compare(case, batch, slot, axis, expected(pair.oracle, slot))
        if ends is not None and batch.mask[slot]:
            _compare_ends(case, _row(batch, slot, axis)[1], slot, ends(pair.oracle, slot))
    return batch


def _has_axis(case: Case, batch: Any, axis: int, rows: int) -> None:
    """Require that each leaf has the axis of the batch."""
    for leaf in jax.tree.leaves(batch.data):
        case.require(
            leaf.ndim > axis and leaf.shape[axis] == rows,
            f"a leaf of its data is {leaf.dtype}{list(leaf.shape)}, and axis {axis} should be "
            f"that of the {rows} rows",
        )
    for name in ("terminated", "truncated"):
        flags = getattr(batch, name)
        case.require(
            flags.ndim in (1, 2) and flags.shape[axis if flags.ndim == 2 else 0] == rows,
            f"its flags give {name} the shape {list(flags.shape)}, for {rows} rows",
        )


def _row(batch: Any, at: Any, axis: int) -> Any:
    """Return the data of one row of a batch, and its flags."""
    flags = [x.take(at, axis if x.ndim == 2 else 0) for x in (batch.terminated, batch.truncated)]
    return _part(batch, at, axis), flags


def _part(batch: Any, at: Any, axis: int) -> Any:
    """Return the data of one row of a batch."""
    return jax.tree.map(lambda leaf: leaf.take(at, axis), batch.data)


def _compare(case: Case, batch: Any, slot: int, axis: int, wanted: Any) -> None:
    """Require that a row has the expected result."""
    if wanted is None:
        case.require(not batch.mask[slot], f"slot {slot} is not masked, and should be")
        return
    case.require(batch.mask[slot], f"slot {slot} is masked, and should not be")
    leaves, structure = jax.tree.flatten(wanted)
    with case.doing("a comparison with the expected data"):
        try:
            parts: list[Any] = structure.flatten_up_to(_part(batch, slot, axis))
        except ValueError as error:
            case.fail(f"the data of slot {slot} is another tree than the expected one", error)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(wanted)]
    for name, leaf, part in zip(names, leaves, parts, strict=True):
        if leaf is ANY:
            continue
        one = jax.tree.leaves(part)
        case.require(
            len(one) == 1, f"the data of slot {slot} is another tree than the expected one"
        )
        found, leaf = np.asarray(one[0]), np.asarray(leaf)
        case.require(
            found.shape == leaf.shape and equal(found, leaf.astype(found.dtype)),
            f"slot {slot} has data{name} = {found.tolist()}, and expected is {leaf.tolist()}",
        )


def _compare_ends(case: Case, flags: Any, slot: int, wanted: tuple[Any, Any]) -> None:
    """Require that a row has the expected flags."""
    for name, found, expected in zip(("terminated", "truncated"), flags, wanted, strict=True):
        case.require(
            np.array_equal(found, expected),
            f"slot {slot} has {name} = {found.tolist()}, and expected is "
            f"{np.asarray(expected).tolist()}",
        )


def _drawn(case: Case, pair: Pair, view: View[Any], key: Any, batch: Any) -> None:
    """Require that a drawn row has the same result as a read of its id."""
    step = 0 if pair.sampler.without_replacement else None
    if view.is_random or pair.sampler.notes_draws:
        return
    axis = 1 if view.time_major else 0
    with case.doing("fbuf.sample"):
        drawn = jax.device_get(fbuf.sample(pair.state, key, forms.BATCH, view=view, step=step))
    _has_axis(case, drawn, axis, forms.BATCH)
    for at in np.flatnonzero(drawn.mask):
        slot = int(drawn.ids.slot[at])
        one, other = _row(drawn, at, axis), _row(batch, slot, axis)
        case.close(one, other, f"slot {slot} has another result if it is drawn than if it is read")


def _on_the_host(case: Case, pair: Pair, view: View[Any], key: Any, batch: Any) -> None:
    """Require that rows on the host have the same results."""
    with tempfile.TemporaryDirectory() as folder, case.doing("a read of rows on the host"):
        pair.state = fbuf.save(folder, pair.state)
        given: Any = {"item": pair.make(np.int32(0)), "sampler": pair.sampler, "episodes": "keep"}
        store: HostStore[Any] = HostStore.load(folder, **given)[0]
        ids = store.ids_at(np.arange(pair.oracle.capacity, dtype=np.int32))
        key = key if view.is_random else None
        found = jax.device_get(store.read(ids, view=view, key=key))
    axis = 1 if view.time_major else 0
    case.close(found.mask, batch.mask, "rows on the host are masked otherwise")
    _has_axis(case, found, axis, pair.oracle.capacity)
    for slot in np.flatnonzero(batch.mask):
        one, other = _row(found, slot, axis), _row(batch, slot, axis)
        case.close(one, other, f"slot {slot} has another result if the rows lie on the host")
