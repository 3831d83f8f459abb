"""Rows in host memory, or in files, with flags and indices on the device."""

from fbuf.door.opaque import opaque_all as _opaque_all
from fbuf_adapters.host._batches import Batches as Batches
from fbuf_adapters.host._store import HostStore as HostStore

__all__ = ["Batches", "HostStore"]

_opaque_all(globals()[name] for name in __all__)
