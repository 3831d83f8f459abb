"""Memory of a GPU, given to torch and kept until the kernels that read it have run.

A tensor's memory goes back to JAX when its last reference goes. The kernels that read it may only
have been launched by then. So the array is kept until these kernels have run.
"""

from __future__ import annotations

import collections
import weakref

import jax
import torch

from fbuf_adapters.pytorch.crossing import _dlpack
from fbuf_adapters.pytorch.crossing._tensors import captures_graph

_finishing: collections.deque[tuple[list[torch.Event], list[jax.Array]]] = collections.deque()
"""Arrays whose tensors are gone, with what must have happened before their memory may go too."""

_partly_gone: collections.deque[HandOver] = collections.deque()
"""Those of which some tensors are gone, and others are not."""

_taking: set[torch.cuda.Stream] = set()
"""Streams that have taken batches which were made on others."""


def taken_on(stream: torch.cuda.Stream) -> None:
    """Have all memory wait for this stream, too, from now on."""
    _taking.add(stream)


class HandOver:
    """Arrays on one GPU that one call gives to torch, on the stream that is current then.

    Tensors that go together wait for one event, since an event costs half as much as a tensor.
    """

    def __init__(self, device: torch.device) -> None:
        """Give nothing yet, and let go of what was given before and is needed no more."""
        forget_finished()
        self._stream = torch.cuda.current_stream(device)
        self._given = 0
        # Tensors may go in any thread, and whenever Python collects garbage: a deque bears that.
        self._gone: collections.deque[tuple[jax.Array, torch.cuda.Stream]] = collections.deque()

    def tensor(self, array: jax.Array) -> torch.Tensor:
        """Return a tensor on the memory of an array, for which torch's stream waits."""
        # Told the stream, JAX does not hold up the host. DLPack calls the default stream 1.
        tensor = _dlpack.to_tensor(array, self._stream.cuda_stream or 1)
        self.keep(array, tensor)
        return tensor

    def keep(self, array: jax.Array, tensor: torch.Tensor) -> None:
        """Keep an array for as long as any tensor on its memory lives, and a little longer."""
        self._given += 1
        weakref.finalize(tensor.untyped_storage(), self._go, array).atexit = False

    def _go(self, array: jax.Array) -> None:
        """Take note that the tensors of an array are gone, and of the stream that may read it."""
        # No event may be recorded or asked for while a CUDA graph is captured.
        captured = captures_graph()
        stream = self._stream if captured else torch.cuda.current_stream(self._stream.device)
        self._gone.append((array, stream))
        if len(self._gone) == self._given and not captured:
            self.finish()
        else:
            _partly_gone.append(self)

    def finish(self) -> None:
        """Keep what is gone until the streams that were given work on it are done with that."""
        arrays, streams = [], {self._stream}
        while self._gone:
            try:
                array, stream = self._gone.popleft()
            except IndexError:  # another thread took the last one
                break
            arrays.append(array)
            streams.add(stream)
        if arrays:
            self._given -= len(arrays)
            streams |= {one for one in tuple(_taking) if one.device == self._stream.device}
            _finishing.append(([stream.record_event() for stream in streams], arrays))


def forget_finished() -> None:
    """Let go of the arrays that no kernel can need any more, oldest first."""
    while _partly_gone:
        try:
            some = _partly_gone.popleft()
        except IndexError:  # another thread took the last one
            break
        some.finish()
    while _finishing:
        try:
            events, arrays = _finishing.popleft()
        except IndexError:
            return
        done = False
        try:
            done = all(event.query() for event in events)
        finally:
            if not done:  # also if that raised, or a memory in use would be given away
                _finishing.appendleft((events, arrays))
        if not done:
            return
