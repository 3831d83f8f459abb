"""Messages between the processes of a mesh, outside of compiled functions."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from fbuf.storage import tags


def is_alone(function: str, mesh: Mesh) -> bool:
    """Tell whether a mesh has devices of this process only.

    Raises:
        ValueError: If it has devices of some processes, and not of all: only all processes
            together can exchange messages.
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
    """Gather int64 `[n]` of each process: `[processes, n]`. All processes must call it.

    It is also a barrier. With `alone`, no message is sent.
    """
    if alone or jax.process_count() == 1:
        return numbers[None]
    from jax.experimental import multihost_utils  # slow to import

    # As bytes, because JAX has no 64-bit integers by default.
    said = np.frombuffer(np.ascontiguousarray(numbers, np.int64).tobytes(), np.uint8)
    heard = np.asarray(multihost_utils.process_allgather(said))
    return np.ascontiguousarray(heard).view(np.int64).reshape(jax.process_count(), -1)


def all_have(well: bool, alone: bool) -> bool:
    """Tell whether all processes give True. All processes must call it."""
    return bool(all_say(np.array([well], np.int64), alone).all())


def agreed_tag(mesh: Mesh) -> int:
    """Return a tag for a buffer over a mesh, the same in all its processes.

    All processes must call it. If the mesh leaves some processes out, they cannot agree, and the
    tag is 0.
    """
    processes = {device.process_index for device in mesh.devices.flat}
    own = int(tags.new())
    if processes == {jax.process_index()}:
        return own
    if len(processes) < jax.process_count():
        return 0
    return int(all_say(np.array([own], np.int64), alone=False)[0, 0])
