"""Parsing of batches: rows, flags, priorities and ids, brought to one leading axis `[B]`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checks import values as check
from fbuf.dispatch import gradients
from fbuf.storage.ids import Ids


def item_specs(function: str, item: Any) -> Any:
    """Return the shape and dtype of each leaf of one item, as the buffer will store it."""
    if not jax.tree.leaves(item):
        raise ValueError(
            f"fbuf.{function}: item holds no array; give one unbatched item, such as "
            "{'observation': jnp.zeros(4)}"
        )

    def spec(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        name = "item" + jax.tree_util.keystr(path)
        check.array(function, name, leaf)
        dtype = jax.dtypes.result_type(leaf)
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            raise TypeError(
                f"fbuf.{function}: {name} is a PRNG key; store jax.random.key_data(key), and call "
                "jax.random.wrap_key_data on what you sample"
            )
        return jax.ShapeDtypeStruct(jnp.shape(leaf), dtype)

    return jax.tree_util.tree_map_with_path(spec, item)


@dataclasses.dataclass(frozen=True)
class Lead:
    """The axes of a batch before those of the item, as they were given.

    Attributes:
        shape: `()` for one item, `(B,)` for a batch; with environments `(num_envs,)` for one step,
            `(num_envs, T)` or `(T, num_envs)`.
        envs_first: The environments come before the steps.
    """

    shape: tuple[int, ...]
    envs_first: bool

    @property
    def size(self) -> int:
        """Return the number of rows."""
        return math.prod(self.shape)

    def flat(self, array: Any) -> Any:
        """Order rows step by step, and in a step environment by environment: `[B, ...]`."""
        feature = array.shape[len(self.shape) :]
        if self.envs_first:
            array = array.swapaxes(0, 1)
        return array.reshape(self.size, *feature)


def rows(
    function: str,
    item: Any,
    items: Any,
    num_envs: int | None,
    time_major: bool,
    argument: str = "items",
) -> tuple[Any, Lead]:
    """Bring rows, each like `item`, to a batch `[B, ...]`; also return their leading axes."""
    given, batch = checked_rows(function, item, items, num_envs, time_major, argument)
    stored, tree = jax.tree.flatten(item)
    arrays = [jnp.asarray(leaf, spec.dtype) for leaf, spec in zip(given, stored, strict=True)]
    whole = gradients.refused(function, argument, tree.unflatten(arrays))
    return jax.tree.map(batch.flat, whole), batch


def checked_rows(
    function: str, item: Any, items: Any, num_envs: int | None, time_major: bool, argument: str
) -> tuple[list[Any], Lead]:
    """Return the leaves of rows, each like `item`, unchanged, and their leading axes."""
    _same_tree(function, argument, item, items)
    if time_major and num_envs is None:
        raise ValueError(
            f"fbuf.{function}: time_major is for buffers made with num_envs; this one has none; "
            "leave time_major out"
        )
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(item)]
    stored, leaves = jax.tree.leaves(item), jax.tree.leaves(items)
    shape = jnp.shape(leaves[0])
    lead = shape[: max(len(shape) - stored[0].ndim, 0)]
    if num_envs is None:
        fits = len(lead) <= 1
    else:
        fits = (1 <= len(lead) <= 2) and lead[-1 if time_major else 0] == num_envs
    for number, (path, leaf, spec) in enumerate(zip(paths, leaves, stored, strict=True)):
        name, shape = f"fbuf.{function}: {argument}{path}", jnp.shape(leaf)
        if not fits or shape != (*lead, *spec.shape):
            hint = _turned(shape, spec.shape, num_envs, time_major)
            if number and fits:
                here = f"they begin with {_axes(lead)}" if num_envs else "one item"
                here = f"B is {lead[0]}" if lead and num_envs is None else here
                first = f"{argument}{paths[0]} is of shape {jnp.shape(leaves[0])}"
                hint = f" (here {here}, as {first})"
            raise ValueError(
                f"{name} must be {_allowed(spec.shape, num_envs, time_major)}{hint}, got {shape}; "
                "shapes are never broadcast"
            )
        check.array(function, argument + path, leaf)
        if not _keeps(leaf, spec.dtype):
            raise TypeError(
                f"{name} must be {spec.dtype}, as the buffer stores it, got "
                f"{jnp.result_type(leaf)}; cast it with .astype({str(spec.dtype)!r}), or make the "
                "buffer with an item of this dtype"
            )
    if 0 in lead:
        raise ValueError(f"fbuf.{function}: {argument} is an empty batch; skip the call")
    return leaves, Lead(lead, envs_first=len(lead) == 2 and not time_major)


def _same_tree(function: str, argument: str, item: Any, items: Any) -> None:
    """Refuse another tree than the item's, by the name of the first leaf that differs."""
    expected, came = jax.tree.structure(item), jax.tree.structure(items)
    if expected == came:
        return
    wanted, given = (
        [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)]
        for tree in (item, items)
    )
    missing = [path for path in wanted if path not in given]
    extra = [path for path in given if path not in wanted]
    differs = "its containers are of other types"
    if missing or extra:
        lacks = f"{argument}{missing[0]} is missing" if missing else ""
        more = f"{argument}{extra[0]} is no field of it" if extra else ""
        differs = " and ".join(filter(None, (lacks, more)))
    raise ValueError(
        f"fbuf.{function}: {argument} must have the tree of the item the buffer was made for: "
        f"{differs}; expected {expected}, got {came}"
    )


