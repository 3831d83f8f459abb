"""Memory of a GPU, kept until the kernels that read it have run.

A tensor's memory goes back to JAX when its last reference goes. The kernels that read it may only
have been launched by then. So the array is kept until these kernels have run.
"""

from __future__ import annotations

import collections
import weakref

import jax
import torch

_finishing: collections.deque[tuple[list[torch.Event], jax.Array]] = collections.deque()
"""Arrays whose tensors are gone, with what must have happened before their memory may go too."""

_taking: set[torch.cuda.Stream] = set()
"""Streams that have taken batches which were made on others."""


def taken_on(stream: torch.cuda.Stream) -> None:
    """Have all memory wait for this stream, too, from now on."""
    _taking.add(stream)


def hold(array: jax.Array, tensor: torch.Tensor) -> None:
    """Keep an array for as long as any tensor on its memory lives, and a little longer."""
    stream = torch.cuda.current_stream(tensor.device)
    weakref.finalize(tensor.untyped_storage(), _finish, array, stream).atexit = False


def _finish(array: jax.Array, stream: torch.cuda.Stream) -> None:
    """Keep it until the streams that may have been given work on it are done with that."""
    streams = {stream, torch.cuda.current_stream(stream.device)}
    streams |= {taking for taking in tuple(_taking) if taking.device == stream.device}
    _finishing.append(([stream.record_event() for stream in streams], array))


def forget_finished() -> None:
    """Let go of the arrays that no kernel can need any more, oldest first."""
    while True:
        try:
            events, array = _finishing.popleft()
        except IndexError:  # none left; another thread may have taken the last one
            return
        if not all(event.query() for event in events):
            _finishing.appendleft((events, array))
            return
