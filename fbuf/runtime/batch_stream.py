"""Batches in turn, some made ahead by a thread, each returned once."""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from fbuf.runtime.interrupts import raised_by_signal_handler
from fbuf.runtime.thread import Task, Worker

Make = Callable[[], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """A drawn batch.

    Attributes:
        before: The turn of the batch.
        after: The turn of the next batch.
        size: The number of requested rows.
        take: Returns the batch for the user.
        cancel: Is called if the batch will not be used.
        ahead: Whether an interrupted call can take the batch again, as it is made once.
        raised: Tells whether an exception is that of the thread.
    """

    before: Any
    after: Any
    size: int
    take: Make
    cancel: Make = lambda: None
    ahead: bool = False
    raised: Callable[[BaseException], bool] = lambda error: False


class BatchDrawer(Protocol):
    """Draw the batch of a turn. The lock of the buffer is held during each call."""

    def draw(self, source: Any, turn: Any, size: int, option: Any) -> tuple[Make, Any]:
        """Return a function that makes the batch of a turn, and the next turn."""
        ...

    def draw_ahead(
        self, source: Any, turn: Any, size: int, option: Any, context: Any
    ) -> tuple[Make, Any]:
        """As `draw`, run by the prefetch thread; returns a function that hands the batch over."""
        ...

    def draw_several(
        self, source: Any, turn: Any, size: int, option: Any, count: int
    ) -> list[tuple[Make, Any]]:
        """Return such functions for several batches, which one program draws from one state.

        The batches equal those of separate calls of `draw`. Their number is from 1 to `count`. If
        there are several, each call of a function makes its batch again.
        """
        return [self.draw(source, turn, size, option)]

    def exists(self, turn: Any) -> bool:
        """Tell whether a turn was computed: its program may have failed."""
        return True


D = TypeVar("D", bound=BatchDrawer)


class BatchStream(Generic[D]):
    """Draw the batches of one buffer in turn. Call the methods with the lock of the buffer held.

    A turn identifies the next batch. It may be any object; turns are compared by identity.
    """

    def __init__(
        self,
        drawer: D,
        turn: Any,
        batch_size: int | None,
        prefetch: int,
        thread: str,
        per_draw: int = 1,
    ) -> None:
        """Prepare a stream, without drawing.

        Args:
            drawer: Draws the batch of a turn.
            turn: The turn of the first batch.
            batch_size: The size of the batches that are drawn ahead.
            prefetch: The number of batches to keep ready.
            thread: The name of the thread that makes them.
            per_draw: The number of batches in one program, if there is no thread.
        """
        self.drawer = drawer
        self._turn = self._last = turn
        """The turn of the next batch, and the one after the last batch that was returned."""
        self._batch_size, self._prefetch, self._per_draw = batch_size, prefetch, per_draw
        self._ahead: collections.deque[Drawn] = collections.deque()
        self._unfinished: Drawn | None = None
        """The batch of the main thread's last call, until the call returns it."""
        self._again = False
        """Whether to draw that batch again after an interrupted call."""
        self._waited = False
        """Whether that call still waits; then a signal handler gets a different batch."""
        self._context: Any = None
        """The context of the batches drawn ahead; None if unknown."""
        self._worker = Worker(thread) if prefetch else None

    def next(self, source: Any, size: int, option: Any, context: Any = None) -> Drawn:
        """Return the next batch.

        In the main thread an exception can come at any place in here. So one instruction records
        the next batch and all its changes. After an interrupted call, the next call returns the
        recorded batch.

        Args:
            source: The buffer, for `drawer`.
            size: The number of rows.
            option: An argument of the draw.
            context: The setting of the batches drawn ahead by a thread. A change of the context
                drops these batches.
        """
        if context != self._context:
            if self._context is not None:  # the context has changed
                self.drop()
            self._context = context
        in_main = threading.current_thread() is threading.main_thread()
        drawn = self._unfinished if in_main and not self._waited else None
        if drawn is not None and drawn.size != size:
            self._give_up(drawn)
            drawn = None
        if self._ahead and self._ahead[0].after is self._turn:  # an exception came before this
            self._ahead.popleft()
        if drawn is not None:
            if self._again or not drawn.ahead:
                # Its rows are gone, or the batch was not kept.
                take, after = self.drawer.draw(source, drawn.before, size, option)
                turn = after if drawn.after is self._turn else self._turn
                drawn = dataclasses.replace(drawn, take=take, after=after, ahead=False)
                self.__dict__.update(_unfinished=drawn, _again=False, _turn=turn)
            self._waited = True
            return drawn
        if self._ahead and size != self._ahead[0].size:
            self.drop()
        if self._prefetch and size == self._batch_size:
            self._fill(source, option)
        elif self._per_draw > 1 and size == self._batch_size and not self._ahead:
            self._draw_several(source, size, option)
        if self._ahead:
            drawn = self._ahead[0]
        else:
            take, after = self.drawer.draw(source, self._turn, size, option)
            drawn = Drawn(self._turn, after, size, take)
        given: dict[str, Any] = {"_turn": drawn.after}
        unfinished = {"_unfinished": drawn, "_again": False, "_waited": True}
        self.__dict__.update(given | unfinished if in_main else given)
        if self._ahead and self._ahead[0] is drawn:
            self._ahead.popleft()
        return drawn

    def ended_by(self, error: BaseException, drawn: Drawn | None, lock: Any) -> None:
        """Record that an exception has ended a call: a failure, or a signal.

        Args:
            error: The exception.
            drawn: The batch of the call; None before it has one.
            lock: The lock of the buffer, which the call has released.
        """
        if threading.current_thread() is threading.main_thread():
            self._waited = False
        has_failed = isinstance(error, Exception) and not raised_by_signal_handler(error)
        if drawn is not None and (has_failed or drawn.raised(error)):
            with lock:
                self.failed(drawn)

    def returned(self, drawn: Drawn) -> None:
        """Record that a call is about to return a batch."""
        self._last = drawn.after
        if self._unfinished is drawn:
            # Assignments and no call: after a call Python checks for signals, and an exception
            # would lose the batch.
            self._waited = False
            self._unfinished = None

    def failed(self, drawn: Drawn) -> None:
        """Record that a call has failed, and skip its batch.

        But if memory for the draw was missing, repeat the turn, as the failed program would have
        returned the next one.
        """
        turn = self._turn
        if not self.drawer.exists(turn):
            turn = drawn.before if self.drawer.exists(drawn.before) else self._last
            self.drop()
        unfinished = None if self._unfinished is drawn else self._unfinished
        self.__dict__.update(_unfinished=unfinished, _turn=turn)

    def drop(self) -> None:
        """Drop the batches drawn ahead, and return to their first turn."""
        # The main thread may be about to return the batch: only that thread can tell.
        self._again = True
        ahead, self._ahead = self._ahead, collections.deque()
        for drawn in ahead:
            drawn.cancel()

    def waiting(self) -> tuple[list[Drawn], Any]:
        """Return the unused batches drawn ahead, and the turn after them."""
        drawn, turn = [x for x in self._ahead if x.after is not self._turn], self._turn
        unfinished = self._unfinished
        if unfinished is not None and unfinished.ahead and not self._again:
            drawn.insert(0, unfinished)
        elif unfinished is not None and unfinished.after is turn and not drawn:
            turn = unfinished.before
        return drawn, drawn[-1].after if drawn else turn

    def close(self) -> None:
        """Return no more batches, and end the thread."""
        self.drop()
        if self._worker is not None:
            self._worker.close()

    def _give_up(self, drawn: Drawn) -> None:
        """Drop the batch of an interrupted call; draw it again if it was the last one."""
        turn = drawn.before if drawn.after is self._turn else self._turn
        self.__dict__.update(_unfinished=None, _turn=turn)

    def _fill(self, source: Any, option: Any) -> None:
        """Draw one batch more than `prefetch`."""
        worker, size = self._worker, self._batch_size
        assert worker is not None
        assert size is not None
        while len(self._ahead) <= self._prefetch:
            turn = self._ahead[-1].after if self._ahead else self._turn
            make, after = self.drawer.draw_ahead(source, turn, size, option, self._context)
            task = worker.submit(Task(make))
            take = functools.partial(_taken, task)
            self._ahead.append(Drawn(turn, after, size, take, task.cancel, True, task.raised))

    def _draw_several(self, source: Any, size: int, option: Any) -> None:
        """Draw the next batches in one program."""
        before, several = self._turn, []
        drawn = self.drawer.draw_several(source, before, size, option, self._per_draw)
        for make, after in drawn:
            several.append(Drawn(before, after, size, _Once(make), ahead=len(drawn) > 1))
            before = after
        self._ahead.extend(several)


class _Once:
    """A batch that is made at its first use. A save, or a repeated call, uses it again."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._made: list[Any] = []

    def __call__(self) -> Any:
        """Return the batch."""
        if not self._made:
            self._made = [self._make()]
        return self._made[0]


def _taken(task: Task) -> Any:
    return task.result()()
