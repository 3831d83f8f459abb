"""Steps environments in processes of their own, and adds what comes to a buffer."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from fbuf_adapters._extra_fields import blank_specs
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._heartbeat import SIZE, Board
from fbuf_adapters.gymnasium._info import Asked
from fbuf_adapters.gymnasium._pool_collector import (
    CrewCollector,
    Mode,
    check_arguments,
    check_loads,
    payload,
    some_seed,
)
from fbuf_adapters.gymnasium._process import Process
from fbuf_adapters.gymnasium._shared_chunks import Room
from fbuf_adapters.gymnasium._shared_memory import Memory
from fbuf_adapters.gymnasium._spawn import end_if_unguarded, script_without_a_file
from fbuf_adapters.gymnasium._weights import Weights
from fbuf_adapters.gymnasium._worker_main import Job
from fbuf_adapters.gymnasium._worker_pool import Crew

_OWNER = "ProcessCollector"


class ProcessCollector(CrewCollector):
    """Steps environments in several processes, and adds the steps to a buffer.

    Each process holds `envs_per_process` environments and a copy of the policy. Chunks of steps
    come in shared memory, with one `fbuf.add` for those of all processes. Rows are those of
    `Collector`, and so are `item`, `options`, `stats` and `recover`.

    With `mode="barrier"`, for PPO, `collect` has each process make exactly the steps you ask for,
    with the newest weights. With `mode="free"`, for IMPALA and replay, processes run on while you
    learn, as far as they have slots. `drain` adds what has come. Each takes the newest weights
    before each chunk. A field `version`, int32, in the buffer's item says which.

    Make it under `if __name__ == "__main__":`. Each process starts a new Python, which imports your
    script. Processes see no GPU (`CUDA_VISIBLE_DEVICES=""`, `JAX_PLATFORMS=cpu`), have
    `OMP_NUM_THREADS=1`, ignore Ctrl-C, and end with your process, even if that is killed.

    If an environment or the policy raises in a process, or if a process is killed or hangs, you get
    a `CollectorError` that names the process and the environment, and has its traceback. The
    collector is closed then. `recover` returns the buffer with all whole chunks that had come. With
    `restart`, the process is started anew instead, with a `RuntimeWarning`. The open episodes of
    its environments are truncated.

    Args:
        make_env: Returns one `gymnasium.Env`. Called in the processes. It may be a lambda.
        policy: As for `Collector`. Each process gets a copy, so it must be picklable (cloudpickle).
        processes: How many.
        envs_per_process: How many environments each has. They reset in the step that ends an
            episode.
        chunk: How many steps of each environment come at once.
        seed: Environment `i` of all is reset with `seed + i` first. Each process also seeds Python,
            NumPy and PyTorch, all differently. A generator of the policy's own is copied, and then
            acts alike in all processes, unless the policy has a method `seed(number)`: each process
            calls it before the first action, with a number of its own. None takes one from the
            operating system, other ones for two collectors; `collector.seed` says which.
        mode: `"free"` or `"barrier"`.
        weights: A tree of arrays like those you will `publish`: of dicts, lists and tuples. Every
            process begins with `policy.load(weights)`, version 0. None: no weights are published.
        timeout: Seconds that a process may take for one step of one environment, or for one action.
            To start it may take a minute at least.
        restart: How many times a process that ended or hangs is started anew, in all.
        slots: How many chunks each process may be ahead.
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
        ...     make_env, policy, processes=1, envs_per_process=4, mode="barrier"
        ... ) as collector:
        ...     state = fbuf.init(collector.item, 1000, **collector.options)
        ...     state = collector.collect(state, 100)
        >>> state
        State(Uniform, 400 of 1000 rows, 4 environments)
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        policy: Any,
        *,
        processes: int,
        envs_per_process: int,
        chunk: int = 64,
        seed: int | None = None,
        mode: Mode = "free",
        weights: Any = None,
        timeout: float = 60.0,
        restart: int = 0,
        slots: int = 2,
        blank: dict[str, Any] | None = None,
        info: Asked = None,
        observe: Asked = None,
        progress: bool | None = None,
    ) -> None:
        end_if_unguarded()
        nowhere = script_without_a_file()
        if nowhere is not None:
            raise CollectorError(
                f"{_OWNER}: each process imports your script, and there is no file {nowhere}; save "
                "the script to a file, and run that"
            )
        seed = some_seed(seed)
        counts = {"processes": processes, "envs_per_process": envs_per_process}
        check_arguments(
            _OWNER,
            mode,
            timeout,
            positive={**counts, "chunk": chunk, "slots": slots},
            others={"seed": seed, "restart": restart},
        )
        blank = blank_specs(_OWNER, blank)
        published: Weights | None = None
        if weights is not None:
            check_loads(_OWNER, policy)
            published = Weights(weights)
        # In shared memory, for a pipe would have to be waited for.
        sent = Memory.of(payload(_OWNER, make_env, policy, published, info, observe))
        board = Board(Memory(SIZE * processes))
        room = Room(slots, chunk, processes * envs_per_process)
        jobs = [
            Job(
                number=number,
                envs=slice(number * envs_per_process, (number + 1) * envs_per_process),
                seed=seed + number * envs_per_process,
                die_with_parent=False,
                payload=sent,
                weights=None if published is None else published.memory,
                board=board,
                room=room,
            )
            for number in range(processes)
        ]
        crew = Crew(
            (Process(job, timeout) for job in jobs),
            connection.wait,
            room,
            restarts=restart,
            owner=_OWNER,
            noun="process",
        )
        super().__init__(crew, room, published, blank, mode=mode, seed=seed, progress=progress)


ProcessCollector.__module__ = "fbuf_adapters.gymnasium"  # where users find it
