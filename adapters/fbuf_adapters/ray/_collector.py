"""Steps environments in actors of Ray, and adds what comes to a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

from fbuf_adapters._extra_fields import blank_specs
from fbuf_adapters.gymnasium._info import Asked
from fbuf_adapters.gymnasium._pool_collector import (
    CrewCollector,
    Mode,
    check_arguments,
    check_loads,
    payload,
    some_seed,
)
from fbuf_adapters.gymnasium._shared_chunks import Room
from fbuf_adapters.gymnasium._worker_pool import Crew
from fbuf_adapters.ray._actor import Actor, Job, wait
from fbuf_adapters.ray._weights import Weights

_OWNER = "Collector"

_PLACED = {"num_cpus": 1, "num_gpus": 0, "scheduling_strategy": "SPREAD"}
"""The options of actors, where users give no others."""

_TAKEN = ("concurrency_groups", "lifetime", "max_concurrency", "max_restarts", "name")
"""Those that the collector needs as they are."""

_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


class Collector(CrewCollector):
    """Steps environments on several machines, and adds the steps to a buffer.

    It is `fbuf_adapters.gymnasium.ProcessCollector` with actors of Ray in place of processes: the
    same rows, the same methods, the same modes. Each worker is an actor. It holds
    `envs_per_worker` environments and a copy of the policy. Chunks of steps come through Ray's
    object store. Weights go into it once for each `publish`.

    If you have not called `ray.init()`, the collector does, as Ray itself at its first use: it
    connects to the cluster that `RAY_ADDRESS` names or that runs on this machine, or starts one on
    this machine alone. `close` ends the actors, and leaves Ray running.

    Workers see no GPU (`CUDA_VISIBLE_DEVICES=""`, `JAX_PLATFORMS=cpu`) unless `actor_options` has
    `num_gpus`. Environments are stepped in a thread of the actor, always the same one, which is not
    the main one of its process.

    If an environment or the policy raises in a worker, or if an actor or its machine dies, or if
    one hangs, you get a `CollectorError` that names the worker and its environments, and has the
    traceback, or what Ray says. The collector is closed then. `recover` returns the buffer with all
    whole chunks that had come. With `restart`, the actor is started anew instead, where there is
    room, with a `RuntimeWarning`. The open episodes of its environments are truncated.

    Args:
        make_env: Returns one `gymnasium.Env`. Called in the actors. It may be a lambda. Modules
            that it needs must be on all machines, as Ray wants it (`runtime_env`).
        policy: As for `ProcessCollector`.
        workers: How many.
        envs_per_worker: How many environments each has. They reset in the step that ends an
            episode.
        chunk: How many steps of each environment come at once.
        seed: As for `ProcessCollector`.
        mode: `"free"` or `"barrier"`.
        weights: As for `ProcessCollector`.
        timeout: Seconds that a worker may take for one step of one environment, or for one action.
            To start it may take a minute at least; a cluster that grows on demand may take longer.
        restart: How many times a worker that ended or hangs is started anew, in all.
        slots: How many chunks each worker may be ahead.
        blank: As for `ProcessCollector`.
        info: As for `ProcessCollector`.
        observe: As for `ProcessCollector`.
        progress: As for `ProcessCollector`.
        actor_options: What the actors' `.options(...)` are given, to place them: `num_cpus`,
            `resources`, `scheduling_strategy`, `runtime_env` and so on. If they say nothing else,
            each actor takes one CPU, no GPU, and actors are spread over the machines.

    Raises:
        CollectorError: If a worker cannot make its environments, if `make_env` or `policy` cannot
            be pickled, or if the cluster has no room for all workers.
        ValueError: If an argument is out of range, or if `actor_options` has what the collector
            says itself.

    Cost: starting takes seconds. Your process holds `slots` chunks of all environments, with each
    observation twice. Ray's store holds those that are on their way, and the newest weights.

    Examples:
        >>> import fbuf, gymnasium
        >>> from fbuf_adapters.ray import Collector
        >>> make_env = lambda: gymnasium.make("CartPole-v1")
        >>> policy = lambda observation: (observation[:, 2] > 0).astype(int)
        >>> with Collector(
        ...     make_env, policy, workers=2, envs_per_worker=4, mode="barrier"
        ... ) as collector:
        ...     state = fbuf.init(collector.item, 1000, **collector.options)
        ...     state = collector.collect(state, 100)
        >>> state
        State(Uniform, 800 of 1000 rows, 8 environments)
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        policy: Any,
        *,
        workers: int,
        envs_per_worker: int,
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
        actor_options: dict[str, Any] | None = None,
    ) -> None:
        seed = some_seed(seed)
        counts = {"workers": workers, "envs_per_worker": envs_per_worker}
        check_arguments(
            _OWNER,
            mode,
            timeout,
            positive={**counts, "chunk": chunk, "slots": slots},
            others={"seed": seed, "restart": restart},
        )
        options = {**_PLACED, **(actor_options or {})}
        for name in _TAKEN:
            if name in options:
                raise ValueError(
                    f"Collector: actor_options must not have {name!r}, for the collector starts "
                    "and ends its actors itself; leave it out (restart= has them started anew)"
                )
        blank = blank_specs(_OWNER, blank)
        published: Weights | None = None
        if weights is not None:
            check_loads(_OWNER, policy)
            published = Weights(weights, _OWNER)
        sent = ray.put(
            payload(_OWNER, make_env, policy, published and published.form, info, observe)
        )
        room = Room(slots, chunk, workers * envs_per_worker)
        jobs = [
            Job(
                number=number,
                envs=slice(number * envs_per_worker, (number + 1) * envs_per_worker),
                seed=seed + number * envs_per_worker,
                payload=sent,
                options=options,
                environment={} if options["num_gpus"] else _NO_GPU,
            )
            for number in range(workers)
        ]
        crew = Crew(
            (Actor(job, room, published, timeout) for job in jobs),
            wait,
            room,
            restarts=restart,
            owner=_OWNER,
            noun="worker",
        )
        if published is not None:
            published.readers = crew.workers
        super().__init__(crew, room, published, blank, mode=mode, seed=seed, progress=progress)


Collector.__module__ = "fbuf_adapters.ray"  # where users find it
