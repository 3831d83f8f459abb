"""The batches of a buffer: drawn in turn, some of them ahead, and each given out once."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fbuf.runtime.thread import Task, Worker
from fbuf_adapters.pytorch import _delivery, _modes, _sizes
from fbuf_adapters.pytorch._backend import Backend
from fbuf_adapters.pytorch._delivery import PackedBatch
from fbuf_adapters.pytorch._programs import BatchRequest, Recipe
from fbuf_adapters.pytorch._spec import Spec


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """A batch that was drawn.

    Attributes:
        before: The turn it was drawn at.
        after: The turn of the next batch.
        size: How many rows it was asked for.
        take: Returns the batch as the user gets it.
        cancel: Is called if nobody will take it.
        ahead: Whether another thread makes it, whole, once.
    """

    before: jax.Array
    after: jax.Array
    size: int
    take: Callable[[], Any]
    cancel: Callable[[], Any] = lambda: None
    ahead: bool = False


class BatchStream:
    """Draw the batches of one buffer. Call the methods with its lock held.

    A turn names the next batch, uint32 `[2]`: its number in two words. Without replacement, a turn
    is the number of the epoch and the place in it.
    """

    def __init__(self, spec: Spec, key: jax.Array, delivery: _delivery.Delivery) -> None:
        """Begin; nothing is drawn yet.

        Args:
            spec: The arguments of the buffer.
            key: The key of all batches; it lies where they are drawn.
            delivery: Makes of a batch what the user gets.
        """
        self.key = key
        in_order = spec.buffer.sampler.without_replacement
        self._recipe = Recipe(in_order, spec.drop_last, spec.view)
        self._batch_size = batch_size = spec.batch_size
        self._prefetch = prefetch = spec.prefetch
        self._delivery = delivery
        self._stream = _delivery.stream_for(spec.device, spec.to) if prefetch else None
        self._takes_modes = spec.transform is not None and bool(prefetch)
        self._modes: _modes.Modes | None = None
        """Those that the batches drawn ahead are made under; None if that is not known."""
        self.sizes = _sizes.Sizes()
        if batch_size is not None:
            self.sizes.fitting("sample", batch_size)
        self._turn = jax.device_put(np.zeros(2, np.uint32), _device(key))
        self._last = self._turn
        """The turn after a batch that was returned, and so has been computed."""
        self._ahead: collections.deque[Drawn] = collections.deque()
        self._unfinished: Drawn | None = None
        """The batch of the main thread's last call, as long as that has not returned it."""
        self._again = False
        """Whether that batch is to be drawn again if the call was broken off."""
        self._worker = Worker("fbuf-prefetch") if prefetch else None

    def next(self, backend: Backend, size: int, beta: Any) -> Drawn:
        """The batch to give out next.

        In the main thread an exception can come at any place in here. So one
        instruction notes the next batch and all changes that belong to it. If a call is broken
        off, the next call gives the noted batch out.
        """
        if self._takes_modes and (modes := _modes.current()) != self._modes:
            if self._modes is not None:  # what was made under others is not what this call asks for
                self.drop()
            self._modes = modes
        in_main = threading.current_thread() is threading.main_thread()
        drawn = self._unfinished if in_main else None
        if drawn is not None and drawn.size != size:
            self._give_up(drawn)
            drawn = None
        if self._ahead and self._ahead[0].after is self._turn:  # an exception came before this
            self._ahead.popleft()
        if drawn is not None:
            if self._again or not drawn.ahead:
                # Rows have gone since, or a transform may have changed what was drawn.
                made, after = self._draw(backend, drawn.before, size, beta)
                take = functools.partial(self._delivery.at_once, made)
                turn = after if drawn.after is self._turn else self._turn
                drawn = dataclasses.replace(drawn, take=take, after=after, ahead=False)
                self.__dict__.update(_unfinished=drawn, _again=False, _turn=turn)
            return drawn
        if self._ahead and size != self._ahead[0].size:
            self.drop()
        if self._prefetch and size == self._batch_size:
            self._draw_ahead(backend, beta)
        if self._ahead:
            drawn = self._ahead[0]
        else:
            made, after = self._draw(backend, self._turn, size, beta)
            drawn = Drawn(self._turn, after, size, functools.partial(self._delivery.at_once, made))
        given: dict[str, Any] = {"_turn": drawn.after}
        unfinished = {"_unfinished": drawn, "_again": False}
        self.__dict__.update(given | unfinished if in_main else given)
        if self._ahead and self._ahead[0] is drawn:
            self._ahead.popleft()
        return drawn

    def returned(self, drawn: Drawn) -> None:
        """Take note that a call is about to return a batch."""
        self._last = drawn.after
        if self._unfinished is drawn:
            self._unfinished = None

    def failed(self, drawn: Drawn) -> None:
        """Take note that a call has failed: leave its batch out.

        But if there was no memory to draw it, its turn comes again: the failed program would have
        returned the next turn.
        """
        turn = self._turn
        if not _exists(turn):
            turn = drawn.before if _exists(drawn.before) else self._last
            self.drop()
        unfinished = None if self._unfinished is drawn else self._unfinished
        self.__dict__.update(_unfinished=unfinished, _turn=turn)

    def drop(self) -> None:
        """Forget what was drawn ahead, as if it had not been drawn."""
        # The main thread may be about to return the batch: only it knows.
        self._again = True
        ahead, self._ahead = self._ahead, collections.deque()
        for drawn in ahead:
            drawn.cancel()

    def begin_epoch(self) -> None:
        """Go on with the first batch of an epoch."""
        self.drop()
        if self._unfinished and threading.current_thread() is threading.main_thread():
            self._give_up(self._unfinished)
        epoch, first = np.asarray(self._turn)
        if first:
            turn = np.array([epoch + np.uint32(1), 0], np.uint32)
            self._turn = jax.device_put(turn, _device(self.key))

    def waiting(self) -> tuple[list[Drawn], jax.Array]:
        """The batches that were drawn ahead and not given out, and the turn after them."""
        drawn, turn = [x for x in self._ahead if x.after is not self._turn], self._turn
        unfinished = self._unfinished
        if unfinished is not None and unfinished.ahead and not self._again:
            drawn.insert(0, unfinished)
        elif unfinished is not None and unfinished.after is turn and not drawn:
            turn = unfinished.before
        return drawn, drawn[-1].after if drawn else turn

    def elsewhere(
        self, key: jax.Array, turns: Any, ahead: Sequence[Any], sizes: list[int]
    ) -> BatchStream:
        """The same, at another point of a run.

        Args:
            key: The key.
            turns: The turns that batches were drawn at ahead, and that of the next one: uint32
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

    def close(self) -> None:
        """Give nothing out any more."""
        self.drop()
        if self._worker is not None:
            self._worker.close()

    def _give_up(self, drawn: Drawn) -> None:
        """Forget the batch of a call that was broken off, and draw it again if it was the last."""
        turn = drawn.before if drawn.after is self._turn else self._turn
        self.__dict__.update(_unfinished=None, _turn=turn)

    def _draw_ahead(self, backend: Backend, beta: Any) -> None:
        """Draw one batch more than is to be kept ready."""
        worker, size = self._worker, self._batch_size
        assert worker is not None
        assert size is not None
        while len(self._ahead) <= self._prefetch:
            turn = self._ahead[-1].after if self._ahead else self._turn
            made, after = self._draw(backend, turn, size, beta, ahead=True)
            make = functools.partial(self._delivery, made)
            if self._modes is not None:
                make = functools.partial(_modes.under, self._modes, make)
            task = worker.submit(Task(functools.partial(_delivery.Ahead, make, self._stream)))
            take = functools.partial(_taken, task)
            self._ahead.append(Drawn(turn, after, size, take, task.cancel, ahead=True))

    def _draw(
        self, backend: Backend, turn: jax.Array, size: int, beta: Any, ahead: bool = False
    ) -> tuple[Callable[[], PackedBatch], jax.Array]:
        """Return a function that makes the batch of a turn, and the next turn.

        With `ahead`, a thread calls the function.
        """
        fitting = self.sizes.fitting("sample", size)
        count = None if fitting is None else np.int32(size)
        asked = BatchRequest(self.key, turn, count, beta, fitting or size, size)
        return backend.batch_program(self._recipe)(backend.leaves, asked, ahead)


def _taken(task: Any) -> Any:
    return task.result().take()


def _exists(array: jax.Array) -> bool:
    """Whether the program that was to compute an array did so."""
    try:
        array.block_until_ready()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _device(array: jax.Array) -> Any:
    (device,) = array.devices()
    return device
