"""Rows from gymnax's environments into a buffer, in one compiled loop."""

try:
    # Only to see whether it is there.
    import gymnax  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as error:
    if error.name != "gymnax":  # it is there, and lacks something itself
        raise
    raise ImportError("fbuf_adapters.gymnax needs gymnax: pip install gymnax") from error

from fbuf_adapters.gymnax._collector import Collector as Collector

__all__ = ["Collector"]
