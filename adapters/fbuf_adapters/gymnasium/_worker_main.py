"""The inside of a worker: its environments, its policy, and the main function of a process.

Nothing here imports JAX or PyTorch. The user's functions may import what they need.
"""

from __future__ import annotations

import contextlib
import copy
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
from collections.abc import Callable
from multiprocessing import connection as connections
from multiprocessing import process as processes
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fbuf_adapters.gymnasium import _messages, _spaces
from fbuf_adapters.gymnasium._chunk import StepChunk
from fbuf_adapters.gymnasium._shared_memory import SharedChunks, SharedMemory
from fbuf_adapters.gymnasium._stepper import Stepper, derived_seed

_NOTHING = object()


class WorkerEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper of an environment that keeps the last observation for errors."""

    def __init__(self, env: Any, number: int, note: Callable[[], None]) -> None:
        """Call `note` at each step."""
        super().__init__(env)
        self.number = number
        self._note = note
        self._returned: Any = _NOTHING

    def reset(self, **kwargs: Any) -> Any:
        """Reset the environment."""
        self._note()
        returned = self.env.reset(**kwargs)
        self._returned = returned[0]
        return returned

    def step(self, action: Any) -> Any:
        """Step the environment."""
        self._note()
        returned = self.env.step(action)
        self._returned = returned[0]
        if len(returned) == 5 and (returned[2] or returned[3]):
            # The copy survives the reset, which may write to the same array.
            return copy.deepcopy(returned[0]), *returned[1:]
        return returned

    def difference(self) -> str | None:
        """Return the difference of the last observation from its space, for errors."""
        if self._returned is _NOTHING:
            return None
        try:
            specs = _spaces.space_specs(self.env.observation_space, "")
        except Exception:  # the space cannot be stored, which was the error
            return None
        leaves = _spaces.matched(self._returned, specs)
        if leaves is None:
            return "its observation is another tree than its observation space"
        for (path, spec), leaf in zip(_spaces.paths(specs), leaves, strict=True):
            if np.shape(leaf) != spec.shape:
                return (
                    f"its observation{path} is of shape {np.shape(leaf)}, and its observation "
                    f"space says {spec.shape}"
                )
        return None


class WorkerPolicy:
    """The policy of a worker."""

    def __init__(self, policy: Any, heartbeat: _messages.Heartbeat) -> None:
        """Record in the heartbeat that the policy acts; stop if the heartbeat says so."""
        self._policy = policy
        self._heartbeat = heartbeat

    def __call__(self, observation: Any) -> Any:
        """Call the policy."""
        self._heartbeat.check()
        self._heartbeat.at(_messages.POLICY)
        return self._policy(observation)

    def __getattr__(self, name: str) -> Any:
        """Return a method of the policy, such as `seed`, and record its call in the heartbeat."""
        self._heartbeat.at(_messages.POLICY)
        return getattr(self._policy, name)


class WorkerEnvs:
    """The environments of one worker: makes, steps and closes them, and reports failures."""

    def __init__(self, heartbeat: _messages.Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._envs: list[WorkerEnv] = []
        self._vector: SyncVectorEnv | None = None
        self._stepper: Stepper
        self._version = -1
        self._idle_since = 0.0

    def open(self, payload: bytes, envs: slice, seed: int) -> Any:
        """Make the environments; return the object that reads the weights."""
        self._heartbeat.at(_messages.STARTING)
        make_env, policy, weights, info, observe = pickle.loads(payload)
        _seed(derived_seed(seed))

        def make(env: int) -> WorkerEnv:
            note = functools.partial(self._heartbeat.at, env)
            note()
            self._envs.append(WorkerEnv(make_env(), env, note))
            return self._envs[-1]

        self._vector = SyncVectorEnv(
            [functools.partial(make, env) for env in range(envs.start, envs.stop)],
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        self._with_vector_rewards()
        _seed(derived_seed(seed))  # after the environments, which may import torch
        own = WorkerPolicy(policy, self._heartbeat)
        self._stepper = Stepper(self._vector, own, seed=seed, info=info, observe=observe)
        return weights

    def _with_vector_rewards(self) -> None:
        """Make room for vectors, as MO-Gymnasium does: Gymnasium has one number an environment."""
        vector: Any = self._vector
        space = getattr(self._envs[0].unwrapped, "reward_space", None)
        if space is not None:
            vector.reward_space = space
            vector._rewards = np.zeros((len(self._envs), *space.shape))

    def load(self, version: int, read: Callable[[], tuple[int, Any]]) -> None:
        """Use the weights of `read`, if `version` is newer than the current one."""
        if version > self._version:
            self._heartbeat.at(_messages.POLICY)  # reading counts as acting
            self._version, tree = read()
            self._stepper.load(tree, self._version)

    def ready(self) -> _messages.Ready:
        """Return the spec of a row, and wait for work."""
        spec = self._stepper.spec
        self._wait()
        return _messages.Ready(spec)

    def fill(
        self, command: _messages.Command, load: Callable[[], None], put: Callable[[StepChunk], Any]
    ) -> tuple[_messages.Filled, Any]:
        """Make a chunk, after `load` has updated the policy, and pass it to `put`."""
        got = time.perf_counter()
        waited = got - self._idle_since
        if command.newest:
            load()
        chunk = self._stepper.chunk(command.steps)
        result = put(chunk)
        self._wait()
        worked = self._idle_since - got
        filled = _messages.Filled(
            command.slot, chunk.steps, chunk.version, chunk.fresh, waited, worked
        )
        return filled, result

    def _wait(self) -> None:
        self._heartbeat.at(_messages.WAITING)
        self._idle_since = time.perf_counter()

    def failed(self, error: BaseException) -> _messages.Failed:
        """Return the place of the worker, and the error."""
        place, _ = self._heartbeat.where()
        reason = "".join(traceback.format_exception_only(error)).strip()
        for env in self._envs if place != _messages.POLICY else ():
            difference = env.difference()
            if difference is not None:
                place, reason = env.number, f"{difference} ({reason})"
                break
        trace = "".join(traceback.format_exception(error))
        return _messages.Failed(place, reason, trace[-20_000:])

    def close(self) -> None:
        """Close the environments that were made."""
        if self._vector is not None:
            self._vector.close()


def _seed(seed: int) -> None:
    """Seed the global generators, whose copies would be equal in all workers."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  users draw from the global one
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@dataclasses.dataclass(frozen=True)
class ProcessJob:
    """The argument of a process. It is small: the large parts are in shared memory."""

    envs: slice
    seed: int
    die_with_parent: bool
    payload: SharedMemory
    weights: SharedMemory | None
    heartbeat: _messages.Heartbeat
    chunks: SharedChunks


