"""Figures of a busy or slow machine are not published."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import harness, report

STEADY = [2.0, 2.1, 2.05, 2.0, 2.2, 2.1, 2.0, 2.1]


@pytest.mark.parametrize(
    ("paces", "reason"),
    [
        (STEADY, None),
        ([*STEADY, 9.0], None),  # one bad minute
        ([*STEADY, 3.0, 3.0, 3.0, 3.0], "the machine was busy: .* over 1.50 times"),
        ([pace * 1.5 for pace in STEADY], "the machine is slow: 1.50 times"),
        ([pace / 2 for pace in STEADY], None),
    ],
)
def test_a_busy_or_a_slow_machine_is_told(tmp_path, paces, reason):
    before = tmp_path / "compare.json"
    about = {"pace": report.paced(STEADY), "processor": "this one"}
    before.write_text(json.dumps({"about": about}))
    found = report.unfit(paces, "this one", before)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(reason, found)


def test_another_processor_or_no_figures_yet_are_no_reason(tmp_path):
    before = tmp_path / "compare.json"
    slow = [pace * 2 for pace in STEADY]
    assert report.unfit(slow, "another one", before) is None
    about = {"pace": report.paced(STEADY), "processor": "this one"}
    before.write_text(json.dumps({"about": about}))
    assert report.unfit(slow, "another one", before) is None


def test_the_pace_is_a_time():
    assert 0.1 < harness.pace() < 1000
