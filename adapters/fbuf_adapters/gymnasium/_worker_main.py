"""What a process does: it makes steps, chunk by chunk, and puts them where the learner reads them.

Nothing here imports JAX or PyTorch. What the user's functions import is theirs.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
import sys
import threading
import time
from multiprocessing import connection as connections
from multiprocessing import process as processes
from typing import Any

from fbuf_adapters.gymnasium._heartbeat import POLICY, WAITING, Board, Stopped
from fbuf_adapters.gymnasium._messages import Command, Filled, Ready
from fbuf_adapters.gymnasium._shared_chunks import Room, Slots
from fbuf_adapters.gymnasium._shared_memory import Memory
from fbuf_adapters.gymnasium._stepper import Stepper
from fbuf_adapters.gymnasium._worker_envs import Station


@dataclasses.dataclass(frozen=True)
class Job:
    """What a process is given when it starts. It is small: the large parts are in memory."""

    number: int
    envs: slice
    seed: int
    die_with_parent: bool
    payload: Memory
    weights: Memory | None
    board: Board
    room: Room


def work(job: Job, connection: Any) -> None:
    """Run a process to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner, which ends this
    _watch_parent(job.die_with_parent)
    station = Station(job.board, job.number)
    try:
        _serve(job, connection, station)
    except Stopped:
        station.close()
    except BaseException as error:
        # Before anything is closed, which may hang.
        with contextlib.suppress(OSError):
            connection.send(station.failed(error))
        with contextlib.suppress(Exception):  # what has failed may fail to close, too
            station.close()


def _serve(job: Job, connection: Any, station: Station) -> None:
    stepper, weights = station.open(bytes(job.payload), job.envs, job.seed)
    version = -1
    if weights is not None:
        assert job.weights is not None
        weights.attach(job.weights)
        version = _load(job, stepper, weights)
    spec = stepper.spec
    connection.send(Ready(spec))
    slots: Slots | None = None
    while True:
        job.board.at(job.number, WAITING)
        began = time.perf_counter()
        command = _next(connection)
        got = time.perf_counter()
        if slots is None:  # by now there is room for them
            slots = job.room.open(spec)
        if command.newest and weights is not None and weights.version > version:
            version = _load(job, stepper, weights)
        chunk = stepper.chunk(command.steps)
        slots.write(command.slot, job.envs, chunk)
        worked = time.perf_counter() - got
        waited = got - began
        connection.send(
            Filled(command.slot, chunk.steps, chunk.version, chunk.fresh, waited, worked)
        )


def _next(connection: Any) -> Command:
    try:
        command = connection.recv()
    except (EOFError, OSError):  # the learner has gone
        raise Stopped from None
    if command is None:
        raise Stopped
    return command


def _load(job: Job, stepper: Stepper, weights: Any) -> int:
    job.board.at(job.number, POLICY)
    version, tree = weights.read()
    stepper.load(tree, version)
    return version


def _watch_parent(by_kernel: bool) -> None:
    """End with the parent, also if it is killed, or if this process hangs."""
    parent = processes.parent_process()
    assert parent is not None
    if by_kernel and sys.platform == "linux":
        # Also out of a call that never returns.
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    ends = [parent.sentinel]

    def wait() -> None:
        connections.wait(ends)
        os._exit(1)

    threading.Thread(target=wait, name="fbuf parent watch", daemon=True).start()