def work(job: ProcessJob, connection: Any) -> None:
    """Run a process to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner, which ends this
    _watch_parent(job.die_with_parent)
    job.heartbeat.at(_messages.STARTING)  # Python has imported the script by now
    envs = WorkerEnvs(job.heartbeat)
    try:
        _serve(job, connection, envs)
    except _messages.Stopped:
        envs.close()
    except BaseException as error:
        # Before closing, which may hang.
        with contextlib.suppress(OSError):
            connection.send(envs.failed(error))
        with contextlib.suppress(Exception):  # an environment that failed may fail to close, too
            envs.close()


def _serve(job: ProcessJob, connection: Any, envs: WorkerEnvs) -> None:
    weights = envs.open(job.payload.buffer[:], job.envs, job.seed)

    def load() -> None:
        if weights is not None:
            envs.load(weights.version, weights.read)

    if weights is not None:
        assert job.weights is not None
        weights.attach(job.weights)
    load()
    ready = envs.ready()
    connection.send(ready)
    while True:
        command = _next(connection)
        job.chunks.attach(ready.spec)  # by now the memory has been allocated
        put = functools.partial(job.chunks.write, command.slot, job.envs)
        connection.send(envs.fill(command, load, put)[0])


def _next(connection: Any) -> _messages.Command:
    try:
        command = connection.recv()
    except (EOFError, OSError):  # the learner has ended
        raise _messages.Stopped from None
    if command is None:
        raise _messages.Stopped
    return command


def _watch_parent(by_kernel: bool) -> None:
    """End with the parent, also if it is killed, or if this process hangs."""
    parent = processes.parent_process()
    assert parent is not None
    if by_kernel and sys.platform == "linux":
        # Also during a call that never returns.
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    ends = [parent.sentinel]

    def wait() -> None:
        connections.wait(ends)
        os._exit(1)

    threading.Thread(target=wait, name="fbuf parent watch", daemon=True).start()
