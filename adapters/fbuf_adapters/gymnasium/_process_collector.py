"""Steps environments in processes, and adds the steps to a buffer.

A process is a fresh interpreter, without a GPU, that ignores Ctrl-C.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from multiprocessing import connection, resource_tracker
from typing import Any

from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._info import Asked
from fbuf_adapters.gymnasium._messages import IMPORTING, STARTING, Command, Heartbeat, in_words
from fbuf_adapters.gymnasium._pool_collector import PoolCollector
from fbuf_adapters.gymnasium._shared_memory import SharedMemory
from fbuf_adapters.gymnasium._weights import SharedWeights
from fbuf_adapters.gymnasium._worker_main import ProcessJob, work
from fbuf_adapters.gymnasium._worker_pool import Ended, Mode, PoolOptions, PoolWorker

_UNGUARDED = 75
"""The exit code of a new process whose script would start more processes."""

# One thread each, as there are many processes; the GPU is for the learner.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
_changing = threading.Lock()


class ProcessCollector(PoolCollector):
    """Steps environments in several processes, and adds the steps to a buffer.

    Each process holds `envs_per_process` environments and a copy of the policy. Chunks of steps
    come in shared memory, with one `fbuf.add` for those of all processes. Rows are those of
    `Collector`, and so are `item`, `options`, `stats` and `recover`.

    With `mode="sync"`, for PPO, `collect` has each process make exactly the requested steps, with
    the newest weights. With `mode="async"`, for IMPALA and replay, processes run on while you
    learn, as far as they have slots. `drain` adds the chunks that have come. Each process takes the
    newest weights before each chunk. A field `version`, int32, in the buffer's item stores the
    version.

    Make it under `if __name__ == "__main__":`. Each process starts a new Python, which imports your
    script: it does all that stands outside of the guard. Processes see no GPU
    (`CUDA_VISIBLE_DEVICES=""`, `JAX_PLATFORMS=cpu`), have `OMP_NUM_THREADS=1`, ignore Ctrl-C, and
    end with your process, even if that is killed.

    If an environment or the policy raises in a process, or if a process is killed or hangs, you get
    a `CollectorError`. It names the process and the environment, and has the traceback. The
    collector is closed then. `recover` returns the buffer with all whole chunks that had come. With
    `restart`, the process is started anew instead, with a `RuntimeWarning`. The open episodes of
    its environments are truncated.

    Args:
        make_env: Returns one `gymnasium.Env`. Called in the processes. It may be a lambda.
        policy: As for `Collector`. Each process gets a copy, so it must be picklable (cloudpickle).
        processes: The number of processes.
        envs_per_process: The number of environments of each. They reset in the step that ends an
            episode.
        chunk: The number of steps of each environment that come at once.
        seed: Environment `i` of all is reset with `seed + i` first. Each process also seeds Python,
            NumPy and PyTorch, all differently. A generator inside the policy is copied, and then
            acts alike in all processes. Give such a policy a method `seed(number)`: each process
            calls it before the first action, with a number of its own. None takes a seed from the
            operating system, another one for each collector; `collector.seed` returns it.
        mode: `"async"` or `"sync"`.
        weights: A tree of arrays like those you will `publish`: of dicts, lists and tuples. Every
            process begins with `policy.load(weights)`, version 0. With None, none can be published.
        timeout: Seconds that a process may take for one step of one environment, or for one action.
            For its start it has a minute at least.
        restart: The number of times, in all, that a process that ended or hangs is started anew.
        slots: The number of chunks that each process may be ahead.
        blank: As for `Collector`. No process fills these fields, so they cross nothing.
        info: As for `Collector`.
        observe: As for `Collector`.
        progress: As for `Collector`.

    Raises:
        CollectorError: If a process cannot make its environments, if `make_env` or `policy` cannot
            be pickled, or if your script has no `__main__` guard.
        ValueError: If an argument is out of range, or if `blank` has a field that is filled.

    Cost: starting takes seconds, as each process imports what your script and functions import. The
    memory is `slots` chunks of all environments, with each observation twice.

    Examples:
        >>> import fbuf, gymnasium
        >>> from fbuf_adapters.gymnasium import ProcessCollector
        >>> make_env = lambda: gymnasium.make("CartPole-v1")
        >>> policy = lambda observation: (observation[:, 2] > 0).astype(int)
        >>> with ProcessCollector(
        ...     make_env, policy, processes=1, envs_per_process=4, mode="sync"
        ... ) as collector:
        ...     state = fbuf.init(collector.item, 1000, **collector.options)
        ...     state = collector.collect(state, 100)
        >>> state
        State(Uniform, 400 of 1000 rows, 4 environments)
    """

    _owner = "ProcessCollector"

    def __init__(
        self,
        make_env: Callable[[], Any],
        policy: Any,
        *,
        processes: int,
        envs_per_process: int,
        chunk: int = 64,
        seed: int | None = None,
        mode: Mode = "async",
        weights: Any = None,
        timeout: float = 60.0,
        restart: int = 0,
        slots: int = 2,
        blank: dict[str, Any] | None = None,
        info: Asked = None,
        observe: Asked = None,
        progress: bool | None = None,
    ) -> None:
        _refuse_importing(self._owner)
        options = PoolOptions(
            owner=self._owner,
            noun="process",
            workers=processes,
            envs_per_worker=envs_per_process,
            chunk=chunk,
            slots=slots,
            mode=mode,
            timeout=timeout,
            restart=restart,
            given_seed=seed,
            blank=blank,
            progress=progress,
        )
        published = options.published(SharedWeights, policy, weights)
        # In shared memory: a pipe would block until the process reads.
        payload = SharedMemory.of(options.payload(make_env, policy, published, info, observe))
        super().__init__(options, ProcessWorker, connection.wait, payload, published)


ProcessCollector.__module__ = "fbuf_adapters.gymnasium"  # where users find it


class ProcessWorker(PoolWorker):
    """A process, whose chunks come in shared memory."""

    def _start(self) -> None:
        self._heartbeat = Heartbeat()
        self._heartbeat.at(IMPORTING if _imports_script() else STARTING)
        # Linux ends a process with the thread that started it, so the main thread must start it.
        by_kernel = threading.current_thread() is threading.main_thread()
        job = ProcessJob(
            self.envs,
            self._seed,
            by_kernel,
            self._payload,
            None if self._weights is None else self._weights.memory,
            self._heartbeat,
            self._chunks,
        )
        self._process, self._connection = _spawn(work, job, f"fbuf collector {self.number}")

    @property
    def waitable(self) -> list[Any]:
        """The connection, and the sentinel that is readable when the process has ended."""
        return [self._connection, self._process.sentinel]

    def _send(self, command: Command | None) -> None:
        self._heard = time.monotonic()
        with contextlib.suppress(OSError):  # it has ended; `listen` reports that
            self._connection.send(command)

    def listen(self) -> Any:
        """Take the messages of the process."""
        ended = not self._process.is_alive()
        spec: Any = None
        try:
            while self._connection.poll():
                spec = self._take(self._connection.recv()) or spec
        except (EOFError, OSError):
            ended = True
        if ended:
            raise Ended(self._end_in_words(), "")
        if self.commands or not self.ready:
            place, since = self._heartbeat.where()
            self._refuse_hanging(place, time.monotonic() - max(since, self._heard))
        return spec

    def _end_in_words(self) -> str:
        self._process.join(5)
        place, code = in_words(self._heartbeat.where()[0]), self._process.exitcode
        if code == _UNGUARDED and not self.ready:
            return (
                "imported your script when it started, and your script makes a collector when it "
                "is imported; put all that the script does under\n\n"
                '    if __name__ == "__main__":\n'
            )
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name} {place}"
        return f"ended with exit code {code} {place}; what it printed may say why"

    def stop(self) -> None:
        """Ask the process to end."""
        self._heartbeat.stop(True)
        self._send(None)

    def end(self, patience: float = 0.0) -> None:
        """End the process, after at most `patience` seconds."""
        self._process.join(patience if self._process.is_alive() else 5.0)
        self._process.terminate()
        self._process.join(0.5)
        self._process.kill()  # it may be in a call that blocks signals
        self._process.join(5)
        self._connection.close()


def _refuse_importing(owner: str) -> None:
    """Refuse to start processes if they could not import the main script, or it starts more.

    A new process that imports the script ends here. Its output would be lost in that of all other
    processes, so its exit code tells the parent.

    Raises:
        CollectorError: If the script has no file. Python calls one from standard input `<stdin>`.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(_UNGUARDED)
    main = sys.modules["__main__"]
    name = getattr(main, "__file__", None)
    if name is not None and main.__spec__ is None and not os.path.exists(name):
        raise CollectorError(
            f"{owner}: each process imports your script, and there is no file {name}; save the "
            "script to a file, and run that"
        )


def _imports_script() -> bool:
    """Return whether a new process imports the main script; in a notebook there is none."""
    main = sys.modules["__main__"]
    return getattr(main, "__file__", None) is not None or main.__spec__ is not None


def _spawn(target: Callable[..., None], job: Any, name: str) -> tuple[Any, Any]:
    """Start a process with `target(job, connection)`; return it and the other connection."""
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    with other:  # closed here, so that ours ends with the process
        # Daemonic, so that Python ends it with the parent even if our own code fails.
        process = context.Process(target=target, args=(job, other), name=name, daemon=True)
        resource_tracker.ensure_running()  # starting it later would unblock signals
        try:
            with _inherited():
                process.start()
        except BaseException:
            own.close()
            raise
    return process, own


@contextlib.contextmanager
def _inherited() -> Generator[None]:
    """Set the variables of new processes, and block interrupts until a process ignores them."""
    with _changing:
        before = {name: os.environ.get(name) for name in _ENVIRONMENT}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.environ.update(_ENVIRONMENT)
        try:
            yield
        finally:
            for name, value in before.items():
                del os.environ[name]
                if value is not None:
                    os.environ[name] = value
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
