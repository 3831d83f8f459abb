"""One process, as the learner sees it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import signal
import threading
import time
from typing import Any

from fbuf_adapters.gymnasium._heartbeat import STARTING, Board, in_words
from fbuf_adapters.gymnasium._messages import Command, Failed, Filled, Ready
from fbuf_adapters.gymnasium._spawn import UNGUARDED, spawn
from fbuf_adapters.gymnasium._worker_main import Job, work
from fbuf_adapters.gymnasium._worker_pool import START, Ended


class Process:
    """A `Worker` of a crew, whose chunks come in shared memory."""

    def __init__(self, job: Job, timeout: float) -> None:
        """Start it."""
        self.number = job.number
        self.envs = job.envs
        self.ready = False
        self.commands: collections.deque[Command] = collections.deque()
        self.filled: collections.deque[Filled] = collections.deque()
        self._job = job
        self._timeout = timeout
        self._start()

    def _start(self) -> None:
        board: Board = self._job.board
        board.stop(self.number, False)
        board.at(self.number, STARTING)
        self._asked = 0.0
        # Linux ends a process with the thread that started it, which shall be the main one.
        by_kernel = threading.current_thread() is threading.main_thread()
        job = dataclasses.replace(self._job, die_with_parent=by_kernel)
        self._process, self._connection = spawn(work, job, f"fbuf collector {self.number}")

    def resumed(self) -> None:
        """What it does now, it does from now on."""
        self._asked = time.monotonic()

    def restart(self) -> None:
        """Start it anew with other seeds."""
        self.end()
        self.ready = False
        self._job = dataclasses.replace(self._job, seed=self._job.seed + self._job.room.envs)
        self._start()

    @property
    def waitable(self) -> list[Any]:
        """What becomes readable: the connection, and the process when it has ended."""
        return [self._connection, self._process.sentinel]

    def command(self, command: Command) -> None:
        """Have it fill a slot, when it has started."""
        self.commands.append(command)
        if self.ready:
            self._send(command)

    def _send(self, command: Command | None) -> None:
        self._asked = time.monotonic()
        with contextlib.suppress(OSError):  # it has ended, which is seen when it is listened to
            self._connection.send(command)

    def listen(self) -> Any:
        """Take in what it has sent."""
        ended = not self._process.is_alive()
        spec: Any = None
        try:
            while self._connection.poll():
                message = self._connection.recv()
                if isinstance(message, Failed):
                    raise Ended.by(message, "process")
                if isinstance(message, Ready):
                    self.ready, spec = True, message.spec
                    for command in self.commands:  # of its life before
                        self._send(command)
                else:
                    self.commands.popleft()
                    self.filled.append(message)
        except (EOFError, OSError):
            ended = True
        if ended:
            raise Ended(self._end_in_words())
        if self.commands or not self.ready:
            self._refuse_hanging()
        return spec

    def _refuse_hanging(self) -> None:
        board: Board = self._job.board
        quiet = time.monotonic() - max(board.since(self.number), self._asked)
        place = board.where(self.number)
        if quiet > (max(self._timeout, START) if place == STARTING else self._timeout):
            raise Ended(
                f"hangs {in_words(place)}, for {quiet:.0f} s now (timeout={self._timeout:g})"
            )

    def _end_in_words(self) -> str:
        self._process.join(5)
        place, code = in_words(self._job.board.where(self.number)), self._process.exitcode
        if code == UNGUARDED and not self.ready:
            return (
                "imported your script when it started, and your script makes a collector when it "
                "is imported; put all that the script does under\n\n"
                '    if __name__ == "__main__":\n'
            )
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name} {place}"
        return f"ended with exit code {code} {place}; what it printed may say why"

    def stop(self) -> None:
        """Ask it to end."""
        self._job.board.stop(self.number, True)
        self._send(None)

    def end(self, patience: float = 0.0) -> None:
        """Have it ended."""
        if not self._process.is_alive():
            patience = 5.0
        self._process.join(patience)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(0.5)
        if self._process.is_alive():  # in a call that lets no signal through
            self._process.kill()
            self._process.join(5)
        self._connection.close()
