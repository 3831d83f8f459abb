"""A report on a buffer."""

from __future__ import annotations

import dataclasses
from typing import Any

from fbuf.checks import values as check
from fbuf.doctor import findings, leaves, stretches, summary, text
from fbuf.doctor.finding import Report
from fbuf.doctor.look import Found, look
from fbuf.doctor.opened import opened
from fbuf.doctor.rewards import Asked

ROWS = 2**18
"""The default of the most rows whose fields are read."""


def report(state: Any, *, reward: str | None = None, rows: int = ROWS) -> Report:
    """Find what is suspicious in a buffer, when an agent does not learn.

    Print the result. It has two sentences for each finding: the fault with its figures, and the
    remedy. A buffer in good order has no finding. But a report sees the buffer alone: not the
    losses, and not what you do with a batch.

    These are its findings:

    - nothing stored or nothing to draw, and why; episodes shorter than the window;
    - NaN and infinities; observations and actions that never change; fields that are all 0;
    - rewards that are all 0, all alike, very large or very small;
    - ends that are missing, everywhere, or at the wrong rows; limits of time given as terminated;
    - next observations that are the observation itself, of another row, or not known;
    - rewards and actions that fit another row better; rewards that are discounted already;
    - rows that are there twice, environments that are alike or frozen, actions at their bounds;
    - a small effective sample size, and one row that dominates; priorities that were never updated;
    - fresh rows that wait or were missed, empty groups, and rows that were retired;
    - faults, see `fbuf.Fault`.

    Findings that compare rows look at the newest 4,096 rows at most, of eight environments. The
    page "It does not learn" has a table of bugs that are seen, and of some that are not.

    `fbuf doctor PATH` prints the same for a checkpoint. It does not read what `next_of` keeps.

    Args:
        state: The buffer, never consumed: a `fbuf.State`, a `fbuf.sharded.ShardedState`, a
            `fbuf.host.HostStore`, or a replay buffer of `fbuf_adapters`. Over a mesh, all shards
            lie on devices of this process.
        reward: The field of the reward (`"a.b"` for a field in a field). None is the first field
            called `reward`, `rewards` or `r`, if there is one.
        rows: The most rows whose fields are read, at least 1. From a larger buffer these rows
            are chosen at random, the same ones each time. Wide fields, such as images, are read of
            fewer rows. Rewards, flags and probabilities are those of all rows.

    Returns:
        A `fbuf.Report`. It has the attributes `findings` and `figures`.

    Raises:
        TypeError: If `state` is no buffer, or is traced.
        ValueError: If `state` is a batch of buffers, as `vmap` makes it, or lies on devices of
            several processes. If there is no field `reward`, or if that is not a number a row. If
            `rows` is below 1.
        RuntimeError: If `state` has been consumed.

    Cost: O(N log N) time, a second or so for a million rows. Meanwhile it takes up to 90 bytes of
        host memory a row, and 8 of the device's. The fields are read a few rows at a time. It waits
        for the result. Call it from Python, now and then.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init({"reward": 0.0}, capacity=100)
        >>> state = fbuf.add(state, {"reward": jnp.zeros(100)})
        >>> print(fbuf.report(state))
        rows      100 of 100 slots (100.0%); 0 removed or left empty, 0 resets
        age       the oldest row is of 100 steps ago
        episodes  0 whole
        returns   no whole episode
        draws     1 to 1, median 1 times as likely as the average row; effective sample size 100
        faults    none
        <BLANKLINE>
        warning: rewards_zero
          All 100 rewards ('reward') are 0.
          Remedy: Look at what you store as the reward. If the task gives one so rarely, explore
          more, begin with demonstrations, or relabel goals with fbuf.Hindsight.
    """
    check.integer("report", "rows", rows)
    with opened(state, "report") as parts:
        return of_found(look(parts, Asked(reward, "report", "reward")), rows)


def of_found(found: Found, rows: int = ROWS) -> Report:
    """Return the report on a buffer, made from its contents."""
    live = [found.live(number) for number in range(len(found.parts))]
    known = {} if found.reward is None else {found.reward[1]: found.rewards}
    fields = leaves.of_rows(found.parts, live, rows, known)
    figures = found.figures | {"fields": {name: leaf.figures() for name, leaf in fields.items()}}
    entries = summary.entries(found)
    read = min((leaf.rows for leaf in fields.values()), default=0)
    if read < found.figures["rows"]:
        entries["fields"] = f"{read:,} or more rows were read, of {found.figures['rows']:,}"
    rows_in_turn = stretches.of_buffer(found.parts, found.lanes, found.rewards, fields)
    found = dataclasses.replace(found, stretches=rows_in_turn)
    return Report(findings.all_of(found, fields), figures, text.lines(entries))
