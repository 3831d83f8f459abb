"""The manifest of a buffer over a mesh: it names one checkpoint of each shard, and so commits all.

The shards lie in directories of their own, and each is a checkpoint like that of any buffer. They
are written first, maybe by several processes. Only when all are on the disk, the one manifest is
written that names them. What it does not name has never been saved.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import zlib
from typing import Any

from fbuf.checkpoint import files, manifest, npy
from fbuf.checkpoint.errors import CheckpointError, Mismatch

FORMAT = 1
"""The newest format."""

_NAME = re.compile(r"SHARDS-(\d{8})")
_HEAD = re.compile(rb"fbuf sharded checkpoint (\d{1,6}), (\d{1,12}) bytes, crc32 ([0-9a-f]{8})\n")
_MOST = 2**26
"""Bytes of a manifest, beyond which it is none of ours."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The checkpoint of a shard: the number of its manifest, and the checksum of that file."""

    number: int
    crc32: int


@dataclasses.dataclass(frozen=True)
class Whole:
    """What a checkpoint of a buffer over a mesh is.

    Attributes:
        parts: That of each shard, in order.
        about: What a reader may want to know: the version of fbuf, the time.
    """

    parts: tuple[Part, ...]
    about: dict[str, Any]


def folder_of(folder: pathlib.Path, shard: int) -> pathlib.Path:
    """Where the checkpoints of a shard lie."""
    return folder / f"of-shard-{shard:05}"


def name_of(number: int) -> str:
    """The file of a manifest."""
    return f"SHARDS-{number:08}"


def numbers(folder: pathlib.Path) -> list[int]:
    """The manifests that a directory has, the oldest first."""
    if not folder.is_dir():
        return []
    found = map(_NAME.fullmatch, (entry.name for entry in folder.iterdir()))
    return sorted(int(match[1]) for match in found if match)


def heads(folder: pathlib.Path) -> dict[int, bytes]:
    """The first lines of all manifests of a directory, by number, the oldest first."""
    return manifest.of_those_there({n: folder / name_of(n) for n in numbers(folder)})


def part(folder: pathlib.Path, number: int) -> Part:
    """A checkpoint of a shard as it is on the disk, in the directory of that shard."""
    return Part(number, zlib.crc32((folder / manifest.name_of(number)).read_bytes()))


def write(folder: pathlib.Path, number: int, whole: Whole) -> None:
    """Write the manifest; with this the checkpoint is there."""
    body = json.dumps(dataclasses.asdict(whole), indent=1, allow_nan=False).encode()
    head = f"fbuf sharded checkpoint {FORMAT}, {len(body)} bytes, crc32 {zlib.crc32(body):08x}\n"

    def content(file: Any) -> None:
        file.write(head.encode() + body)

    files.write(folder, {name_of(number): content})


def read(folder: pathlib.Path, number: int) -> Whole:
    """Read a manifest.

    Raises:
        CheckpointError: If it is damaged, or its format is newer.
    """
    path = folder / name_of(number)
    with npy.opened(path) as file:
        text = file.read(_MOST + 1)
    head = _HEAD.match(text)
    if head is None or len(text) > _MOST:
        raise CheckpointError(f"fbuf.sharded.load: {path} is damaged: it is no manifest")
    body = text[head.end() :]
    if len(body) != int(head[2]) or zlib.crc32(body) != int(head[3], 16):
        raise CheckpointError(
            f"fbuf.sharded.load: {path} is damaged: its length or checksum is wrong"
        )
    if int(head[1]) > FORMAT:
        raise Mismatch(
            f"fbuf.sharded.load: {path} has format {int(head[1])}, and this fbuf reads formats up "
            f"to {FORMAT}; install a newer fbuf"
        )
    try:
        data = json.loads(body)
        parts = tuple(Part(int(of["number"]), int(of["crc32"])) for of in data["parts"])
        return Whole(parts, dict(data["about"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"fbuf.sharded.load: {path} is no manifest of fbuf: {error!r}"
        ) from None


def check_part(
    folder: pathlib.Path, shard: int, expected: Part, function: str = "sharded.load"
) -> pathlib.Path:
    """The directory of a shard, which must have the checkpoint that the manifest names."""
    own = folder_of(folder, shard)
    path = own / manifest.name_of(expected.number)
    if not path.is_file():
        raise CheckpointError(
            f"fbuf.{function}: {path} is missing; every process must see the files of all "
            "others, so give all the same path, on a disk that they share"
        )
    if part(own, expected.number) != expected:
        raise CheckpointError(f"fbuf.{function}: {path} is damaged: its checksum is wrong")
    return own


def clean(folder: pathlib.Path, keep: int) -> None:
    """Delete all but the newest manifests."""
    known = numbers(folder)
    files.delete(folder, {name_of(number) for number in known[: len(known) - keep]})
    files.sync(folder)


def kept_of_shard(folder: pathlib.Path, shard: int) -> set[int]:
    """The checkpoints of a shard that manifests name."""
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
