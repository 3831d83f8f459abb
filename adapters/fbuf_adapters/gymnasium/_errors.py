"""The one error of collectors."""

from __future__ import annotations


class CollectorError(RuntimeError):
    """A failure of collection; the message has the reason and the remedy.

    Examples:
        >>> import gymnasium
        >>> from fbuf_adapters.gymnasium import Collector, CollectorError
        >>> envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
        >>> with Collector(envs, lambda observation: envs.action_space.sample()) as collector:
        ...     pass
        >>> try:
        ...     collector.item
        ... except CollectorError as error:
        ...     print(error)
        Collector.item: the collector is closed; make another one
    """


CollectorError.__module__ = "fbuf_adapters.gymnasium"  # its public module
