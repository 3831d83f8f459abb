"""Rows from gymnax's environments into a buffer, in one compiled loop."""

import importlib.util

# Only checked, not imported: its import computes, which initialises JAX's devices.
# `jax.distributed.initialize` has to come before.
if importlib.util.find_spec("gymnax") is None:
    raise ImportError("fbuf_adapters.gymnax needs gymnax: pip install gymnax")

from fbuf_adapters.gymnax._collector import Collector as Collector

__all__ = ["Collector"]
__dir__ = __all__.copy  # `dir` shows the public names alone
