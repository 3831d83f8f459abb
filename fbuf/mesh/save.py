"""Saving a buffer over a mesh: each process writes its shards, and one manifest commits all."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Generator
from typing import Any

import jax
import numpy as np

from fbuf._versions import VERSION
from fbuf.checkpoint import deletable, files, incremental, lock, sharded_manifest, writer
from fbuf.checkpoint import extra as extras
from fbuf.checkpoint.sharded_manifest import ShardCheckpoint, ShardedManifest
from fbuf.mesh.call import not_over_mesh
from fbuf.mesh.per_device import refuse_set_mesh
from fbuf.mesh.processes import all_have, all_say, is_alone
from fbuf.mesh.shards import shards_here
from fbuf.ops import remade
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage.store import Item
from fbuf.xla.place import allocating


def save(
    state: ShardedState[Any], folder: pathlib.Path, extra: Any, keep: int, background: bool
) -> ShardedState[Any]:
    """Save a buffer over a mesh; see `fbuf.save`."""
    name = "save"
    not_over_mesh(name, "background", background)
    refuse_set_mesh(name)
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
                deletable.require(name, folder, heads, sharded_manifest.read)
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
            # The next save deletes the leftovers of this one.
            with contextlib.suppress(OSError):
                writer.clean_but(
                    sharded_manifest.folder_of(folder, number),
                    sharded_manifest.kept_of_shard(folder, number),
                )
        return _with_save_ids(state, parts[:, 2])


@contextlib.contextmanager
def _told_to_all(function: str, alone: bool) -> Generator[None]:
    """Run a block in each process; raise in all if it fails in any."""
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
        like, beside = remade.like("save", shard), extras.split(extra)
        pending = writer.prepare(own, shard, beside, like, now=False, alone=False, version=VERSION)
        if pending.rewrites:
            incremental.warn_of_rewriting("save", folder)
        elif pending.forgets:
            incremental.warn_of_forgetting("save", folder)
        writer.commit(own, pending, None)
    crc32 = sharded_manifest.part(own, pending.number).crc32
    return pending.number, crc32, pending.manifest.save_id


def _commit(folder: pathlib.Path, parts: np.ndarray, keep: int) -> None:
    """Write the manifest of all shards, and forget old checkpoints."""
    of_shards = tuple(ShardCheckpoint(int(number), int(crc)) for number, crc, _ in parts)
    found = ShardedManifest(of_shards, writer.about(VERSION))
    for shard, part in enumerate(found.parts):  # also the shards of other processes
        sharded_manifest.check_part(folder, shard, part, "save")
    number = sharded_manifest.next_number(folder)
    sharded_manifest.write(folder, number, found)
    deletable.note(folder, [sharded_manifest.head(folder, number)])
    sharded_manifest.clean(folder, keep)
    deletable.forget_but(folder, sharded_manifest.heads(folder).values())


def _with_save_ids(state: ShardedState[Item], save_ids: np.ndarray) -> ShardedState[Item]:
    """Return the buffer with other save ids in its shards; it shares all other arrays."""
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
