"""Rows in host memory, or in files, with flags and indices on the device."""

from fbuf_adapters.host._batches import Batches as Batches
from fbuf_adapters.host._store import HostStore as HostStore

__all__ = ["Batches", "HostStore"]
