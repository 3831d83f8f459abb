"""Copies: identical or frozen environments, and rows that are stored twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.doctor.stretches import OBSERVATIONS, Stretch, named

_FEW = 64
"""The fewest rows of an environment for a finding."""

_MOST = 0.8
"""The suspicious share of observations that equal the previous one."""

_TWICE = 0.3
"""The suspicious share of rows that are stored twice."""


_RUN = 8
"""The number of rows in a run."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    stretches = [of for of in found.stretches if of.flags.size >= _FEW and of.observation.size]
    frozen = [of for of in stretches if (of.observation == of.observation[0]).all()]
    lively = [of for of in stretches if not any(of is one for one in frozen)]
    if frozen and lively:
        named_envs = ", ".join(str(of.env) for of in frozen)
        yield Finding(
            "warning",
            "environment_frozen",
            f"The observation of environment {named_envs} is the same in all of its "
            f"{frozen[0].flags.size:,} newest rows, and that of others is not.",
            "Look whether that environment is stepped, and whether its observation is written to "
            "the row that you add.",
        )
    yield from _alike(lively)
    # Few distinct values may well repeat, such as places on a grid.
    kinds = {leaves[list(leaves)[number]].dtype.kind for number in named(leaves, OBSERVATIONS)}
    numbers = sum(of.observation.shape[1] for of in lively[:1])
    if lively and (kinds - {"i", "u", "b"} or numbers >= 64):
        yield from _repeated(lively)


def _alike(stretches: list[Stretch]) -> Iterator[Finding]:
    """Find identical environments."""
    alike: list[int] = []
    for at, of in enumerate(stretches):
        before = [one for one in stretches[:at] if one.flags.size == of.flags.size]
        if any((one.observation == of.observation).all() for one in before):
            alike.append(of.env)
    if alike:
        yield Finding(
            "warning",
            "environments_alike",
            f"The rows of {len(alike) + 1} environments are the same: environment "
            f"{', '.join(map(str, alike))} has the observations of another one in all "
            f"{stretches[0].flags.size:,} newest rows. Batches have copies in place of new rows.",
            "Give each environment a seed of its own, as Gymnasium's vector environments do with "
            "envs.reset(seed=0), and each its own action.",
        )


def _repeated(stretches: list[Stretch]) -> Iterator[Finding]:
    """Find observations that repeat for some rows, and rows that are stored twice."""
    stays = total = twice = rows = 0
    for of in stretches:
        same = (of.observation[1:] == of.observation[:-1]).all(axis=1)
        stays, total = stays + int(same[of.inner].sum()), total + int(of.inner.sum())
        whole = _whole(of)[of.there]
        twice += _copies(whole)
        rows += whole.shape[0]
    if total >= _FEW and stays >= _MOST * total:
        yield Finding(
            "warning",
            "observations_repeated",
            f"{stays:,} of {total:,} observations are that of the row before in the same episode.",
            "A simulator may write each observation into the array that you keep: copy it before "
            "the next step. If the task changes as rarely, all is well.",
        )
    elif rows >= _FEW and twice >= _TWICE * rows:
        yield Finding(
            "warning",
            "rows_twice",
            f"{twice:,} of the {rows:,} newest rows are there already, number for number: the "
            "same observation, action and reward.",
            "Look whether rows are added twice, or a data set is loaded twice. If the task "
            "repeats itself exactly, all is well.",
        )


def _copies(rows: np.ndarray[Any, Any]) -> int:
    """Count the repeated rows: copies of the row before, or a repeated run.

    In a task with few states single rows repeat, but no run does.
    """
    if rows.shape[0] < _RUN:
        return 0
    _, kinds = np.unique(rows, axis=0, return_inverse=True)
    kinds = kinds.reshape(-1)
    runs = np.lib.stride_tricks.sliding_window_view(kinds, _RUN)
    again = runs.shape[0] - np.unique(runs, axis=0).shape[0]
    return max(again, int((kinds[1:] == kinds[:-1]).sum()))


def _whole(of: Stretch) -> np.ndarray[Any, Any]:
    """Return the numbers of whole rows: `[n, numbers]`."""
    reward = np.zeros((of.flags.size, 0)) if of.reward is None else of.reward[:, None]
    return np.concatenate([of.observation, of.action, reward], axis=1)
