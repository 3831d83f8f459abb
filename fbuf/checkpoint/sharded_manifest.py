"""The manifest of a buffer over a mesh: it commits one checkpoint of each shard.

Each shard has a directory of its own, with checkpoints like those of any buffer. They are written
first, maybe by several processes. Once all are on the disk, one manifest names them. A checkpoint
of a shard that no manifest names was never committed.
"""

from __future__ import annotations

import dataclasses
import pathlib
import zlib
from typing import Any

from fbuf.checkpoint import files, manifest
from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.checkpoint.signed_json import LONGEST, SignedJson
from fbuf.checks import foreign

FORMAT = 1
"""The newest format."""

_MOST_SHARDS = 99_999
"""The names of their directories have five digits."""

_MANIFESTS = SignedJson("SHARDS", "fbuf sharded checkpoint", "sharded.load")
name_of, numbers = _MANIFESTS.name_of, _MANIFESTS.numbers
head, heads, next_number = _MANIFESTS.head, _MANIFESTS.heads, _MANIFESTS.next_number


@dataclasses.dataclass(frozen=True)
class ShardCheckpoint:
    """The checkpoint of a shard: the number of its manifest, and the checksum of that file."""

    number: int
    crc32: int


@dataclasses.dataclass(frozen=True)
class ShardedManifest:
    """The description of a checkpoint over a mesh.

    Attributes:
        parts: The checkpoint of each shard, in order.
        about: The version of fbuf and the time, for people.
    """

    parts: tuple[ShardCheckpoint, ...]
    about: dict[str, Any]


def folder_of(folder: pathlib.Path, shard: int) -> pathlib.Path:
    """Return the directory for the checkpoints of a shard."""
    return folder / f"of-shard-{shard:05}"


def part(folder: pathlib.Path, number: int) -> ShardCheckpoint:
    """Describe a checkpoint in the directory of a shard."""
    path = foreign.inside(folder, manifest.name_of(number), links=False)
    return ShardCheckpoint(number, zlib.crc32(foreign.read(path, LONGEST)))


def write(folder: pathlib.Path, number: int, whole: ShardedManifest) -> None:
    """Write the manifest, which commits the checkpoint."""
    _MANIFESTS.write(folder, number, whole, FORMAT, _parsed)


def read(folder: pathlib.Path, number: int) -> ShardedManifest:
    """Read a manifest.

    Raises:
        CheckpointError: If it is damaged, or its format is newer.
    """
    return _MANIFESTS.read(folder, number, FORMAT, _parsed)


def _parsed(data: Any, version: int) -> ShardedManifest:
    del version  # there is only one format
    count = manifest.count
    parts = tuple(ShardCheckpoint(count(of["number"]), count(of["crc32"])) for of in data["parts"])
    if not 0 < len(parts) <= _MOST_SHARDS:
        raise ValueError(f"it has {len(parts)} shards")
    return ShardedManifest(parts, dict(data["about"]))


def check_part(
    folder: pathlib.Path, shard: int, expected: ShardCheckpoint, function: str = "sharded.load"
) -> pathlib.Path:
    """Return the directory of a shard, which must have the checkpoint that the manifest names."""
    own = folder_of(folder, shard)
    path = own / manifest.name_of(expected.number)
    try:
        foreign.inside(folder, own.name, links=False)
        there = part(own, expected.number)
    except foreign.Refusal as error:
        raise CheckpointError(f"fbuf.{function}: {path} is not read: {error}") from None
    except OSError as error:
        raise CheckpointError(
            f"fbuf.{function}: {path} is missing ({error}); every process must see the files of "
            "all others, so give all the same path, on a disk that they share"
        ) from None
    if there != expected:
        raise CheckpointError(f"fbuf.{function}: {path} is damaged: its checksum is wrong")
    return own


def clean(folder: pathlib.Path, keep: int) -> None:
    """Delete all but the newest manifests."""
    known = numbers(folder)
    files.delete(folder, {name_of(number) for number in known[: len(known) - keep]})
    files.sync(folder)


def kept_of_shard(folder: pathlib.Path, shard: int) -> set[int]:
    """Return the checkpoints of a shard with an entry in a manifest."""
    found: set[int] = set()
    for number in numbers(folder):
        try:
            parts = read(folder, number).parts
        except Mismatch:
            raise
        except CheckpointError:
            continue
        if shard < len(parts):
            found.add(parts[shard].number)
    return found
