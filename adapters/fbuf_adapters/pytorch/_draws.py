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
import jax.numpy as jnp
import numpy as np
import torch

import fbuf
from fbuf_adapters.pytorch import _dtypes, _handover, _packed, _sizes
from fbuf_adapters.pytorch._calls import Calls
from fbuf_adapters.pytorch._owner import Owner
from fbuf_adapters.pytorch._packed import Unpack
from fbuf_adapters.pytorch._worker import Worker


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


class Draws:
    """Draws batches of one buffer. Whoever calls it holds a lock.

    A turn says which batch is next, uint32 `[2]`: the number of the batch in two words, or the
    number of the epoch and the place in it, if batches are drawn in order.
    """

    def __init__(
        self,
        *,
        key: jax.Array,
        in_order: bool,
        drop_last: bool,
        view: Any,
        batch_size: int | None,
        prefetch: int,
        handover: _handover.Handover,
        stream: torch.cuda.Stream | None,
        calls: Calls,
    ) -> None:
        """Nothing is drawn yet.

        Args:
            key: Chooses all batches; it lies where they are drawn.
            in_order: Whether the sampler's batches are numbered.
            drop_last: Whether to leave out the last batch of an epoch if it is short.
            view: What a drawn row turns into.
            batch_size: The size of the batches that are drawn ahead.
            prefetch: How many of them.
            handover: What makes of a batch what the user gets.
            stream: Where another thread does so.
            calls: Makes the calls.
        """
        self.key = key
        self._make_program = functools.partial(
            _drawer, in_order=in_order, drop_last=drop_last, view=view
        )
        self._axes: dict[Any, Any] = {}
        self._batch_size = batch_size
        self._prefetch = prefetch
        self._handover = handover
        self._stream = stream
        self._calls = calls
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

    def next(self, owner: Owner, size: int, beta: Any) -> Drawn:
        """The batch to give out next.

        In the main thread an exception can come at any place in here. So what is about to be given
        out is noted in one instruction with all that changes by it, and the next call gives it out.
        """
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
                made, after = self._draw(owner, drawn.before, size, beta)
                take = functools.partial(self._handover.at_once, made)
                turn = after if drawn.after is self._turn else self._turn
                drawn = dataclasses.replace(drawn, take=take, after=after, ahead=False)
                self.__dict__.update(_unfinished=drawn, _again=False, _turn=turn)
            return drawn
        if self._ahead and size != self._ahead[0].size:
            self.drop()
        if self._prefetch and size == self._batch_size:
            self._draw_ahead(owner, beta)
        if self._ahead:
            drawn = self._ahead[0]
        else:
            made, after = self._draw(owner, self._turn, size, beta)
            drawn = Drawn(self._turn, after, size, functools.partial(self._handover.at_once, made))
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

        But if there was no memory to draw it, its turn comes again: the program that failed is also
        the one that says which turn is next.
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
    ) -> Draws:
        """The same, at another point of a run.

        Args:
            key: The key.
            turns: The turns that batches were drawn at ahead, and that of the next one: uint32
                `[len(ahead) + 1, 2]`.
            ahead: These batches.
            sizes: What is known of the sizes of batches, see `Sizes.own`.
        """
        device = _device(self.key)
        before = [jax.device_put(turn, device) for turn in np.asarray(turns)]
        waiting: collections.deque[Drawn] = collections.deque()
        for batch, turn, after in zip(ahead, before, before[1:], strict=False):
            place = functools.partial(self._handover.place, batch)
            made = _handover.Ahead(place, self._stream)
            waiting.append(Drawn(turn, after, self._batch_size or 0, made.take, ahead=True))
        other = copy.copy(self)
        other.key, other._turn = jax.device_put(key, device), before[0]
        other._last = before[0]
        other._ahead, other._unfinished = waiting, None
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

    def _draw_ahead(self, owner: Owner, beta: Any) -> None:
        """Draw one batch more than is to be kept ready."""
        worker, size = self._worker, self._batch_size
        assert worker is not None
        assert size is not None
        while len(self._ahead) <= self._prefetch:
            turn = self._ahead[-1].after if self._ahead else self._turn
            made, after = self._draw(owner, turn, size, beta)
            make = functools.partial(self._handover, made)
            task = worker.submit(functools.partial(_handover.Ahead, make, self._stream))
            take = functools.partial(_taken, task)
            self._ahead.append(Drawn(turn, after, size, take, task.cancel, ahead=True))

    def _draw(
        self, owner: Owner, turn: jax.Array, size: int, beta: Any
    ) -> tuple[_handover.Drawing, jax.Array]:
        """The batch of a turn, which is on its way, and the next turn."""
        fitting = self.sizes.fitting("sample", size)
        program, unpackers = owner.program("draw", self._make_program)
        count = None if fitting is None else np.int32(size)
        arguments = (owner.leaves, self.key, turn, count, beta)
        batch_size = size if fitting is None else fitting
        kind = (program, batch_size, count is None, type(beta))
        call = functools.partial(program, *arguments, batch_size=batch_size)
        packed, after = self._calls(kind, call)
        unpack, tree = unpackers[batch_size, _dtypes.x64()]
        axes = None
        if fitting is not None:
            if program not in self._axes:
                found = functools.partial(_batch_axes, program, unpackers, arguments)
                self._axes[program] = self._calls.apart(found)
            axes = self._axes[program]
        drawn = _handover.Drawing(packed, unpack, tree, size, axes)
        return drawn, after


