"""Findings of draws and priorities: few rows of many are drawn, or priorities are alike."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

N = 1000
RNG = np.random.default_rng(0)
ERRORS = RNG.random(N).astype(np.float32)


def of_rows(sampler, priority=None, count=N):
    """A buffer of rows with these priorities."""
    given = {} if priority is None else {"priority": np.asarray(priority, np.float32)}
    state = fbuf.init(0.0, count, sampler=sampler)
    return fbuf.add(state, jnp.arange(float(count)), truncated=ends(count), **given)


def ends(count):
    """All episodes end at a limit of time."""
    return np.arange(count) % 50 == 49


def updated(errors, sampler=fbuf.Prioritized()):
    """A buffer whose oldest rows had these TD errors."""
    slots, state = np.arange(N), of_rows(sampler)
    errors = np.asarray(errors, np.float32)
    ids = fbuf.ids_at(state, jnp.asarray(np.where(slots < errors.size, slots, -1)))
    return fbuf.update_priority(state, ids, np.resize(errors, N))


@pytest.mark.parametrize(
    ("some", "expected", "said"),
    [
        (1, "one_row_dominates", "takes 100.0% of all draws, 1,000 times as many as the average"),
        (3, "one_row_dominates", "takes 33.3% of all draws, 333 times as many as the average"),
        (30, "effective_sample_size_small", "is 30 of 1,000 rows"),
        (300, None, ""),
        (600, "priorities_stale", "600 of 1,000 rows share one priority"),
    ],
)
def test_rows_of_priority_0_count(some, expected, said):
    report = fbuf.report(of_rows(fbuf.Prioritized(eps=0.0), np.arange(N) < some))
    shown = f"{some} of 1,000 rows can be drawn, 1 to 1, median 1 times as likely as the average of"
    assert f"{shown} these; effective sample size {some}" in str(report)
    assert [finding.name for finding in report.findings] == ([expected] if expected else [])
    for finding in report.findings:
        assert said in finding.sentence
        if some < 100:
            only = f" Only {some} of these can be drawn: the others have priority 0."
            assert finding.sentence.endswith(only)
            assert "eps above 0" in finding.remedy


def test_many_effective_rows_are_enough():
    """Though they are a small part of all rows."""
    rows = np.arange(20_000) < 1500
    assert not fbuf.report(of_rows(fbuf.Prioritized(eps=0.0), rows, rows.size)).findings


def test_retired_rows_are_not_missed():
    """Nor are rows that begin no window: they are not drawn, whatever their priority is."""
    limited = fbuf.Limited(fbuf.Prioritized(eps=0.0), max_age=10)
    strided = fbuf.Prioritized(eps=0.0, stride=20, window=20)
    for sampler, some in ((limited, 10), (strided, 40)):
        report = fbuf.report(of_rows(sampler, 1 + ERRORS))
        assert report.figures["drawable"] == some
        assert not report.findings


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (2 + 8 * ERRORS[:200], ["priorities_stale"]),  # above 1, so that new rows have the least
        (0.5 * ERRORS[:200], ["priorities_stale"]),
        (np.where(ERRORS < 0.6, 1, 0.5 * ERRORS), ["priorities_stale"]),  # clipped at 1, as Atari
        (np.where(ERRORS < 0.6, 0, ERRORS), []),  # most of what is predicted is right
        (2 + 8 * ERRORS[:600], []),
        (np.zeros(N), ["priorities_alike"]),
        (np.full(N, 5), ["priorities_alike"]),
        (np.zeros(0), ["priorities_never_updated"]),
    ],
)
def test_priorities_that_are_alike(errors, expected):
    assert [finding.name for finding in fbuf.report(updated(errors)).findings] == expected


def test_the_words_claim_no_more_than_is_seen():
    (stale,) = fbuf.report(updated(2 + 8 * ERRORS[:200])).findings
    assert "800 of 1,000 rows share one priority, 1; half of these are older than" in stale.sentence
    assert "not updated since they were added, or their TD errors are alike" in stale.sentence
    (zero,) = fbuf.report(updated(np.zeros(N))).findings
    assert "the same priority, 0.000251, that of a TD error of 0: draws" in zero.sentence
    (fives,) = fbuf.report(updated(np.full(N, 5))).findings
    assert "the same priority, 2.63: draws are uniform" in fives.sentence


def test_fresh_rows_of_priority_0_are_drawn():
    state = of_rows(fbuf.FreshFirst(fbuf.Prioritized(eps=0.0)), np.zeros(N))
    assert "draws     1,000 fresh rows first, and no other row\n" in str(fbuf.report(state))
    state, batch = fbuf.draw(state, jax.random.key(0), N)
    assert batch.mask.all()
    report = fbuf.report(state)
    assert "draws     no row can be drawn\n" in str(report)
    assert [finding.name for finding in report.findings] == ["nothing_to_draw"]


def test_few_rows_that_are_not_retired():
    item = {"x": 0.0, "version": jnp.int32(0)}
    state = fbuf.init(item, N, sampler=fbuf.Limited(version="version"))
    version = np.repeat(np.arange(2, dtype=np.int32), [N - 30, 30])
    state = fbuf.add(state, {"x": ERRORS, "version": version}, truncated=ends(N))
    assert not fbuf.report(state).findings
    (finding,) = fbuf.report(fbuf.expire(state, 1)).findings
    assert finding.name == "few_rows_live"
    assert "Only 30 of 1,000 rows may still be drawn" in finding.sentence
