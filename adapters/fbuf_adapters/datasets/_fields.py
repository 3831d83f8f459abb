"""The fields of rows by name, and their stored dtypes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf_adapters._narrow import Misfit, narrow
from fbuf_adapters.datasets._errors import DatasetError

Array = np.ndarray[Any, Any]

NEXT = "next_observation"
"""The field of an item that holds the next observation."""


def named(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by name: `"observation.camera"`, `"observation.0"` in a tuple.

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
    """Return the dicts and tuples of leaves by name.

    Raises:
        DatasetError: If a leaf has the name of a dict of other leaves.
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
    """Return a tree of dicts without some parts, given by name.

    Raises:
        TypeError: If `names` is one string.
        DatasetError: If a part does not exist, or if nothing would remain.
    """
    if isinstance(names, str):
        raise TypeError(f"{where}: drop must be a list of names, such as [{names!r}]")
    for name in names:
        try:
            tree = _without(tree, *name.split("."))
        except LookupError:
            raise DatasetError(
                f"{where}: drop has {name!r}, and no dict has a field of this name; the fields are "
                f"{', '.join(named(tree))}"
            ) from None
    if not named(tree):
        raise DatasetError(f"{where}: drop names all fields; leave one of them in")
    return tree


def _without(tree: Any, first: str, *below: str) -> Any:
    if not isinstance(tree, dict) or first not in tree:
        raise LookupError(first)
    if below:
        return {**tree, first: _without(tree[first], *below)}
    return {name: part for name, part in tree.items() if name != first}


