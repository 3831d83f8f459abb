"""Buffers in files that are there whole or not at all, as Stable-Baselines3 pickles them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pickle
from typing import Any

import fbuf
from fbuf.adapter_api import explain_full_disk, local_path, make_folder, write_files
from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._turns import amid


def save(buffer: Any, path: str | os.PathLike[str]) -> None:
    """Write a buffer to a file; what was there stays until all of it is on the disk."""
    file, turns = _named(f"{WHERE}.save", path), buffer.memory.turns
    if turns.saving:  # the name of the unfinished file is in use
        raise amid("save", "save")
    turns.saving = True
    try:
        make_folder(file.parent)
        put = lambda out: pickle.dump(buffer, out, _PROTOCOL)
        with turns.held():
            write(f"{WHERE}.save", file, put, buffer.memory.nbytes)
    finally:
        turns.saving = False


def write(where: str, file: pathlib.Path, content: Any, nbytes: int) -> None:
    """Write a file of about `nbytes` bytes, whole or not at all."""
    with explain_full_disk(where, file.parent, nbytes):
        write_files(file.parent, {file.name: content})


def load(buffer: Any, path: str | os.PathLike[str]) -> Any:
    """Read the buffer in a file, which was made with the arguments of this one."""
    where = f"{WHERE}.load"
    file = _named(where, path)
    if not file.exists() and (given := local_path(where, path)).exists():
        file = given
    with open(file, "rb") as opened:
        try:
            other = pickle.load(opened)
        except (EOFError, pickle.UnpicklingError) as error:
            raise fbuf.CheckpointError(
                f"{where}: {file} is no whole pickle ({error}), as save_replay_buffer of "
                "Stable-Baselines3 leaves it when it is killed; buffer.save never does"
            ) from error
    if type(other) is not type(buffer):
        raise TypeError(
            f"{where}: {file} has a {type(other).__name__}, and this buffer is a "
            f"{type(buffer).__name__}; load it into one of its class"
        )
    mine, theirs = (
        # Before version 0.4 rows were removable.
        (
            dataclasses.replace(x.memory.spec, removable=False),
            x.memory.staging.item,
            x.n_stack,
            x.arrays,
        )
        for x in (buffer, other)
    )
    if mine != theirs:
        raise ValueError(
            f"{where}: {file} is from a buffer made with {theirs}, and this one was made with "
            f"{mine}; use the same arguments"
        )
    return other


def _named(where: str, path: Any) -> pathlib.Path:
    """Return the file that a path names, with the ending that Stable-Baselines3 gives it."""
    file = local_path(where, path)
    return file if file.suffix else file.with_name(f"{file.name}.pkl")


_PROTOCOL = pickle.HIGHEST_PROTOCOL
