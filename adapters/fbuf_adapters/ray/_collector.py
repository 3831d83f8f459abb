"""Steps environments in actors of Ray, and adds the steps to a buffer."""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Callable
from typing import Any, cast

import ray
from ray.exceptions import ActorDiedError, RayError

from fbuf_adapters.gymnasium._info import Asked
from fbuf_adapters.gymnasium._messages import WAITING, Command, Failed, Ready
from fbuf_adapters.gymnasium._pool_collector import PoolCollector
from fbuf_adapters.gymnasium._weights import WeightsForm
from fbuf_adapters.gymnasium._worker_pool import Ended, Mode, PoolOptions, PoolWorker
from fbuf_adapters.ray._stepping import CONTROL, Stamped, Stepping

_Stepping: Any = cast(Any, ray.remote)(concurrency_groups={CONTROL: 1})(Stepping)

_ANSWER = 5.0
"""Seconds for an actor to report its place: a call that holds Python's lock delays it."""

_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}

_PLACED = {"num_cpus": 1, "num_gpus": 0, "scheduling_strategy": "SPREAD"}
"""The default options of actors."""

_TAKEN = ("concurrency_groups", "lifetime", "max_concurrency", "max_restarts", "name")
"""The reserved options, which the collector sets."""


class Collector(PoolCollector):
    """Steps environments on several machines, and adds the steps to a buffer.

    It is `fbuf_adapters.gymnasium.ProcessCollector` with actors of Ray in place of processes: the
    same rows, the same methods, the same modes. Each worker is an actor. It holds
    `envs_per_worker` environments and a copy of the policy. Chunks of steps come through Ray's
    object store. Weights go into it once for each `publish`.

    If you have not called `ray.init()`, the collector does, as Ray itself at its first use. It
    connects to the cluster of `RAY_ADDRESS` or of this machine, or starts one on this machine
    alone. Ray runs on after `close`, which ends the actors.

    Workers see no GPU (`CUDA_VISIBLE_DEVICES=""`, `JAX_PLATFORMS=cpu`) unless `actor_options` has
    `num_gpus`. Environments are stepped in a thread of the actor, always the same one, which is not
    the main one of its process.

    If an environment or the policy raises in a worker, or if an actor or its machine dies or hangs,
    you get a `CollectorError`. It names the worker and its environments, and has the traceback, or
    Ray's message. The collector is closed then. `recover` returns the buffer with all whole chunks
    that had come. With `restart`, the actor is started anew instead, where there is room, with a
    `RuntimeWarning`. The open episodes of its environments are truncated.

    Args:
        make_env: Returns one `gymnasium.Env`. Called in the actors. It may be a lambda. Modules
            that it needs must be on all machines, as Ray wants it (`runtime_env`).
        policy: As for `ProcessCollector`.
        workers: The number of workers.
        envs_per_worker: The number of environments of each. They reset in the step that ends an
            episode.
        chunk: The number of steps of each environment that come at once.
        seed: As for `ProcessCollector`.
        mode: `"async"` or `"sync"`.
        weights: As for `ProcessCollector`.
        timeout: Seconds that a worker may take for one step of one environment, or for one action.
            For its start it has a minute at least; a cluster that grows on demand may take longer.
        restart: The number of times, in all, that a worker that ended or hangs is started anew.
        slots: The number of chunks that each worker may be ahead.
        blank: As for `ProcessCollector`.
        info: As for `ProcessCollector`.
        observe: As for `ProcessCollector`.
        progress: As for `ProcessCollector`.
        actor_options: The arguments of the actors' `.options(...)`, to place them: `num_cpus`,
            `resources`, `scheduling_strategy`, `runtime_env` and so on. By default each actor takes
            one CPU and no GPU, and actors are spread over the machines.

    Raises:
        CollectorError: If a worker cannot make its environments, if `make_env` or `policy` cannot
            be pickled, or if the cluster has no room for all workers.
        ValueError: If an argument is out of range, or if `actor_options` has an option that the
            collector sets itself.

    Cost: starting takes seconds. Your process holds `slots` chunks of all environments, with each
    observation twice. Ray's store holds the chunks that are on their way, and the newest weights.

    Examples:
        >>> import fbuf, gymnasium
        >>> from fbuf_adapters.ray import Collector
        >>> make_env = lambda: gymnasium.make("CartPole-v1")
        >>> policy = lambda observation: (observation[:, 2] > 0).astype(int)
        >>> with Collector(
        ...     make_env, policy, workers=2, envs_per_worker=4, mode="sync"
        ... ) as collector:
        ...     state = fbuf.init(collector.item, 1000, **collector.options)
        ...     state = collector.collect(state, 100)
        >>> state
        State(Uniform, 800 of 1000 rows, 8 environments)
    """

    _owner = "Collector"

    def __init__(
        self,
        make_env: Callable[[], Any],
        policy: Any,
        *,
        workers: int,
        envs_per_worker: int,
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
        actor_options: dict[str, Any] | None = None,
    ) -> None:
        options = PoolOptions(
            owner=self._owner,
            noun="worker",
            workers=workers,
            envs_per_worker=envs_per_worker,
            chunk=chunk,
            slots=slots,
            mode=mode,
            timeout=timeout,
            restart=restart,
            given_seed=seed,
            blank=blank,
            progress=progress,
        )
        placed = {**_PLACED, **(actor_options or {})}
        for name in _TAKEN:
            if name in placed:
                raise ValueError(
                    f"Collector: actor_options must not have {name!r}, for the collector starts "
                    "and ends its actors itself; leave it out (restart= has them started anew)"
                )
        published = options.published(ObjectStoreWeights, policy, weights)
        payload = ray.put(options.payload(make_env, policy, None, info, observe))
        kind = functools.partial(ActorWorker, placed)
        super().__init__(options, kind, wait, payload, published)


