"""What the processes of a mesh say to each other outside of compiled functions."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh


def is_alone(function: str, mesh: Mesh) -> bool:
    """Whether a mesh has devices of this process only.

    Raises:
        ValueError: If it has devices of some processes, and not of all: these could not talk apart
            from the others.
    """
    processes = {device.process_index for device in mesh.devices.flat}
    if processes == {jax.process_index()}:
        return True
    if len(processes) != jax.process_count():
        raise ValueError(
            f"fbuf.{function}: the mesh has devices of {len(processes)} of {jax.process_count()} "
            "processes; make it of devices of all processes, or of this one alone"
        )
    return False


def all_say(numbers: np.ndarray, alone: bool) -> np.ndarray:
    """What each process says: int64 `[n]` here, `[processes, n]` back. All must call it.

    It is also a barrier: nobody goes on before all have come. Who is `alone` says it to nobody.
    """
    if alone or jax.process_count() == 1:
        return numbers[None]
    from jax.experimental import multihost_utils  # takes long to import

    # JAX has no 64-bit integers unless they are turned on: bytes go through as they are.
    said = np.frombuffer(np.ascontiguousarray(numbers, np.int64).tobytes(), np.uint8)
    heard = np.asarray(multihost_utils.process_allgather(said))
    return np.ascontiguousarray(heard).view(np.int64).reshape(jax.process_count(), -1)


def all_have(well: bool, alone: bool) -> bool:
    """Whether all processes say so. All must call it."""
    return bool(all_say(np.array([well], np.int64), alone).all())
