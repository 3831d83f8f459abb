"""Devices of arrays: an array made inside `jax.default_device` stays on that device.

JAX moves an uncommitted array to the device that is the default when the array is used. For a
buffer this is a copy of all arrays at every call, and the call then cannot consume them either.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import jax
import jax.core
import numpy as np

from fbuf.xla.filled import copied

T = TypeVar("T")


def allocating() -> Any:
    """Return a context in which a call may make arrays, also under a guard of transfers.

    JAX takes the number that an array is filled with for a transfer from the host.
    """
    return jax.transfer_guard_host_to_device("allow")


def settled(tree: T) -> T:
    """Commit new arrays to their device if that is no default device outside.

    Arrays on the default device of the process stay as they are: JAX may take them to a mesh.
    """
    array = next(iter(jax.tree.leaves(tree)))
    # JAX makes the names of its options at run time.
    config: Any = jax.config
    if isinstance(array, jax.core.Tracer) or config.jax_default_device is None or array.committed:
        return tree
    (device,) = array.devices()
    return tree if device == _outside() else jax.device_put(tree, device)


def put_like(array: jax.Array, value: np.ndarray) -> jax.Array:
    """Return a value where an array lies, in memory of its own.

    The result is committed to the place only if the array is: else JAX takes no part of a buffer to
    a mesh.
    """
    return copied(value, array.sharding if array.committed else None)


def _outside() -> Any:
    """Return the default device outside of `jax.default_device`, which counts in one thread."""
    config: Any = jax.config
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(config.jax_default_device))
    thread.start()
    thread.join()
    (outside,) = found
    platform = outside if isinstance(outside, str) else None
    return jax.local_devices(backend=platform)[0] if platform or outside is None else outside
