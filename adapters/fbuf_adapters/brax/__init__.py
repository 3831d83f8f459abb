"""Rows from brax's environments into a buffer, in one compiled loop."""

try:
    # Only to see whether it is there.
    import brax  # noqa: F401  # pyright: ignore[reportUnusedImport, reportMissingImports]
except ModuleNotFoundError as error:
    if error.name != "brax":  # it is there, and lacks something itself
        raise
    raise ImportError("fbuf_adapters.brax needs brax: pip install brax") from error

from fbuf_adapters.brax._collector import Collector as Collector

__all__ = ["Collector"]
