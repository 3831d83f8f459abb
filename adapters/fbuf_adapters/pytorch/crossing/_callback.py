"""Functions of tensors inside compiled functions of JAX."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax.experimental.buffer_callback import buffer_callback

from fbuf.adapter_api import opaque
from fbuf_adapters.pytorch.crossing import _dtypes
from fbuf_adapters.pytorch.crossing._error import InteropError, describe

_CPU = 1
"""DLPack's name of it."""


def callback(
    fn: Callable[..., Any], result: Any, *, vmap_method: str | None = "sequential"
) -> Callable[..., Any]:
    """Make a PyTorch function callable from compiled JAX code, without copies.

    Use it for a reward model or a priority function in PyTorch between steps in JAX. The arguments
    of `fn` are tensors on XLA's memory, and its result is written into XLA's memory. Nothing goes
    through the host: on a GPU, `fn` runs on the stream of the compiled program.

    The rules:

    - The arguments live during the call only, because XLA uses their memory again. To keep one is
      an error: keep a clone. Do not write to them: clone them, too.
    - `fn` runs whenever the compiled program does, and holds Python's lock. It must return the same
      result for the same arguments: XLA leaves out a call whose result nobody uses. It must not
      call JAX.
    - Gradients do not go through it: `fn` runs under `torch.no_grad()`, and `jax.grad` of the
      result is an error. If you need gradients, wrap two callbacks in a `jax.custom_vjp`.
    - With `vmap_method="sequential"`, `vmap` calls it once for each element; see
      `jax.pure_callback` for the other ways.
    - It works on one device, CPU or NVIDIA GPU. It is built on `jax.experimental.buffer_callback`.

    Args:
        fn: A function of tensors, or trees of them, that returns a tensor or a tree of tensors.
            Bind Python values with `functools.partial`.
        result: The form of the result of `fn`: a tree of `jax.ShapeDtypeStruct` or of arrays.
            64-bit dtypes only if JAX's 64-bit types are on.
        vmap_method: The way of `vmap`: see `jax.pure_callback`.

    Returns:
        A function of arrays, or trees of them, for use inside and outside of `jit`.

    Raises:
        InteropError: If `result` has a dtype that JAX or PyTorch lacks. At run time, as the text of
            a `jax.errors.JaxRuntimeError` or `ValueError`, if `fn` keeps an argument, or returns
            something other than `result`.

    Cost: about 10 microseconds and 5 for each array, beside what `fn` does.

    Examples:
        >>> import jax, jax.numpy as jnp, torch
        >>> from fbuf_adapters import pytorch
        >>> model = torch.nn.Linear(3, 1)
        >>> scores = jax.ShapeDtypeStruct((2,), jnp.float32)
        >>> score = pytorch.callback(lambda x: model(x)[:, 0], scores)
        >>> jax.jit(lambda x: score(x) + 1)(jnp.ones((2, 3))).shape
        (2,)
    """
    for path, spec in jax.tree.leaves_with_path(result):
        known = hasattr(spec, "dtype") and spec.dtype in _dtypes.JAX_DTYPES
        if not known or jax.dtypes.canonicalize_dtype(spec.dtype) != spec.dtype:
            raise InteropError(
                f"fbuf_adapters.pytorch.callback: result{jax.tree_util.keystr(path)} "
                f"({describe(spec)}) must be an array or a jax.ShapeDtypeStruct, of a dtype that "
                "both libraries have; JAX has those of 64 bits only with jax_enable_x64"
            )
    specs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), result)

    def call(context: Any, out: Any, *arguments: Any) -> None:
        with torch.no_grad(), _on_stream_of(context, out):
            tensors = jax.tree.map(torch.from_dlpack, arguments)
            kept = [weakref.ref(x.untyped_storage()) for x in jax.tree.leaves(tensors)]
            _fill(out, fn(*tensors))
            del tensors
        if any(storage() is not None for storage in kept):
            gc.collect()  # it may be in a cycle, and not be kept at all
        if any(storage() is not None for storage in kept):
            raise InteropError(
                "fbuf_adapters.pytorch.callback: the function kept one of its arguments, or a view "
                "of one, but XLA will use that memory again; keep a clone()"
            )

    called = buffer_callback(call, specs, vmap_method=vmap_method)

    def from_jax(*arguments: Any) -> Any:
        return called(*arguments)

    opaque(from_jax)
    return from_jax


def _on_stream_of(context: Any, out: Any) -> contextlib.AbstractContextManager[Any]:
    """Queue torch's kernels where XLA's are."""
    buffers = jax.tree.leaves(out)
    kind, index = buffers[0].__dlpack_device__() if buffers else (_CPU, 0)
    if kind == _CPU:
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(context.stream, device=index))


def _fill(out: Any, returned: Any) -> None:
    """Write what was returned to where XLA looks for it."""
    wanted, structure = jax.tree.flatten(out)
    try:
        values = structure.flatten_up_to(returned)
    except ValueError:
        values = []
    if len(values) != len(wanted):
        raise InteropError(
            f"fbuf_adapters.pytorch.callback: the function must return {structure}, it returned "
            f"{jax.tree.structure(returned)}"
        )
    for buffer, value in zip(wanted, values, strict=True):
        memory = torch.from_dlpack(buffer)
        fits = isinstance(value, torch.Tensor) and value.shape == memory.shape
        if not fits or value.dtype != memory.dtype:
            raise InteropError(
                f"fbuf_adapters.pytorch.callback: the function must return {describe(memory)}, it "
                f"returned {describe(value)}"
            )
        memory.copy_(value)