Collector.__module__ = "fbuf_adapters.ray"  # its public module


class ObjectStoreWeights:
    """The newest weights, in Ray's object store, with a version that counts up from 0."""

    def __init__(self, tree: Any, owner: str) -> None:
        """Hold a first version: any tree of mappings, tuples, lists and arrays."""
        self._form = WeightsForm(tree, owner)
        self.readers: list[ActorWorker] = []
        """The workers to which new weights are announced."""
        self.version = -1
        self.publish(tree)

    def publish(self, tree: Any) -> int:
        """Replace the weights, and return the version of the new ones."""
        reference = ray.put(self._form.checked(tree))  # Ray copies them
        self.version += 1
        self.stamped: Stamped = (self.version, [reference])
        for reader in self.readers:
            reader.publish()
        return self.version


class ActorWorker(PoolWorker):
    """The handle of an actor, whose chunks come through Ray's object store."""

    def __init__(self, placed: dict[str, Any], *given: Any) -> None:
        """Start it with these options of Ray; the payload is a reference to bytes."""
        self._placed = placed
        super().__init__(*given)
        if self._weights is not None:
            self._weights.readers.append(self)

    def _start(self) -> None:
        self._heard = time.monotonic()  # the time of the last answer or move
        self._question: Any = None
        self._asked = 0.0
        self._closing: Any = None
        environment = {} if self._placed["num_gpus"] else _NO_GPU
        self._actor: Any = _Stepping.options(**self._placed).remote(environment)
        opened = self._actor.open.remote(self._payload, self.envs, self._seed, self._stamped)
        self._answers: collections.deque[Any] = collections.deque([opened])

    @property
    def waitable(self) -> list[Any]:
        """The oldest pending answers."""
        return [*list(self._answers)[:1], *([] if self._question is None else [self._question])]

    def publish(self) -> None:
        """Announce new weights."""
        self._actor.publish.remote(self._stamped)

    @property
    def _stamped(self) -> Any:
        return None if self._weights is None else self._weights.stamped

    def _send(self, command: Command) -> None:
        if not self._answers:
            self._heard = time.monotonic()
        self._answers.append(self._actor.fill.remote(command, self._stamped))

    def listen(self) -> Any:
        """Take the messages. Chunks are copied at once, as the machine may disappear."""
        while self._answers and _has_come(self._answers[0]):
            message = _got(self._answers.popleft())
            self._heard = time.monotonic()
            if message is None:  # stopped by another thread that closes the collector
                return None
            if not isinstance(message, Failed | Ready):
                message, chunk = message
                self._chunks.write(message.slot, self.envs, chunk)
            spec = self._take(message)
            if spec is not None:
                return spec
        if self.commands or not self.ready:
            self._ask_if_silent()
        return None

    def _ask_if_silent(self) -> None:
        """Ask a long silent actor for its place."""
        now = time.monotonic()
        quiet = now - self._heard
        if quiet <= self._options.timeout:
            return
        if self._question is None:
            self._question, self._asked = self._actor.where.remote(), now
        elif _has_come(self._question):
            place, seconds = _got(self._question)
            self._question = None
            # If the actor waits, its answer is on the way, or Ray reports the loss.
            self._heard = now if place == WAITING else now - seconds
            if place != WAITING:
                self._refuse_hanging(place, seconds)
        elif now - self._asked > _ANSWER and quiet > self._patience(not self.ready):
            if self.ready:
                raise Ended(
                    f"hangs and does not say where, for {quiet:.0f} s now "
                    f"(timeout={self._options.timeout:g})",
                    "",
                )
            raise Ended(
                f"has not started for {quiet:.0f} s; it was to be placed with {self._placed}, and "
                f"free in the cluster are {ray.available_resources()}",
                "",
            )

    def stop(self) -> None:
        """Ask the actor to end."""
        if ray.is_initialized():  # otherwise it has ended with Ray
            self._actor.stop.remote()
            self._closing = self._actor.close.remote()

    def end(self, patience: float = 0.0) -> None:
        """End the actor, after at most `patience` seconds."""
        if ray.is_initialized():
            if self._closing is not None:
                ray.wait([self._closing], timeout=patience)
            ray.kill(self._actor)


def wait(answers: list[Any], seconds: float) -> None:
    """Return when any of these has come, or after `seconds`."""
    if answers:
        ray.wait(answers, num_returns=1, timeout=seconds)


def _has_come(answer: Any) -> bool:
    return bool(ray.wait([answer], timeout=0)[0])


def _got(answer: Any) -> Any:
    try:
        return ray.get(answer)
    except RayError as error:
        reason = "has died" if isinstance(error, ActorDiedError) else "was lost"
        raise Ended(reason, f"\n\nRay says:\n{error}") from error
