"""JAX arrays as tensors."""

from __future__ import annotations

import functools
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
import torch

import fbuf
from fbuf_adapters.pytorch.crossing import _dlpack, _dtypes, _lifetime, _tensors
from fbuf_adapters.pytorch.crossing._error import InteropError, convert, untraced

_NUMPY_EXPORTS = frozenset(
    dtype
    for dtype in _dtypes.JAX_DTYPES
    # before, it had no exports of what is read-only
    if dtype.isbuiltin == 1 and np.lib.NumpyVersion(np.__version__) >= "2.1.0"
)
"""Dtypes that NumPy has by itself, and can export."""


@overload
def to_torch(tree: fbuf.Sample[Any], *, copy: bool = False) -> fbuf.Sample[Any, torch.Tensor]: ...
@overload
def to_torch(tree: fbuf.Rollout[Any], *, copy: bool = False) -> fbuf.Rollout[Any, torch.Tensor]: ...
@overload
def to_torch(tree: fbuf.Batch[Any], *, copy: bool = False) -> fbuf.Batch[Any, torch.Tensor]: ...
@overload
def to_torch(tree: Any, *, copy: bool = False) -> Any: ...
def to_torch(tree: Any, *, copy: bool = False) -> Any:
    """Give JAX arrays to PyTorch, in the same memory.

    Writing to such a tensor changes the array, which JAX takes to be immutable. So write only when
    everything that JAX computes from the array is ready, and do not use the array afterwards. Never
    donate the array.

    On a GPU the host does not wait: PyTorch's current stream does, until the array is ready. When
    the last tensor on an array is dropped, the memory is kept until two streams have done their
    work so far. These are the stream that was current at this call, and the one that is current
    when the tensor is dropped. If you use a tensor on a third stream, have one of these wait for
    it.

    Share the result of `fbuf.sample`, but never the arrays of a `fbuf.State`. While a tensor lives
    on the memory of a state, the next `fbuf.add` copies the whole buffer (on CPU) or fails (on
    GPU). Writing to the tensor changes stored rows. So a state is refused. An array that you take
    out of a state (`state.storage.words`) looks like any other: give `copy=True`.

    Args:
        tree: Any pytree of JAX arrays, such as a `fbuf.Sample`. Each array must lie on one device,
            CPU or GPU, and have a dtype that PyTorch has, too.
        copy: Give PyTorch memory of its own. This works for everything, also for states.

    Returns:
        The same tree with tensors as leaves.

    Raises:
        InteropError: If a leaf is not an array, is traced, deleted or donated, or is a PRNG key; if
            it has a dtype that PyTorch lacks. If it lies on several devices or on one that PyTorch
            cannot reach, or belongs to a state.

    Cost: a few microseconds a leaf; with `copy`, the copy.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> from fbuf_adapters import pytorch
        >>> state = fbuf.add(fbuf.init({"x": jnp.zeros(2)}, capacity=4), {"x": jnp.ones((3, 2))})
        >>> batch = pytorch.to_torch(fbuf.sample(state, jax.random.key(0), 2))
        >>> batch.data["x"]
        tensor([[1., 1.],
                [1., 1.]])
    """
    is_leaf = None if copy else _is_part_of_a_state
    export = functools.partial(_export, copy, Aliases())
    return convert("to_torch", {"tree": tree}, export, is_leaf)["tree"]


@functools.cache
def _holds_state(kind: type) -> bool:
    """Whether a type is fbuf's own, and not one of those that `fbuf.sample` hands out."""
    package, _, module = kind.__module__.partition(".")
    known = fbuf.Batch, fbuf.Rollout, fbuf.Sample, fbuf.MixedSample, fbuf.Ids, fbuf.PaceCounter
    handed_out = kind in known or module.startswith(("views.", "targets."))
    return issubclass(kind, fbuf.State) or (package == "fbuf" and not handed_out)


def _is_part_of_a_state(node: Any) -> bool:
    return _holds_state(type(node))


def _export(copy: bool, aliases: Aliases, leaf: Any) -> torch.Tensor:
    """A tensor on the memory of an array, or on a copy of it."""
    _check_array(leaf)
    tensor = aliases.of(leaf)
    return tensor.clone() if copy else tensor


