"""Tensors as arguments of a compiled function, which reads them where they are."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

import fbuf
from fbuf.adapter_api import checked_arguments
from fbuf_adapters import _narrow
from fbuf_adapters.pytorch.crossing import _dlpack, _dtypes, _from_torch, _tensors
from fbuf_adapters.pytorch.crossing._error import InteropError, untraced
from fbuf_adapters.pytorch.crossing._packed import Part
from fbuf_adapters.pytorch.crossing._to_torch import torch_device

FeedAll = Callable[[dict[str, Any]], dict[str, Any]]

_FLAGS = ("terminated", "truncated", "mask")


def feed(leaf: Any, narrow: bool, devices: set[Any], copy: bool = False) -> Any:
    """Return a leaf as a compiled function on these devices reads it: in place, if possible.

    A tensor on a GPU stays one. `imported` makes arrays of all of them at once. With `copy` it is
    one that nobody else has, or `packed` copies it.
    """
    if not isinstance(leaf, torch.Tensor):
        return untraced(leaf)  # fbuf.add looks after it
    quick = _quickly_as_numpy(leaf, narrow)
    if quick is not None:
        return quick
    if not (is_on_gpu(leaf) and _dlpack.is_plain(leaf)):
        _tensors.check(leaf)
    tensor = _dtypes.fit(leaf, narrow)
    if not is_on_gpu(tensor):
        return _as_numpy(tensor)
    if {_dlpack.jax_device(tensor.device)} != devices:
        raise InteropError(
            f"lies on {tensor.device}, but the buffer does not; use .cpu(), or move the buffer "
            "with jax.device_put"
        )
    if tensor.dtype == torch.bool or _from_torch.obstacle(tensor) is not None:
        return _from_torch.own(tensor)
    return _from_torch.own(tensor) if copy and not _is_of_words(tensor) else tensor


def imported(given: dict[str, Any], copy: bool = False) -> dict[str, Any]:
    """Return arguments with arrays for those that `feed` has left tensors.

    They go together: JAX waits once for the kernels that make them. With `copy` those of 4 bytes a
    number go as one array, which one kernel makes.
    """
    leaves, structure = jax.tree.flatten(given)
    words = [leaf for leaf in leaves if copy and _is_of_words(leaf)]
    tensors = [
        leaf
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and not (copy and _is_of_words(leaf))
    ]
    if words:
        tensors.append(torch.cat([leaf.view(torch.int32).reshape(-1) for leaf in words]))
    if not tensors:
        return given
    arrays = _dlpack.to_arrays(tensors)
    starts = itertools.accumulate((leaf.numel() for leaf in words), initial=0)
    own = iter(arrays)

    def array(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if not (copy and _is_of_words(leaf)):
            return next(own)
        return Part(arrays[-1], next(starts), tuple(leaf.shape), _dtypes.DTYPES[leaf.dtype])

    return structure.unflatten(map(array, leaves))


def _is_of_words(leaf: Any) -> bool:
    """Whether a leaf is a tensor of 4 bytes a number, which can be packed."""
    return isinstance(leaf, torch.Tensor) and leaf.dtype in _WORDS


_WORDS = (torch.float32, torch.int32, torch.uint32)


def _quickly_as_numpy(tensor: torch.Tensor, narrow: bool) -> np.ndarray[Any, Any] | None:
    """A NumPy array on the memory of a tensor, if that is all there is to it.

    Most tensors are like that, and to ask each for everything that it might be takes longer than
    the rest of adding it. `Tensor.numpy` asks as well, and refuses.
    """
    dtype = tensor.dtype
    long = dtype is torch.int64 and narrow and not _dtypes.x64()
    plain = type(tensor) is torch.Tensor and tensor.is_cpu
    if not plain or not (long or dtype in _dtypes.QUICK):
        return None
    try:
        if tensor.untyped_storage().data_ptr() == 0:  # a stand-in, of which NumPy would make junk
            return None
        array = tensor.numpy()
    except (RuntimeError, TypeError):
        return None
    if long:
        try:
            return _narrow.narrow(array, np.dtype(np.int32))
        except _narrow.Misfit:  # refused by the name of the tensor
            return None
    return array.view(np.uint8) != 0 if dtype is torch.bool else array  # bool: see own


def _as_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A NumPy array on the memory of a CPU tensor; into `jit` it goes faster than by DLPack."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    dtype = tensor.dtype
    if dtype in _dtypes.BITS:
        return tensor.view(_dtypes.BITS[dtype]).numpy().view(_dtypes.DTYPES[dtype])
    if dtype is torch.bool:  # see own
        return tensor.numpy().view(np.uint8) != 0
    return tensor.numpy()


def feed_narrow(tensor: torch.Tensor, devices: set[Any], copy: bool = False) -> Any:
    """The same for one with integers of 64 bits, which are torch's habit: in 32, if they fit."""
    if tensor.dtype in (torch.float64, torch.complex128) and not _dtypes.x64():
        raise InteropError(
            "is 64-bit, and JAX would keep 32 bits; use .float() or the like, or "
            "jax.config.update('jax_enable_x64', True)"
        )
    return feed(tensor, True, devices, copy)


