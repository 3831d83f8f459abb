"""Rows in host memory, or in files, with flags and indices on the device."""

from fbuf.dispatch.torch_compile import opaque_all as _opaque_all
from fbuf.host.host_store import HostStore as HostStore
from fbuf.host.prefetch import Batches as Batches

__all__ = ["Batches", "HostStore"]
__dir__ = __all__.copy  # `dir` shows only public names

_opaque_all(globals()[name] for name in __all__)
