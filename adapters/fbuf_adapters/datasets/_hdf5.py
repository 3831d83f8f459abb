"""HDF5 files, read without following references to other files.

A file can refer to others by links and by external storage of arrays. HDF5 itself follows both.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Generator
from typing import Any

from fbuf.adapter_api import foreign_files
from fbuf_adapters.datasets._errors import DatasetError, needed, unreadable

_DEPTH = 16
"""The most nested groups: a link may lead back to an outer group."""


@contextlib.contextmanager
def opened(where: str, path: str | os.PathLike[str]) -> Generator[Hdf5]:
    """Open a file, and close it at the end of the block.

    Raises:
        DatasetError: If it cannot be read, then or in the block.
    """
    h5py = needed(where, "h5py")
    try:
        size = foreign_files.size(pathlib.Path(path))
        with h5py.File(path, "r") as file:
            yield Hdf5(h5py, file, size)
    except BlockingIOError as error:
        raise DatasetError(
            f"{where}: another program has {os.fspath(path)!r} open for writing ({error}); close "
            "it there, or copy the file"
        ) from error
    except (OSError, foreign_files.Refusal) as error:
        raise unreadable(where, path, "HDF5", error) from error


class Hdf5:
    """An open file.

    Args:
        h5py: The package.
        file: The file.
        size: Its bytes.
    """

    def __init__(self, h5py: Any, file: Any, size: int) -> None:
        self._h5py, self._file, self._size = h5py, file, size

    def names(self) -> list[str]:
        """Return the names in the file, in printable form."""
        return sorted(map(foreign_files.printable, self._file))

    def has(self, name: str) -> bool:
        """Return whether the file has an array or a group of this name.

        Raises:
            Refusal: If it lies in another file.
        """
        above, _, last = name.rpartition("/")
        if above and not self.has(above):
            return False
        group = self._walk(self._file, above, 0)
        return isinstance(group, self._h5py.Group) and group.get(last, getlink=True) is not None

    def tree(self, name: str) -> Any:
        """Return an array, or the dict of arrays of a group; nothing is read yet.

        Raises:
            Refusal: If a part of it lies in another file, is no array, or declares far more bytes
                than the file has.
        """
        return self._tree(self._walk(self._file, name, 0), 0)

    def _tree(self, node: Any, depth: int) -> Any:
        if not isinstance(node, self._h5py.Group):
            return self._array(node)
        if depth == _DEPTH:
            raise foreign_files.Refusal(f"more than {_DEPTH} groups lie in one another")
        return {name: self._tree(self._walk(node, name, 0), depth + 1) for name in node}

    def _walk(self, group: Any, path: str, links: int) -> Any:
        """Open a part of a group, by names with slashes, without leaving the file."""
        node = self._file if path.startswith("/") else group
        for name in filter(None, path.split("/")):
            said, is_group = foreign_files.printable(name), isinstance(node, self._h5py.Group)
            link: Any = node.get(name, getlink=True) if is_group else None
            if link is None or said != name or links > _DEPTH:
                raise foreign_files.Refusal(f"{said} is no array or group that can be found")
            if isinstance(link, self._h5py.ExternalLink):
                raise foreign_files.Refusal(f"{said} is a link to another file")
            if isinstance(link, self._h5py.SoftLink):
                node = self._walk(node, str(link.path), links + 1)
            else:
                node = node[name]
        return node

    def _array(self, node: Any) -> Any:
        if not isinstance(node, self._h5py.Dataset) or node.shape is None:
            raise foreign_files.Refusal(f"{foreign_files.printable(node.name)} is no array")
        if node.external or node.is_virtual:
            raise foreign_files.Refusal(f"the bytes of {node.name} lie in another file")
        for shape in (node.shape, node.chunks or ()):
            declared = foreign_files.require_shape(shape, max(node.dtype.itemsize, 1))
            foreign_files.require_size(declared, self._size)
        return node
