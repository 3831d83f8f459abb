"""Which dtypes both libraries have, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fbuf_adapters import _narrow
from fbuf_adapters.pytorch.crossing._error import InteropError

DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): jnp.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
}

JAX_DTYPES = frozenset(DTYPES.values())

NARROWER = {
    torch.int64: torch.int32,
    torch.uint64: torch.uint32,
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
}

BITS = {torch.bfloat16: torch.uint16} | {
    dtype: torch.uint8 for dtype in DTYPES if str(dtype).startswith("torch.float8")
}

QUICK = frozenset(DTYPES) - {*NARROWER, *BITS}


def check(tensor: torch.Tensor) -> None:
    narrower = NARROWER.get(tensor.dtype)
    if narrower is not None and not x64():
        raise InteropError(
            f"would silently become {narrower}, because JAX's 64-bit types are off; give "
            "narrow=True (and copy) to cast it if every value fits, or use "
            "jax.config.update('jax_enable_x64', True)"
        )


def x64() -> bool:
    """Whether JAX has 64-bit types."""
    # JAX makes the names of its options at run time.
    return bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]


def fit(tensor: torch.Tensor, narrow: bool) -> torch.Tensor:
    """The tensor in a dtype that JAX keeps."""
    narrower = NARROWER.get(tensor.dtype)
    if narrower is None:
        return tensor
    if not narrow or x64():
        check(tensor)
        return tensor
    small = _narrowed(tensor, narrower)
    if small is None:
        whole = not (narrower.is_floating_point or narrower.is_complex)
        halves = "give its halves, x.unsqueeze(-1).view(torch.int32), " if whole else ""
        raise InteropError(
            f"holds a value that {narrower} cannot hold; scale or clamp it, {halves}or have JAX, "
            "which stores it, keep 64 bits: jax.config.update('jax_enable_x64', True)"
        )
    return small


def _narrowed(tensor: torch.Tensor, narrower: torch.dtype) -> torch.Tensor | None:
    """The tensor in a narrower dtype; None if it holds a number that does not fit."""
    if tensor.is_cpu:
        try:
            array = _narrow.narrow(tensor.resolve_conj().resolve_neg().numpy(), DTYPES[narrower])
        except _narrow.Misfit:
            return None
        return torch.from_numpy(array)
    # The same rule in torch: for NumPy the tensor would have to leave the GPU.
    small = tensor.to(narrower)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        fits = torch.equal(small.isfinite(), tensor.isfinite())
    else:
        fits = torch.equal(small.to(tensor.dtype), tensor)
    return small if fits else None


def to_torch(dtype: Any) -> torch.dtype:
    """Torch's name of a dtype of JAX's or NumPy's."""
    for theirs, ours in DTYPES.items():
        if ours == jnp.dtype(dtype):
            return theirs
    raise InteropError(f"{dtype} is a dtype that PyTorch lacks")


def stored(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the dtype that stores an item of this dtype."""
    return DTYPES[dtype if x64() else NARROWER.get(dtype, dtype)]
