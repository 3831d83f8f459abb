"""Fixtures of the tests of the adapters."""

import gc
import signal
import sys
import time

import pytest

from support.leftovers import left, orphans


@pytest.fixture(scope="module", autouse=True)
def _collect_quickly():
    """A `gc.collect()` of the tests of a file does not look at what was there before them."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _same_seeds():
    """Buffers without a seed of their own draw the same batches in every run of a test."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(params=[pytest.param("tensors", marks=pytest.mark.sweep), "tensordicts"])
def kind(request):
    """Each of the two buffers; that of tensors is inside that of tensordicts."""
    from support import buffers

    if request.param == "tensordicts":
        pytest.importorskip("tensordict")
    return buffers.KINDS[request.param]


@pytest.fixture
def can_pin(monkeypatch):
    """As if there was a GPU to pin memory for."""
    import torch
    from fbuf_adapters.pytorch.batches import _delivery

    class Pinned(torch.Tensor):
        """Pinning needs a GPU, so this only says so."""

        def is_pinned(self, *_):
            return True

    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(
            torch.Tensor, "pin_memory", lambda self: self.clone().as_subclass(Pinned)
        )
        monkeypatch.setattr(_delivery, "stream_for", lambda *_: None)


class Interrupt(BaseException):
    """The exception of a signal handler."""


@pytest.fixture
def interrupted():
    """A function that makes a call, and raises in it after a moment."""

    armed = False

    def raising(*_):
        if armed:  # a signal that came in time may get here after the call
            raise Interrupt

    before = signal.signal(signal.SIGALRM, raising)

    def run(call, seconds):
        """Whether the call came to its end before the moment, and what it returned."""
        nonlocal armed
        try:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, seconds)
                result = call()
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            return False, None
        return True, result

    yield run
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def nothing_left():
    """Count what there is, before and after."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # Python's own process, which stays
    gc.collect()
    before, memory = left(), orphans()
    yield
    until = time.monotonic() + 10
    while (after := left()) != before or not orphans() <= memory:
        if time.monotonic() > until:
            break
        gc.collect()
        time.sleep(0.05)
    assert after == before
    assert orphans() <= memory
