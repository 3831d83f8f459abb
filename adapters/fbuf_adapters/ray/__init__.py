"""Rows from Gymnasium's environments on many machines into a buffer, by actors of Ray.

An actor that only steps environments imports modules of this package. So the package itself imports
JAX only at the first use of the collector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    # Only to see whether they are there.
    import gymnasium  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import ray  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as _error:
    if _error.name not in ("ray", "gymnasium"):  # installed packages that lack a dependency
        raise
    raise ImportError(
        'fbuf_adapters.ray needs Ray and Gymnasium: pip install "fbuf[ray]"'
    ) from _error

from fbuf_adapters.gymnasium._errors import CollectorError as CollectorError

if TYPE_CHECKING:
    from fbuf_adapters.ray._collector import Collector as Collector

__all__ = ["Collector", "CollectorError"]
__dir__ = __all__.copy  # `dir` shows the public names alone


if not TYPE_CHECKING:  # there any name is accepted

    def __getattr__(name: str) -> Any:
        if name == "Collector":
            from fbuf_adapters.ray import _collector

            return _collector.Collector
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
