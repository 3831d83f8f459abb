"""Writing fields of rows that are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

from fbuf import _check, _storage
from fbuf._eager import Compiled
from fbuf._fault import collected
from fbuf._ring import Ids
from fbuf._state import Item, State
from fbuf._update import named
from fbuf.trees._levels import last_of_each


def write(
    state: State[Item],
    ids: Ids,
    fields: Mapping[str, Any],
    *,
    mask: chex.Array | None = None,
    donate: bool = True,
) -> State[Item]:
    """Change fields of stored rows: latents, search results, returns computed afterwards.

    Args:
        state: The buffer. Called eagerly it is consumed, see `donate`.
        ids: `sample.ids`, of any shape. Rows may repeat: the last value given then counts. Entries
            that name no row are passed over.
        fields: What to write: the name of a field (`"a.b"` for one inside another) to its values,
            a tree like the field's with the shape of `ids` before that of the field. Fields that
            are not named stay as they are; of the field `next_of` names, what a row is given is
            also what the row before it led to. Shapes are never broadcast and dtypes never cast.
        mask: bool, shaped like `ids`; entries to apply. None is all.
        donate: As for `fbuf.add`.

    Returns:
        The buffer with the fields changed.

    Raises:
        ValueError: When traced, if the items have no such field, or a shape or tree does not fit.
        TypeError: When traced, if `ids` are not `fbuf.Ids`, or a dtype does not fit.
        RuntimeError: If `state` has been consumed.

    Faults:
        ID_OUT_OF_RANGE: A slot is outside the buffer; that entry is skipped.
        STALE_ID: A row has been overwritten or removed since; that entry is skipped.

    Cost: O(B) time and memory; the narrow fields of a row are read and written together.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"x": jnp.zeros(()), "value": jnp.zeros(())}, capacity=4)
        >>> state = fbuf.add(state, {"x": jnp.ones(1), "value": jnp.zeros(1)})
        >>> batch = fbuf.sample(state, jax.random.key(0), 2)
        >>> state = fbuf.write(state, batch.ids, {"value": jnp.full(2, 5.0)})
        >>> float(fbuf.sample(state, jax.random.key(1), 1).data["value"][0])
        5.0
    """
    _check.is_ids("write", ids)
    given: Any = fields
    if not isinstance(given, Mapping):
        raise TypeError(
            f"fbuf.write: fields must be a dict of names to values, got {type(given).__name__}"
        )
    return _write(donate, state, ids, dict(fields), mask)


def _change(state: State[Item], ids: Any, fields: dict[str, Any], mask: Any) -> State[Item]:
    _check.one_buffer("write", state)
    slots, faults = named("write", state, ids, mask)
    slots = jnp.where(last_of_each(slots), slots, state.capacity)
    lead = jnp.shape(ids.slot)
    changed: dict[int, jax.Array] = {}
    for name, values in fields.items():
        field = _storage.find("write", "fields", state.storage, name)
        if jax.tree.structure(values) != jax.tree.structure(field):
            raise ValueError(
                f"fbuf.write: fields[{name!r}] must have the tree of the field, "
                f"{jax.tree.structure(field)}, got {jax.tree.structure(values)}"
            )
        for number, leaf in zip(jax.tree.leaves(field), jax.tree.leaves(values), strict=True):
            if number in changed:
                raise ValueError(
                    f"fbuf.write: fields[{name!r}] overlaps with another field; give each number "
                    "once"
                )
            spec = state.storage.fields[number]
            given = _check.values("write", f"fields[{name!r}]", leaf, lead, spec.shape, spec.dtype)
            changed[number] = given.reshape(-1, *spec.shape)
    storage = _storage.write_leaves(state.storage, slots, changed)
    return dataclasses.replace(state, storage=storage, fault=collected(state.fault, faults))


_write = Compiled("write", _change)
