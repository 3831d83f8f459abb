"""Where arrays lie: what is made inside `jax.default_device` stays there.

JAX takes an array that nobody has put anywhere to the device that is the default when it is used.
For a buffer this is a copy of all of it at every call, which then cannot be consumed either.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import jax
import jax.core

T = TypeVar("T")


def allocating() -> Any:
    """A context in which a call may make arrays of its own, also under a guard of transfers.

    JAX takes the number that an array is filled with for a transfer from the host.
    """
    return jax.transfer_guard_host_to_device("allow")


def settled(tree: T) -> T:
    """Arrays that were just made, committed to their device if that is no default outside.

    Those on the default device of the process stay as they are: JAX may take them along to a mesh.
    """
    array = next(iter(jax.tree.leaves(tree)))
    # JAX makes the names of its options at run time.
    config: Any = jax.config
    if isinstance(array, jax.core.Tracer) or config.jax_default_device is None or array.committed:
        return tree
    (device,) = array.devices()
    return tree if device == _outside() else jax.device_put(tree, device)


def _outside() -> Any:
    """The default device outside of all `jax.default_device`, which count in one thread only."""
    config: Any = jax.config
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(config.jax_default_device))
    thread.start()
    thread.join()
    (outside,) = found
    platform = outside if isinstance(outside, str) else None
    return jax.local_devices(backend=platform)[0] if platform or outside is None else outside
