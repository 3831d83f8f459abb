"""Checks of what shapes, dtypes and Python values show, made while tracing; they cost no run time.

Every message names the function, the argument and the leaf, says what was expected and what came,
and what to do about it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf._ring import Ids
from fbuf._state import State
from fbuf._storage import Storage

_TYPED = (np.ndarray, np.generic, jax.ShapeDtypeStruct)

LARGEST_CAPACITY = 2**31 - 17
"""Slots are counted in int32, in rows of 16, with one to spare."""


def positive_int(function: str, argument: str, value: Any, largest: int) -> int:
    """A static count in `[1, largest]`."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"fbuf.{function}: {argument} is traced, but shapes depend on it; give a Python int "
            f"(jax.jit: list {argument} in static_argnames)"
        )
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"fbuf.{function}: {argument} must be an int, got {value!r}")
    if not 1 <= value <= largest:
        raise ValueError(f"fbuf.{function}: {argument} must be from 1 to {largest}, got {value}")
    return int(value)


def exponent(function: str, argument: str, value: Any) -> jax.Array | float | None:
    """An alpha or beta given at a call: None, a number of at least 0, or a traced scalar."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(
        value, int | float | np.ndarray | np.generic | jax.Array
    ):
        raise TypeError(
            f"fbuf.{function}: {argument} must be a number or a scalar array, got {value!r}"
        )
    if jnp.shape(value) != () or not _is_real(jnp.result_type(value)):
        raise ValueError(
            f"fbuf.{function}: {argument} must be one real number, got "
            f"{_describe(value)}; it holds for the whole batch"
        )
    if not isinstance(value, jax.core.Tracer) and not is_float32(value):
        raise ValueError(
            f"fbuf.{function}: {argument} must be finite in float32 and at least 0, got "
            f"{float(value)}"
        )
    return value if isinstance(value, jax.Array) else float(value)


def step(function: str, value: Any) -> jax.Array | None:
    """The number of a batch: None, an int of at least 0, or an int32 scalar that may be traced."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.ndarray | np.generic | jax.Array):
        raise TypeError(f"fbuf.{function}: step must be an int or a scalar array, got {value!r}")
    if jnp.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.integer):
        raise ValueError(f"fbuf.{function}: step must be one integer, got {_describe(value)}")
    if not isinstance(value, jax.core.Tracer) and not 0 <= int(value) < 2**31:
        raise ValueError(f"fbuf.{function}: step must be from 0 to 2**31 - 1, got {int(value)}")
    return jnp.asarray(value, jnp.int32)


def is_float32(value: Any) -> bool:
    """Whether a number is at least 0, and float32 can hold it: neither too large nor too small."""
    number = float(value)
    if number == 0:
        return True
    limits = np.finfo(np.float32)
    return float(limits.tiny) <= number <= float(limits.max)


def is_state(function: str, state: Any) -> None:
    """A state."""
    if not isinstance(state, State):
        raise TypeError(
            f"fbuf.{function}: state must be a fbuf.State, got {type(state).__name__}; "
            "make one with fbuf.init"
        )


def one_buffer(function: str, state: Any) -> None:
    """A state, and not a batch of states."""
    if jnp.ndim(state.fault) != 0:
        raise ValueError(
            f"fbuf.{function}: state is a batch of buffers, of shape {jnp.shape(state.fault)};"
            f" call it through jax.vmap(fbuf.{function}, ...)"
        )