def _turned(
    shape: tuple[int, ...], feature: tuple[int, ...], num_envs: int | None, time_major: bool
) -> str:
    """Return a hint for steps and environments in the wrong order."""
    lead = shape[: max(len(shape) - len(feature), 0)]
    if num_envs is None or len(lead) != 2 or shape[2:] != feature:
        return ""
    if time_major and lead[0] == num_envs:
        return " (the environments come first: leave time_major out)"
    if not time_major and lead[1] == num_envs:
        return " (the steps come first: give time_major=True)"
    return ""


def _allowed(feature: tuple[int, ...], num_envs: int | None, time_major: bool) -> str:
    if num_envs is None:
        return f"{feature} for one item, or {_axes(('B', *feature))} for a batch"
    rollout = ("T", num_envs) if time_major else (num_envs, "T")
    return (
        f"{_axes((num_envs, *feature))} for one step of all environments, or "
        f"{_axes((*rollout, *feature))} for T of them"
    )


def _axes(axes: tuple[int | str, ...]) -> str:
    names = ", ".join(str(axis) for axis in axes)
    return f"({names},)" if len(axes) == 1 else f"({names})"


def python_numbers(function: str, argument: str, item: Any, items: Any) -> None:
    """Refuse Python numbers that a field cannot hold: JAX would cut them, or make them infinite."""
    if jax.tree.structure(item) != jax.tree.structure(items):
        return  # which is refused elsewhere
    specs = jax.tree.leaves(item)
    for (path, leaf), spec in zip(jax.tree.leaves_with_path(items), specs, strict=True):
        is_int = isinstance(leaf, int) and not isinstance(leaf, bool)
        is_number = is_int or (isinstance(leaf, float) and math.isfinite(leaf))
        if is_number and not can_hold(spec.dtype, leaf):
            raise ValueError(
                f"fbuf.{function}: {argument}{jax.tree_util.keystr(path)} is {leaf}, which "
                f"{spec.dtype} cannot hold; make the buffer with an item of a wider dtype"
            )


def can_hold(dtype: Any, number: int | float) -> bool:
    """Tell whether a finite number stays finite, and an int exact, in a dtype."""
    if isinstance(number, bool):
        return True
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return int(limits.min) <= number <= int(limits.max)
    if jnp.issubdtype(dtype, jnp.floating):
        if abs(number) > float(jnp.finfo(dtype).max):
            return False
        return isinstance(number, float) or int(np.asarray(number, dtype)) == number
    return True


def flags(function: str, argument: str, value: Any, lead: Lead) -> jax.Array:
    """Return a bool for each row, given in the leading axes of the items: `[B]`."""
    check.no_list(function, argument, value)
    if jnp.shape(value) != lead.shape:
        raise ValueError(
            f"fbuf.{function}: {argument} must be of shape {lead.shape}, one for each row, got "
            f"{check.describe(value)}"
        )
    return lead.flat(_bool(function, argument, value))


