"""Ids that come back as they were handed out: JAX has them still, and need not take them in.

They lie in the packed arrays of their batch. On a GPU these live as long as a tensor of the batch.
"""

from __future__ import annotations

import collections
import functools
import weakref
from typing import Any, NamedTuple

import jax
import torch

import fbuf
from fbuf_adapters.pytorch.crossing._packed import Part
from fbuf_adapters.pytorch.crossing._unpack import Unpack

_BATCHES = 16
"""The number of batches that are remembered, the newest. Ids of older ones are taken in."""


class _Seen:
    """A tensor as it is now. It may be deleted, and another tensor may take its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Look at a tensor, and do not keep it."""
        self._name, self._tensor = id(tensor), weakref.ref(tensor)
        self._looks = _looks(tensor)

    def is_still(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is that one, and nothing has written to it."""
        # Names first: torch may own the object of another one, which is then not to be touched.
        if id(tensor) != self._name or self._tensor() is not tensor:
            return False
        return _looks(tensor) == self._looks


def _looks(tensor: torch.Tensor) -> Any:
    """Return the count of writes, and what a new `.data` would change."""
    return tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class _Batch(NamedTuple):
    """The ids of a batch, and where JAX has them."""

    slot: _Seen
    generation: _Seen
    array: weakref.ref[jax.Array]
    places: tuple[int, int]


class HandedIds:
    """The ids of the newest batches of a buffer. They keep neither tensors nor arrays alive."""

    def __init__(self) -> None:
        """Remember none yet."""
        self._batches: collections.deque[_Batch] = collections.deque(maxlen=_BATCHES)

    def note(self, batch: Any, arrays: tuple[jax.Array, ...], unpack: Unpack, tree: Any) -> None:
        """Remember the ids of a batch.

        Args:
            batch: The batch, of tensors as `unpack` has made them, or of copies of these.
            arrays: The packed arrays, which never change.
            unpack: Has made the batch of the arrays.
            tree: The structure of the batch.
        """
        places = [unpack.place(number) for number in _numbers(tree)]
        slot, generation = places or (None, None)
        if slot is None or generation is None:
            return
        try:
            seen = _Seen(batch.ids.slot), _Seen(batch.ids.generation)
        except RuntimeError:  # torch counts no writes in inference mode, or hides the memory
            return
        kept = weakref.ref(arrays[slot[0]])
        self._batches.append(_Batch(*seen, kept, (slot[1], generation[1])))

    def packed(self, ids: fbuf.Ids[Any]) -> fbuf.Ids[Any] | None:
        """Return ids in the memory of JAX, if they are those of a batch and unchanged."""
        for batch in reversed(self._batches.copy()):  # another thread may note a batch
            if batch.slot.is_still(ids.slot) and batch.generation.is_still(ids.generation):
                array = batch.array()
                if array is not None:
                    shape = tuple(ids.slot.shape)
                    return fbuf.Ids(*[Part(array, start, shape) for start in batch.places])
        return None


@functools.lru_cache(maxsize=64)
def _numbers(tree: Any) -> tuple[int, ...]:
    """The numbers of the leaves that are slots and generations, in a batch of a structure."""
    ids = getattr(tree.unflatten(range(tree.num_leaves)), "ids", None)
    return (ids.slot, ids.generation) if isinstance(ids, fbuf.Ids) else ()