def item_specs(function: str, item: Any) -> Any:
    """The shape and dtype of each leaf of one item, as the buffer will store it."""
    if not jax.tree.leaves(item):
        raise ValueError(f"fbuf.{function}: item holds no array; give one unbatched item")

    def spec(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        _array_like(function, "item" + jax.tree_util.keystr(path), leaf)
        dtype = jax.dtypes.result_type(leaf)
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            raise TypeError(
                f"fbuf.{function}: item{jax.tree_util.keystr(path)} is a PRNG key; store "
                "jax.random.key_data(key), and wrap what is sampled with jax.random.wrap_key_data"
            )
        return jax.ShapeDtypeStruct(jnp.shape(leaf), dtype)

    return jax.tree_util.tree_map_with_path(spec, item)


@dataclasses.dataclass(frozen=True)
class Lead:
    """The axes of a batch before those of the item, as they were given.

    Attributes:
        shape: `()` for one item, `(B,)` for a batch; with environments `(num_envs,)` for one step,
            `(num_envs, steps)` or `(steps, num_envs)`.
        turned: The environments come before the steps.
    """

    shape: tuple[int, ...]
    turned: bool

    @property
    def size(self) -> int:
        """How many rows there are."""
        return math.prod(self.shape)

    def flat(self, array: jax.Array) -> jax.Array:
        """Rows step by step, and in a step environment by environment: `[B, ...]`."""
        feature = array.shape[len(self.shape) :]
        if self.turned:
            array = jnp.swapaxes(array, 0, 1)
        return array.reshape(self.size, *feature)


def items(
    function: str,
    item: Any,
    items: Any,
    num_envs: int | None,
    time_major: bool,
    argument: str = "items",
) -> tuple[Any, Lead]:
    """Items to add, each like `item`, brought to a batch `[B, ...]`, and how they were given."""
    expected, came = jax.tree.structure(item), jax.tree.structure(items)
    if expected != came:
        raise ValueError(
            f"fbuf.{function}: {argument} must have the tree of the item the buffer was made for, "
            f"{expected}, got {came}"
        )
    if time_major and num_envs is None:
        raise ValueError(
            f"fbuf.{function}: time_major is for buffers made with num_envs; leave it out"
        )
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(item)]
    stored, given = jax.tree.leaves(item), jax.tree.leaves(items)
    shape = jnp.shape(given[0])
    lead = shape[: max(len(shape) - stored[0].ndim, 0)]
    if num_envs is None:
        fits = len(lead) <= 1
    else:
        fits = (1 <= len(lead) <= 2) and lead[-1 if time_major else 0] == num_envs
    for number, (path, leaf, row) in enumerate(zip(paths, given, stored, strict=True)):
        name, shape = f"fbuf.{function}: {argument}{path}", jnp.shape(leaf)
        if not fits or shape != (*lead, *row.shape):
            so_far = ""
            if number and fits:
                here = f"they begin with {_axes(lead)}" if num_envs else "one item"
                here = f"B is {lead[0]}" if lead and num_envs is None else here
                so_far = (
                    f" (here {here}, as {argument}{paths[0]} is of shape {jnp.shape(given[0])})"
                )
            raise ValueError(
                f"{name} must be {_allowed(row.shape, num_envs, time_major)}{so_far}, got {shape}; "
                "shapes are never broadcast"
            )
        _array_like(function, argument + path, leaf)
        if not _keeps(leaf, row.dtype):
            raise TypeError(
                f"{name} must be {row.dtype}, as the buffer stores it, got "
                f"{jnp.result_type(leaf)}; cast it with .astype({str(row.dtype)!r}), or make the "
                "buffer with an item of this dtype"
            )
    if 0 in lead:
        raise ValueError(f"fbuf.{function}: {argument} is an empty batch; leave the call out")
    batch = Lead(lead, turned=len(lead) == 2 and not time_major)
    arrays = [
        batch.flat(jnp.asarray(leaf, row.dtype)) for leaf, row in zip(given, stored, strict=True)
    ]
    return jax.tree.unflatten(expected, arrays), batch


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


def no_list(function: str, argument: str, value: Any) -> None:
    """No Python list or tuple, of which JAX would make many arrays."""
    if isinstance(value, list | tuple):
        raise TypeError(
            f"fbuf.{function}: {argument} must be an array, got a {type(value).__name__}; make it "
            "one with jnp.array"
        )


def key(function: str, value: Any) -> None:
    """A random key, of the new kind or the old one."""
    if isinstance(value, jax.Array | np.ndarray):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and value.shape == ():
            return
        if value.dtype == np.uint32 and value.ndim == 1:
            return
        raise ValueError(
            f"fbuf.{function}: key must be one random key, got {value.dtype} of shape "
            f"{value.shape}; split it, or map over the keys with jax.vmap"
        )
    raise TypeError(
        f"fbuf.{function}: key must be a random key, such as jax.random.key(0), got {value!r}"
    )


def view(function: str, value: Any) -> None:
    """A view, and not its class."""
    if isinstance(value, type) or not hasattr(value, "read"):
        raise TypeError(
            f"fbuf.{function}: view must be a view, such as fbuf.Item(), got {value!r}; "
            "a class has to be called"
        )


def flag(function: str, argument: str, value: Any, lead: Lead) -> jax.Array:
    """A bool for each row, shaped like the axes of the items before their own: `[B]`."""
    no_list(function, argument, value)
    if jnp.shape(value) != lead.shape:
        raise ValueError(
            f"fbuf.{function}: {argument} must be of shape {lead.shape}, one for each row, got "
            f"{_describe(value)}"
        )
    if jnp.result_type(value) != jnp.bool_:
        raise TypeError(
            f"fbuf.{function}: {argument} must be bool, got {_describe(value)}; cast it with "
            ".astype(bool)"
        )
    return lead.flat(jnp.asarray(value))


def values(
    function: str, name: str, leaf: Any, lead: tuple[int, ...], feature: tuple[int, ...], dtype: Any
) -> jax.Array:
    """Values of a field, one for each id: `[*lead, *feature]`."""
    if jnp.shape(leaf) != (*lead, *feature):
        raise ValueError(
            f"fbuf.{function}: {name} must be of shape {(*lead, *feature)}, that of ids and then "
            f"of the field, got {jnp.shape(leaf)}; shapes are never broadcast"
        )
    _array_like(function, name, leaf)
    if jnp.result_type(leaf) != dtype:
        raise TypeError(
            f"fbuf.{function}: {name} must be {dtype}, as the buffer stores it, got "
            f"{jnp.result_type(leaf)}; cast it with .astype({str(dtype)!r})"
        )
    return jnp.asarray(leaf)