def within(leaves: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return the leaves of a field, by their names."""
    if field in leaves:  # an array, so `observation.camera` is another field
        return {field: leaves[field]}
    return {name: leaf for name, leaf in leaves.items() if name.startswith(f"{field}.")}


def under(leaves: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return the leaves of a field, by the rest of their names: `""` or `".camera"`."""
    return {name.removeprefix(field): leaf for name, leaf in within(leaves, field).items()}


def spec(array: Any) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of one row of an array, in the byte order of this machine."""
    return jax.ShapeDtypeStruct(tuple(array.shape[1:]), _native(np.dtype(array.dtype)))


def native(array: Any) -> Array:
    """Return the array in the byte order of this machine."""
    found = np.asarray(array)
    return found.astype(_native(found.dtype), copy=False)


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.isnative else dtype.newbyteorder("=")


class Squeezed:
    """An array `[N, 1]` as an array `[N]`, without reading it yet."""

    def __init__(self, array: Any) -> None:
        """Wrap an array."""
        self._array = array
        self.shape, self.dtype = tuple(array.shape[:1]), array.dtype

    def __getitem__(self, part: Any) -> Array:
        """Read a part of the array."""
        return self._array[part][..., 0]


def squeezed(array: Any) -> Any:
    """Return the array, as `[N]` if it is `[N, 1]`."""
    return Squeezed(array) if tuple(array.shape[1:]) == (1,) else array


def refuse_foreign(where: str, name: str, array: Any) -> None:
    """Refuse a value that NumPy would convert to an array of another meaning."""
    if type(array).__module__.partition(".")[0] == "torch":
        raise DatasetError(f"{where}: {name} is a torch tensor; give {name}.numpy(force=True)")
    if isinstance(array, np.ma.MaskedArray):
        raise DatasetError(
            f"{where}: {name} is a masked array, whose mask would be lost; leave the masked rows "
            "out, and give .data of the rest"
        )


def info_names(where: str, infos: Any, taken: Iterable[str]) -> tuple[str, ...]:
    """Return the names of infos to load.

    Raises:
        TypeError: If `infos` is one string, or holds no strings.
        DatasetError: If one of the names is taken by a field.
    """
    if isinstance(infos, Iterable) and not isinstance(infos, str):
        names = tuple(infos)
        if all(isinstance(name, str) for name in names):
            for name in {*taken}.intersection(names):
                raise DatasetError(f"{where}: infos has {name!r}, which is a field already")
            return names
    raise TypeError(f"{where}: infos must be a list of names, such as ['qpos'], got {infos!r}")


@dataclasses.dataclass(frozen=True)
class Casts:
    """The allowed casts, from the caller.

    Raises:
        TypeError: If `given` is no dict.
        DatasetError: If a value of `given` is no dtype.
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
        """Return the allowed dtype of a cast of a leaf, by the longest matching name."""
        fits = [key for key in self.given if name == key or name.startswith(f"{key}.")]
        return jnp.dtype(self.given[max(fits, key=len)]) if fits else None

    def cast(self, array: Array, stored: np.dtype[Any], name: str, place: Callable[[int], str]):
        """Return an array as it is stored: floats may be rounded, integers keep their values.

        Args:
            array: `[B, ...]`.
            stored: The dtype.
            name: The name of the field, for errors.
            place: Returns the place of a row in words, for errors.

        Raises:
            DatasetError: If the field may not be cast, or if a number does not fit.
        """
        if array.dtype == stored:
            return array
        if self.of(name) is None:
            raise DatasetError(
                f"{self.where}: {place(0)}: {name}, or the next {name}, is {array.dtype} there, "
                f"and is stored as {stored}; if it may be cast, give "
                f"casts={{{name!r}: {stored.name!r}}}"
            )
        self._require_castable(f"{place(0)}: {name}", array.dtype, stored)
        try:
            return narrow(array, stored, exact=True)
        except Misfit as misfit:
            rounds = jnp.issubdtype(array.dtype, jnp.integer)
            exactly = " exactly" if rounds and jnp.issubdtype(stored, jnp.floating) else ""
            raise DatasetError(
                f"{self.where}: {place(misfit.index[0])}: {name} holds {misfit.value}, which "
                f"{stored} cannot hold{exactly}"
            ) from None

    def _require_castable(self, name: str, before: np.dtype[Any], after: np.dtype[Any]) -> None:
        """Refuse a cast that changes the meaning, such as float to integer, or integer to bool."""
        kinds = (jnp.bool_, jnp.integer, jnp.floating)
        ranks = [
            next((rank for rank, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), 9)
            for dtype in (before, after)
        ]
        if not ranks[0] <= ranks[1] < len(kinds):
            raise DatasetError(
                f"{self.where}: {name} is {before}, which cannot be cast to {after} without "
                "another meaning; convert it yourself and use from_arrays"
            )

    def stored(
        self, found: Mapping[str, jax.ShapeDtypeStruct], item: Mapping[str, Any] | None
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes and dtypes of the stored fields.

        Args:
            found: One row of the data set, by name.
            item: One row of the buffer, by name; None is for a new buffer, which takes all.

        Raises:
            DatasetError: If a cast names no field, or if the buffer has a field that the data set
                lacks. If a field has another shape or dtype than the buffer stores.
        """
        for key in self.given:
            if not any(name == key or name.startswith(f"{key}.") for name in found):
                raise DatasetError(
                    f"{self.where}: casts has {key!r}, which no field is called; there are "
                    f"{', '.join(found)}"
                )
        lines: list[str] = []
        asked: dict[str, str] = {}
        stored: dict[str, jax.ShapeDtypeStruct] = {}
        for name, theirs in (found if item is None else item).items():
            if name not in found:
                raise DatasetError(
                    f"{self.where}: the buffer has a field {name or 'items'!r}, which the data set "
                    f"lacks; it has {', '.join(found)}. Leave the field out of the item, or add it "
                    "to the data and use from_arrays"
                )
            ours, cast = found[name], self.of(name)
            shape, wanted = tuple(ours.shape), tuple(theirs.shape)
            one_number = (shape, wanted) == ((1,), ())
            if shape != wanted and not one_number:
                raise DatasetError(
                    f"{self.where}: {name} has shape {shape} in the data set, and {wanted} in the "
                    "buffer; make the buffer for such rows"
                )
            dtype = np.dtype(ours.dtype) if cast is None else cast
            if cast is not None:
                self._require_castable(name, np.dtype(ours.dtype), cast)
            fits = self._storable(name, dtype) if item is None else np.dtype(theirs.dtype)
            if dtype != fits:
                lines.append(
                    f"{name} is {dtype}"
                    + ("" if item is None else f", and the buffer stores {fits}")
                )
                asked[name] = fits.name
            stored[name] = jax.ShapeDtypeStruct(wanted, fits)
        if lines:
            new = "" if item is not None else ", which a new buffer cannot store"
            raise DatasetError(
                f"{self.where}: {'; '.join(lines)}{new}; if it may be cast, give "
                f"casts={ {**self.given, **asked} }"
            )
        return stored

    def _storable(self, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return JAX's version of a dtype: with 32 bits, unless 64-bit types are on."""
        if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.number, jnp.bool_)):
            raise DatasetError(
                f"{self.where}: {name} is {dtype}, which cannot be stored; leave it out"
            )
        return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def flags(where: str, name: str, found: Any, episode: int | None = None) -> Array:
    """Return a flag a row, `[rows]` or `[rows, 1]`, as bools.

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
    bad = (array != 0) & (array != 1)  # NaN is neither 0 nor 1
    if bad.any():
        row = int(np.argmax(bad))
        raise DatasetError(
            f"{where}: {of}{name} must be 0 or 1, got {array[row]} in row {row}; say where "
            "episodes end"
        )
    return array == 1
