"""Tensors as JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from fbuf_adapters.pytorch.crossing import _dlpack, _dtypes, _tensors
from fbuf_adapters.pytorch.crossing._error import InteropError, convert


def from_torch(tree: Any, *, copy: bool = True, narrow: bool = False) -> Any:
    """Give PyTorch tensors to JAX, by default as copies.

    By default JAX gets memory of its own, so you may write to the tensors at once, as simulators do
    that reuse their outputs. To add rows to a buffer, `add_from_torch` is faster.

    Args:
        tree: Any pytree of tensors, on CPU or GPU.
        copy: False shares the memory, or fails. You must then keep three rules. Do not write to a
            tensor before everything computed from its array is ready (`jax.block_until_ready`),
            because JAX runs after the call has returned. Never donate the array. See to it that the
            bytes of a bool tensor are 0 or 1; those of `uint8_tensor.view(torch.bool)` may not be.
        narrow: Where JAX's 64-bit types are off, cast 64-bit tensors to 32 bits if every value
            fits: integers keep their value, and finite floats stay finite. It always copies.

    Returns:
        The same tree with arrays as leaves. The arrays are committed to their device: a compiled
        function that has only met uncommitted arrays compiles once more for them.

    Raises:
        InteropError: If a leaf is not a tensor, requires grad, or has a dtype that JAX lacks. If it
            is 64-bit while JAX's 64-bit types are off (see `narrow`). If it is not strided (sparse,
            quantised, nested), has no memory (meta, fake, inside `torch.func`), or lies on a device
            that JAX cannot reach. With `copy=False`, also if it is not contiguous, does not start
            at a multiple of 64 bytes, is lazily conjugated or negated, or is pinned.

    Cost: some tens of microseconds a leaf, and the copy.

    Examples:
        >>> import torch
        >>> from fbuf_adapters import pytorch
        >>> pytorch.from_torch({"action": torch.tensor([1, 2])}, narrow=True)
        {'action': Array([1, 2], dtype=int32)}
    """
    _tensors.check_torch("from_torch")
    ready = convert("from_torch", {"tree": tree}, lambda leaf: _ready(leaf, copy, narrow))["tree"]
    tensors, structure = jax.tree.flatten(ready)
    arrays = _dlpack.to_arrays(tensors)
    if copy:
        # A donated array is written to, which does no harm in that copy. But on GPU XLA may abort
        # the process when it takes over memory that is not its own.
        both = zip(tensors, arrays, strict=True)
        arrays = [jnp.copy(array) if tensor.is_cuda else array for tensor, array in both]
    return structure.unflatten(arrays)


def _ready(leaf: Any, copy: bool, narrow: bool) -> torch.Tensor:
    """A tensor whose memory an array may have: that of the leaf, or a copy that nobody knows."""
    _tensors.check(leaf)
    if copy:
        return own(_dtypes.fit(leaf, narrow))
    _dtypes.check(leaf)
    reason = obstacle(leaf)
    if reason is not None:
        raise InteropError(f"{reason}, or give copy=True")
    return leaf


def own(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy with every bit where it is said to be.

    Not JAX's own copy: on CPU `jax.dlpack.from_dlpack(x, copy=True)` makes none.
    """
    if tensor.dtype == torch.bool:  # whose bytes may be other than 0 and 1, which XLA relies on
        return tensor.view(torch.uint8).ne(0).contiguous()
    return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def obstacle(tensor: torch.Tensor) -> str | None:
    """Why JAX cannot share a tensor's memory, and what to do about it."""
    if tensor.is_conj() or tensor.is_neg():
        return "is conjugated or negated lazily; take .resolve_conj().resolve_neg()"
    if not tensor.is_contiguous():
        return "is not contiguous; take .contiguous()"
    if tensor.numel() > 0 and tensor.data_ptr() % _dlpack.ALIGNMENT != 0:
        return f"does not start at a multiple of {_dlpack.ALIGNMENT} bytes; take .clone()"
    if tensor.is_pinned():
        return "is pinned, and JAX takes pinned memory for GPU memory; use .clone()"
    return None
