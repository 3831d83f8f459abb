"""Memory across by DLPack, through the C++ functions of JAX and torch alone.

JAX wraps these functions in Python that serves producers of every kind, and takes ten times as
long. Tensors that the wrapper would refuse or change take the public way; see `is_plain`.

JAX does not publish these functions. So the first crossing of a kind goes both ways, and only
where both agree the later ones take the short one.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend
import torch
from torch.utils.dlpack import (
    from_dlpack,
    # Torch documents it, but does not mark it as public for type checkers.
    to_dlpack,  # pyright: ignore[reportPrivateImportUsage]
)

from fbuf_adapters.pytorch.crossing import _dtypes

_of_jax: Any = None
with contextlib.suppress(ImportError):
    _of_jax = importlib.import_module("jaxlib._jax")

_of_torch: Any = importlib.import_module("torch._C")

taken: Callable[[Any], torch.Tensor] = getattr(_of_torch, "_from_dlpack", from_dlpack)
"""Makes a tensor of a capsule."""

ALIGNMENT = 64
"""Where memory must start, in bytes, for JAX to use it."""

_CPU, _CUDA = 1, 2
"""DLPack's names of these kinds of devices."""

_REFUSALS = (AttributeError, TypeError, ValueError, BufferError, jax.errors.JaxRuntimeError)
"""Raised by functions that are missing, or take other arguments."""


# JAX to torch.


def to_tensor(array: jax.Array, stream: int | None = None) -> torch.Tensor:
    """Return a tensor on the memory of an array.

    Args:
        array: The array, which must lie on one device.
        stream: The stream of torch's that waits for the array, by its number; the default stream is
            1. None has the host wait.
    """
    return _exports.get(stream is None, _first_export)(array, stream)


def _export(array: jax.Array, stream: int | None) -> torch.Tensor:
    shard = array.addressable_data(0)
    return taken(_of_jax.buffer_to_dlpack_managed_tensor(shard, stream=stream))


def _public_export(array: Any, stream: int | None) -> torch.Tensor:
    return from_dlpack(array.__dlpack__(stream=stream))


_exports: dict[bool, Callable[[Any, int | None], torch.Tensor]] = {}
"""The way that is known to be right, by whether the host waits."""


def _first_export(array: jax.Array, stream: int | None) -> torch.Tensor:
    """Return the tensor of `to_tensor`, and take note of which way to go from now on."""
    tensor = _public_export(array, stream)
    try:
        agrees = _seen(_export(array, stream)) == _seen(tensor)
    except _REFUSALS:
        agrees = False
    _exports[stream is None] = _export if agrees else _public_export
    return tensor


def _seen(tensor: torch.Tensor) -> Any:
    """Return all that tells tensors apart."""
    place = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.untyped_storage().nbytes()
    return place, tensor.dtype, tensor.device


# Torch to JAX.


class _Place(NamedTuple):
    """A device that memory lies on.

    Attributes:
        device: JAX's name of the device.
        stream: JAX's stream that waits for torch's current one; None on the host.
        kind: DLPack's name of the kind of device.
    """

    device: Any
    stream: int | None
    kind: int


def to_arrays(tensors: Sequence[torch.Tensor]) -> list[jax.Array]:
    """Return arrays on the memory of tensors, as `jax.dlpack.from_dlpack(copy=False)` does.

    JAX waits for what torch's current streams have been given before this call. It waits once, and
    not for each tensor. So all kernels that make the tensors must have been launched.
    """
    places: dict[torch.device, _Place] = {}
    return [_to_array(tensor, places) for tensor in tensors]


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether JAX's public function has nothing to change or to refuse in a tensor.

    Strides that it refuses, the functions below refuse in the same words.
    """
    dtype = tensor.dtype
    if type(tensor) is not torch.Tensor or dtype not in _dtypes.DTYPES:
        return False
    if dtype in _dtypes.NARROWER and not _dtypes.x64():
        return False
    if tensor.requires_grad or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        return False
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # there is no memory
        return False
    # An empty tensor has no address, and neither have stand-ins for tensors.
    return start != 0 and start % ALIGNMENT == 0 and _reached(tensor)


def _reached(tensor: torch.Tensor) -> bool:
    """Tell whether memory is of the host or of CUDA; pinned memory is of both."""
    if tensor.is_cuda:
        return torch.version.hip is None
    return tensor.is_cpu and not tensor.is_pinned()


def jax_device(device: torch.device) -> Any:
    """Return JAX's name of a device that holds memory of this process."""
    backend = jax.extend.backend.get_backend("cpu" if device.type == "cpu" else "gpu")
    return backend.device_from_local_hardware_id(device.index or 0)


def _place(device: torch.device) -> _Place:
    """Return the place of memory. On a GPU have a stream of JAX's wait for torch's current one."""
    found = jax_device(device)
    if device.type == "cpu":
        return _Place(found, None, _CPU)
    stream = found.get_stream_for_external_ready_events()
    waiting: Any = torch.cuda.ExternalStream(stream, device=device)
    waiting.wait_stream(torch.cuda.current_stream(device))
    return _Place(found, stream, _CUDA)


def _to_array(tensor: torch.Tensor, places: dict[torch.device, _Place]) -> jax.Array:
    if not is_plain(tensor):
        return _public_import(tensor)
    device = tensor.device
    if device not in places:
        places[device] = _place(device)
    return _imports.get(tensor.is_cuda, _first_import)(tensor, places[device])


def _import(tensor: torch.Tensor, place: _Place) -> jax.Array:
    """As JAX 0.10 has it."""
    capsule, (device, stream, _) = to_dlpack(tensor), place
    return _of_jax.dlpack_managed_tensor_to_buffer(capsule, device, stream, False)


def _import_of_kind(tensor: torch.Tensor, place: _Place) -> jax.Array:
    """As JAX 0.11 has it."""
    capsule, (device, stream, kind) = to_dlpack(tensor), place
    return _of_jax.dlpack_managed_tensor_to_buffer(capsule, device, stream, False, kind)


def _public_import(tensor: torch.Tensor, place: _Place | None = None) -> jax.Array:
    """As JAX publishes it; JAX finds the place by itself."""
    if not tensor.is_cuda:
        return jax.dlpack.from_dlpack(tensor, copy=False)
    with torch.cuda.device(tensor.device):  # torch exports from its current device only
        return jax.dlpack.from_dlpack(tensor, copy=False)


_imports: dict[bool, Callable[[torch.Tensor, _Place], jax.Array]] = {}
"""The way that is known to be right for plain tensors, by whether they lie on a GPU."""


def _first_import(tensor: torch.Tensor, place: _Place) -> jax.Array:
    """Return the array of `to_arrays`, and take note of which way to go from now on."""
    array = _public_import(tensor)
    ways = (way for way in (_import_of_kind, _import) if _agrees(way, tensor, place, array))
    _imports[tensor.is_cuda] = next(ways, _public_import)
    return array


def _agrees(way: Any, tensor: torch.Tensor, place: _Place, expected: jax.Array) -> bool:
    """Tell whether a way makes the array that is expected."""
    try:
        return _known(way(tensor, place)) == _known(expected)
    except _REFUSALS:
        return False


def _known(array: Any) -> Any:
    """Return all that tells arrays apart."""
    place = array.unsafe_buffer_pointer(), array.sharding, array.committed
    return place, type(array), array.aval, array.weak_type, array.format
