"""The manifest: the one file that says what a checkpoint is, and what every other file must be.

Its first line names the format, the length of the rest and the rest's checksum. So a manifest that
is damaged is told from one that never was. The manifests of a directory are numbered; none is ever
written over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import re
import zlib
from collections.abc import Mapping
from typing import Any

from fbuf.checkpoint import files, npy
from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.checkpoint.files import Written
from fbuf.checkpoint.tree_json import Data

FORMAT = 2
"""The newest format. A release reads all formats up to its own."""

_NAME = re.compile(r"MANIFEST-(\d{8})")
_HEAD = re.compile(rb"fbuf checkpoint (\d{1,6}), (\d{1,12}) bytes, crc32 ([0-9a-f]{8})\n")
_FILE = re.compile(r"shard-\d{5}/((joined-)?(rows|ends)|written|index)-\d{8}\.npy")
_LONGEST = 200
"""Bytes of a first line that are looked at."""

_MOST = 2**28
"""Bytes of a manifest, beyond which it is none of ours."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """A file of rows: of each head those from one place on, up to another one.

    Places are counted from the first row that was ever written there.
    """

    file: str
    first: tuple[int, ...]
    last: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint is.

    Attributes:
        config: What the buffer was made with, see `fbuf.checkpoint.config`.
        index: The arrays of the file `index`, by the path in the state, in their order.
        extra: What the caller had saved beside the buffer; its arrays come after those.
        segments: The files of rows, the oldest first, by the store they are of.
        totals: How many rows were ever written, of each head, by the store.
        live: How many of them count, the newest ones, likewise.
        written: The file of rows that `fbuf.write` has changed, and how many there are; None if
            there are none.
        files: What each file must be.
        about: What a reader may want to know: the version of fbuf, the time.
    """

    config: Data
    index: dict[str, Data]
    extra: Data
    segments: dict[str, tuple[Segment, ...]]
    totals: dict[str, tuple[int, ...]]
    live: dict[str, tuple[int, ...]]
    written: tuple[str, int] | None
    files: dict[str, Written]
    about: dict[str, Any]


def name_of(number: int) -> str:
    """The file of a manifest."""
    return f"MANIFEST-{number:08}"


def numbers(folder: pathlib.Path) -> list[int]:
    """The manifests that a directory has, the oldest first."""
    found = map(_NAME.fullmatch, (entry.name for entry in folder.iterdir()))
    return sorted(int(match[1]) for match in found if match)


def head(path: pathlib.Path) -> bytes:
    """The first line of a manifest, by which one checkpoint is told from another one."""
    with open(path, "rb") as file:
        return file.readline(_LONGEST)


def heads(folder: pathlib.Path) -> dict[int, bytes]:
    """The first lines of all manifests of a directory, by number, the oldest first."""
    return of_those_there({number: folder / name_of(number) for number in numbers(folder)})


def of_those_there(paths: Mapping[int, pathlib.Path]) -> dict[int, bytes]:
    """The first lines of manifests, without those that another process has deleted meanwhile."""
    found: dict[int, bytes] = {}
    for number, path in paths.items():
        with contextlib.suppress(FileNotFoundError):
            found[number] = head(path)
    return found


def write(folder: pathlib.Path, number: int, manifest: Manifest) -> None:
    """Write a manifest; with this the checkpoint is there."""
    body = json.dumps(dataclasses.asdict(manifest), indent=1, allow_nan=False).encode()
    head = f"fbuf checkpoint {FORMAT}, {len(body)} bytes, crc32 {zlib.crc32(body):08x}\n"

    def content(file: Any) -> None:
        file.write(head.encode() + body)

    files.write(folder, {name_of(number): content})


