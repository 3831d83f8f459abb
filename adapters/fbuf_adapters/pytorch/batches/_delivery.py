"""The delivery of batches: from JAX's arrays to the user's tensors, and on which stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

import fbuf
from fbuf.adapter_api import wait_for
from fbuf_adapters.pytorch._spec import Spec, where
from fbuf_adapters.pytorch.batches._handed_ids import HandedIds
from fbuf_adapters.pytorch.crossing import _containers, _lifetime
from fbuf_adapters.pytorch.crossing._to_torch import Aliases, torch_device
from fbuf_adapters.pytorch.crossing._tree import map_tensors
from fbuf_adapters.pytorch.crossing._unpack import Axes, Unpack, free

_SHORT = (torch.int32, torch.uint32)
_SHORT_OF_NUMPY = (np.dtype(np.int32), np.dtype(np.uint32))


@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """A batch that a program has drawn.

    Attributes:
        arrays: All of it, packed.
        unpack: Makes leaves of the arrays.
        tree: The structure of these leaves.
        size: How many rows the user asked for.
        axes: The axis of each leaf that its rows are on, None if they are on none; None if there
            are just as many.
        number: Which of several batches it is that lie in the arrays, one behind the other; None
            if the arrays hold no other.
        aliases: Tensors on arrays that several batches lie in; None makes them anew.
    """

    arrays: tuple[jax.Array, ...]
    unpack: Unpack
    tree: Any
    size: int
    axes: Axes | None
    number: int | None = None
    aliases: Aliases | None = None

    def leaves(self, long: bool) -> list[torch.Tensor]:
        """Return its leaves, in the memory of the arrays; with `long`, all integers as int64."""
        aliases = self.aliases or Aliases()
        leaves = self.unpack(self.arrays, self.size, self.axes, self.number, aliases)
        return widened(leaves) if long else leaves


class TakenBatch(NamedTuple):
    """A batch that NumPy has made, in memory of the host.

    Attributes:
        taken: Its leaves.
        tree: The structure of the leaves.
        arrays: Nothing is packed.
        axes: As of a `PackedBatch` of just as many rows.
        number: As of a `PackedBatch` by itself.
    """

    taken: list[np.ndarray[Any, Any]]
    tree: Any
    arrays: tuple[jax.Array, ...] = ()
    axes: None = None
    number: None = None

    def leaves(self, long: bool) -> list[torch.Tensor]:
        """Return its leaves, in the same memory; with `long`, all integers as int64."""
        if not long:
            return list(map(torch.from_numpy, self.taken))
        wide = (x.astype(np.int64) if x.dtype in _SHORT_OF_NUMPY else x for x in self.taken)
        return list(map(torch.from_numpy, wide))


def widened(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return leaves with int64 for integers of 32 bits."""
    return [leaf.long() if leaf.dtype in _SHORT else leaf for leaf in leaves]


class Delivery:
    """Delivers batches: integers, items as they were added, the transform, the device."""

    def __init__(self, spec: Spec) -> None:
        """Deliver as the arguments of the buffer say."""
        self._spec = spec
        self._of_items = spec.view == fbuf.Item()
        self._returns_ids = spec.buffer.sampler.keeps_priorities
        self.handed = HandedIds()
        """The ids of batches on a GPU, which come back with priorities."""
        self.rebuild: list[_containers.Container] = []
        """Makes items what they were, if they were no trees of JAX's."""

    def __call__(self, make: Callable[[], PackedBatch | TakenBatch], waits: bool = False) -> Any:
        """Return the batch as the user gets it; `waits` tells that a caller waits for it."""
        drawn = make()
        of_host = not drawn.arrays or torch_device(drawn.arrays[0].sharding).type == "cpu"
        if waits and of_host and drawn.arrays:
            wait_for(drawn.arrays[0])
        leaves = drawn.leaves(self._spec.int64)
        if drawn.number is not None and self._spec.transform is not None:
            # It may write to them, and be broken off; they are then taken again.
            leaves = [leaf.clone() for leaf in leaves]
        batch = drawn.tree.unflatten(leaves)
        alone = drawn.axes is None and drawn.number is None
        if self._returns_ids and alone and not of_host and isinstance(drawn, PackedBatch):
            self.handed.note(batch, drawn.arrays, drawn.unpack, drawn.tree)
        if self.rebuild and self._of_items:
            batch = dataclasses.replace(batch, data=self.rebuild[0](batch.data, batch.mask.shape))
        if self._spec.transform is not None:
            batch = self._spec.transform(batch)
            if batch is None:
                raise TypeError(
                    f"{where('sample')} the transform returned None; have it return the batch, or "
                    "what sample() is to return"
                )
        return self.place(batch)

    def rows(self, data: Any, lead: torch.Size) -> Any:
        """Return rows that were read as the user gave them, with `lead` for their first axis."""
        leaves, tree = jax.tree.flatten(data)
        leaves = [free(leaf.reshape((*lead, *leaf.shape[1:]))) for leaf in leaves]
        data = tree.unflatten(widened(leaves) if self._spec.int64 else leaves)
        return self.place(self.rebuild[0](data, lead) if self.rebuild else data)

    def place(self, batch: Any) -> Any:
        """Return the batch where the user wants it."""
        if self._spec.pins:
            batch = map_tensors(batch, _pinned)
        if self._spec.to is not None:
            device = self._spec.to
            # to the CPU nothing would wait for the copy
            freely = device.type != "cpu"
            batch = map_tensors(batch, lambda x: x.to(device, non_blocking=freely), moved_to=device)
        return batch


class Ahead:
    """A batch made by another thread, on a stream of its own, for whoever takes it."""

    def __init__(self, make: Callable[[], Any], stream: torch.cuda.Stream | None) -> None:
        """Make it, now and in this thread."""
        self._ready: torch.Event | None = None
        if stream is None:
            self._batch = make()
            return
        self._device = stream.device
        with torch.cuda.stream(stream):
            self._batch = make()
            self._ready = stream.record_event()

    def take(self) -> Any:
        """The batch, for which the current stream has been told to wait."""
        if self._ready is None:
            return self._batch
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._ready)
        _lifetime.taken_on(stream)

        def used_here(tensor: torch.Tensor) -> torch.Tensor:
            # or torch would give its memory away when the other stream is done with it
            if tensor.is_cuda:
                tensor.record_stream(stream)
            return tensor

        return map_tensors(self._batch, used_here)


def stream_for(*devices: torch.device | None) -> torch.cuda.Stream | None:
    """A stream to make batches on beside the learner's, if there is a GPU among the devices."""
    for device in devices:
        if device is not None and device.type == "cuda":
            return torch.cuda.Stream(device)
    return None


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if tensor.is_cpu else tensor
