"""Saving a buffer to disk."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from typing import Any

import jax
import jax.core

from fbuf._versions import VERSION
from fbuf.checkpoint import background as _background
from fbuf.checkpoint import (
    deletable,
    files,
    incremental,
    lineage,
    lock,
    manifest,
    paths,
    progress,
    writer,
)
from fbuf.checkpoint import extra as extras
from fbuf.checks import values as check
from fbuf.dispatch.call import refuse_consumed, require_state
from fbuf.dispatch.intact import refuse_other_arrays
from fbuf.ops import remade
from fbuf.runtime.interrupts import uninterrupted
from fbuf.sharded_state import ShardedState, StateT
from fbuf.state import State
from fbuf.xla.place import allocating


def save(
    path: str | os.PathLike[str],
    state: StateT,
    *,
    extra: Any = None,
    keep: int = 2,
    background: bool = False,
) -> StateT:
    """Save a buffer and an extra tree to a directory.

    Go on with the buffer that is returned: `state = fbuf.save(path, state)`. It carries a save id,
    which tells the next save that the buffer descends from this checkpoint. A buffer that
    `fbuf.load` returns carries the save id, too.

    A save of such a buffer writes new data only: the added rows, the rows that `fbuf.write`
    changed, the flags and the index. A save of any other buffer writes all rows, which is as right,
    but slower. The save warns, once a directory, if this process has saved rows there before.
    `fbuf.init`, `fbuf.resize` and `fbuf.split` return buffers without a save id. So does
    `fbuf.load` with `capacity`, `fill` or `drop`.

    A checkpoint is there whole or not at all, whenever the process or the machine stops. Files are
    first written to the disk under other names. The manifest, which names them and their
    checksums, comes last. `fbuf.load` reads the newest checkpoint.

    Args:
        path: The directory. It is made if it is not there. One process at a time may save to it.
        state: The buffer; never consumed. Nothing of it is held when this returns, so the next
            `fbuf.add` writes in place as ever. `fbuf.load` returns it bit for bit.
        extra: Any small pytree of arrays, keys, numbers, bools, strings and bytes: the random key,
            the step, the parameters of a network. It is written whole each time.
        keep: How many checkpoints to keep in the directory, at least 1; older ones are deleted.
        background: Copy what will be written, return, and write in a thread. The first save then
            needs memory for one more copy of the rows; later ones for the new rows. A failure is
            raised by the next `save` or `load` of the directory, or by `fbuf.wait`; else it is
            printed when Python ends.

    Returns:
        The same buffer with a new save id. It has the arrays of `state`, but for the few numbers
        that say where the next row goes: go on with one of the two.

    Raises:
        BlockingIOError: If another process is saving to the directory; the message says which.
        OSError: If the directory cannot be written to, or the disk is full. Earlier checkpoints
            stay as they are.
        CheckpointError: If a checkpoint of the directory was neither saved by this process, nor
            there when it loaded one: another run would lose it. Also if the newest one is of
            another buffer, whose rows this one does not have. Also if the directory has
            checkpoints of a newer fbuf, or of buffers of another item. Also if this save joins
            files, and one of them is damaged; the next save then writes all rows. Also if no load
            could read what would be written, as of a state that was put together by hand.
        TypeError: If `extra` has a leaf that cannot be saved, or inside `jit`.
        ValueError: If `state` is a batch of buffers, or `path` is empty or a URL.
        RuntimeError: If `state` has been consumed.

    Cost: time in proportion to the bytes written. The flags and the index are 1 to 6 bytes a row,
    and up to 5 more with `next_of`.
    Memory, besides the background: that of the flags and the index, and some 64 MB. A progress bar
    is shown after a second, if there is a terminal.

    Over a mesh: all processes call it, with a path on a disk that they share. Each writes the
    shards of its devices, and then one manifest commits all. If any process fails, or dies, all
    raise, and the checkpoint before stays. The `extra` of the process with the first shard is
    saved; arrays over several processes must be the same on all devices. There is no `background`.
    Call it outside of `jax.set_mesh`, and read the checkpoint with `fbuf.sharded.load`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp, tempfile
        >>> path = tempfile.mkdtemp()
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> state = fbuf.save(path, state, extra={"step": 3, "key": jax.random.key(0)})
        >>> state, extra = fbuf.load(path)
        >>> int(fbuf.size(state)), extra["step"]
        (3, 3)
    """
    if isinstance(path, State | ShardedState):
        raise TypeError(
            "fbuf.save: the path comes first, and then the state: state = fbuf.save(path, state)"
        )
    if not isinstance(state, ShardedState):
        require_state("save", state, over_mesh=True)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((state, extra))):
        raise TypeError("fbuf.save: state or extra is traced; call fbuf.save outside of jit")
    refuse_consumed("save", state)
    keep = check.integer("save", "keep", keep)
    check.boolean("save", "background", background)
    return write_checkpoint(state, paths.local("fbuf.save", path), extra, keep, background)


@functools.singledispatch
def write_checkpoint(
    state: Any, folder: pathlib.Path, extra: Any, keep: int, background: bool
) -> Any:
    """Save a buffer; see `save`. Over a mesh it is another function."""
    if state.fault.ndim:
        raise ValueError(
            f"fbuf.save: state is a batch of buffers of shape {state.fault.shape}; save each to a "
            "directory of its own: jax.tree.map(lambda leaf: leaf[0], state) is the first"
        )
    refuse_other_arrays("save", state)
    beside = extras.split(extra)
    with _background.turn(folder), allocating():
        _background.wait(folder)
        files.make_folder(folder)
        with contextlib.ExitStack() as until_written:
            until_written.enter_context(lock.held(folder))
            deletable.require("save", folder, manifest.heads(folder), manifest.read)
            like = remade.like("save", state)
            pending = writer.prepare(
                folder, state, beside, like, now=background, alone=True, version=VERSION
            )
            if pending.forgets:
                incremental.warn_of_forgetting("save", folder)
            elif pending.rewrites:
                incremental.warn_of_rewriting("save", folder)
            saved = lineage.with_id(state, pending.manifest.save_id)
            if not background:
                with progress.shown("fbuf.save", pending.nbytes):
                    writer.commit(folder, pending, keep)
                return saved

            def work() -> None:
                with held:
                    writer.commit(folder, pending, keep)

            with uninterrupted():  # otherwise the thread would be lost
                held = until_written.pop_all()
                _background.start(folder, work)
        return saved


def wait(path: str | os.PathLike[str] | None = None) -> None:
    """Wait until checkpoints are written that were begun with `background=True`.

    Args:
        path: The directory of these checkpoints; None waits for all.

    Raises:
        Exception: The error of a save that failed, or a `BaseExceptionGroup` of several. It is not
            raised again.

    Examples:
        >>> import fbuf, jax.numpy as jnp, tempfile
        >>> path = tempfile.mkdtemp()
        >>> state = fbuf.save(path, fbuf.init(jnp.zeros(()), capacity=4), background=True)
        >>> fbuf.wait()
        >>> fbuf.load(path).state
        State(Uniform, 0 of 4 rows)
    """
    _background.wait(None if path is None else paths.local("fbuf.wait", path))
