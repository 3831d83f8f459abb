"""The old name of `fbuf.host`; it goes with version 0.4."""

from fbuf.host import Batches as Batches
from fbuf.host import HostStore as HostStore

__all__ = ["Batches", "HostStore"]
__dir__ = __all__.copy  # `dir` shows the public names alone
