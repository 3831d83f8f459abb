"""Rows from Gymnasium's environments, in chunks of steps, into a buffer.

A worker process that only steps environments imports modules of this package. So the package itself
imports JAX only at the first use of a collector.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    # Only to find out whether it is installed.
    import gymnasium  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as _error:
    if _error.name != "gymnasium":  # an installed package lacks a dependency
        raise
    raise ImportError(
        'fbuf_adapters.gymnasium needs Gymnasium: pip install "fbuf[gymnasium]"'
    ) from _error

from fbuf_adapters.gymnasium._errors import CollectorError as CollectorError

if TYPE_CHECKING:
    from fbuf_adapters.gymnasium._collector import Collector as Collector
    from fbuf_adapters.gymnasium._process_collector import ProcessCollector as ProcessCollector

__all__ = ["Collector", "CollectorError", "ProcessCollector"]
__dir__ = __all__.copy  # `dir` shows the public names alone


_MODULES = {"Collector": "_collector", "ProcessCollector": "_process_collector"}

if not TYPE_CHECKING:  # there any name is accepted

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
            return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
