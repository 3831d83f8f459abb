"""The stream of batches of tensors: epochs, and runs that are loaded."""

from __future__ import annotations

import collections
import copy
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fbuf.adapter_api import BatchStream, Drawn
from fbuf_adapters.pytorch._spec import Spec
from fbuf_adapters.pytorch.batches._delivery import Delivery
from fbuf_adapters.pytorch.batches._drawer import TensorDrawer


class TensorStream(BatchStream[TensorDrawer]):
    """Draw the batches of a backend. Call the methods with the lock of the buffer held."""

    def __init__(self, spec: Spec, key: jax.Array, delivery: Delivery) -> None:
        """Begin; nothing is drawn yet.

        Args:
            spec: The arguments of the buffer.
            key: The key of all batches; it lies where they are drawn.
            delivery: Makes of a batch what the user gets.
        """
        drawer = TensorDrawer(spec, key, delivery)
        first = drawer.turn((0, 0))
        super().__init__(
            drawer, first, spec.batch_size, spec.prefetch, "fbuf-prefetch", spec.batches_per_draw
        )

    def begin_epoch(self) -> None:
        """Go on with the first batch of an epoch."""
        self.drop()
        if self._unfinished and threading.current_thread() is threading.main_thread():
            self._give_up(self._unfinished)
        epoch, first = np.asarray(self.drawer.array(self._turn))
        if first:
            self._turn = self.drawer.turn((epoch + np.uint32(1), 0))

    def elsewhere(
        self, key: jax.Array, turns: Any, ahead: Sequence[Any], sizes: list[int]
    ) -> TensorStream:
        """Return the stream at another point of a run.

        Args:
            key: The key.
            turns: The turns of the batches drawn ahead, and that of the next one: uint32
                `[len(ahead) + 1, 2]`.
            ahead: These batches.
            sizes: The known sizes of batches; see `Sizes.own`.
        """
        before = [self.drawer.turn(turn) for turn in np.asarray(turns)]
        other = copy.copy(self)
        other.drawer = self.drawer.of_run(key, sizes)
        other._turn = other._last = before[0]
        other._ahead = collections.deque(
            Drawn(turn, after, self._batch_size or 0, self.drawer.loaded(batch), ahead=True)
            for batch, turn, after in zip(ahead, before, before[1:], strict=False)
        )
        other._unfinished = other._context = None
        return other