def ready(
    operation: Callable[..., fbuf.State[Any]],
    state: Callable[[], fbuf.State[Any]],
    given: dict[str, Any],
    feed_all: FeedAll,
    *,
    narrow: bool,
    copy: bool = False,
) -> tuple[list[Any], Any]:
    """The arguments of one of fbuf's functions, ready for a compiled form of it, as leaves.

    `given` are the arguments by name, and `feed_all` makes these ready, or refuses one by its name.
    It need not be called for what most arguments are: plain tensors on CPU. With `copy` nobody else
    has the memory of arrays on a GPU.
    """
    leaves, structure = jax.tree.flatten(given)
    # Flags may be Python's; what is such a leaf of an item is seen to by `feed_all`.
    flags = sum(type(given.get(name)) is bool for name in _FLAGS)
    fed: list[Any] = []
    for leaf in leaves:
        ready = None
        if isinstance(leaf, torch.Tensor):
            ready = _quickly_as_numpy(leaf, narrow)
        elif type(leaf) is bool and flags:
            ready, flags = leaf, flags - 1
        if ready is None:
            break
        fed.append(ready)
    if len(fed) < len(leaves):
        arrays = imported(feed_all(given), copy)
        return jax.tree.flatten(checked_arguments(operation, state(), arrays))
    return fed, structure


def on_gpu(given: Any) -> bool:
    """Whether streams of torch's look after who reads and writes all of it, and in what order."""
    # Python's numbers never change.
    leaves = [leaf for leaf in jax.tree.leaves(given) if not isinstance(leaf, int | float)]
    return bool(leaves) and all(map(is_on_gpu, leaves))


def is_on_gpu(leaf: Any) -> bool:
    """Whether a leaf is a tensor on a GPU."""
    return isinstance(leaf, torch.Tensor) and leaf.is_cuda


def let_torch_wait(fault: jax.Array, stream: Any = None) -> None:
    """Have torch's stream wait for a program: what it is given next comes after the reading.

    Args:
        fault: A result of the program.
        stream: The stream; None is the current one.
    """
    stream = stream or torch.cuda.current_stream(torch_device(fault.sharding))
    # Exporting an array has the stream wait; nobody needs the tensor.
    _dlpack.to_tensor(fault, stream.cuda_stream or 1)


def letting_torch_wait(given: Any) -> Callable[[jax.Array], None] | None:
    """Return a function that does so for the stream that is current now; None without a GPU.

    Copies of the arguments lie in memory of this stream.
    """
    for leaf in jax.tree.leaves(given):
        if is_on_gpu(leaf):
            stream = torch.cuda.current_stream(leaf.device)
            return functools.partial(let_torch_wait, stream=stream)
    return None
