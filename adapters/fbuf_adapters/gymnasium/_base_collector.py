"""The base of collectors over Gymnasium's environments: no error loses their buffer."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

from tqdm import tqdm

from fbuf_adapters.gymnasium._episodes import EpisodeStats
from fbuf_adapters.gymnasium._errors import CollectorError


def check_timeout(owner: str, timeout: float) -> None:
    """Refuse a timeout of 0 or less."""
    if not timeout > 0:
        raise ValueError(f"{owner}: timeout must be above 0 seconds, got {timeout!r}")


C = TypeVar("C", bound=Callable[..., Any])
BufferT = TypeVar("BufferT")
"""The type of a buffer: a `State`, a `ShardedState` or a `HostStore`."""


def alone(method: C) -> C:
    """Refuse a call during another call of the same collector.

    A signal handler can make such a call, which would step environments in the middle of a step.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if self._under_way:
            raise CollectorError(
                f"{self._owner}.{method.__name__}: {self._under_way} is under way, and a signal "
                "handler or another thread calls in the midst of it; have the handler set a flag, "
                "and look at it between two calls"
            )
        self._under_way = method.__name__
        try:
            return method(self, *args, **options)
        finally:
            self._under_way = ""

    return call  # pyright: ignore[reportReturnType]


class BaseCollector(abc.ABC):
    """The methods of all these collectors.

    A call keeps the newest buffer in `_left`, so that an exception does not lose it.
    """

    _owner: ClassVar[str]
    """The name of the collector, for errors."""
    _progress: bool | None
    _episodes: EpisodeStats
    _left: Any = None
    _under_way = ""
    """The call under way."""
    _newest_version = 0
    """The version of the policy that made the newest chunk in the buffer."""

    @alone
    def recover(self) -> Any:
        """Return the buffer after `collect` or `drain` raised, with all steps that had come.

        Otherwise the buffer may be lost, for the first chunk consumes the state that you passed.
        `Collector` adds the whole steps made so far. Collectors over workers add whole chunks.
        Environments of workers that step together need a chunk of each worker. If a worker has
        failed, all open episodes are truncated. `recover` works after `close`, too.

        Returns:
            The buffer.

        Raises:
            CollectorError: If the last call did not raise, or is under way.
        """
        if self._left is None:
            raise CollectorError(
                f"{self._owner}.recover: the last call did not raise; use its result"
            )
        self._add_rest()
        return self._taken()

    def stats(self) -> dict[str, Any]:
        """Return counts and times since the collector was made.

        Returns:
            A dict with these entries:

            - `steps`: the steps that were added, of all environments together. A step that only
              reset an environment, as in the mode `NEXT_STEP`, is none.
            - `steps_per_second`: the rate of such steps while environments are stepped.
            - `queue_depth`: the number of waiting chunks.
            - `learner_waited`: the seconds that the learner waited for chunks.
            - `environments_waited`: the seconds that environments waited for room; over workers a
              sum.
            - `policy_version`: the version that made the newest chunk in the buffer.
            - `policy_age`: the number of newer published versions.
            - `episodes`: the number of ended episodes.
            - `mean_return`, `mean_length`: the means of the last hundred episodes. None before one.
        """
        return {
            **self._measured(),
            "policy_version": self._newest_version,
            "policy_age": self._published_version() - self._newest_version,
            **self._episodes.stats(),
        }

    def __enter__(self) -> Self:
        """Return the collector."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the collector."""
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Close the environments, threads and processes of the collector."""

    @abc.abstractmethod
    def _add_rest(self) -> None:
        """Add to `_left` the steps that have come since an exception."""

    @abc.abstractmethod
    def _measured(self) -> dict[str, Any]:
        """Return the first entries of `stats`."""

    @abc.abstractmethod
    def _published_version(self) -> int:
        """Return the version of the newest published weights."""

    def _taken(self) -> Any:
        """Return the newest state, which now belongs to the caller."""
        state, self._left = self._left, None
        return state

    def _closed_error(self, function: str) -> CollectorError:
        return CollectorError(
            f"{self._owner}.{function}: the collector is closed; make another one"
        )

    def _bar(self, function: str, steps: int) -> Any:
        """Return a progress bar of `steps` steps; None for `progress` shows it on a terminal."""
        hidden = None if self._progress is None else not self._progress
        return tqdm(total=steps, desc=function, unit="step", delay=1, disable=hidden, leave=False)