def steps(function: str, value: Any, lead: Lead, lanes: int) -> jax.Array:
    """Return a bool for each row, given for each step of all environments: `[B]`."""
    check.no_list(function, "mask", value)
    shape = (lead.size // lanes,) if len(lead.shape) == 2 else ()
    if jnp.shape(value) != shape:
        raise ValueError(
            f"fbuf.{function}: mask must be of shape {shape}, one for each step, because the "
            f"environments of this buffer step together; got {check.describe(value)}. To leave "
            "single environments out, make the buffer with lockstep=False"
        )
    return jnp.repeat(_bool(function, "mask", value).reshape(-1), lanes)


def mask(function: str, value: Any, shape: tuple[int, ...], like: str) -> jax.Array:
    """Return a bool for each entry of a batch of this shape, or one for all: `[B]`."""
    if value is None:
        return jnp.ones(math.prod(shape), bool)
    check.no_list(function, "mask", value)
    if jnp.shape(value) not in ((), shape):
        raise ValueError(
            f"fbuf.{function}: mask must be bool of shape {shape}, like {like}, or one bool for "
            f"all, got {check.describe(value)}"
        )
    return jnp.broadcast_to(_bool(function, "mask", value), shape).reshape(-1)


def _bool(function: str, argument: str, value: Any) -> jax.Array:
    if jnp.result_type(value) != jnp.bool_:
        raise TypeError(
            f"fbuf.{function}: {argument} must be bool, got {check.describe(value)}; cast it with "
            ".astype(bool)"
        )
    return jnp.asarray(value)


def field_values(
    function: str, name: str, leaf: Any, lead: tuple[int, ...], feature: tuple[int, ...], dtype: Any
) -> jax.Array:
    """Return values of a field, one for each id: `[B, *feature]`."""
    if jnp.shape(leaf) != (*lead, *feature):
        raise ValueError(
            f"fbuf.{function}: {name} must be of shape {(*lead, *feature)}, that of ids and then "
            f"of the field, got {jnp.shape(leaf)}; shapes are never broadcast"
        )
    check.array(function, name, leaf)
    if jnp.result_type(leaf) != dtype:
        raise TypeError(
            f"fbuf.{function}: {name} must be {dtype}, as the buffer stores it, got "
            f"{jnp.result_type(leaf)}; cast it with .astype({str(dtype)!r})"
        )
    values = gradients.refused(function, name, jnp.asarray(leaf))
    return values.reshape(math.prod(lead), *feature)


def priorities(
    function: str, value: Any, shape: tuple[int, ...], like: str, argument: str = "priority"
) -> jax.Array:
    """Return priorities, one for each row, as float32, in the given shape."""
    check.no_list(function, argument, value)
    if jnp.shape(value) != shape:
        raise ValueError(
            f"fbuf.{function}: {argument} must be of shape {shape}, like {like}, got "
            f"{check.describe(value)}"
        )
    if not check.is_real(jnp.result_type(value)):
        raise TypeError(f"fbuf.{function}: {argument} must be real, got {check.describe(value)}")
    return jax.lax.stop_gradient(jnp.asarray(value).astype(jnp.float32))


def ids(function: str, value: Any) -> tuple[Ids, tuple[int, ...]]:
    """Return ids of rows, flat, and their given shape."""
    if not isinstance(value, Ids):
        came = "an array" if isinstance(value, jax.Array) else type(value).__name__
        raise TypeError(
            f"fbuf.{function}: ids must be a fbuf.Ids, such as batch.ids, got {came}; for slots, "
            "use fbuf.ids_at(state, slots)"
        )
    for name in ("slot", "generation"):
        part = getattr(value, name)
        check.no_list(function, f"ids.{name}", part)
        check.array(function, f"ids.{name}", part)
        if jnp.result_type(part) != jnp.int32:
            raise TypeError(
                f"fbuf.{function}: ids.{name} must be int32, got {check.describe(part)}; pass the "
                "ids on as fbuf.sample returned them"
            )
    shape = jnp.shape(value.slot)
    if shape != jnp.shape(value.generation):
        raise ValueError(
            f"fbuf.{function}: ids.slot and ids.generation must be of one shape, got {shape} and "
            f"{jnp.shape(value.generation)}"
        )
    if 0 in shape:
        raise ValueError(f"fbuf.{function}: ids is empty; skip the call")
    slot, generation = jnp.asarray(value.slot), jnp.asarray(value.generation)
    return Ids(slot.reshape(-1), generation.reshape(-1)), shape


def _keeps(leaf: Any, dtype: Any) -> bool:
    """Tell whether a leaf is of this dtype, or a Python scalar of the same kind of number.

    An array that JAX made of a Python scalar, such as `jnp.full(2, 300)`, is refused as any other.
    """
    if jnp.result_type(leaf) == dtype:
        return True
    if jnp.ndim(leaf):
        return False
    weak = getattr(leaf, "weak_type", isinstance(leaf, bool | int | float | complex))
    return bool(weak) and jax.dtypes.result_type(leaf, jax.ShapeDtypeStruct((), dtype)) == dtype
