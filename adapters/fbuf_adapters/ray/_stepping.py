"""The inside of an actor: it makes steps, and returns them chunk by chunk.

Nothing here imports JAX or PyTorch. The user's functions may import what they need.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import ray

from fbuf_adapters.gymnasium import _messages
from fbuf_adapters.gymnasium._chunk import StepChunk
from fbuf_adapters.gymnasium._spaces import map_leaves
from fbuf_adapters.gymnasium._worker_main import WorkerEnvs

Stamped = tuple[int, list[Any]]
"""A version, and a list with a reference to the weights. In a list Ray passes it on
as a reference, so weights cross only to actors that act with them."""

CONTROL = "control"
"""The thread of the methods that answer while another thread makes a chunk."""


class Stepping:
    """The environments and the policy of one worker. Ray makes an actor of it."""

    def __init__(self, environment: dict[str, str]) -> None:
        """Set these variables first: modules that are imported later read them."""
        os.environ.update(environment)
        self._heartbeat = _messages.Heartbeat()
        self._heartbeat.at(_messages.STARTING)
        self._envs = WorkerEnvs(self._heartbeat)
        self._newest: Stamped | None = None
        self._taking = threading.Lock()

    def open(
        self, payload: bytes, envs: slice, seed: int, weights: Stamped | None
    ) -> _messages.Ready | _messages.Failed:
        """Make the environments."""
        try:
            self._envs.open(payload, envs, seed)
            self._take(weights)
            self._load()
            return self._envs.ready()
        except BaseException as error:
            return self._envs.failed(error)

    def fill(
        self, command: _messages.Command, weights: Stamped | None
    ) -> tuple[_messages.Filled, StepChunk] | _messages.Failed | None:
        """Make a chunk; return None if the collector has been closed."""
        try:
            self._take(weights)
            return self._envs.fill(command, self._load, lambda chunk: chunk)
        except _messages.Stopped:
            return None
        except BaseException as error:
            return self._envs.failed(error)

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    @ray.method(concurrency_group=CONTROL)
    def publish(self, weights: Stamped) -> None:
        """Use these weights for the next chunk, unless newer ones are known."""
        self._take(weights)

    @ray.method(concurrency_group=CONTROL)
    def where(self) -> tuple[int, float]:
        """Return the place of the worker, and the seconds there."""
        place, since = self._heartbeat.where()
        return place, time.monotonic() - since

    @ray.method(concurrency_group=CONTROL)
    def stop(self) -> None:
        """Stop making steps."""
        self._heartbeat.stop(True)

    def _take(self, weights: Stamped | None) -> None:
        # Weights that are published and weights beside a command arrive in any order.
        with self._taking:
            if weights is not None and (self._newest is None or weights[0] > self._newest[0]):
                self._newest = weights

    def _load(self) -> None:
        """Have the policy act with the newest weights."""
        newest = self._newest
        if newest is not None:
            version, (reference,) = newest
            # Copies, as arrays in Ray's store are read-only.
            self._envs.load(version, lambda: (version, map_leaves(np.array, ray.get(reference))))
