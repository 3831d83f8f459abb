"""Reading a buffer over a mesh from disk: each process reads the shards of its devices."""

from __future__ import annotations

import functools
import os
import pathlib
import zlib
from typing import Any, NamedTuple, get_args

import numpy as np
from jax.sharding import Mesh

from fbuf.checkpoint import deletable, manifest, paths, reader, sharded_manifest
from fbuf.checkpoint import extra as extras
from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.checkpoint.sharded_manifest import ShardedManifest
from fbuf.checks import values as check
from fbuf.checks.warn import warn
from fbuf.dispatch import parse
from fbuf.mesh.init import axis_of
from fbuf.mesh.per_device import refuse_set_mesh
from fbuf.mesh.processes import agreed_tag, all_have, all_say, is_alone
from fbuf.mesh.reshard import check_shards, latest_lap, regrouping
from fbuf.mesh.shards import assembled, shards_here
from fbuf.ops import lost_next
from fbuf.ops.end_episode import cut_episodes
from fbuf.ops.init import init
from fbuf.ops.load import MORE_ENDS, Episodes, as_damage, read
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage import tags


class ShardedCheckpoint(NamedTuple):
    """The result of `fbuf.sharded.load`.

    Attributes:
        state: The buffer.
        extra: The tree that was saved beside it; None if there is none.
    """

    state: ShardedState[Any]
    """The buffer."""
    extra: Any
    """The tree that was saved beside it."""


def load(
    path: str | os.PathLike[str],
    *,
    mesh: Mesh,
    axis: str | None = None,
    shards: int | None = None,
    item: Any = None,
    sampler: Sampler | None = None,
    extra: Any = None,
    with_extra: bool = True,
    fallback: bool = False,
    episodes: Episodes = "end",
) -> ShardedCheckpoint:
    """Read the newest checkpoint that `fbuf.save` wrote of a buffer over a mesh; as `fbuf.load`.

    The buffer is the one that was saved, in any number of processes. The number of devices must
    divide the number of shards; else give another number of `shards`. Open episodes are ended; with
    `episodes="keep"` the buffer is the same bit for bit. In several processes all must call it.

    Args:
        path: The directory.
        mesh: The mesh for the buffer.
        axis: The axis of the mesh along which the shards shall lie; None if it has only one.
        shards: Another number of shards, as for `fbuf.sharded.reshard`; None is the one that was
            saved.
        item: As for `fbuf.load`.
        sampler: As for `fbuf.load`.
        extra: As for `fbuf.load`.
        with_extra: As for `fbuf.load`.
        fallback: As for `fbuf.load`.
        episodes: As for `fbuf.load`.

    Returns:
        The buffer, and the tree that was saved beside it, in every process.

    Raises:
        CheckpointError: As `fbuf.load`; also if the shards do not fit the mesh, or the files of a
            shard are not there. If one process cannot read its shards, all raise, and that one says
            why.
        ValueError: As `fbuf.sharded.reshard`, if `shards` is given.
        MemoryError: As `fbuf.load`.

    Cost: as for `fbuf.load`, on each process for its shards.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp, tempfile
        >>> mesh, path = jax.make_mesh((1,), ("data",)), tempfile.mkdtemp()
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh, shards=2)
        >>> state = fbuf.add(state, jnp.arange(6.0))
        >>> state = fbuf.save(path, state, extra={"step": 3})
        >>> state, extra = fbuf.sharded.load(path, mesh=mesh)
        >>> int(fbuf.size(state)), extra["step"]
        (6, 3)
    """
    name = "sharded.load"
    refuse_set_mesh(name)
    check.boolean(name, "fallback", fallback)
    check.boolean(name, "with_extra", with_extra)
    check.choice(name, "episodes", episodes, get_args(Episodes))
    extra = extra if with_extra else extras.LEFT_OUT
    axis = axis_of(name, mesh, axis)
    folder = paths.local("fbuf.sharded.load", path)
    alone = is_alone(name, mesh)
    heads = _known_to_all(folder, alone)
    known = list(heads)
    if not known:
        plain = " of a plain buffer: use fbuf.load" if _has_plain(folder) else ""
        raise CheckpointError(
            f"fbuf.{name}: there is no checkpoint of a sharded buffer in {folder}"
            + (f", but one{plain}" if plain else "")
        )
    tag = agreed_tag(mesh)
    for number in reversed(known):
        failure: CheckpointError | None = None
        loaded: ShardedCheckpoint | None = None
        try:
            with tags.alike(tag):
                loaded = _read(folder, number, mesh, axis, item, sampler, extra, shards)
        except Mismatch:
            all_have(False, alone)
            raise
        except CheckpointError as error:
            failure = error
        except BaseException:
            all_have(False, alone)
            raise
        if all_have(failure is None, alone) and loaded is not None:
            deletable.note(folder, heads.values())
            if episodes == "end":
                loaded = loaded._replace(state=cut_episodes(loaded.state))
            if loaded.state.blocks.next_obs is not None:  # avoids taking shards apart in vain
                here = [shard for _, shard in shards_here(loaded.state)]
                lost_next.of_states("fbuf.sharded.load", here, MORE_ENDS)
            return loaded
        if failure is None:
            failure = CheckpointError(
                f"fbuf.{name}: another process cannot read checkpoint {number} of {folder}, and "
                "says why"
            )
        if not fallback or number == known[0]:
            raise failure
        warn(f"{failure}; reading the checkpoint before it")
    raise AssertionError("the oldest checkpoint is returned, or its error is raised")


