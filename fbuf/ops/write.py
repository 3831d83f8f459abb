"""Writing fields of rows that are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, overload

import jax
import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.dispatch.call import operation_of_both
from fbuf.ops.named import named
from fbuf.samplers.protocol import row_fields
from fbuf.sharded_state import ShardedIds, ShardedState
from fbuf.state import State
from fbuf.storage import marks
from fbuf.storage.faults import collected
from fbuf.storage.ids import Ids
from fbuf.storage.store import Item
from fbuf.xla.duplicates import last_of_each


def _by_name(function: str, argument: str, value: Any) -> dict[str, Any]:
    """Return a dict of names to values; refuse any other value."""
    if not isinstance(value, Mapping):
        raise TypeError(
            f"fbuf.{function}: {argument} must be a dict of names to values, got "
            f"{type(value).__name__}"
        )
    for name in value:
        check.name(function, f"a key of {argument}", name)
    return dict(value)


def _numbers_fit(function: str, state: State[Any], given: dict[str, Any]) -> None:
    """Refuse Python numbers that a field cannot store."""
    layout = state.storage.layout
    for name, values in given["fields"].items():
        numbers = layout.find(function, "fields", name)
        specs = jax.tree.map(lambda number: layout.fields[number], numbers)
        parse.python_numbers(function, f"fields[{name!r}]", specs, values)


@overload
def write(
    state: State[Item],
    ids: Ids,
    fields: Mapping[str, Any],
    *,
    mask: Array | bool | None = None,
    donate: bool = True,
) -> State[Item]: ...
@overload
def write(
    state: ShardedState[Item],
    ids: ShardedIds,
    fields: Mapping[str, Any],
    *,
    mask: Array | bool | None = None,
    donate: bool = True,
) -> ShardedState[Item]: ...
@operation_of_both(checks={"fields": _by_name}, host_check=_numbers_fit)
def write(
    state: State[Item],
    ids: Ids,
    fields: Mapping[str, Any],
    *,
    mask: Array | bool | None = None,
    donate: bool = True,
) -> State[Item]:
    """Change fields of stored rows, such as latents, search results or returns.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        ids: `batch.ids`, of any shape. If a row repeats, its last value counts. Ids that name no
            row are ignored.
        fields: A dict from names of fields (`"a.b"` for a field in a field) to values. Values have
            the tree of the field, and shapes of `ids` followed by those of the field. Fields that
            you do not name stay as they are. If you write the field `next_of`, you also change the
            next observation of the row before. Shapes are never broadcast and dtypes never cast.
        mask: bool, shaped like `ids`, or one bool for all: which entries to apply. None is all.
        donate: As for `fbuf.add`.

    Returns:
        The buffer with the fields changed.

    Raises:
        ValueError: When traced, if the items have no such field, or if a shape or a tree does not
            fit.
        TypeError: When traced, if `ids` is not a `fbuf.Ids`, or if a dtype does not fit. Also if
            the values are differentiated, as for `fbuf.add`.
        RuntimeError: If `state` has been consumed.

    Faults:
        ID_OUT_OF_RANGE: A slot is outside the buffer; that entry is skipped.
        STALE_ID: A row has been overwritten or removed since it was drawn; that entry is skipped.
        FOREIGN_ID: An id is of another buffer, or was drawn before a load; that entry is skipped.

    Cost: O(B) time and memory. Narrow fields of a row are read and written together.

    Over a mesh: `ids` are as for `fbuf.update_priority`. One `all_gather` brings the ids and the
    fields to every device.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"x": jnp.zeros(()), "value": jnp.zeros(())}, capacity=4)
        >>> state = fbuf.add(state, {"x": jnp.ones(1), "value": jnp.zeros(1)})
        >>> batch = fbuf.sample(state, jax.random.key(0), 2)
        >>> state = fbuf.write(state, batch.ids, {"value": jnp.full(2, 5.0)})
        >>> float(fbuf.sample(state, jax.random.key(1), 1).data["value"][0])
        5.0
    """
    _, shape = parse.ids("write", ids)
    return with_fields(state, ids, mask, parsed_fields("write", state, fields, shape))


def parsed_fields(
    function: str, state: State[Any], fields: Mapping[str, Any], shape: tuple[int, ...]
) -> dict[int, jax.Array]:
    """Check values of fields, one for each id, and return them by the numbers of their leaves."""
    layout, changed = state.storage.layout, dict[int, jax.Array]()
    for name, values in fields.items():
        argument, field = f"fields[{name!r}]", layout.find(function, "fields", name)
        if jax.tree.structure(values) != jax.tree.structure(field):
            raise ValueError(
                f"fbuf.{function}: {argument} must have the tree of the field, "
                f"{jax.tree.structure(field)}, got {jax.tree.structure(values)}"
            )
        for number, leaf in zip(jax.tree.leaves(field), jax.tree.leaves(values), strict=True):
            if number in changed:
                raise ValueError(
                    f"fbuf.{function}: {argument} overlaps with another field; name each field once"
                )
            spec = layout.fields[number]
            changed[number] = parse.field_values(
                function, argument, leaf, shape, spec.shape, spec.dtype
            )
    return changed


def with_fields(
    state: State[Item], ids: Ids, mask: Any, changed: dict[int, jax.Array]
) -> State[Item]:
    """Change leaves of rows; see `write`."""
    state, slots, faults, _ = named("write", state, ids, mask)
    slots = jnp.where(last_of_each(slots), slots, state.capacity)
    storage = state.storage.write_leaves(slots, changed)
    ring, fault = marks.written(state.ring, slots), collected(state.fault, faults)
    index, sampler = state.index, state.sampler
    if looked_at := row_fields.among(sampler, state.storage.layout, changed):
        index = sampler.written(index, ring, slots, looked_at)
    return dataclasses.replace(state, storage=storage, ring=ring, index=index, fault=fault)
