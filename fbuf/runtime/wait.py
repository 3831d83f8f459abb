"""Busy waiting for a program on CPU, as waking up takes longer than most programs.

It polls for at most a third of a millisecond, and only then sleeps. All of it is one Python
instruction, see `fbuf/runtime/interrupts.py`. On a single core it sleeps at once.
"""

from __future__ import annotations

import collections
import itertools
import operator
import os
from collections.abc import Iterator
from typing import Any

import jax

_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""The cores of this process, which may be pinned."""
_LOOKS = 4000 if _CORES > 1 else 0

_is_ready = operator.methodcaller("is_ready")
_block_until_ready = operator.methodcaller("block_until_ready")


def steps(array: Iterator[jax.Array], again: Iterator[jax.Array]) -> Iterator[Any]:
    """Return steps that wait for an array; exhausting them requests the array twice."""
    looks = itertools.chain.from_iterable(map(itertools.repeat, array, (_LOOKS,)))
    looking = itertools.takewhile(operator.not_, map(_is_ready, looks))
    return itertools.chain(looking, map(_block_until_ready, again))


def wait(array: jax.Array) -> None:
    """Wait until the array is computed."""
    collections.deque(steps(iter((array,)), iter((array,))), 0)
