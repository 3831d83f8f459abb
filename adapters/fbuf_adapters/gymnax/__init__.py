"""Rows from gymnax's environments into a buffer, in one compiled loop."""

import importlib.util

# Looked for, and not imported: an import that computes makes JAX look for its devices, and
# `jax.distributed.initialize` has to come before.
if importlib.util.find_spec("gymnax") is None:
    raise ImportError("fbuf_adapters.gymnax needs gymnax: pip install gymnax")

from fbuf_adapters.gymnax._collector import Collector as Collector

__all__ = ["Collector"]
__dir__ = __all__.copy  # `dir` shows the public names alone
