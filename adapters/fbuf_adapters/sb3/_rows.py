"""Arrays of a buffer, as Stable-Baselines3 has them, that read only what is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._columns import Array


class Source(Protocol):
    """The rows that an array shows."""

    @property
    def name(self) -> str:
        """The name of the array."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows: `(buffer_size, n_envs, ...)`."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a row."""
        ...

    def read(self, steps: Array, envs: Array) -> Array:
        """Return rows `[B, ...]`, by step and environment, in memory of their own."""
        ...

    def set(self, steps: Array, envs: Array, values: Array) -> None:
        """Give rows other values, or refuse."""
        ...


class Rows(np.lib.mixins.NDArrayOperatorsMixin):
    """An array `[buffer_size, n_envs, ...]` that nobody has laid out; 0 where no row was written.

    It reads the rows that an index names, and takes every index that NumPy takes. `np.asarray`,
    arithmetic and methods of arrays read all of it. A basic index and `np.asarray` return a copy,
    read-only: stored rows do not change.

    Attributes:
        source: The rows.
    """

    def __init__(self, source: Source) -> None:
        """Show rows; nothing is read."""
        self.source = source

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        return self.source.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole array; the buffer may take fewer."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        """Go through the steps."""
        return iter(np.asarray(self))

    def __contains__(self, value: Any) -> bool:
        """Tell whether any element has this value."""
        return value in np.asarray(self)

    def __bool__(self) -> bool:
        """Return the truth of the only element; refuse several, like an array of NumPy."""
        return bool(np.asarray(self))

    def __repr__(self) -> str:
        """Show the array."""
        return repr(np.asarray(self))

    def __getitem__(self, index: Any) -> Any:
        """Read rows, as NumPy indexes an array. O(rows that the index names)."""
        places = places_of(index, self.shape)
        if places is None:
            return np.asarray(self)[index]
        rows = self._read(places.steps, places.envs)
        if places.basic:
            rows.flags.writeable = False
        return rows[places.rest]

    def __setitem__(self, index: Any, value: Any) -> None:
        """End the episodes of the newest rows, where this array has the ends; refuse all else."""
        if self.source.name != "dones":
            refuse(self.source.name)
        grid = np.broadcast_arrays(*np.ogrid[: self.shape[0], : self.shape[1]])
        places = places_of(index, self.shape)
        steps, envs = places[:2] if places is not None else (axis[index] for axis in grid)
        values = np.broadcast_to(np.asarray(value), steps.shape)
        self.source.set(steps.reshape(-1), envs.reshape(-1), values.reshape(-1))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return all of it. It is read-only, unless a copy is asked for."""
        if copy is False:
            raise ValueError(f"{WHERE}: {self.source.name} can be an array only as a copy")
        places = places_of((), self.shape)
        assert places is not None
        whole = self._read(places.steps, places.envs)
        if dtype is not None:
            whole = whole.astype(dtype, copy=False)
        whole.flags.writeable = bool(copy)
        return whole

    def __dlpack__(self, **options: Any) -> Any:
        """Return all of it, for `torch.as_tensor`, which would ask for row after row."""
        return np.array(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the CPU."""
        return np.zeros(0).__dlpack_device__()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute with the array."""
        if any(isinstance(out, Rows) for out in options.get("out") or ()):
            refuse(self.source.name)
        given = [np.asarray(x) if isinstance(x, Rows) else x for x in inputs]
        if method == "at" and isinstance(inputs[0], Rows):
            refuse(self.source.name)
        return getattr(ufunc, method)(*given, **options)

    def __getattr__(self, name: str) -> Any:
        """Return what the array has by this name, such as `mean`."""
        if name.startswith("__") or name == "source":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if name in _IN_PLACE:
            refuse(self.source.name)
        return getattr(np.asarray(self), name)

    def __reduce__(self) -> Any:
        """Copy and pickle it as an array."""
        return np.array, (np.asarray(self),)

    def _read(self, steps: Array, envs: Array) -> Array:
        rows = self.source.read(steps.reshape(-1), envs.reshape(-1))
        return rows.reshape(steps.shape + self.shape[2:])


def _refuse_all(*_: Any, **__: Any) -> NoReturn:
    refuse("a dict of observations")


_refused: Any = _refuse_all


class FixedDict(dict[str, Any]):
    """A dict of such arrays, none of which can be replaced."""

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refused


_IN_PLACE = frozenset(
    ("fill", "sort", "put", "partition", "resize", "setfield", "setflags", "byteswap", "itemset")
)


def refuse(name: str) -> NoReturn:
    """Refuse to change stored rows."""
    raise ValueError(
        f"{WHERE}: {name} cannot be changed, because stored rows do not change; add the rows to a "
        "new buffer. dones can be set to 1 for the newest rows alone, which ends their episodes"
    )


class Places(NamedTuple):
    """The rows that an index names.

    Attributes:
        steps: Their places on the first axis, in the shape that the index gives.
        envs: Those on the second axis, in the same shape.
        rest: The index of what was read.
        basic: Whether NumPy would return a view.
    """

    steps: Array
    envs: Array
    rest: tuple[Any, ...]
    basic: bool


def places_of(index: Any, shape: tuple[int, ...]) -> Places | None:
    """Find the rows that an index names; None for an index that NumPy has to apply to the whole."""
    parts = _parts(index, len(shape))
    if parts is None:
        return None
    axes = [_along(part, size) for part, size in zip(parts, shape[:2], strict=False)]
    rest = parts[2:]
    if any(axis is None for axis in axes) or any(isinstance(part, np.ndarray) for part in rest):
        return None
    whole, array = isinstance(parts[0], slice), isinstance(parts[1], np.ndarray)
    if whole and array and any(isinstance(part, int) for part in rest):
        return None  # where NumPy puts the axes of the arrays first
    first, second = axes
    assert first is not None
    assert second is not None
    if whole or isinstance(parts[1], slice):
        first = first.reshape(*first.shape, *[1] * second.ndim)
    try:
        steps, envs = np.broadcast_arrays(first, second)
    except ValueError:  # NumPy's own error tells of both
        return None
    basic = not any(isinstance(part, np.ndarray) for part in parts[:2])
    return Places(steps, envs, (*[slice(None)] * steps.ndim, *rest), basic)


def _parts(index: Any, ndim: int) -> list[Any] | None:
    """Return an int, a slice or an array of integers for each axis; None if there are others."""
    parts: list[Any] = []
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, slice) or part is Ellipsis:
            parts.append(part)
        elif isinstance(part, int | np.integer) and not isinstance(part, bool):
            parts.append(int(part))
        else:
            array = np.asarray(part)
            if part is None or not array.ndim or array.dtype.kind not in "iu":
                return None  # also bools, whose form NumPy checks
            parts.append(array.astype(np.int64, copy=False))
    dots = [number for number, part in enumerate(parts) if part is Ellipsis]
    missing = ndim - len(parts) + len(dots)
    if len(dots) > 1 or missing < 0:
        return None
    at = dots[0] if dots else len(parts)
    parts[at : at + len(dots)] = [slice(None)] * missing
    return parts


def _along(part: Any, size: int) -> Array | None:
    """Return the places that a part of an index names on its axis; None if it names others."""
    if isinstance(part, slice):
        return np.arange(*part.indices(size))
    places = np.asarray(part)
    if places.size and not (-size <= places.min() and places.max() < size):
        return None
    return places % size
