"""The newest checkpoint of a directory, whose rows are read where they lie."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checkpoint import (
    config,
    lineage,
    manifest,
    reader,
    shapes,
    sharded_manifest,
    tree_json,
)
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.manifest import Manifest
from fbuf.checks.foreign import printable
from fbuf.command.verify import check_files, newest
from fbuf.doctor.opened import Part
from fbuf.host import memory_maps
from fbuf.host.checkpoint_rows import SavedRows
from fbuf.ops.init import init
from fbuf.samplers import Uniform
from fbuf.state import State
from fbuf.storage import store, tags

T = TypeVar("T")


class Saved(NamedTuple):
    """The checkpoint of a buffer, or of one shard of a buffer over a mesh.

    Attributes:
        manifest: Its manifest.
        like: The shapes and dtypes of the buffer.
        part: The buffer.
        rows: The files of its rows.
    """

    manifest: Manifest
    like: State[Any]
    part: Part
    rows: SavedRows


class Opened(NamedTuple):
    """A checkpoint.

    Attributes:
        path: The directory.
        number: Its number.
        about: The notes of the save about itself.
        saved: The buffer, or all of its shards.
        over_mesh: Whether the buffer was one over a mesh.
    """

    path: str
    number: int
    about: dict[str, Any]
    saved: Sequence[Saved]
    over_mesh: bool

    @property
    def parts(self) -> list[Part]:
        """The buffer, or all of its shards."""
        return [one.part for one in self.saved]

    @property
    def title(self) -> str:
        """The checkpoint in words."""
        time = printable(str(self.about.get("time")))
        return f"{self.path}, checkpoint {self.number}, {time}"


def read(path: pathlib.Path, use: Callable[[Opened], T], *, whole: str | None = None) -> T:
    """Return what a function makes of the newest checkpoint of a directory.

    Args:
        path: The directory.
        use: The function. It may be called again, if a run deletes the checkpoint meanwhile.
        whole: Check every byte first, with a progress bar of this name. None does not check rows:
            a damaged one is used as it is.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        CheckpointError: If the checkpoint is damaged.
    """
    folder = path.resolve()
    while True:
        known = sharded_manifest.numbers(folder)
        number = known[-1] if known else newest(folder)
        try:
            found = _opened(folder, number, bool(known))
            if whole is not None:
                for one in found.saved:
                    check_files(one.rows.folder, one.manifest, {}, whole)
            with contextlib.ExitStack() as stack:
                for one in found.saved:
                    stack.enter_context(memory_maps.in_order(one.rows.maps))
                return use(found)
        except (CheckpointError, FileNotFoundError):
            if number in (sharded_manifest.numbers(folder) if known else manifest.numbers(folder)):
                raise
            # A run that goes on saving has deleted this checkpoint meanwhile.


def _opened(folder: pathlib.Path, number: int, over_mesh: bool) -> Opened:
    """Open a checkpoint."""
    try:
        if not over_mesh:
            one = _saved(folder, number)
            return Opened(str(folder), number, one.manifest.about, [one], over_mesh)
        of_all = sharded_manifest.read(folder, number)
        saved = [
            _saved(sharded_manifest.check_part(folder, shard, part), part.number)
            for shard, part in enumerate(of_all.parts)
        ]
        return Opened(str(folder), number, of_all.about, saved, over_mesh)
    except (TypeError, LookupError, AttributeError, AssertionError) as error:
        raise CheckpointError(f"{folder} is not what fbuf writes: {error!r}") from error


def _saved(folder: pathlib.Path, number: int) -> Saved:
    """Read the index of a checkpoint, and open the files of its rows."""
    saved = manifest.read(folder, number)
    data = {**saved.config, "item": tree_json.without_classes(saved.config["item"])}
    known = config.is_known(data["sampler"])
    if not known:
        data["sampler"] = config.sampler_data(Uniform())
    given = config.arguments(data, None, None)
    like = jax.eval_shape(lambda: init(**given))
    state = shapes.saved(like)
    if known:
        shapes.check(saved, like)
    else:
        state = dataclasses.replace(state, index=None, next_obs=None)
    arrays = reader.read_index(folder, saved)[0]
    arrays[lineage.CURSOR] = tags.renewed(arrays[lineage.CURSOR])
    state = jax.tree_util.tree_map_with_path(
        lambda path, _: jnp.asarray(arrays[jax.tree_util.keystr(path)]), state
    )
    if state.next_obs is not None:  # beside the arrays of the newest rows
        state = dataclasses.replace(state, next_obs=state.next_obs[0])
    layout = like.storage.layout
    rows = SavedRows(folder, saved, layout, like.capacity)

    def take(slots: np.ndarray[Any, Any], leaves: Sequence[int]) -> list[jax.Array]:
        words, *wide = map(jnp.asarray, rows.take(slots, leaves))
        memory_maps.forget(rows.maps)
        return store.unpacked(layout, leaves, words, wide, slots.shape)

    return Saved(saved, like, Part(state, layout, take, known=known), rows)
