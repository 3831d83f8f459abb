"""The stream of batches of tensors."""

from __future__ import annotations

import collections
import copy
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fbuf.adapter_api import BatchStream, Drawn
from fbuf_adapters.pytorch import _delivery, _modes, _sizes
from fbuf_adapters.pytorch._backend import Backend
from fbuf_adapters.pytorch._delivery import PackedBatch
from fbuf_adapters.pytorch._programs import BatchRequest, Recipe
from fbuf_adapters.pytorch._spec import Spec


class TensorStream(BatchStream):
    """Draw the batches of a backend. Call the methods with the lock of the buffer held.

    A turn is uint32 `[2]` on the device: the number of the batch in two words. Without replacement,
    it is the number of the epoch and the place in it.
    """

    def __init__(self, spec: Spec, key: jax.Array, delivery: _delivery.Delivery) -> None:
        """Begin; nothing is drawn yet.

        Args:
            spec: The arguments of the buffer.
            key: The key of all batches; it lies where they are drawn.
            delivery: Makes of a batch what the user gets.
        """
        turn = jax.device_put(np.zeros(2, np.uint32), _device(key))
        super().__init__(turn, spec.batch_size, spec.prefetch, "fbuf-prefetch")
        self.key = key
        replaces = not spec.buffer.sampler.without_replacement
        self._recipe = Recipe(not replaces, spec.drop_last, spec.view)
        self._delivery = delivery
        self._stream = _delivery.stream_for(spec.device, spec.to) if spec.prefetch else None
        self._takes_modes = spec.transform is not None and bool(spec.prefetch)
        self._modes: _modes.Modes | None = None
        """The modes that the batches drawn ahead are made under; None if they are not known."""
        self.sizes = _sizes.Sizes()
        if spec.batch_size is not None:
            self.sizes.fitting("sample", spec.batch_size)

    def next(self, source: Backend, size: int, option: Any) -> Drawn:
        """Return the next batch; see `BatchStream.next`."""
        if self._takes_modes and (modes := _modes.current()) != self._modes:
            if self._modes is not None:  # batches made under others are not what this call asks for
                self.drop()
            self._modes = modes
        return super().next(source, size, option)

    def draw(
        self, source: Backend, turn: jax.Array, size: int, option: Any
    ) -> tuple[Callable[[], Any], jax.Array]:
        """Draw the batch of a turn; see `BatchStream.draw`."""
        made, after = self._draw(source, turn, size, option, ahead=False)
        return functools.partial(self._delivery.at_once, made), after

    def draw_ahead(
        self, source: Backend, turn: jax.Array, size: int, option: Any
    ) -> tuple[Callable[[], Any], jax.Array]:
        """Draw the batch of a turn for the thread; see `BatchStream.draw_ahead`."""
        made, after = self._draw(source, turn, size, option, ahead=True)
        make = functools.partial(self._delivery, made)
        if self._modes is not None:
            make = functools.partial(_modes.under, self._modes, make)
        stream = self._stream  # and not this object, which pending batches would keep
        return lambda: _delivery.Ahead(make, stream).take, after

    def exists(self, turn: jax.Array) -> bool:
        """Tell whether the program that was to compute a turn did so."""
        try:
            turn.block_until_ready()
        except jax.errors.JaxRuntimeError:
            return False
        return True

    def begin_epoch(self) -> None:
        """Go on with the first batch of an epoch."""
        self.drop()
        if self._unfinished and threading.current_thread() is threading.main_thread():
            self._give_up(self._unfinished)
        epoch, first = np.asarray(self._turn)
        if first:
            turn = np.array([epoch + np.uint32(1), 0], np.uint32)
            self._turn = jax.device_put(turn, _device(self.key))

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
        device = _device(self.key)
        before = [jax.device_put(turn, device) for turn in np.asarray(turns)]
        waiting: collections.deque[Drawn] = collections.deque()
        for batch, turn, after in zip(ahead, before, before[1:], strict=False):
            place = functools.partial(self._delivery.place, batch)
            made = _delivery.Ahead(place, self._stream)
            waiting.append(Drawn(turn, after, self._batch_size or 0, made.take, ahead=True))
        other = copy.copy(self)
        other.key, other._turn = jax.device_put(key, device), before[0]
        other._last = before[0]
        other._ahead, other._unfinished = waiting, None
        other._modes = None
        other.sizes = _sizes.Sizes()
        if sizes:
            other.sizes.own["sample"] = list(sizes)
        return other

    def _draw(
        self, backend: Backend, turn: jax.Array, size: int, beta: Any, ahead: bool
    ) -> tuple[Callable[[], PackedBatch], jax.Array]:
        """Return a function that makes the packed batch of a turn, and the next turn."""
        fitting = self.sizes.fitting("sample", size)
        count = None if fitting is None else np.int32(size)
        asked = BatchRequest(self.key, turn, count, beta, fitting or size, size)
        return backend.batch_program(self._recipe)(backend.leaves, asked, ahead)


def _device(array: jax.Array) -> Any:
    (device,) = array.devices()
    return device
