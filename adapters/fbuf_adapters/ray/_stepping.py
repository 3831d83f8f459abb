"""What an actor does: it makes steps, and returns them chunk by chunk.

Nothing here imports JAX or PyTorch. What the user's functions import is theirs.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import ray

from fbuf_adapters.gymnasium._chunk import Chunk
from fbuf_adapters.gymnasium._heartbeat import POLICY, SIZE, STARTING, WAITING, Board, Stopped
from fbuf_adapters.gymnasium._messages import Command, Failed, Filled, Ready
from fbuf_adapters.gymnasium._shared_memory import Memory
from fbuf_adapters.gymnasium._stepper import Stepper
from fbuf_adapters.gymnasium._worker_envs import Station

Stamped = tuple[int, list[Any]]
"""A version, and its weights: a reference to a list of arrays. It is in a list of its own, so that
Ray passes it on as a reference. The weights cross only to actors that act with them."""

CONTROL = "control"
"""The thread of the methods that answer while a chunk is made, which another thread does."""


class Stepping:
    """The environments and the policy of one worker. Ray makes an actor of it."""

    def __init__(self, environment: dict[str, str]) -> None:
        """Set these variables first: what is imported later looks at them."""
        os.environ.update(environment)
        self._board = Board(Memory(SIZE))
        self._board.at(0, STARTING)
        self._station = Station(self._board, 0)
        self._newest: Stamped | None = None
        self._taking = threading.Lock()
        self._version = -1
        self._stepper: Stepper
        self._form: Any = None
        self._idle = 0.0

    def open(
        self, payload: bytes, envs: slice, seed: int, weights: Stamped | None
    ) -> Ready | Failed:
        """Make the environments."""
        try:
            self._stepper, self._form = self._station.open(payload, envs, seed)
            self._take(weights)
            self._load()
            spec = self._stepper.spec
        except BaseException as error:
            return self._station.failed(error)
        self._rest()
        return Ready(spec)

    def fill(
        self, command: Command, weights: Stamped | None
    ) -> tuple[Filled, Chunk] | Failed | None:
        """Make a chunk; None if it is not wanted any more."""
        got = time.perf_counter()
        waited = got - self._idle
        try:
            self._take(weights)
            if command.newest:
                self._load()
            chunk = self._stepper.chunk(command.steps)
        except Stopped:
            return None
        except BaseException as error:
            return self._station.failed(error)
        worked = time.perf_counter() - got
        self._rest()
        done = Filled(command.slot, chunk.steps, chunk.version, chunk.fresh, waited, worked)
        return done, chunk

    def close(self) -> None:
        """Close the environments."""
        self._station.close()

    @ray.method(concurrency_group=CONTROL)
    def publish(self, weights: Stamped) -> None:
        """Take these weights before the next chunk."""
        self._take(weights)

    @ray.method(concurrency_group=CONTROL)
    def where(self) -> tuple[int, float]:
        """The place it is at, and for how many seconds."""
        return self._board.where(0), time.monotonic() - self._board.since(0)

    @ray.method(concurrency_group=CONTROL)
    def stop(self) -> None:
        """Make no more steps."""
        self._board.stop(0, True)

    def _rest(self) -> None:
        self._board.at(0, WAITING)
        self._idle = time.perf_counter()

    def _take(self, weights: Stamped | None) -> None:
        # What is published and what comes with a command arrive in any order.
        with self._taking:
            if weights is not None and (self._newest is None or weights[0] > self._newest[0]):
                self._newest = weights

    def _load(self) -> None:
        """Have the policy act with the newest weights."""
        newest = self._newest
        if newest is None or newest[0] == self._version:
            return
        self._board.at(0, POLICY)
        version, (reference,) = newest
        # Copies: what Ray hands out is in its store, and cannot be written to.
        arrays = [np.array(array) for array in ray.get(reference)]
        self._stepper.load(self._form.tree(arrays), version)
        self._version = version
