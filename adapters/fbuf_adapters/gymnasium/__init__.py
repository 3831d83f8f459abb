"""Rows from Gymnasium's environments, in chunks of steps, into a buffer.

A worker process that only steps environments imports modules of this package. So the package itself
imports JAX only when a collector is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    # Only to see whether it is there.
    import gymnasium  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as error:
    if error.name != "gymnasium":  # it is there, and lacks something itself
        raise
    raise ImportError(
        'fbuf_adapters.gymnasium needs Gymnasium: pip install "fbuf[gymnasium]"'
    ) from error

from fbuf_adapters.gymnasium._errors import CollectorError as CollectorError

if TYPE_CHECKING:
    from fbuf_adapters.gymnasium._collector import Collector as Collector
    from fbuf_adapters.gymnasium._process_collector import ProcessCollector as ProcessCollector

__all__ = ["Collector", "CollectorError", "ProcessCollector"]
__dir__ = __all__.copy  # `dir` shows the public names alone


def __getattr__(name: str) -> Any:
    if name == "Collector":
        from fbuf_adapters.gymnasium import _collector

        return _collector.Collector
    if name == "ProcessCollector":
        from fbuf_adapters.gymnasium import _process_collector

        return _process_collector.ProcessCollector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
