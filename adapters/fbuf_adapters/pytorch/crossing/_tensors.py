"""Which tensors can be read: those with memory, holding what they say, where JAX can reach."""

from __future__ import annotations

from typing import Any

import jax
import torch

from fbuf_adapters.pytorch.crossing import _dtypes
from fbuf_adapters.pytorch.crossing._containers import is_tensordict
from fbuf_adapters.pytorch.crossing._error import InteropError

_SOMETHING = torch.zeros(1, device="cpu")


def check(leaf: Any) -> None:
    """Whether there is memory to read, holding what the tensor says, that JAX can reach."""
    if not isinstance(leaf, torch.Tensor):
        raise no_tensor(leaf)
    if leaf.layout != torch.strided or leaf.is_nested:
        raise InteropError(
            "is sparse or nested; make it a plain tensor with .to_dense(), or pad it"
        )
    if leaf.is_quantized:
        raise InteropError("is quantised; take .dequantize(), or .int_repr() for the integers")
    if _is_of_vmap(leaf):
        raise InteropError(
            "belongs to torch.func.vmap, which shows one row of a batch and has no memory for it; "
            "call this once, outside of vmap, with the whole batch (extend() adds one)"
        )
    if leaf.is_meta or not has_memory(leaf):
        raise InteropError(
            "has no memory to read: it is a meta or fake tensor, or belongs to torch.func; take "
            "one with values, outside"
        )
    if leaf.requires_grad:
        raise InteropError("requires grad, which JAX does not track; use .detach()")
    if leaf.dtype not in _dtypes.DTYPES:
        raise InteropError("is of a dtype that JAX cannot take over; cast it with .to")
    if not (leaf.is_cpu or (leaf.is_cuda and jax_has_gpu())):
        raise InteropError(
            f"lies on {leaf.device}, which this JAX cannot reach; move it with .cpu()"
        )


def no_tensor(leaf: Any) -> InteropError:
    """Return the refusal of what is not a tensor."""
    if is_tensordict(leaf):  # a whole item may be one
        return InteropError(
            "is a TensorDict or a tensorclass inside of another tree; use .to_dict()"
        )
    return InteropError("is not a tensor; use torch.as_tensor")


def _is_of_vmap(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for one row of the batch of a `vmap`."""
    # torch.func has no public name for the question.
    told: Any = getattr(getattr(torch._C, "_functorch", None), "is_batchedtensor", None)  # pyright: ignore
    return told is not None and bool(told(tensor))


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one, and not a stand-in for one while torch traces or transforms."""
    kind: Any = type(tensor)
    plain: Any = torch.Tensor
    if kind.__torch_dispatch__ is not plain.__torch_dispatch__:
        return False
    try:
        return tensor.untyped_storage().data_ptr() != 0 or tensor.numel() == 0
    except (RuntimeError, ValueError):  # there is no storage, or not yet
        return False


def check_torch(function: str) -> None:
    """Whether torch computes here; if not, even plain tensors yield stand-ins, or junk."""
    try:
        computes = has_memory(_SOMETHING.detach())
    except AssertionError:  # FakeTensorMode wants no real tensors
        computes = False
    if not computes:
        raise InteropError(
            f"fbuf_adapters.pytorch.{function}: called inside torch.func, FakeTensorMode or the "
            "like, where tensors have no memory to read; call it outside"
        )
    check_no_capture(f"fbuf_adapters.pytorch.{function}:")


def captures_graph() -> bool:
    """Return whether a CUDA graph is captured. A process without CUDA is not made to start it."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def check_no_capture(begins: str) -> None:
    """Refuse to go on while a CUDA graph is captured: its replays would not run JAX."""
    if captures_graph():
        raise InteropError(
            f"{begins} called while a CUDA graph is captured, and its replays would not run JAX; "
            "call it outside, and copy what the graph reads into tensors that it keeps"
        )


def jax_device(device: torch.device, where: str) -> Any:
    """JAX's name of a device of torch's."""
    jax.devices()  # before torch's, see below
    if device.type == "cpu":
        return jax.devices("cpu")[0]
    if device.type == "cuda" and jax_has_gpu() and torch.cuda.is_available():
        given: Any = device.index  # None is the current one, whatever the stubs say
        index = torch.cuda.current_device() if given is None else given
        for found in jax.devices("gpu"):
            if found.local_hardware_id == index:
                return found
    raise InteropError(
        f"{where} device {device} must be one that both libraries reach: JAX has {jax.devices()}, "
        f"and PyTorch has {torch.cuda.device_count()} GPUs; install both for the GPU, or use "
        "device='cpu'"
    )


def torch_device(given: torch.device | str, argument: str, where: str) -> torch.device:
    """Return a device that the user named, on which PyTorch can make tensors.

    Raises:
        InteropError: If it cannot. Without this check the first batch would tell.
    """
    jax_has_gpu()  # before torch's first tensor on a GPU
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    # Torch raises errors of its own choice; one of them is an AssertionError.
    except Exception as error:
        said = str(error).partition("\n")[0]
        raise InteropError(
            f"{where} {argument} must be a device of PyTorch's, got {str(given)!r} ({said}); name "
            "another one, or leave it out"
        ) from None
    return device


def jax_has_gpu() -> bool:
    """Also lets JAX choose its current GPU before torch does: doing so later would undo torch's."""
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False
