"""Plain arrays into a buffer."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import numpy as np

from fbuf.adapter_api import object_in_words, table_in_words
from fbuf_adapters.datasets._ends import Ends
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, flags, named, refuse_foreign, spec, under
from fbuf_adapters.datasets._flat import Flat
from fbuf_adapters.datasets._loading import Options, load, loader


@loader
def from_arrays(
    arrays: Any,
    into: Any = None,
    *,
    terminated: Any,
    truncated: Any = None,
    next_observation: Any = None,
    **options: Unpack[Options],
) -> Any:
    """Load rows that lie one after another, episode by episode, into a buffer.

    `N` is the number of rows. Fields, shapes, dtypes, flags and room are checked before the first
    row is added, values as they are read. The first row begins an episode: an open episode of
    `into` is ended.

    Args:
        arrays: The item's tree: leaves `[N, ...]`, of NumPy or of anything with `shape`, `dtype`
            and slices, such as an `h5py.Dataset`. Only a part of the arrays is read at a time.
            Fields that the buffer does not have are left out. An array `[N, 1]` may go where the
            buffer has one number. Names are the collectors': `observation`, `action`, `reward`.
        into: A `fbuf.State` without `num_envs`, which is consumed as by `fbuf.add`; or such a
            `fbuf.host.HostStore`, which is changed in place. None makes a `fbuf.State` with room
            for just these rows, and for all last observations.
        terminated: `[N]` or `[N, 1]`, bools or numbers 0 and 1: the episode ended by itself at this
            row.
        truncated: `[N]`, likewise: the episode was cut off after this row. False means nowhere.
            None means unknown: a warning comes if an episode then lacks an end. The last row of all
            counts as truncated if it ends no episode.
        next_observation: The next observation of each row, leaves `[N, ...]`. None takes the field
            `next_observation` of `arrays`. Without this field the following row has the next
            observation. At ends of episodes the next observation is not known: views that return it
            mask truncated rows. Rows that terminated count, for a target needs no next observation
            there. Their own observation is the placeholder, and a warning counts these rows. Give
            `next_observation` only with `next_of`, or if the item of `into` has a field of that
            name.
        **options: These arguments, which all loaders take.
        sampler: As for `fbuf.init`, for a new buffer.
        next_of: As for `fbuf.init`, for a new buffer.
        casts: Which fields may be cast, and to which dtype: `{"reward": "float32"}`. A name stands
            for all leaves under it. Nothing else is ever cast. Floats are rounded, integers keep
            their values; a number for which the new dtype cannot do that is an error.
        drop: Fields that a new buffer does without: `["infos", "observation.image"]`. Dropped
            fields are not read. A name stands for all leaves under it.
        progress: Show a bar if the load takes more than a second; None shows it on a terminal.

    Returns:
        The buffer, or the store.

    Raises:
        DatasetError: If a field is missing, has another shape or dtype than the buffer's, or is no
            plain array. If fields have different lengths, or a flag is neither 0 nor 1. If the
            buffer has no room for all rows, or for the last observations of all episodes. If
            `next_observation` has other leaves or shapes than the observation, or if the buffer has
            no place for it.
        TypeError: If `into` is neither a buffer nor a store, or if `casts` is no dict.
        RuntimeError: If `into` has been consumed.

    A row whose next observation is not the observation of the following row ends its episode,
    whatever the flags say. The episode is truncated there, and a warning counts such rows and names
    the first ones. So rows in no order are episodes of one step. A difference that is no more than
    a rounding does not count.

    An exception in the middle, Ctrl-C too, leaves the rows that were added before in the buffer.
    The buffer is the attribute `state` of the exception; a note counts the added rows. An episode
    of which only a part was added is truncated.

    Cost: O(N log N) time. Beside the buffer, the memory of some ten chunks, each of 2**14 rows or
    4 MiB, whichever is less. One program adds all chunks. Next observations, and the observations
    to compare, are read twice.

    Examples:
        >>> import fbuf, numpy as np
        >>> from fbuf_adapters.datasets import from_arrays
        >>> rows = {"observation": np.zeros((5, 3), np.float32), "reward": np.ones(5)}
        >>> ends = np.array([0, 0, 1, 0, 1])
        >>> from_arrays(rows, terminated=ends, truncated=False, casts={"reward": "float32"})
        State(Uniform, 5 of 5 rows)
    """
    where = "from_arrays"
    fields = {name: _array(where, name, leaf) for name, leaf in named(arrays).items()}
    following = under(fields, NEXT)
    if next_observation is not None:
        if following:
            raise DatasetError(
                f"{where}: next_observation is given, and arrays have a field {NEXT!r}; leave one "
                "of them out"
            )
        led_to = named({NEXT: next_observation})
        following = under({name: _array(where, name, leaf) for name, leaf in led_to.items()}, NEXT)
    ended = flags(where, "terminated", terminated)
    nowhere = truncated is None or truncated is False
    cut = np.zeros_like(ended) if nowhere else flags(where, "truncated", truncated)
    advice = "" if truncated is False else "give truncated, which is False if nothing was cut off"
    ends = Ends(ended, cut, truncated is not None, advice)
    item = jax.tree.unflatten(jax.tree.structure(arrays), [spec(x) for x in fields.values()])
    asked = next_observation is not None
    source = Flat(where, fields, ends, following=following, asked=asked, item=item)
    return load(source, into, **options)


def _array(where: str, name: str, leaf: Any) -> Any:
    refuse_foreign(where, name or "arrays", leaf)
    is_array = hasattr(leaf, "__getitem__") and isinstance(getattr(leaf, "dtype", None), np.dtype)
    if is_array and leaf.dtype == np.dtype(object):
        raise DatasetError(
            f"{where}: {name or 'arrays'} is of dtype object; give "
            + object_in_words(name or "arrays")
        )
    if is_array and getattr(leaf, "shape", ()) and not table_in_words(name, leaf):
        return leaf
    instead = table_in_words(name or "arrays", leaf)
    raise DatasetError(
        f"{where}: {name or 'arrays'} must be an array [rows, ...], got {type(leaf).__name__}"
        + (f"; give {instead}" if instead else "")
    )
