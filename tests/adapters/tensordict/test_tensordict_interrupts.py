"""Exceptions at any instant in a buffer of TensorDicts: rows are whole, and so are episodes."""

# ruff: noqa: B023  a function made in a loop is called in the same turn
from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")

from fbuf_adapters.tensordict import TensorDictReplayBuffer  # noqa: E402 (after the skip)
from tensordict import TensorDict  # noqa: E402 (after the skip)

import fbuf  # noqa: E402 (after the skip)

# An exception in a callback of the garbage collector is lost, whoever raises it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CAPACITY = 64


@pytest.fixture
def interrupted(interrupted):
    """JAX makes a ValueError of what is raised where it compares structures."""

    def run(call, seconds):
        try:
            return interrupted(call, seconds)
        except ValueError as error:
            if "checking equality of metadata" not in str(error):
                raise
            return False, None

    return run


def steps(first, count, episode):
    """Steps of one episode; nothing but its id tells it from the one before."""
    t = torch.arange(first, first + count)
    return TensorDict({"t": t, "episode": torch.full((count,), episode)}, batch_size=[count])


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("times", "prefetch"),
    [(40, 2), *(pytest.param(2000, n, marks=pytest.mark.sweep) for n in (0, 2))],
)
def test_rows_and_episodes_stay_whole(interrupted, prefetch, times):
    rng, hit, first, episode = random.Random(prefetch), 0, 8, 0
    rb = TensorDictReplayBuffer(
        CAPACITY,
        sampler=fbuf.Prioritized(window=2),
        view=fbuf.Sequence(2),
        batch_size=32,
        prefetch=prefetch,
    )
    rb.extend(steps(0, 8, 0))
    saved, kept = rb.state_dict(), list(range(8))
    of = dict.fromkeys(kept, 0)
    batch = rb.sample()
    while hit < times:
        before = [t for found in rb.episodes() for t in found["t"].tolist()]
        episode += rng.random() < 0.5
        new = list(range(first, first + 8))
        of |= dict.fromkeys(new, episode)
        batch["td_error"] = torch.rand(len(batch))
        calls = {
            "extend": (lambda: rb.extend(steps(new[0], 8, episode)), [*before, *new]),
            "add": (lambda: rb.add(steps(new[0], 1, episode)[0]), [*before, new[0]]),
            "update": (lambda: rb.update_tensordict_priority(batch), before),
            "slots": (lambda: rb.update_priority(torch.arange(8), 2.0), before),
            "read": (lambda: rb[:], before),
            "transform": (lambda: rb.insert_transform(0, lambda given: given), before),
            "save": (rb.state_dict, before),
            "len": (lambda: len(rb), before),
        }
        if rb.can_sample():
            calls |= {"sample": (rb.sample, before), "next": (rb.next, before)}
        if rng.random() < 0.03:
            calls = {"empty": (rb.empty, []), "load": (lambda: rb.load_state_dict(saved), kept)}
            rb._codec.transforms.all = ()  # that is how it was saved
        name = rng.choice(list(calls))
        call, after = calls[name]
        done, result = interrupted(call, rng.uniform(0, 2e-3))
        hit += not done
        first += 8
        found = [t for found in rb.episodes() for t in found["t"].tolist()]
        assert found == after[-CAPACITY:] or (not done and found == before), name
        for whole in rb.episodes() if found else ():
            t = whole["t"].tolist()
            assert len({of[number] for number in t}) == 1
        if name in ("sample", "next") and done:
            batch = result
        if name == "extend" and done:  # the slots are those of the rows
            assert rb[result]["t"].tolist() == new
        if rb.can_sample():
            pairs = rb.sample()["t"].reshape(-1, 2)
            assert all(of[a] == of[b] for a, b in pairs.tolist())
    rb.buffer.raise_on_fault()
    rb.close()
