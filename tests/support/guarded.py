"""All functions of `fbuf` under `jax.transfer_guard("disallow")`: what they do, and not the tests.

NumPy rows are put on the device first, as users of the guard do.
"""

from __future__ import annotations

import functools
import inspect

import jax
import numpy as np

import fbuf


def _there(leaf):
    """An array of NumPy on the device, if it is one that JAX takes as it is."""
    plain = isinstance(leaf, np.ndarray) and leaf.dtype.isnative
    if plain and leaf.dtype.kind in "biuf" and leaf.dtype.itemsize <= 4:
        return jax.device_put(leaf.copy())  # the owner may fill it anew
    return leaf


def _guarded(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        args, kwargs = jax.tree.map(_there, (args, kwargs))
        with jax.transfer_guard("disallow"):
            return function(*args, **kwargs)

    return call


def begin():
    """From now on, for good."""
    for module in (fbuf, fbuf.sharded):
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                setattr(module, name, _guarded(getattr(module, name)))
