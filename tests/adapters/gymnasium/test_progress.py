"""Bars of collectors: how many steps there are to make, and how many are made."""

import contextlib

import pytest

pytest.importorskip("gymnasium")

from fbuf_adapters.gymnasium import Collector, ProcessCollector, _base_collector
from support.environments import policy, vector
from support.few import few
from support.in_processes import Counting, Policy

import fbuf


@pytest.fixture
def bars(monkeypatch):
    """All that are made; none is drawn."""
    made = []

    class Bar(contextlib.nullcontext):
        def __init__(self, **options):
            super().__init__(self)
            self.options, self.done = options, 0
            made.append(self)

        def update(self, steps):
            self.done += steps

    monkeypatch.setattr(_base_collector, "tqdm", Bar)
    return made


def in_the_thread(progress):
    return Collector(vector(3), policy, chunk=8, progress=progress)


def in_the_background(progress):
    return Collector(vector(3), policy, chunk=8, progress=progress, background=True)


def in_processes(progress):
    options = {"processes": 1, "envs_per_process": 3, "chunk": 8, "mode": "sync"}
    return ProcessCollector(Counting, Policy(), progress=progress, **options)


@pytest.mark.parametrize(
    "make", few([in_the_thread, in_the_background, in_processes], in_the_background)
)
@pytest.mark.parametrize(
    ("progress", "hidden"),
    [
        (None, None),
        pytest.param(True, False, marks=pytest.mark.sweep),
        pytest.param(False, True, marks=pytest.mark.sweep),
    ],
)
def test_all_steps_are_in_the_bar(bars, make, progress, hidden):
    with make(progress) as collector:
        state = fbuf.init(collector.item, 600, **collector.options)
        if make is in_the_background:
            state, operation = collector.drain(state, at_least=20), "drain"
        else:
            state, operation = collector.collect(state, 20), "collect"
    (bar,) = bars
    assert (bar.options["desc"], bar.options["total"]) == (operation, 20)
    assert (bar.options["disable"], bar.options["delay"]) == (hidden, 1)
    assert bar.done == int(fbuf.size(state)) // 3 >= 20