def _known_to_all(folder: pathlib.Path, alone: bool) -> dict[int, bytes]:
    """Return the first lines of all manifests; the same ones in all processes."""
    try:
        heads = sharded_manifest.heads(folder)
    except BaseException:
        all_say(np.array([-1, 0], np.int64), alone)
        raise
    own = list(heads)
    said = all_say(np.array([len(own), zlib.crc32(repr(own).encode())], np.int64), alone)
    if (said != said[0]).any():
        raise CheckpointError(
            f"fbuf.sharded.load: processes see different checkpoints in {folder}: "
            f"{', '.join('none' if n < 1 else str(n) for n in said[:, 0])}, by process; give all "
            "the same path, on a disk that they share"
        )
    return heads


def _has_plain(folder: pathlib.Path) -> bool:
    return folder.is_dir() and bool(manifest.numbers(folder))


def _read(
    folder: pathlib.Path,
    number: int,
    mesh: Mesh,
    axis: str,
    item: Any,
    sampler: Sampler | None,
    example: Any,
    shards: int | None,
) -> ShardedCheckpoint:
    """Read one checkpoint."""
    if item is not None:
        parse.item_specs("sharded.load", item)
    committed = sharded_manifest.read(folder, number)
    there, devices = len(committed.parts), mesh.shape[axis]

    @functools.cache
    def one(number: int) -> State[Any]:
        return _read_shard(folder, committed, number, item, sampler)

    if shards is not None and shards != there:
        own = sharded_manifest.check_part(folder, 0, committed.parts[0])
        config: Any = manifest.read(own, committed.parts[0].number).config
        num_envs: Any = config["num_envs"] and config["num_envs"] * there
        shards = check_shards("sharded.load", shards, devices, num_envs)
        lap = latest_lap(_cursor(folder, committed, shard) for shard in range(there))
        make = regrouping(one, lap, num_envs // there, there, shards)
        state = assembled(mesh, axis, shards, make)
    elif there % devices == 0:
        state = assembled(mesh, axis, there, one)
    else:
        fits = ", ".join(str(d) for d in range(1, there + 1) if there % d == 0)
        raise Mismatch(
            f"fbuf.sharded.load: {folder} has a buffer of {there} shards, and the mesh has "
            f"{devices} devices along {axis!r}; take a mesh of {fits} devices, or another number "
            "of shards: give shards="
        )
    return ShardedCheckpoint(state, _beside(folder, committed, example))


def _read_shard(
    folder: pathlib.Path, found: ShardedManifest, shard: int, item: Any, sampler: Sampler | None
) -> State[Any]:
    """Read the buffer of one shard."""
    expected = found.parts[shard]
    own = sharded_manifest.check_part(folder, shard, expected)
    return read(own, expected.number, item, sampler, init)[1]


def _cursor(folder: pathlib.Path, found: ShardedManifest, shard: int) -> np.ndarray:
    """Read the cursor of the ring of one shard."""
    own = sharded_manifest.check_part(folder, shard, found.parts[shard])
    plan = manifest.read(own, found.parts[shard].number)
    with as_damage(own, found.parts[shard].number):
        return reader.read_index(own, plan)[0][".ring.cursor"]


def _beside(folder: pathlib.Path, found: ShardedManifest, example: Any) -> Any:
    """Read the tree that was saved beside the buffer, with the first shard."""
    expected = found.parts[0]
    own = sharded_manifest.check_part(folder, 0, expected)
    plan = manifest.read(own, expected.number)
    with as_damage(own, expected.number):
        return extras.joined(plan.extra, reader.read_index(own, plan)[1], example)