class Aliases:
    """Tensors on the memory of arrays that are known to cross; of one call."""

    def __init__(self) -> None:
        """Make none yet."""
        self._handed: dict[torch.device, _lifetime.HandOver] = {}

    def of(self, array: jax.Array) -> torch.Tensor:
        """Return a tensor on the memory of an array."""
        device = torch_device(array.sharding)
        if device.type == "cpu":
            return on_cpu(array)
        if device not in self._handed:
            _tensors.check_no_capture("fbuf_adapters.pytorch.to_torch:")
            self._handed[device] = _lifetime.HandOver(device)
        return self._handed[device].tensor(array)


class KeptAliases(Aliases):
    """The aliases of several calls: each array is handed over once."""

    def __init__(self) -> None:
        """Make none yet."""
        super().__init__()
        self._tensors: dict[int, tuple[jax.Array, torch.Tensor, torch.cuda.Stream | None]] = {}
        self._stream: torch.cuda.Stream | None = None

    def of(self, array: jax.Array) -> torch.Tensor:
        """Return a tensor on the memory of an array; the current stream waits for the array."""
        device = torch_device(array.sharding)
        stream = None if device.type == "cpu" else torch.cuda.current_stream(device)
        found = self._tensors.get(id(array))
        if found is None:
            if stream != self._stream:
                self._handed.clear()
                self._stream = stream
            tensor = super().of(array)
            if _serves_all_modes(tensor):
                self._tensors[id(array)] = array, tensor, stream
            return tensor
        _, tensor, first = found
        if stream is not None and first is not None and stream != first:
            stream.wait_stream(first)  # which was told to wait for the array
            _lifetime.taken_on(stream)
        return tensor


def _serves_all_modes(tensor: torch.Tensor) -> bool:
    """Whether a tensor may be looked at under other modes of torch than it was made under."""
    try:
        return not tensor.is_inference() and bool(tensor.data_ptr() or True)
    except RuntimeError:  # a wrapper of `torch.func`
        return False


def on_cpu(array: jax.Array) -> torch.Tensor:
    """A tensor on the memory of an array on CPU.

    JAX takes several times as long to export an array as to give NumPy a view of it. The view is
    the memory of the array, unless the layout is unusual.
    """
    if array.dtype in _NUMPY_EXPORTS:
        tensor = torch.from_dlpack(np.asarray(array).__dlpack__(max_version=(1, 0)))
        if tensor.data_ptr() == array.unsafe_buffer_pointer():
            return tensor
    return _dlpack.to_tensor(array)


def _check_array(leaf: Any) -> None:
    if not isinstance(leaf, jax.Array):
        if _is_part_of_a_state(leaf):
            raise InteropError(
                "is a buffer's own memory, which fbuf.add must be free to write to; share what "
                "fbuf.sample returns, or give copy=True"
            )
        raise InteropError("is not a JAX array; use jnp.asarray")
    untraced(leaf)
    if leaf.is_deleted():
        raise InteropError(
            "has been deleted, or donated to a compiled function that wrote its result there; "
            "use that result"
        )
    if leaf.dtype not in _dtypes.JAX_DTYPES:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise InteropError(
                "is a PRNG key; hand over jax.random.key_data(key), and wrap what comes back with "
                "jax.random.wrap_key_data"
            )
        raise InteropError(
            "is of a dtype that PyTorch cannot take over; cast it with .astype, or hand over its "
            "bits with jax.lax.bitcast_convert_type"
        )


@functools.lru_cache(maxsize=256)
def torch_device(sharding: jax.sharding.Sharding) -> torch.device:
    """Torch's name of where an array lies. Cached, for it takes longer than the export."""
    devices = sharding.device_set
    if len(devices) != 1:
        raise InteropError(
            f"lies on {len(devices)} devices; gather it with jax.device_put(x, jax.devices()[0]), "
            "or hand over the parts, [shard.data for shard in x.addressable_shards]"
        )
    (device,) = devices
    if device.platform == "cpu":
        return torch.device("cpu")
    if device.platform != "gpu" or not torch.cuda.is_available():
        raise InteropError(
            f"lies on {device}, which this PyTorch cannot reach; move it with "
            "jax.device_put(x, jax.devices('cpu')[0])"
        )
    if sharding.memory_kind not in (None, "device"):
        raise InteropError(
            f"lies in {sharding.memory_kind} memory, which PyTorch cannot read as such; move it "
            "with jax.device_put(x, jax.devices('cpu')[0])"
        )
    return torch.device("cuda", device.local_hardware_id)
