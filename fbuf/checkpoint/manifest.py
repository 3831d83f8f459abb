"""The manifest: the one file that describes a checkpoint and all its other files."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from fbuf.checkpoint import config, files
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.files import Checksum
from fbuf.checkpoint.signed_json import SignedJson
from fbuf.checkpoint.tree_json import Data
from fbuf.checks import foreign

FORMAT = 3
"""The newest format. A release reads all formats up to its own."""

_MANIFESTS = SignedJson("MANIFEST", "fbuf checkpoint", "load")
name_of, numbers = _MANIFESTS.name_of, _MANIFESTS.numbers
head, heads, next_number = _MANIFESTS.head, _MANIFESTS.heads, _MANIFESTS.next_number

_NAME = re.compile(r"MANIFEST-\d{8}")
_FILE = re.compile(r"shard-\d{5}/((joined-)?(rows|ends)|written|index)-\d{8}\.npy")

Range = tuple[tuple[int, ...], tuple[int, ...]]
"""For each head: the first place, and the place behind the last one."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """A file of rows: a range of places for each head.

    Places are counted from the first row ever written there.
    """

    file: str
    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def places(self) -> Range:
        """The range of places."""
        return self.first, self.last

    @property
    def counts(self) -> list[int]:
        """The number of rows for each head."""
        return [last - first for first, last in zip(self.first, self.last, strict=True)]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint.

    Attributes:
        save_id: The save id of the buffer; 0 in formats before 3.
        config: The arguments of `fbuf.init`, see `fbuf.checkpoint.config`.
        index: The arrays of the file `index`, by the path in the state, in their order.
        extra: The tree that was saved beside the buffer. Its arrays follow those of the index.
        segments: The files of rows by store, the oldest first.
        totals: For each head, the number of rows ever written; by store.
        live: For each head, the number of newest rows that are still stored; by store.
        written: The file of rows that `fbuf.write` has changed, and their number; None without such
            rows.
        files: The length and the checksum of each file.
        about: The version of fbuf and the time, for people.
    """

    save_id: int
    config: Data
    index: dict[str, Data]
    extra: Data
    segments: dict[str, tuple[Segment, ...]]
    totals: dict[str, tuple[int, ...]]
    live: dict[str, tuple[int, ...]]
    written: tuple[str, int] | None
    files: dict[str, Checksum]
    about: dict[str, Any]


def write(folder: pathlib.Path, number: int, manifest: Manifest) -> None:
    """Write a manifest, which commits the checkpoint."""
    _MANIFESTS.write(folder, number, manifest, FORMAT, _parsed)


def read(folder: pathlib.Path, number: int) -> Manifest:
    """Read a manifest, and check that its files are there, with the right lengths.

    Raises:
        CheckpointError: If it or one of the files is damaged, or its format is newer.
    """
    found = _MANIFESTS.read(folder, number, FORMAT, _parsed)
    check_files(folder, found)
    return found


def readable(folder: pathlib.Path, numbers: Sequence[int]) -> Iterator[Manifest]:
    """Yield the undamaged ones of some checkpoints, the newest first."""
    for number in reversed(numbers):
        with contextlib.suppress(CheckpointError):
            yield read(folder, number)


def check_files(folder: pathlib.Path, found: Manifest) -> None:
    """Check that the files of a checkpoint are there, with the right lengths.

    Raises:
        CheckpointError: If one is not.
    """
    for name, expected in found.files.items():
        _check_file(folder, name, expected)


def _parsed(data: Data, version: int) -> Manifest:
    """Make a manifest of JSON data."""
    if version < 3:
        data = {"save_id": 0, **data}
    names = {field.name for field in dataclasses.fields(Manifest)}
    if set(data) != names:
        raise ValueError(f"it has the entries {sorted(data)}")
    written = data["written"]
    manifest = Manifest(
        save_id=count(data["save_id"]),
        config=config.as_today(data["config"]),
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
        written=None if written is None else (str(written[0]), count(written[1])),
        files={
            name: Checksum(count(of["length"]), count(of["crc32"]))
            for name, of in data["files"].items()
        },
        about=dict(data["about"]),
    )
    for name in used(manifest):
        if _FILE.fullmatch(name) is None:
            raise ValueError(f"it names the file {name!r}")
    if used(manifest) != manifest.files.keys():
        raise ValueError("the files that it uses are not those it describes")
    if not manifest.segments.keys() == manifest.totals.keys() == manifest.live.keys():
        raise ValueError("its stores are not all described")
    return _from_format_1(manifest) if version == 1 else manifest


def _from_format_1(found: Manifest) -> Manifest:
    """Remove the last axis, of length 1, from the trees of priorities."""

    def newer(path: str, data: Data) -> Data:
        in_tree = path.endswith(".leaves") or ".nodes[" in path
        return {**data, "shape": data["shape"][:2]} if in_tree and data["shape"][2] == 1 else data

    return dataclasses.replace(
        found, index={path: newer(path, data) for path, data in found.index.items()}
    )


def index_file(manifest: Manifest) -> str:
    """Return the name of the file `index`."""
    (name,) = (name for name in manifest.files if name.split("/")[-1].startswith("index-"))
    return name


def used(manifest: Manifest) -> set[str]:
    """Return the files of a checkpoint without the manifest."""
    found = {of.file for segments in manifest.segments.values() for of in segments}
    found.add(index_file(manifest))
    return found if manifest.written is None else found | {manifest.written[0]}


def ours(folder: pathlib.Path) -> set[str]:
    """Return all checkpoint files of a directory but the manifests; also unfinished files."""
    there = [*folder.iterdir(), *(path for of in folder.glob("shard-*") for path in of.glob("*-*"))]
    names = {str(path.relative_to(folder)) for path in there if path.is_file()}
    return {name for name in names if _is_ours(name) and _NAME.fullmatch(name) is None}


def _is_ours(name: str) -> bool:
    name = name.removesuffix(files.UNFINISHED)
    return _FILE.fullmatch(name) is not None or _NAME.fullmatch(name) is not None


def _check_file(folder: pathlib.Path, name: str, expected: Checksum) -> None:
    path = folder / name
    try:
        there = foreign.size(foreign.inside(folder, name, links=False))
    except foreign.Refusal as error:
        raise CheckpointError(f"fbuf.load: {path} is not read: {error}") from None
    except OSError as error:
        raise CheckpointError(f"fbuf.load: {path} is missing: {error}") from None
    if there != expected.length:
        raise CheckpointError(
            f"fbuf.load: {path} is damaged: it has {there} bytes, and {expected.length} were "
            "written"
        )


def count(value: object) -> int:
    """Return a number of a manifest; refuse any other value."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"it has {value!r} where a number must be")
    return value


def _counts(values: object) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise ValueError(f"it has {values!r} where a list of numbers must be")
    return tuple(map(count, values))
