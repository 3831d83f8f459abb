"""What a process does: it makes steps, chunk by chunk, and puts them where the learner reads them.

Nothing here imports JAX or PyTorch. What the user's functions import is theirs.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from multiprocessing import connection as connections
from multiprocessing import process as processes
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fbuf_adapters.gymnasium._memory import Memory
from fbuf_adapters.gymnasium._place import POLICY, STARTING, WAITING, Board, Stopped
from fbuf_adapters.gymnasium._slots import Slots
from fbuf_adapters.gymnasium._stepper import Stepper
from fbuf_adapters.gymnasium._watched import Watched, WatchedPolicy


@dataclasses.dataclass(frozen=True)
class Job:
    """What a process is given when it starts. It is small: the large parts are in memory."""

    number: int
    envs: slice
    all_envs: int
    slots: int
    chunk: int
    seed: int
    die_with_parent: bool
    payload: Memory
    weights: Memory | None
    board: Board
    chunks: Memory


@dataclasses.dataclass(frozen=True)
class Ready:
    """It has made its environments, and knows what a row is."""

    spec: Any


@dataclasses.dataclass(frozen=True)
class Command:
    """Fill a slot."""

    slot: int
    steps: int
    newest: bool  # take the newest weights first


@dataclasses.dataclass(frozen=True)
class Filled:
    """A slot has been filled."""

    slot: int
    steps: int
    version: int
    fresh: bool
    waited: float  # seconds that it waited for the slot
    worked: float  # seconds that it took to fill it


@dataclasses.dataclass(frozen=True)
class Failed:
    """It cannot go on."""

    place: int
    reason: str
    trace: str


def work(job: Job, connection: Any) -> None:
    """Run a process to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner, which ends this
    _watch_parent(job.die_with_parent)
    envs: list[Watched] = []
    with contextlib.ExitStack() as closing:
        try:
            _serve(job, connection, envs, closing)
        except Stopped:
            pass
        except BaseException as error:
            # Before anything is closed, which may hang.
            with contextlib.suppress(OSError):
                connection.send(_failed(job, envs, error))
            closing.push(lambda *_: True)  # what has failed may fail to close, too


def _serve(job: Job, connection: Any, envs: list[Watched], closing: contextlib.ExitStack) -> None:
    board, number = job.board, job.number
    board.at(number, STARTING)
    make_env, policy, weights = pickle.loads(bytes(job.payload))
    _seed(job.seed)

    def make(env: int) -> Watched:
        board.at(number, env)
        envs.append(Watched(make_env(), env, functools.partial(board.at, number, env)))
        return envs[-1]

    numbers = range(job.envs.start, job.envs.stop)
    vector = SyncVectorEnv(
        [lambda env=env: make(env) for env in numbers], autoreset_mode=AutoresetMode.SAME_STEP
    )
    closing.callback(vector.close)
    _seed(job.seed)  # also what the environments have imported
    stepper = Stepper(vector, WatchedPolicy(policy, board, number), seed=job.seed)
    version = -1
    if weights is not None:
        assert job.weights is not None
        weights.attach(job.weights)
        version = _load(job, stepper, weights)
    spec = stepper.spec
    connection.send(Ready(spec))
    slots: Slots | None = None
    while True:
        board.at(number, WAITING)
        began = time.perf_counter()
        command = _next(connection)
        got = time.perf_counter()
        if slots is None:  # by now there is room for them
            slots = Slots(job.chunks, spec, job.slots, job.chunk, job.all_envs)
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


def _seed(seed: int) -> None:
    """Seed the global generators: what was copied into all processes would act alike in all."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _failed(job: Job, envs: list[Watched], error: BaseException) -> Failed:
    place = job.board.where(job.number)
    reason = "".join(traceback.format_exception_only(error)).strip()
    for env in envs:
        differing = env.differing()
        if differing is not None:
            place, reason = env.number, f"{differing} ({reason})"
            break
    trace = "".join(traceback.format_exception(error))
    return Failed(place, reason, trace[-20_000:])


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
