"""Adding rows from tensors, without a copy of the tensors in between."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.core

import fbuf
from fbuf.adapter_api import refuse_consumed
from fbuf_adapters.pytorch.crossing import _inputs, _tensors
from fbuf_adapters.pytorch.crossing._error import InteropError, convert


def add_from_torch(
    state: fbuf.State[Any],
    items: Any,
    *,
    terminated: Any = None,
    truncated: Any = None,
    next_observation: Any = None,
    priority: Any = None,
    mask: Any = None,
    time_major: bool = False,
    alpha: Any = None,
    narrow: bool = False,
) -> fbuf.State[Any]:
    """Add rows that are tensors: `fbuf.add`, after which you may reuse the tensors.

    The call reads tensors where they lie. On CPU it returns when the rows are written. If all
    arguments lie on a GPU it returns at once, and PyTorch's current stream waits until they are
    read. So you may write to a tensor right afterwards. (From another stream, wait for the current
    one first, as always.)

    Args:
        state: The buffer. It is always consumed; to keep it, copy it first.
        items: As for `fbuf.add`, with tensors for arrays. Tensors on a GPU need a buffer on that
            GPU; tensors on CPU go to any buffer. Leaves that are not tensors go to `fbuf.add` as
            they are. The same holds for the arguments below.
        terminated: As for `fbuf.add`.
        truncated: As for `fbuf.add`.
        next_observation: As for `fbuf.add`.
        priority: As for `fbuf.add`.
        mask: As for `fbuf.add`.
        time_major: As for `fbuf.add`.
        alpha: As for `fbuf.add`.
        narrow: As for `from_torch`.

    Returns:
        The buffer with the rows in it.

    Raises:
        InteropError: If `state` is not a `fbuf.State`, if anything is traced, or if JAX cannot take
            a tensor. As for `from_torch`, but strides, alignment and lazy bits do not matter here.
            The buffer is then unchanged and not consumed.
        ValueError: As `fbuf.add`.
        TypeError: As `fbuf.add`.
        RuntimeError: As `fbuf.add`.

    Cost: that of `fbuf.add` and of waiting for it, and about 2 microseconds a leaf on CPU.

    Examples:
        >>> import fbuf, jax.numpy as jnp, torch
        >>> from fbuf_adapters import pytorch
        >>> state = fbuf.init({"x": jnp.zeros(2)}, capacity=4)
        >>> observation = torch.ones(3, 2)
        >>> state = pytorch.add_from_torch(state, {"x": observation})
        >>> observation.zero_().sum(), float(fbuf.rows(state).data["x"].sum())
        (tensor(0.), 6.0)
    """
    _tensors.check_torch("add_from_torch")
    _check_state(state)
    arguments = {
        "items": items,
        "terminated": terminated,
        "truncated": truncated,
        "next_observation": next_observation,
        "priority": priority,
        "mask": mask,
        "alpha": alpha,
    }

    def feed_all(given: dict[str, Any]) -> dict[str, Any]:
        devices = state.fault.sharding.device_set
        return convert("add_from_torch", given, lambda leaf: _inputs.feed(leaf, narrow, devices))

    if state.fault.is_deleted():
        refuse_consumed("add", state)
    leaves, structure = _inputs.ready(fbuf.add, lambda: state, arguments, feed_all, narrow=narrow)
    added = _compiled(state, structure.unflatten(leaves), time_major=time_major)
    _refuse_traced(added)
    if _inputs.on_gpu(arguments):
        _inputs.let_torch_wait(added.fault)
    else:
        added.fault.block_until_ready()  # and so is all else, being of one program
    return added


@functools.partial(jax.jit, donate_argnums=0, static_argnames="time_major")
def _compiled(state: fbuf.State[Any], given: dict[str, Any], *, time_major: bool) -> Any:
    """`fbuf.add`, compiled to write into the state it is given."""
    return fbuf.add(state, **given, time_major=time_major)


def _check_state(state: Any) -> None:
    if not isinstance(state, fbuf.State):
        raise InteropError(
            "fbuf_adapters.pytorch.add_from_torch: state must be a fbuf.State, got "
            f"{type(state).__name__}; make one with fbuf.init"
        )
    _refuse_traced(state)


def _refuse_traced(state: fbuf.State[Any]) -> None:
    if isinstance(state.fault, jax.core.Tracer):
        raise InteropError(
            "fbuf_adapters.pytorch.add_from_torch: state is traced, or this was called inside a "
            "compiled function, where PyTorch cannot run; call this outside"
        )
