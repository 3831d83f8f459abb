"""Ways between JAX and PyTorch, by the C++ functions behind the public ones of both.

The functions of JAX are private, and differ from version to version. Nothing here keeps memory
alive for kernels that may still read it, as `fbuf_adapters.pytorch` does: whoever calls it waits.
"""

from __future__ import annotations

import math
from typing import Any

ALIGNED = 64
"""Bytes: at a multiple of them a leaf begins."""
EXPORTS = PYTHON, CPP = "by __dlpack__", "by C++"
WAYS = APART, SHARED, COPIED = "apart", "shared", "copied"
"""The storage of leaves: one each, as fbuf promises; one for all; or memory of torch's own."""


def exported(array: Any, how: str) -> Any:
    """Return a tensor on the memory of an array, for which torch's current stream waits."""
    import torch
    from jax._src.lib import _jax

    on_gpu = next(iter(array.devices())).platform == "gpu"
    # DLPack calls the default stream 1.
    stream = {"stream": torch.cuda.current_stream().cuda_stream or 1} if on_gpu else {}
    if how == PYTHON:
        return torch.from_dlpack(array.__dlpack__(**stream))
    capsule: Any = _jax.buffer_to_dlpack_managed_tensor(array.addressable_data(0), **stream)
    return torch._C._from_dlpack(capsule)  # pyright: ignore[reportAttributeAccessIssue]


def imported(tensor: Any, how: str) -> Any:
    """Return an array on the memory of a tensor."""
    import jax
    from jax._src.lib import _jax

    if how == PYTHON:
        return jax.dlpack.from_dlpack(tensor, copy=False)
    device, on_gpu = jax.devices()[0], tensor.is_cuda
    stream = device.get_stream_for_external_ready_events() if on_gpu else None
    capsule = tensor.__dlpack__(stream=stream) if on_gpu else tensor.__dlpack__()
    # Newer versions want DLPack's type of the device, too.
    newer = (2 if on_gpu else 1,) if jax.__version_info__ >= (0, 11) else ()
    convert: Any = _jax.dlpack_managed_tensor_to_buffer
    return convert(capsule, device, stream, None, *newer)


class Packing:
    """Where the leaves of batches lie, in one array of words and one of bytes.

    Attributes:
        times: How many batches, one behind the other in each leaf.
    """

    def __init__(self, shapes: list[Any], times: int = 1) -> None:
        """Take the shapes of the leaves, each of 1 or of 4 bytes a number."""
        self._shapes, self.times = shapes, times
        sizes = sorted({leaf.dtype.itemsize for leaf in shapes}, reverse=True)
        if not set(sizes) <= {1, 4}:
            raise ValueError(f"leaves of {sizes} bytes a number, where 1 and 4 are known")
        of_size = lambda size: [n for n, one in enumerate(shapes) if one.dtype.itemsize == size]
        self._members = {size: of_size(size) for size in sizes}

    def _padding(self, number: int) -> int:
        leaf = self._shapes[number]
        return -leaf.size % (ALIGNED // leaf.dtype.itemsize)

    def pack(self, leaves: list[Any]) -> list[Any]:
        """Return the packed arrays, in a program."""
        import jax
        import jax.numpy as jnp

        packed = []
        for size, members in self._members.items():
            unit, parts = jnp.int32 if size == 4 else jnp.uint8, []
            for number in members:
                leaf = leaves[number]
                leaf = leaf.astype(jnp.uint8) if leaf.dtype == jnp.bool_ else leaf
                parts.append(jax.lax.bitcast_convert_type(leaf, unit).reshape(-1))
                parts.append(jnp.zeros(self._padding(number), unit))
            packed.append(jnp.concatenate(parts))
        return packed

    def unpack(self, tensors: list[Any], way: str) -> list[list[Any]]:
        """Return the leaves of each batch, by one split of each packed tensor."""
        import torch
        from fbuf_adapters.pytorch.crossing import _dtypes

        split: Any = torch.split_with_sizes_copy if way == COPIED else torch.unsafe_split_with_sizes
        found: list[list[Any]] = [[None] * len(self._shapes) for _ in range(self.times)]
        for members, tensor in zip(self._members.values(), tensors, strict=True):
            sizes = []
            for number in members:
                sizes += [self._shapes[number].size // self.times] * self.times
                sizes.append(self._padding(number))
            pieces = iter(split(tensor, sizes))
            for number in members:
                leaf = self._shapes[number]
                shape = (leaf.shape[0] // self.times, *leaf.shape[1:])
                assert math.prod(shape) * self.times == leaf.size
                for batch in found:
                    part = next(pieces).view(_dtypes.to_torch(leaf.dtype)).view(shape)
                    batch[number] = _apart(part) if way == APART else part
                next(pieces)  # the padding
        return found


def _apart(tensor: Any) -> Any:
    """Return a tensor of a storage of its own, on the same memory."""
    import torch
    from torch.utils.dlpack import to_dlpack

    capsule = to_dlpack(tensor)
    return torch._C._from_dlpack(capsule)  # pyright: ignore[reportAttributeAccessIssue]
