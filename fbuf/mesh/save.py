"""Saving a buffer over a mesh: each process writes its shards, and one manifest commits all."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Generator
from typing import Any

import jax
import jax.core
import numpy as np

from fbuf._versions import VERSION
from fbuf.checkpoint import extra as extras
from fbuf.checkpoint import files, incremental, lock, paths, seen, sharded_manifest, writer
from fbuf.checkpoint.sharded_manifest import ShardCheckpoint, ShardedManifest
from fbuf.checks import values as check
from fbuf.dispatch.call import refuse_consumed
from fbuf.mesh.call import require_sharded
from fbuf.mesh.per_device import refuse_set_mesh
from fbuf.mesh.processes import all_have, all_say, is_alone
from fbuf.mesh.shards import shards_here
from fbuf.mesh.state import ShardedState
from fbuf.ops import remade
from fbuf.state import State
from fbuf.storage.store import Item
from fbuf.xla.place import allocating


def save(
    path: str | os.PathLike[str],
    state: ShardedState[Item],
    *,
    extra: Any = None,
    keep: int = 2,
) -> ShardedState[Item]:
    """Save a buffer over a mesh, and what you give beside it; as `fbuf.save`.

    In several processes all must call it, with a path on a disk that they share. Each writes the
    shards of its devices; then one manifest is written, with which the checkpoint is there. So it
    is one step of all shards, or none. If any process fails, or dies, the checkpoint before stays.
    Go on with the buffer that is returned, as with `fbuf.save`: then later saves write only what is
    new.

    Args:
        path: The directory. It is made if it is not there.
        state: The buffer; never consumed.
        extra: As for `fbuf.save`; that of the process with the first shard is saved. Arrays over
            several processes must be the same on all devices.
        keep: As for `fbuf.save`.

    Returns:
        The same buffer with new save ids, as `fbuf.save`.

    Raises:
        BlockingIOError: If somebody else is saving to the directory.
        OSError: If the directory cannot be written to, or the disk is full.
        CheckpointError: As `fbuf.save`. Also if the first process does not find the files of the
            others: the path is on no disk that all share.
        ValueError: If the mesh has devices of some processes, and not of all.
        TypeError: As `fbuf.save`.
        RuntimeError: If `state` has been consumed; inside `jax.set_mesh`; or if another process
            failed to write its shards: that one says why.

    Cost: as for `fbuf.save`, on each process for its shards; the rows of one shard are copied at a
    time where a device has several.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp, tempfile
        >>> mesh, path = jax.make_mesh((1,), ("data",)), tempfile.mkdtemp()
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh, shards=2)
        >>> state = fbuf.sharded.add(state, jnp.arange(6.0))
        >>> state = fbuf.sharded.save(path, state, extra={"step": 3})
        >>> state, extra = fbuf.sharded.load(path, mesh=mesh)
        >>> int(fbuf.sharded.size(state)), extra["step"]
        (6, 3)
    """
    name = "sharded.save"
    if isinstance(path, ShardedState):
        raise TypeError(
            f"fbuf.{name}: the path comes first, and then the state: state = "
            f"fbuf.{name}(path, state)"
        )
    require_sharded(name, state)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((state, extra))):
        raise TypeError(f"fbuf.{name}: state or extra is traced; call it outside of jit")
    refuse_set_mesh(name)
    refuse_consumed(name, state)
    keep = check.integer(name, "keep", keep)
    folder = paths.local(f"fbuf.{name}", path)
    alone = is_alone(name, state.mesh)
    leads = alone or jax.process_index() == 0
    # For each shard of this process: number and checksum of its checkpoint, and the save id.
    parts = np.zeros((state.num_shards, 3), np.int64)
    with contextlib.ExitStack() as held, allocating():
        with _told_to_all(name, alone):
            files.make_folder(folder)
            if leads:
                held.enter_context(lock.held(folder))
                heads = sharded_manifest.heads(folder)
                seen.require(name, folder, heads, sharded_manifest.read)
                sharded_manifest.next_number(folder)
        with _told_to_all(name, alone):
            for number, shard in shards_here(state):
                parts[number] = _write(folder, number, shard, extra if number == 0 else None)
        written = np.flatnonzero(parts[:, 2]).tolist()
        parts = all_say(parts.reshape(-1), alone).sum(axis=0).reshape(parts.shape)
        with _told_to_all(name, alone):
            if leads:
                _commit(folder, parts, keep)
        for number in written:
            # The next save deletes what this one leaves behind.
            with contextlib.suppress(OSError):
                writer.clean_but(
                    sharded_manifest.folder_of(folder, number),
                    sharded_manifest.kept_of_shard(folder, number),
                )
        return _with_save_ids(state, parts[:, 2])


@contextlib.contextmanager
def _told_to_all(function: str, alone: bool) -> Generator[None]:
    """Do something in each process, and go on only where all have done it."""
    try:
        yield
    except BaseException:
        all_have(False, alone)
        raise
    if not all_have(True, alone):
        raise RuntimeError(
            f"fbuf.{function}: another process has failed, and says why; nothing was committed, "
            "and the checkpoint before is still there"
        )


def _write(
    folder: pathlib.Path, number: int, shard: State[Any], extra: Any
) -> tuple[int, int, int]:
    """Write the checkpoint of a shard, and return its number, its checksum and its save id."""
    own = sharded_manifest.folder_of(folder, number)
    files.make_folder(own)
    with lock.held(own):
        # A checkpoint that no manifest names was never committed.
        writer.clean_but(own, sharded_manifest.kept_of_shard(folder, number))
        like, beside = remade.like("sharded.save", shard), extras.split(extra)
        pending = writer.prepare(own, shard, beside, like, now=False, alone=False, version=VERSION)
        if pending.rewrites:
            incremental.warn_of_rewriting("sharded.save", folder)
        elif pending.forgets:
            incremental.warn_of_forgetting("sharded.save", folder)
        writer.commit(own, pending, None)
    crc32 = sharded_manifest.part(own, pending.number).crc32
    return pending.number, crc32, pending.manifest.save_id


def _commit(folder: pathlib.Path, parts: np.ndarray, keep: int) -> None:
    """Write the manifest of all shards, and forget old ones."""
    of_shards = tuple(ShardCheckpoint(int(number), int(crc)) for number, crc, _ in parts)
    found = ShardedManifest(of_shards, writer.about(VERSION))
    for shard, part in enumerate(found.parts):  # also the shards of other processes
        sharded_manifest.check_part(folder, shard, part, "sharded.save")
    number = sharded_manifest.next_number(folder)
    sharded_manifest.write(folder, number, found)
    seen.note(folder, [sharded_manifest.head(folder, number)])
    sharded_manifest.clean(folder, keep)
    seen.forget_but(folder, sharded_manifest.heads(folder).values())


def _with_save_ids(state: ShardedState[Item], save_ids: np.ndarray) -> ShardedState[Item]:
    """Return the buffer with the save ids of its shards; all other arrays are the same ones."""
    sharding = jax.NamedSharding(state.mesh, state.spec)
    placed = jax.make_array_from_callback(
        save_ids.shape, sharding, lambda index: save_ids[index].astype(np.int32)
    )
    cursor = state.blocks.ring.cursor

    def put(cursor: jax.Array, save_ids: jax.Array) -> jax.Array:
        rows = cursor.reshape(save_ids.shape[0], -1, state.shard.ring.heads)
        return rows.at[:, 3].set(save_ids[:, None]).reshape(cursor.shape)

    both = (state.spec, state.spec)
    on_each = jax.shard_map(put, mesh=state.mesh, in_specs=both, out_specs=state.spec)
    ring = dataclasses.replace(state.blocks.ring, cursor=jax.jit(on_each)(cursor, placed))
    return dataclasses.replace(state, blocks=dataclasses.replace(state.blocks, ring=ring))
