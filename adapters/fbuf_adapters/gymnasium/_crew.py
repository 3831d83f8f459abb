"""All processes of a collector: waiting for them, and what happens when one ends."""

from __future__ import annotations

import time
import warnings
from multiprocessing import connection
from typing import Any

from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._interrupts import uninterrupted
from fbuf_adapters.gymnasium._process import Ended, Process
from fbuf_adapters.gymnasium._worker import Command, Job

_LOOK = 0.5
"""Seconds between two looks at whether a process hangs."""

_PATIENCE = 1.5
"""Seconds that processes have to close their environments."""


class Crew:
    """Processes that are started together and closed together."""

    def __init__(self, jobs: list[Job], *, timeout: float, restarts: int) -> None:
        """Start them, and wait until all know what a row is."""
        self.spec: Any = None
        self.processes: list[Process] = []
        self.waited = 0.0
        """Seconds that the learner has waited for them."""
        self.restarts = 0
        """How many may be started anew."""
        self.closed = False
        try:
            for job in jobs:
                self.processes.append(Process(job, timeout))
            while not all(process.ready for process in self.processes):
                self.listen(wait=True)
        except BaseException:
            self.close()
            raise
        self.restarts = restarts

    def command(self, process: Process, slot: int, steps: int, newest: bool) -> None:
        """Have a process fill a slot, unless all have been ended."""
        process.command(Command(slot, steps, newest))

    def listen(self, *, wait: bool) -> None:
        """Take in what the processes have sent; with `wait`, wait a moment for something.

        Raises:
            CollectorError: If a process has ended or hangs, and may not be started anew. All
                messages of all processes have been taken in then.
        """
        if wait:
            began = time.perf_counter()
            connection.wait([end for p in self.processes for end in p.waitable], _LOOK)
            self.waited += time.perf_counter() - began
        failure: CollectorError | None = None
        with uninterrupted():  # a message that was taken out comes no second time
            for process in self.processes:
                try:
                    spec = process.listen()
                except Ended as ended:
                    failure = failure or self._failed(process, ended)
                else:
                    if spec is not None:
                        self._agree(process, spec)
        if failure is not None:
            raise failure

    def _failed(self, process: Process, ended: Ended) -> CollectorError | None:
        """Start a process anew, or say that it cannot go on."""
        first, last = process.envs.start, process.envs.stop - 1
        of = f"environment {first}" if first == last else f"environments {first} to {last}"
        said = f"process {process.number} ({of}) {ended.reason}"
        if self.restarts:
            self.restarts -= 1
            process.restart()
            warnings.warn(
                f"ProcessCollector: {said}; it has been started anew, and may be {self.restarts} "
                f"more times{ended.trace}",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        return CollectorError(f"ProcessCollector: {said}{ended.trace}")

    def _agree(self, process: Process, spec: Any) -> None:
        """Refuse processes whose rows differ."""
        if self.spec is None:
            self.spec = spec
        elif spec != self.spec:
            raise CollectorError(
                f"ProcessCollector: process {process.number} has rows of {spec}, and others have "
                f"{self.spec}; make_env and policy must give the same spaces and extras each time"
            )

    def close(self) -> None:
        """End all processes, hanging ones too."""
        if self.closed:
            return
        for process in self.processes:
            process.stop()
        until = time.monotonic() + _PATIENCE
        for process in self.processes:
            process.end(max(0.0, until - time.monotonic()))
        self.closed = True
