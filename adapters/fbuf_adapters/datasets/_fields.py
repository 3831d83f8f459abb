"""The fields of rows by name, and what they are stored as."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf_adapters.datasets._errors import DatasetError

Array = np.ndarray[Any, Any]

NEXT = "next_observation"
"""The field of an item that holds what the row's step led to."""


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by name: `"observation.camera"`, `"observation.0"` in a tuple.

    Raises:
        DatasetError: If two leaves have one name.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in leaves:
            raise DatasetError(
                f"two fields are called {name!r}: {{'a.b': x}} has the same name as "
                "{'a': {'b': x}}; call one of them something else"
            )
        leaves[name] = leaf
    return leaves


def nested(leaves: Mapping[str, Any]) -> Any:
    """The dicts and tuples of leaves by name.

    Raises:
        DatasetError: If a leaf is named as a dict of others is.
    """
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *above, last = name.split(".")
        for depth in range(1, len(above) + 1):
            if (upper := ".".join(above[:depth])) in leaves:
                raise DatasetError(
                    f"{name!r} would be a part of {upper!r}, which is an array itself; call one of "
                    "them something else"
                )
        at = tree
        for part in above:
            at = at.setdefault(part, {})
        at[last] = leaf
    return _with_tuples(tree)


def _with_tuples(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    parts = {name: _with_tuples(part) for name, part in tree.items()}
    if parts and all(str(place) in parts for place in range(len(parts))):
        return tuple(parts[str(place)] for place in range(len(parts)))
    return parts


def without(where: str, tree: Any, names: Iterable[str]) -> Any:
    """A tree of dicts without some parts, each of which a name stands for.

    Raises:
        TypeError: If `names` is one string.
        DatasetError: If there is no such part, or if nothing would be left.
    """
    if isinstance(names, str):
        raise TypeError(f"{where}: drop must be a list of names, such as [{names!r}]")
    for name in names:
        *above, last = name.split(".")
        if not _has(tree, [*above, last]):
            raise DatasetError(
                f"{where}: drop has {name!r}, which no field of a dict is called; there are "
                f"{', '.join(named(tree))}"
            )
        tree = _cut(tree, above, last)
    if not named(tree):
        raise DatasetError(f"{where}: drop names all fields; leave one of them in")
    return tree


def _has(tree: Any, parts: Iterable[str]) -> bool:
    for part in parts:
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def _cut(tree: Any, above: list[str], last: str) -> Any:
    if not above:
        return {name: part for name, part in tree.items() if name != last}
    return {**tree, above[0]: _cut(tree[above[0]], above[1:], last)}


def under(leaves: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The leaves of a field, by what their names have behind its own: `""` or `".camera"`."""
    if field in leaves:  # an array: `observation.camera` is another field
        return {"": leaves[field]}
    return {
        name.removeprefix(field): leaf
        for name, leaf in leaves.items()
        if name == field or name.startswith(f"{field}.")
    }


def spec(array: Any) -> jax.ShapeDtypeStruct:
    """Of one row of an array, in the byte order of this machine."""
    return jax.ShapeDtypeStruct(tuple(array.shape[1:]), _native(np.dtype(array.dtype)))


def native(array: Any) -> Array:
    """The array in the byte order of this machine."""
    found = np.asarray(array)
    return found.astype(_native(found.dtype), copy=False)


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.isnative else dtype.newbyteorder("=")


class Numbers:
    """An array `[N, 1]`, of which nothing is read yet, as one `[N]`."""

    def __init__(self, array: Any) -> None:
        """Of this array."""
        self._array = array
        self.shape, self.dtype = tuple(array.shape[:1]), array.dtype

    def __getitem__(self, part: Any) -> Array:
        """As of the array."""
        return self._array[part][..., 0]


def numbers(array: Any) -> Any:
    """The array, as `[N]` if it is `[N, 1]`."""
    return Numbers(array) if tuple(array.shape[1:]) == (1,) else array


def refuse_foreign(where: str, name: str, array: Any) -> None:
    """Refuse what NumPy would take for an array, but not as it is meant."""
    if type(array).__module__.partition(".")[0] == "torch":
        raise DatasetError(f"{where}: {name} is a torch tensor; give {name}.numpy(force=True)")
    if isinstance(array, np.ma.MaskedArray):
        raise DatasetError(
            f"{where}: {name} is a masked array, whose mask would be lost; leave the masked rows "
            "out, and give .data of the rest"
        )


def info_names(where: str, infos: Any) -> tuple[str, ...]:
    """The names of infos to load.

    Raises:
        TypeError: If they are one string, or no strings.
    """
    if isinstance(infos, Iterable) and not isinstance(infos, str):
        names = tuple(infos)
        if all(isinstance(name, str) for name in names):
            return names
    raise TypeError(f"{where}: infos must be a list of names, such as ['qpos'], got {infos!r}")


@dataclasses.dataclass(frozen=True)
class Casts:
    """Which fields may be cast, as the caller has said.

    Raises:
        TypeError: If that is no dict.
        DatasetError: If a dtype is none.
    """

    where: str
    given: Any

    def __post_init__(self) -> None:
        example = "{'reward': 'float32'}"
        if not isinstance(self.given, Mapping):
            raise TypeError(
                f"{self.where}: casts must be a dict, such as {example}, got {self.given!r}"
            )
        for name, dtype in self.given.items():
            try:
                jnp.dtype("" if dtype is None else dtype)  # NumPy takes None for float64
            except TypeError as error:
                raise DatasetError(
                    f"{self.where}: casts has {dtype!r} for {name!r}, which is no dtype; write it "
                    f"as in {example}"
                ) from error

    def of(self, name: str) -> np.dtype[Any] | None:
        """The dtype that a leaf may be cast to; that of the longest name counts."""
        fits = [key for key in self.given if name == key or name.startswith(f"{key}.")]
        return jnp.dtype(self.given[max(fits, key=len)]) if fits else None

    def check(self, names: list[str]) -> None:
        """Refuse what names no field."""
        for key in self.given:
            if not any(name == key or name.startswith(f"{key}.") for name in names):
                raise DatasetError(
                    f"{self.where}: casts has {key!r}, which no field is called; there are "
                    f"{', '.join(names)}"
                )

    def cast(self, array: Array, stored: np.dtype[Any], name: str, place: Callable[[int], str]):
        """An array as it is stored: floats may be rounded, integers keep their values.

        Raises:
            DatasetError: If it may not be cast, or if a number does not fit.

        Args:
            array: `[B, ...]`.
            stored: The dtype.
            name: Of the field, for errors.
            place: Says where a row is, for errors.
        """
        if array.dtype == stored:
            return array
        if self.of(name) is None:
            raise DatasetError(
                f"{self.where}: {place(0)}: {name}, or the next {name}, is {array.dtype} there, "
                f"and is stored as {stored}; if it may be cast, give "
                f"casts={{{name!r}: {stored.name!r}}}"
            )
        if not castable(array.dtype, stored):
            raise DatasetError(
                f"{self.where}: {place(0)}: {name} is {array.dtype}, which cannot be cast to "
                f"{stored} without another meaning; convert it yourself and use from_arrays"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(stored)
        exactly = ""
        if jnp.issubdtype(stored, jnp.integer):
            limits = jnp.iinfo(stored)
            bad = (array < int(limits.min)) | (array > int(limits.max))
        elif jnp.issubdtype(array.dtype, jnp.integer):
            bad, exactly = ~_is_exact(array, cast), " exactly"
        else:
            bad = ~np.isfinite(cast.astype(np.float64)) & np.isfinite(array)
        if bad.any():
            at = np.argwhere(bad)[0]
            raise DatasetError(
                f"{self.where}: {place(int(at[0]))}: {name} holds {array[tuple(at)]}, which "
                f"{stored} cannot hold{exactly}"
            )
        return cast


def _is_exact(integers: Array, floats: Array) -> Array:
    """Whether floats have the values of the integers that they were cast from."""
    limits = jnp.iinfo(integers.dtype)
    wide = floats.astype(np.float64)
    # No float that is out of range is cast back: what NumPy makes of it is not defined.
    within = (wide >= float(limits.min)) & (wide < float(int(limits.max) + 1))
    return within & (np.where(within, wide, 0).astype(integers.dtype) == integers)


def castable(before: np.dtype[Any], after: np.dtype[Any]) -> bool:
    """Whether a cast keeps the meaning: floats stay floats, and integers are no bools."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating)
    rank = lambda dtype: next((n for n, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), 9)
    return rank(before) <= rank(after) < len(kinds)


def stored_specs(
    where: str,
    found: Mapping[str, jax.ShapeDtypeStruct],
    item: Mapping[str, Any] | None,
    casts: Casts,
) -> dict[str, jax.ShapeDtypeStruct]:
    """What the fields are stored as.

    Args:
        where: Who asks.
        found: One row of the data set, by name.
        item: One row of the buffer, by name; None is for a new buffer, which takes all.
        casts: What may be cast.

    Raises:
        DatasetError: If the buffer has a field that the data set lacks, or if a field has another
            shape or dtype.
    """
    casts.check(list(found))
    wanted = {name: item[name] for name in item} if item is not None else dict(found)
    lines: list[str] = []
    asked: dict[str, str] = {}
    stored: dict[str, jax.ShapeDtypeStruct] = {}
    for name, theirs in wanted.items():
        if name not in found:
            raise DatasetError(
                f"{where}: the buffer has a field {name or 'items'!r}, which the data set lacks; "
                f"it has {', '.join(found)}. Leave the field out of the item, or add it to the "
                "data and use from_arrays"
            )
        ours, cast = found[name], casts.of(name)
        one_number = (tuple(ours.shape), tuple(theirs.shape)) == ((1,), ())
        if tuple(ours.shape) != tuple(theirs.shape) and not one_number:
            raise DatasetError(
                f"{where}: {name} has shape {tuple(ours.shape)} in the data set, and "
                f"{tuple(theirs.shape)} in the buffer; make the buffer for such rows"
            )
        dtype = np.dtype(ours.dtype) if cast is None else cast
        if cast is not None and not castable(np.dtype(ours.dtype), cast):
            raise DatasetError(
                f"{where}: {name} is {ours.dtype}, which cannot be cast to {cast} without another "
                "meaning; convert it yourself and use from_arrays"
            )
        fits = np.dtype(theirs.dtype) if item is not None else _storable(where, name, dtype)
        if dtype != fits:
            into = f"and the buffer stores {fits}" if item is not None else ""
            lines.append(f"{name} is {dtype}{', ' if into else ''}{into}")
            asked[name] = fits.name
        stored[name] = jax.ShapeDtypeStruct(tuple(theirs.shape), fits)
    if lines:
        new = "" if item is not None else ", which a new buffer cannot store"
        raise DatasetError(
            f"{where}: {'; '.join(lines)}{new}; if it may be cast, give "
            f"casts={ {**casts.given, **asked} }"
        )
    return stored


def _storable(where: str, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that JAX has for it: of 64 bits, unless they are on, the one of 32."""
    if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.number, jnp.bool_)):
        raise DatasetError(f"{where}: {name} is {dtype}, which cannot be stored; leave it out")
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def flags(where: str, name: str, found: Any, episode: int | None = None) -> Array:
    """A flag a row, `[rows]` or `[rows, 1]`, as bools.

    Raises:
        DatasetError: If there is another value than 0 and 1.
    """
    refuse_foreign(where, name, found)
    array = np.asarray(found)
    array = array[:, 0] if array.shape[1:] == (1,) else array
    if array.dtype == np.bool_ and array.ndim == 1:
        return array
    of = "" if episode is None else f"episode {episode}: "
    if array.ndim != 1:
        raise DatasetError(
            f"{where}: {of}{name} must be one flag a row, [rows], got shape {array.shape}"
        )
    if array.dtype.kind not in "iuf":
        raise DatasetError(f"{where}: {of}{name} must be bools, or numbers 0 and 1")
    bad = (array != 0) & (array != 1)  # NaN is neither
    if bad.any():
        row = int(np.argmax(bad))
        raise DatasetError(
            f"{where}: {of}{name} must be 0 or 1, got {array[row]} in row {row}; say where "
            "episodes end"
        )
    return array == 1
