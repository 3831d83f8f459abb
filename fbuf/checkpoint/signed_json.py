"""Numbered JSON files with a first line of format, length and checksum.

The first line tells a damaged file from one that was never written. No file is ever overwritten.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import re
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from fbuf.checkpoint import files
from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.checks import foreign

T = TypeVar("T")

_LINE = 200
"""The longest first line, in bytes."""

_LAST = 99_999_999
"""The largest number in a file name."""

LONGEST = 2**28
"""The longest manifest, in bytes."""

_UNLIKE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors of data that is not like a manifest."""


@dataclasses.dataclass(frozen=True)
class SignedJson:
    """One kind of manifest.

    Attributes:
        prefix: The file name without its number.
        title: The beginning of the first line.
        function: The function that error messages name.
    """

    prefix: str
    title: str
    function: str

    def name_of(self, number: int) -> str:
        """Return a file name."""
        return f"{self.prefix}-{number:08}"

    def _path(self, folder: pathlib.Path, number: int) -> pathlib.Path:
        return foreign.inside(folder, self.name_of(number), links=False)

    def numbers(self, folder: pathlib.Path) -> list[int]:
        """Return the numbers of all manifests in a directory, the oldest first."""
        if not folder.is_dir():
            return []
        pattern = re.compile(rf"{self.prefix}-(\d{{8}})")
        found = map(pattern.fullmatch, (entry.name for entry in folder.iterdir()))
        return sorted(int(match[1]) for match in found if match)

    def next_number(self, folder: pathlib.Path) -> int:
        """Return the number for a new manifest.

        Raises:
            CheckpointError: If no number is left: a name has eight digits.
        """
        newest = max(self.numbers(folder), default=0)
        if newest == _LAST:
            raise CheckpointError(
                f"fbuf.{self._save}: {folder} has {self.name_of(newest)}, after which there is no "
                "number for another checkpoint; fbuf counts from 1, so that file comes from "
                "elsewhere: take it away, or save to another directory"
            )
        return newest + 1

    @property
    def _save(self) -> str:
        """The function that writes, for error messages."""
        return self.function.replace("load", "save")

    def head(self, folder: pathlib.Path, number: int) -> bytes:
        """Return a first line. Two checkpoints of the same number differ in it."""
        try:
            with foreign.opened(self._path(folder, number)) as file:
                return file.readline(_LINE)
        except foreign.Refusal:
            return b""  # not a line of a manifest

    def heads(self, folder: pathlib.Path) -> dict[int, bytes]:
        """Return all first lines by number, the oldest first.

        Another process may delete a manifest meanwhile; the result then lacks it.
        """
        found: dict[int, bytes] = {}
        for number in self.numbers(folder):
            with contextlib.suppress(FileNotFoundError):
                found[number] = self.head(folder, number)
        return found

    def write(
        self,
        folder: pathlib.Path,
        number: int,
        content: Any,
        version: int,
        parse: Callable[[Any, int], Any],
    ) -> None:
        """Write a dataclass in a format of this version, which commits the checkpoint.

        Args:
            folder: The directory.
            number: The number of the manifest.
            content: The dataclass.
            version: The format.
            parse: Makes the dataclass from JSON data and their format, as for `read`.

        Raises:
            CheckpointError: If `read` would refuse or change it; then nothing is written.
        """
        body = json.dumps(dataclasses.asdict(content), indent=1, allow_nan=False).encode()
        self._require_readable(body, content, version, parse)
        head = f"{self.title} {version}, {len(body)} bytes, crc32 {zlib.crc32(body):08x}\n"

        def write(file: Any) -> None:
            file.write(head.encode() + body)

        files.write(folder, {self.name_of(number): write})

    def _require_readable(
        self, body: bytes, content: Any, version: int, parse: Callable[[Any, int], Any]
    ) -> None:
        """Refuse content that `read` would refuse or change."""
        why = ""
        if len(body) + _LINE > LONGEST:
            why = f"it has {len(body):,} bytes, and up to {LONGEST:,} are read; give less as extra"
        else:
            try:
                foreign.require_json(body)
                if parse(json.loads(body), version) != content:
                    why = "it would be read as another one"
            except _UNLIKE as error:
                why = repr(error)
        if why:
            raise CheckpointError(
                f"fbuf.{self._save}: the manifest could not be read "
                f"again, so it was not written: {why}"
            )

    def read(
        self, folder: pathlib.Path, number: int, newest: int, parse: Callable[[Any, int], T]
    ) -> T:
        """Read a manifest.

        Args:
            folder: The directory.
            number: The number of the manifest.
            newest: The newest known format.
            parse: Makes the result from JSON data and their format.

        Raises:
            CheckpointError: If the file is damaged, or its format is newer.
        """
        refuse = f"fbuf.{self.function}: {folder / self.name_of(number)}"
        try:
            text = foreign.read(self._path(folder, number), LONGEST)
        except foreign.Refusal as error:
            raise CheckpointError(f"{refuse} is damaged: {error}") from None
        except OSError as error:
            raise CheckpointError(f"{refuse} cannot be read: {error}") from error
        pattern = rf"{self.title} (\d{{1,6}}), (\d{{1,12}}) bytes, crc32 ([0-9a-f]{{8}})\n"
        head = re.match(pattern.encode(), text)
        if head is None:
            raise CheckpointError(f"{refuse} is damaged: it has no first line of a manifest")
        body, version = text[head.end() :], int(head[1])
        if len(body) != int(head[2]) or zlib.crc32(body) != int(head[3], 16):
            raise CheckpointError(f"{refuse} is damaged: its length or checksum is wrong")
        if not version:
            raise CheckpointError(f"{refuse} is damaged: there is no format 0")
        if version > newest:
            raise Mismatch(
                f"{refuse} has format {version}, and this fbuf reads formats up to {newest}; "
                "install a newer fbuf"
            )
        try:
            foreign.require_json(body)
            return parse(json.loads(body), version)
        except _UNLIKE as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{refuse} is no manifest of fbuf: {error!r}") from None
