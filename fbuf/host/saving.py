"""Stores on disk: saving one, and opening a checkpoint whose rows stay in their files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any

import jax

import fbuf
from fbuf.checkpoint import config, deletable, lineage, manifest, other_run, paths, reader, shapes
from fbuf.checkpoint import extra as extras
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.host import memory_maps, programs
from fbuf.host.checkpoint_rows import SavedRows
from fbuf.host.contents import Contents
from fbuf.ops.load import Episodes, as_damage
from fbuf.ops.spec import BufferSpec
from fbuf.owner import resume
from fbuf.samplers import Sampler
from fbuf.storage import deferred, tags


def save(contents: Contents, path: str | os.PathLike[str], **options: Any) -> None:
    """Save a store as `fbuf.save` does; an opened store then reads new rows from the files."""
    with contents.changing():
        rows, folder = contents.rows, paths.local("HostStore.save", path)
        if not (isinstance(rows, SavedRows) and rows.folder == folder):
            _write(contents, path, options)
            return
        fbuf.wait(folder)
        _follow(contents, rows)
        before = manifest.numbers(folder)
        _write(contents, path, options)
        rows.saving(before[-1] if before else 0)
        if not options["background"]:
            _follow(contents, rows)


def _write(contents: Contents, path: str | os.PathLike[str], options: dict[str, Any]) -> None:
    with memory_maps.in_order(contents.rows.maps):
        saved = fbuf.save(path, contents.whole(), **options)
    contents.index = deferred.without_rows(saved)


def _follow(contents: Contents, rows: SavedRows) -> None:
    """Read saved rows from their files, once these are written."""
    numbers, before = manifest.numbers(rows.folder), rows.saved_before
    if before is None or not numbers or numbers[-1] <= before:
        return
    with contextlib.suppress(CheckpointError):  # damaged: the rows stay in memory
        written = manifest.read(rows.folder, numbers[-1])
        if written.save_id in lineage.ancestors(lineage.of_state(contents.index)):
            rows.saved(written)  # otherwise another store has saved there


def check_options(
    function: str, episodes: Episodes, with_extra: bool, sampler: Any = None, item: Any = None
) -> None:
    """Check the arguments of `HostStore.load` and `HostStore.open`."""
    name = f"HostStore.{function}"
    check.boolean(name, "with_extra", with_extra)
    resume.check(name, episodes)
    if sampler is not None:
        check.instance(name, "sampler", sampler, Sampler, "fbuf.Uniform()")
    if item is not None:
        parse.item_specs(name, item)


def opened(path: Any, item: Any, sampler: Any, extra: Any) -> tuple[Contents, Any]:
    """Return the newest checkpoint's contents, with rows in its files, and the extra tree."""
    folder = paths.local("HostStore.open", path)
    fbuf.wait(folder)
    heads = manifest.heads(folder)
    known = list(heads)
    if not known:
        raise CheckpointError(f"HostStore.open: there is no checkpoint in {folder}")
    found = manifest.read(folder, known[-1])
    with as_damage(folder, known[-1]):
        given = config.arguments(found.config, item, sampler)
        like = jax.eval_shape(lambda: fbuf.init(**given))
        shapes.check(found, like)
        specs = given.pop("item")
        rows = SavedRows(folder, found, like.storage.layout, given["capacity"])
        contents = Contents(programs.init(specs, BufferSpec(**given)), rows, None)
        whole = dataclasses.replace(contents.whole(), storage=like.storage)
        whole, arrays = reader.fill(folder, found, whole, rows=False)
        beside = extras.joined(found.extra, arrays, extra)
    contents.index = deferred.without_rows(whole)
    deletable.note(folder, heads.values())
    other_run.note(folder, tags.of(whole.ring.cursor), saved=False)
    return contents, beside