def read(folder: pathlib.Path, number: int) -> Manifest:
    """Read a manifest, and look at the files that it names.

    Raises:
        CheckpointError: If it or one of the files is damaged, or its format is newer.
    """
    path = folder / name_of(number)
    with npy.opened(path) as file:
        text = file.read(_MOST + 1)
    if len(text) > _MOST:
        raise CheckpointError(f"fbuf.load: {path} is damaged: it is too large for a manifest")
    head = _HEAD.match(text)
    if head is None:
        raise CheckpointError(f"fbuf.load: {path} is damaged: its first line is not that of one")
    body = text[head.end() :]
    if len(body) != int(head[2]) or zlib.crc32(body) != int(head[3], 16):
        raise CheckpointError(f"fbuf.load: {path} is damaged: its length or checksum is wrong")
    if not int(head[1]):
        raise CheckpointError(f"fbuf.load: {path} is damaged: there is no format 0")
    if int(head[1]) > FORMAT:
        raise Mismatch(
            f"fbuf.load: {path} has format {int(head[1])}, and this fbuf reads formats up to "
            f"{FORMAT}; install a newer fbuf"
        )
    try:
        found = _parsed(json.loads(body))
        if int(head[1]) == 1:
            found = _from_format_1(found)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"fbuf.load: {path} is no manifest of fbuf: {error!r}") from None
    for name, expected in found.files.items():
        _check_file(folder, name, expected)
    return found


def _parsed(data: Data) -> Manifest:
    """A manifest of what JSON had."""
    names = {field.name for field in dataclasses.fields(Manifest)}
    if set(data) != names:
        raise ValueError(f"it has the entries {sorted(data)}")
    written = data["written"]
    found = Manifest(
        config=data["config"],
        index=dict(data["index"]),
        extra=data["extra"],
        segments={
            store: tuple(
                Segment(str(of["file"]), _counts(of["first"]), _counts(of["last"]))
                for of in segments
            )
            for store, segments in data["segments"].items()
        },
        totals={store: _counts(counts) for store, counts in data["totals"].items()},
        live={store: _counts(counts) for store, counts in data["live"].items()},
        written=None if written is None else (str(written[0]), _count(written[1])),
        files={
            name: Written(_count(of["length"]), _count(of["crc32"]))
            for name, of in data["files"].items()
        },
        about=dict(data["about"]),
    )
    for name in used(found):
        if _FILE.fullmatch(name) is None:
            raise ValueError(f"it names the file {name!r}")
    if used(found) != found.files.keys():
        raise ValueError("the files that it uses are not those it describes")
    if not found.segments.keys() == found.totals.keys() == found.live.keys():
        raise ValueError("its stores are not all described")
    return found


def _from_format_1(found: Manifest) -> Manifest:
    """The trees of priorities had an axis of length 1 where there is one number for each node."""

    def newer(path: str, data: Data) -> Data:
        in_tree = path.endswith(".leaves") or ".nodes[" in path
        return {**data, "shape": data["shape"][:2]} if in_tree and data["shape"][2] == 1 else data

    return dataclasses.replace(
        found, index={path: newer(path, data) for path, data in found.index.items()}
    )


def used(manifest: Manifest) -> set[str]:
    """The files of a checkpoint, the manifest left out."""
    found = {of.file for segments in manifest.segments.values() for of in segments}
    found |= {name for name in manifest.files if name.split("/")[-1].startswith("index-")}
    return found if manifest.written is None else found | {manifest.written[0]}


def ours(folder: pathlib.Path) -> set[str]:
    """The files of a directory that are those of checkpoints, also unfinished ones."""
    there = {path for path in folder.iterdir() if path.is_file()}
    there |= {path for shard in folder.glob("shard-*") for path in shard.glob("*-*")}
    names = {str(path.relative_to(folder)) for path in there if path.is_file()}
    unfinished = {name for name in names if _is_ours(name.removesuffix(files.UNFINISHED))}
    return {name for name in unfinished if _NAME.fullmatch(name) is None}


def _is_ours(name: str) -> bool:
    return _FILE.fullmatch(name) is not None or _NAME.fullmatch(name) is not None


def _check_file(folder: pathlib.Path, name: str, expected: Written) -> None:
    path = folder / name
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        raise CheckpointError(f"fbuf.load: {path} is missing, or is no file")
    if path.stat().st_size != expected.length:
        raise CheckpointError(
            f"fbuf.load: {path} is damaged: it has {path.stat().st_size} bytes, and "
            f"{expected.length} were written"
        )


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"it has {value!r} where a number must be")
    return value


def _counts(values: object) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise ValueError(f"it has {values!r} where a list of numbers must be")
    return tuple(map(_count, values))