def priorities(function: str, value: Any, shape: tuple[int, ...], of: str) -> jax.Array:
    """Priorities, one for each row, as float32, in the shape they came."""
    no_list(function, "priority", value)
    if jnp.shape(value) != shape:
        raise ValueError(
            f"fbuf.{function}: priority must be of shape {shape}, like {of}, got {_describe(value)}"
        )
    if not _is_real(jnp.result_type(value)):
        raise TypeError(f"fbuf.{function}: priority must be real, got {_describe(value)}")
    return jnp.asarray(value).astype(jnp.float32)


def is_ids(function: str, value: Any) -> None:
    """Ids of rows."""
    if not isinstance(value, Ids):
        raise TypeError(
            f"fbuf.{function}: ids must be the fbuf.Ids that fbuf.sample returned in sample.ids, "
            f"got {type(value).__name__}; a slot alone does not tell a row from its successors"
        )


def ids(function: str, value: Ids) -> Ids:
    """Ids of rows, flat."""
    slot, generation = jnp.shape(value.slot), jnp.shape(value.generation)
    integers = all(jnp.result_type(x) == jnp.int32 for x in (value.slot, value.generation))
    if slot != generation or not integers:
        raise ValueError(
            "fbuf." + function + ": ids.slot and ids.generation must be int32 of one shape, got "
            f"{_describe(value.slot)} and {_describe(value.generation)}"
        )
    if 0 in slot:
        raise ValueError(f"fbuf.{function}: ids names no rows at all; leave the call out")
    return Ids(jnp.asarray(value.slot).reshape(-1), jnp.asarray(value.generation).reshape(-1))


def _array_like(function: str, name: str, leaf: Any) -> None:
    """Something JAX takes, and takes as it is."""
    if type(leaf).__module__.partition(".")[0] == "torch":
        raise TypeError(
            f"fbuf.{function}: {name} is a torch tensor; use fbuf_adapters.pytorch "
            "(add_from_torch, from_torch)"
        )
    if not isinstance(
        leaf,
        jax.Array | np.ndarray | np.generic | bool | int | float | complex | jax.ShapeDtypeStruct,
    ):
        raise TypeError(f"fbuf.{function}: {name} must be an array, got {type(leaf).__name__}")
    if isinstance(leaf, _TYPED) and leaf.dtype.itemsize >= 8:
        kept = jax.dtypes.canonicalize_dtype(leaf.dtype)
        if kept != leaf.dtype:
            raise TypeError(
                f"fbuf.{function}: {name} is {leaf.dtype}, which JAX would silently make "
                f"{kept}, as 64-bit types are off; cast it with .astype({str(kept)!r}), or turn "
                "them on (jax.config.update('jax_enable_x64', True))"
            )


def host_values(function: str, storage: Storage[Any], items: Any, argument: str = "items") -> None:
    """No leaf that JAX would, on its way into jit, take for something else or not at all."""
    leaves = jax.tree.leaves(items)
    if all(issubclass(kind, jax.Array) for kind in set(map(type, leaves))):
        return
    if all(isinstance(leaf, jax.Array | np.ndarray) and leaf.itemsize < 8 for leaf in leaves):
        return
    given = jax.tree.leaves_with_path(items)
    for path, leaf in given:
        _array_like(function, argument + jax.tree_util.keystr(path), leaf)
    if jax.tree.structure(items) != storage.tree:
        return  # which is refused elsewhere
    for (path, leaf), field in zip(given, storage.fields, strict=True):
        if type(leaf) is int and jnp.issubdtype(field.dtype, jnp.integer):
            limits = jnp.iinfo(field.dtype)
            if not limits.min <= leaf <= limits.max:
                raise ValueError(
                    f"fbuf.{function}: {argument}{jax.tree_util.keystr(path)} is {leaf}, which "
                    f"{field.dtype} cannot hold; make the buffer with an item of a wider dtype"
                )


def _keeps(leaf: Any, dtype: Any) -> bool:
    """Whether a leaf is of this dtype, or a Python scalar that becomes it without loss of kind."""
    if jnp.result_type(leaf) == dtype:
        return True
    weak = getattr(leaf, "weak_type", isinstance(leaf, bool | int | float | complex))
    return bool(weak) and jax.dtypes.result_type(leaf, jax.ShapeDtypeStruct((), dtype)) == dtype


def _is_real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)


def _describe(value: Any) -> str:
    return f"{jnp.result_type(value)} of shape {jnp.shape(value)}"