_Unpackers = dict[tuple[int, bool], tuple[Unpack, Any]]
"""For each size of a batch, with 64 bits or without: what unpacks it, and its structure."""


def _taken(task: Any) -> Any:
    return task.result().take()


@functools.cache
def _drawer(form: Any, in_order: bool, drop_last: bool, view: Any) -> tuple[Any, _Unpackers]:
    """What draws a batch, packed, and says which turn is next; and what unpacks each size."""
    unpackers: _Unpackers = {}

    def in_epoch(
        state: Any, key: Any, turn: Any, count: Any, batch_size: int
    ) -> tuple[fbuf.Sample[Any], jax.Array]:
        rows = fbuf.stats(state)["epoch_size"].astype(jnp.uint32)
        asked = jnp.uint32(batch_size) if count is None else count.astype(jnp.uint32)
        over = (turn[1] >= rows) | (drop_last & (turn[1] + asked > rows))
        epoch, first = turn[0] + over.astype(jnp.uint32), jnp.where(over, 0, turn[1])
        step = (epoch & 0x7FFFFFFF).astype(jnp.int32), first.astype(jnp.int32)
        sample = fbuf.sample(state, key, batch_size, view=view, step=step, count=count)
        return sample, jnp.stack([epoch, first + asked])

    def alone(
        state: Any, key: Any, turn: Any, count: Any, beta: Any, batch_size: int
    ) -> tuple[fbuf.Sample[Any], jax.Array]:
        key = jax.random.fold_in(jax.random.fold_in(key, turn[0]), turn[1])
        sample = fbuf.sample(state, key, batch_size, view=view, beta=beta, count=count)
        low = turn[1] + 1
        return sample, jnp.stack([turn[0] + (low == 0), low])

    @functools.partial(jax.jit, static_argnames="batch_size")
    def draw(
        leaves: tuple[jax.Array, ...], key: Any, turn: Any, count: Any, beta: Any, batch_size: int
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        state = jax.tree.unflatten(form, leaves)
        if in_order:
            sample, after = in_epoch(state, key, turn, count, batch_size)
        else:
            sample, after = alone(state, key, turn, count, beta, batch_size)
        found, tree = jax.tree.flatten(sample)
        layout = _packed.layout(found)
        unpackers[batch_size, _dtypes.x64()] = Unpack(layout), tree
        return _packed.pack(layout, found), after

    return draw, unpackers


def _batch_axes(program: Any, unpackers: _Unpackers, arguments: Any) -> tuple[int | None, ...]:
    """On which axis of each of its leaves a batch has its rows: the one that the size changes."""
    for size in (1, 2):
        jax.eval_shape(functools.partial(program, batch_size=size), *arguments)
    one, two = (unpackers[size, _dtypes.x64()][0].shapes for size in (1, 2))
    return tuple(
        next((axis for axis, (m, n) in enumerate(zip(a, b, strict=True)) if m != n), None)
        for a, b in zip(one, two, strict=True)
    )


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
