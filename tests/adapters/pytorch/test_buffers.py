"""Both buffers of tensors are asked the same: that of trees of tensors, and that of TensorDicts.

Tests of one buffer alone are in `test_replay_buffer.py` and `test_tensordict.py`.
"""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import pathlib
import pickle
import subprocess
import sys
import threading
import time
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.few import few

import fbuf
from fbuf.checkpoint import manifest

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import InteropError  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.batches import _modes  # noqa: E402 (after the skip)
from support.buffers import (  # noqa: E402 (after the skip)
    BATCH,
    CAPACITY,
    COUNT,
    DEVICE,
    EXACT,
    PAIRS,
    assert_same,
    bits,
    empty,
    flags,
    of_jax,
    priorities,
    rows,
    shaped,
    stored,
)

TESTS = pathlib.Path(__file__).parents[2]


def filled(kind: Any, count: int = COUNT, **options: Any) -> Any:
    """A buffer with so many rows."""
    buffer = kind.make(**options)
    for start in range(0, count, COUNT):
        kind.extend(buffer, rows(COUNT, start))
    return buffer


def contents(kind: Any, buffer: Any) -> list[int]:
    """The stored rows, slot by slot."""
    return stored(kind.core(buffer).state)["number"].tolist()


def numbers(kind: Any, batch: Any) -> list[int]:
    return kind.leaf(batch, "number").tolist()


def slots(kind: Any, batch: Any) -> list[int]:
    return kind.ids(batch).slot.tolist()


def assert_same_batch(kind: Any, one: Any, other: Any) -> None:
    assert_same(kind.leaves(one), kind.leaves(other))


def full(value: float) -> torch.Tensor:
    """One number for every row of a batch."""
    return torch.full((BATCH,), value, device=DEVICE)


# Writing.


@pytest.mark.sweep
@pytest.mark.parametrize("first", ["add", "extend"])
def test_the_item_is_learned_from_what_comes_first(kind, first):
    buffer = kind.make()
    assert len(buffer) == 0
    assert buffer.can_sample() is False
    (kind.add if first == "add" else kind.extend)(buffer, rows(1))
    found = stored(kind.core(buffer).state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype.name), found) == {
        "number": ((CAPACITY,), "int32"),
        "next": {"reward": ((CAPACITY, 1), "float32")},
    }
    kind.extend(buffer, rows(COUNT, 1))
    assert contents(kind, buffer) == [*range(9), 0]
    assert len(buffer) == 9
    kind.add(buffer, rows(1, 9))
    kind.add(buffer, rows(1, 10))
    assert contents(kind, buffer) == [10, *range(1, 10)]
    assert len(buffer) == CAPACITY
    assert buffer.can_sample() is True


@pytest.mark.sweep
def test_rows_go_around_the_end_and_come_back_as_they_were(kind):
    buffer = filled(kind, 2 * COUNT)
    assert contents(kind, buffer) == [10, 11, 12, 13, 14, 15, 6, 7, 8, 9]
    assert len(buffer) == CAPACITY
    batch = buffer.sample()
    assert set(numbers(kind, batch)) <= set(range(6, 16))
    assert [number % CAPACITY for number in numbers(kind, batch)] == slots(kind, batch)
    reward = kind.leaf(batch, "next", "reward")
    assert (reward.dtype, reward.shape) == (torch.float32, (BATCH, 1))
    assert torch.equal(reward[:, 0], kind.leaf(batch, "number") / 8)
    for leaf in kind.leaves(batch):
        assert leaf.device.type == DEVICE
        leaf.zero_()  # a batch is its owner's
    assert_same_batch(kind, *(filled(kind, 2 * COUNT, seed=3).sample() for _ in range(2)))


@pytest.mark.sweep
@pytest.mark.parametrize("count", [COUNT, pytest.param(2**18, marks=pytest.mark.sweep)])
def test_tensors_are_their_owners_again(kind, count):
    """For what would go wrong without care, see `test_hazards.py`."""
    buffer, data = kind.make(max(count, CAPACITY)), rows(count, 1)
    kind.extend(buffer, data)  # compile
    kind.core(buffer).state = fbuf.clear(kind.core(buffer).state)
    kind.extend(buffer, data)
    for leaf in jax.tree.leaves(data):
        leaf.fill_(0)
    assert contents(kind, buffer)[:count] == list(range(1, count + 1))


@pytest.mark.sweep
def test_environments_that_step_together(kind):
    buffer = kind.make(num_envs=2, sampler=EXACT)
    terminated = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]], device=DEVICE).bool()
    truncated = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0]], device=DEVICE).bool()
    given = torch.arange(1.0, 9.0, device=DEVICE).reshape(2, 4)
    told = {"terminated": terminated, "truncated": truncated, "priority": given}
    kind.extend(buffer, shaped(rows(), 2, 4), **told)
    assert contents(kind, buffer) == [0, 4, 1, 5, 2, 6, 3, 7, 0, 0]
    assert flags(kind.core(buffer).state) == [0, 2, 1, 0, 0, 0, 0, 0, 0, 0]
    assert priorities(kind.core(buffer).state) == [1, 5, 2, 6, 3, 7, 4, 8, 0, 0]
    kind.extend(buffer, shaped(rows(COUNT, COUNT), 2, 4), **told)
    assert contents(kind, buffer) == [9, 13, 10, 14, 11, 15, 3, 7, 8, 12]
    assert len(buffer) == CAPACITY


@pytest.mark.sweep
def test_an_integer_that_does_not_fit_changes_nothing(kind):
    too_large = rows(COUNT, 2**31 - COUNT + 1)
    for buffer in (kind.make(), filled(kind)):
        count = len(buffer)
        with pytest.raises(InteropError, match=r"extend: (items|data)\['number'\].*cannot hold"):
            kind.extend(buffer, too_large)
        assert len(buffer) == count
        kind.extend(buffer, rows(COUNT, 2**31 - COUNT))
        assert max(contents(kind, buffer)) == 2**31 - 1
        assert 2**31 - 1 in numbers(kind, buffer.sample())


def with_reward(reward: Any) -> dict[str, Any]:
    return rows() | {"next": {"reward": reward}}


REFUSED = {
    "grad": (
        lambda: with_reward(torch.ones(COUNT, 1, requires_grad=True)),
        InteropError,
        r"reward.*requires grad.*detach",
    ),
    "graph": (
        lambda: with_reward(torch.ones(COUNT, 1, requires_grad=True) * 2),
        InteropError,
        r"reward.*requires grad.*detach",
    ),
    "meta": (
        lambda: with_reward(torch.ones(COUNT, 1, device="meta")),
        InteropError,
        r"\['reward'\].*no memory",
    ),
    "new": (
        lambda: rows() | {"more": torch.ones(COUNT, device=DEVICE)},
        InteropError,
        r"same tree as before: (items|data)\['more'\] is new",
    ),
    "missing": (
        lambda: {"number": rows()["number"]},
        InteropError,
        r"same tree as before: (items|data)\['next'\]\['reward'\] is missing",
    ),
    "shape": (
        lambda: with_reward(torch.ones(COUNT, 2, device=DEVICE)),
        ValueError,
        r"extend: (items|data)\['next'\]\['reward'\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_added_changes_nothing(kind, name):
    make, error, message = REFUSED[name]
    buffer = filled(kind)
    before = contents(kind, buffer)
    with pytest.raises(error, match=message):
        kind.extend(buffer, make())
    assert contents(kind, buffer) == before
    assert len(buffer) == COUNT
    kind.extend(buffer, rows(COUNT, COUNT))
    assert contents(kind, buffer) == [10, 11, 12, 13, 14, 15, 6, 7, 8, 9]


@pytest.mark.sweep
def test_rows_may_be_added_in_jax_meanwhile(kind):
    buffer = filled(kind, prefetch=2)
    buffer.sample()
    core = kind.core(buffer)
    with core.lock, core.lock:
        empty = fbuf.clear(core.state, donate=False)
        core.state = fbuf.add(empty, of_jax(rows(COUNT, 20)))
    assert contents(kind, buffer) == [*range(20, 28), 0, 0]
    assert min(numbers(kind, buffer.sample())) >= 20  # what was drawn ahead has been dropped
    kind.extend(buffer, rows(COUNT, 28))
    assert contents(kind, buffer) == [30, 31, 32, 33, 34, 35, 26, 27, 28, 29]
    buffer.close()


# Priorities and weights.


@pytest.mark.sweep
def test_new_rows_take_the_priority_they_are_given_or_the_largest(kind):
    buffer = kind.make(sampler=EXACT)
    given = torch.tensor([1.0, 0.0, 3.0, 4.0, 5.0, 6.0, 0.5, 2.0], device=DEVICE)
    kind.extend(buffer, rows(), priority=given)
    assert priorities(kind.core(buffer).state) == [*given.tolist(), 0, 0]
    plain = filled(kind, sampler=EXACT)
    kind.learn(plain, plain.sample(), full(7.0))
    kind.extend(plain, rows(COUNT, COUNT))
    assert priorities(kind.core(plain).state)[:6] == [7.0] * 6


@pytest.mark.sweep
def test_what_was_learned_is_the_priority(kind):
    buffer = filled(kind, sampler=EXACT)
    batch = buffer.sample()
    given = torch.arange(1.0, BATCH + 1, device=DEVICE)
    kind.learn(buffer, batch, given)
    wanted = dict.fromkeys(range(COUNT), 1.0)  # of a row drawn twice the last counts
    wanted |= dict(zip(slots(kind, batch), given.tolist(), strict=True))
    assert len(set(slots(kind, batch))) < BATCH
    assert priorities(kind.core(buffer).state) == [*wanted.values(), 0, 0]
    kind.learn(buffer, batch, full(3.0), alpha=2.0)
    drawn = set(slots(kind, batch))
    wanted = [9.0 if slot in drawn else 1.0 for slot in range(COUNT)]
    assert priorities(kind.core(buffer).state)[:COUNT] == pytest.approx(wanted, rel=1e-6)
    kind.core(buffer).raise_on_fault()


@pytest.mark.sweep
def test_rows_that_were_replaced_are_left_alone(kind):
    buffer = filled(kind, sampler=EXACT)
    batch = buffer.sample()
    drawn = set(slots(kind, batch))
    kind.extend(buffer, rows(COUNT, COUNT))
    assert drawn & {0, 1, 2, 3, 4, 5}
    assert drawn & {6, 7}
    kind.learn(buffer, batch, full(9.0))
    wanted = [9 if slot in drawn & {6, 7} else 1 for slot in range(CAPACITY)]
    assert priorities(kind.core(buffer).state) == wanted


@pytest.mark.sweep
def test_weights_by_the_book(kind):
    buffer = filled(kind, sampler=EXACT)
    first = buffer.sample()
    kind.learn(buffer, first, kind.leaf(first, "number") % 4 + 2.0)
    given = torch.tensor(priorities(kind.core(buffer).state))
    for beta in (None, 0.25):
        batch = kind.sample(buffer, beta)
        share = given[kind.ids(batch).slot.cpu()] / given.sum()
        weight = (COUNT * share) ** -(1.0 if beta is None else beta)
        torch.testing.assert_close(kind.weight(batch).cpu(), weight / weight.max())
        assert len(set(kind.weight(batch).tolist())) > 2


# Drawing.


def test_the_seed_says_what_is_drawn(kind):
    def draws(seed: int) -> list[list[int]]:
        buffer = filled(kind, seed=seed)
        return [numbers(kind, buffer.sample()) for _ in range(4)]

    torch.manual_seed(0)
    first = draws(3)
    torch.manual_seed(1)
    assert draws(3) == first
    assert draws(4) != first
    assert len({tuple(batch) for batch in first}) == 4


def test_without_a_seed_two_buffers_draw_different_batches(kind, tmp_path):
    def made(**options: Any) -> Any:
        buffer = kind.make(**options)
        kind.extend(buffer, rows())
        return buffer

    def draws(buffer: Any) -> list[int]:
        return [number for _ in range(3) for number in numbers(kind, buffer.sample())]

    made_without = lambda: made(seed=None)
    torch.manual_seed(5)
    first, second = made_without(), made_without()
    torch.manual_seed(5)
    assert kind.core(first).seed != kind.core(second).seed
    again = [made_without() for _ in range(2)]
    drawn = [draws(buffer) for buffer in (first, second, *again)]
    assert drawn[0] != drawn[1]
    assert drawn[2:] == drawn[:2]  # as torch.manual_seed says
    seed = kind.core(first).seed
    assert draws(made(seed=seed)) == drawn[0]
    assert f"seed={seed})" in repr(first)
    saved = first.state_dict()
    assert saved.get("buffer", saved)["seed"] == seed
    first.save(tmp_path)
    before = torch.get_rng_state()
    for load in (lambda b: b.load_state_dict(saved), lambda b: b.load(tmp_path)):
        other = made(seed=3)  # and no generator is asked
        load(other)
        assert kind.core(other).seed == seed
    del saved.get("buffer", saved)["seed"]  # as in what older releases have written
    other.load_state_dict(saved)
    assert kind.core(other).seed == seed
    if kind.flags_are_stored:  # the other one refuses
        assert kind.core(copy.deepcopy(first)).seed == seed
    assert torch.equal(torch.get_rng_state(), before)


def test_an_empty_buffer_says_so(kind):
    buffer = kind.make()
    with pytest.raises(RuntimeError, match=r"sample: (nothing has been added yet|.*nothing to d)"):
        buffer.sample()
    kind.extend(buffer, rows())
    buffer.sample()
    buffer.empty()
    assert len(buffer) == 0
    assert buffer.can_sample() is False
    with pytest.raises(RuntimeError, match=r"sample: .*the buffer is empty"):
        buffer.sample()
    kind.add(buffer, rows(1, 7))
    assert set(numbers(kind, buffer.sample())) == {7}


@pytest.mark.sweep
def test_a_window_waits_for_its_rows(kind):
    buffer = kind.make(**PAIRS, **kind.unmarked)
    kind.extend(buffer, rows(1))
    assert len(buffer) == 1
    assert buffer.can_sample() is False
    kind.extend(buffer, rows(COUNT, 1))
    assert buffer.can_sample() is True
    assert set(slots(kind, buffer.sample())) == set(range(COUNT))


def test_there_must_be_a_batch_size(kind):
    with pytest.raises(ValueError, match="batch_size"):
        filled(kind, batch_size=None).sample()
    with pytest.raises(ValueError, match="batch_size is not given"):
        next(iter(filled(kind, batch_size=None, sampler=fbuf.Shuffled())))
    with pytest.raises(ValueError, match=r"prefetch .* batch_size"):
        kind.make(prefetch=1, batch_size=None)


def test_iteration_has_no_end(kind):
    buffer, same = filled(kind), filled(kind)
    for batch, _ in zip(buffer, range(20), strict=False):
        assert_same_batch(kind, batch, same.sample())


@pytest.mark.sweep
@pytest.mark.parametrize("prefetch", [pytest.param(0, marks=pytest.mark.sweep), 3])
def test_an_epoch_has_every_row_once(kind, prefetch):
    options = {"sampler": fbuf.Shuffled(), "batch_size": 4, "prefetch": prefetch}
    buffer = filled(kind, 2 * COUNT, **options)
    buffer.sample()  # an epoch has begun; the next loop has one of its own
    epochs = [[x for batch in buffer for x in numbers(kind, batch)] for _ in range(3)]
    assert all(sorted(epoch) == list(range(6, 16)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    buffer.close()


# Ahead of time.


def test_batches_drawn_ahead_come_in_order_and_once(kind):
    """Each is what was drawn so many calls before, from the buffer as it was then."""
    ahead, plain = filled(kind, prefetch=3, seed=5), filled(kind, seed=5)
    given, expected = [], [plain.sample() for _ in range(3)]
    for step in range(1, 9):
        given.append(ahead.sample())
        expected.append(plain.sample())
        for buffer in (ahead, plain):
            kind.extend(buffer, rows(COUNT, COUNT * step))
    for one, other in zip(given, expected, strict=False):
        assert_same_batch(kind, one, other)
    ahead.close()


@pytest.mark.sweep
def test_priorities_may_be_updated_meanwhile(kind):
    buffer = filled(kind, sampler=EXACT, prefetch=2)
    for step in range(6):
        batch = buffer.sample()
        for part in range(2):  # all that was drawn has gone by now
            kind.extend(buffer, rows(COUNT, COUNT * (2 * step + part)))
        kind.learn(buffer, batch, full(100.0))
    assert priorities(kind.core(buffer).state) == [1.0] * CAPACITY  # what is stale changed nothing
    with pytest.raises(RuntimeError, match="overwritten"):
        fbuf.raise_on_fault(kind.core(buffer).state, ignore=fbuf.Fault(0))
    buffer.close()


def test_what_is_gone_is_not_given_out_of_what_was_drawn_ahead(kind):
    """Batches drawn ahead are dropped, as if they had not been drawn."""
    ahead, plain = filled(kind, prefetch=2), filled(kind)

    def drawn() -> list[int]:
        batch = ahead.sample()
        assert_same_batch(kind, batch, plain.sample())
        return numbers(kind, batch)

    batch = ahead.sample()
    assert_same_batch(kind, batch, plain.sample())
    assert 3 in numbers(kind, batch)
    for buffer in (ahead, plain):
        kind.core(buffer).remove(kind.ids(batch), mask=kind.leaf(batch, "number") == 3)
        assert len(buffer) == COUNT - 1
    assert all(3 not in drawn() for _ in range(3))
    for buffer in (ahead, plain):
        buffer.empty()
        kind.extend(buffer, rows(COUNT, 50))
    assert all(min(drawn()) >= 50 for _ in range(3))
    ahead.close()


@pytest.mark.sweep
def test_a_batch_of_another_size_drops_those_drawn_ahead(kind):
    ahead, plain = filled(kind, prefetch=2, seed=4), filled(kind, seed=4)
    for size in (BATCH, 5, BATCH, 7, 7, BATCH):
        one, other = (buffer.sample(size) for buffer in (ahead, plain))
        assert len(numbers(kind, one)) == size
        assert_same(kind.leaves(one), kind.leaves(other))
    ahead.close()


def test_making_batches_ahead_takes_no_time_from_the_learner(kind):
    """The transform of the next batch runs while the learner has this one."""
    slow = threading.Event()
    begun: list[int] = []

    def transform(batch: Any) -> Any:
        begun.append(1)
        if len(begun) > 1:
            slow.wait(10)
        return batch

    buffer = filled(kind, prefetch=1, transform=transform)
    buffer.sample()  # is there, though the transform of the next one is not done
    deadline = time.monotonic() + 10
    while len(begun) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(begun) == 2
    slow.set()
    buffer.sample()
    buffer.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_of_the_transform_reaches_the_learner_and_passes(kind, prefetch):
    numbered = iter(range(100))

    def transform(batch: Any) -> Any:
        if next(numbered) == 1:
            raise KeyError("of the transform")
        return batch

    buffer = filled(kind, prefetch=prefetch, transform=transform)
    buffer.sample()
    with pytest.raises(KeyError, match="of the transform"):
        buffer.sample()
    buffer.sample()
    buffer.close()


# Closing.

BOTH = pytest.mark.parametrize("kind", ["tensors", "tensordicts"], indirect=True)
"""In `make test`, too: each of the two has a guard of its own."""


def prefetching() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("fbuf-prefetch")}


@BOTH
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_that_returns_nothing_is_named(kind, prefetch):
    """A function that changes the batch in place is easily left without its return."""
    buffer = kind.make(prefetch=prefetch, transform=lambda batch: None)
    kind.extend(buffer, rows())
    for _ in range(2):
        with pytest.raises(TypeError, match=r"transform.* returned (None|a NoneType).*batch"):
            buffer.sample()
    buffer.close()


MODES = {
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "of a GPU": lambda: torch.autocast("cuda", dtype=torch.float16, cache_enabled=False),
}


@pytest.mark.filterwarnings("ignore:.*[Uu]ser provided device_type of 'cuda'")
@pytest.mark.filterwarnings("ignore:.*CUDA is not available.*")
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_is_called_under_the_modes_of_the_call(kind, prefetch, name):
    """Also in another thread, and also if they are others than those of the call before."""
    weight = torch.ones(1, 1, requires_grad=True)
    seen: list[Any] = []

    def transform(batch: Any) -> Any:
        data = batch.data if hasattr(batch, "data") and not kind.flags_are_stored else batch
        out = torch.ones(1, 1) @ weight
        seen.append(_modes.current())
        data["out"] = out.expand(len(data["number"]), 1)
        return batch

    buffer = kind.make(prefetch=prefetch, transform=transform)
    kind.extend(buffer, rows())
    found = lambda: kind.leaf(buffer.sample(), "out")
    for _ in range(2):
        for _ in range(4):
            out = found()
            assert (out.requires_grad, out.dtype) == (True, torch.float32)
        with MODES[name]():
            expected = torch.ones(1, 1) @ weight
            for _ in range(4):
                out = found()
                assert (out.requires_grad, out.dtype) == (expected.requires_grad, expected.dtype)
                assert out.is_inference() == expected.is_inference()
            mode = _modes.current()
        assert mode in seen
    buffer.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_makes_its_tensors_on_the_default_device_of_the_call(kind, prefetch):
    seen: list[str] = []

    def transform(batch: Any) -> Any:
        seen.append(torch.zeros(2).device.type)
        return batch

    buffer = kind.make(prefetch=prefetch, transform=transform)
    kind.extend(buffer, rows())
    for device in ("cpu", "meta"):
        seen.clear()
        with torch.device(device):
            for _ in range(4):
                buffer.sample()
        assert seen[-3:] == [device] * 3
    buffer.close()


def test_a_closed_buffer_says_so(kind, tmp_path):
    before = prefetching()
    buffer = filled(kind, prefetch=2, sampler=EXACT)
    batch = buffer.sample()
    assert prefetching() - before
    kept = bits(kind.leaves(batch))
    buffer.close()
    assert not prefetching() - before
    for call in (
        buffer.sample,
        lambda: kind.add(buffer, rows(1)),
        lambda: kind.extend(buffer, rows()),
        lambda: len(buffer),
        lambda: next(iter(buffer)),
        *(buffer.empty, buffer.can_sample, buffer.stats, buffer.state_dict),
        lambda: buffer.save(tmp_path),
        lambda: buffer.load(tmp_path),
    ):
        with pytest.raises(RuntimeError, match=r"this buffer is closed"):
            call()
    buffer.close()  # again, which does nothing
    for x, y in zip(kept, bits(kind.leaves(batch)), strict=True):  # it stays valid
        np.testing.assert_array_equal(x, y)
    with pytest.raises(RuntimeError, match=r"this buffer is closed"):
        kind.learn(buffer, batch, full(1.0))


def test_closing_wakes_who_waits_for_a_batch(kind):
    hold = threading.Event()
    buffer = filled(kind, prefetch=3, transform=lambda batch: hold.wait(10) and batch)
    errors: list[BaseException] = []

    def learner() -> None:
        try:
            while True:
                buffer.sample()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=learner)
    thread.start()
    time.sleep(0.1)
    closing = threading.Thread(target=buffer.close)
    closing.start()
    hold.set()
    for waiting in (thread, closing):
        waiting.join(10)
        assert not waiting.is_alive()
    assert "closed" in str(errors[0])


def test_a_buffer_that_is_forgotten_leaves_no_thread(kind):
    before = prefetching()
    buffer = filled(kind, prefetch=2)
    buffer.sample()
    alive = weakref.ref(buffer)
    (thread,) = prefetching() - before
    del buffer
    deadline = time.monotonic() + 10
    while alive() is not None and time.monotonic() < deadline:  # until the batch ahead is made
        time.sleep(0.01)
        gc.collect()
    assert alive() is None
    thread.join(10)
    assert not thread.is_alive()


# Where batches go.


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("host", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_every_tensor_of_a_batch_is_pinned(kind, prefetch, host, can_pin):
    buffer = kind.make(device="cpu", prefetch=prefetch, host=host, pin_memory=True, sampler=EXACT)
    kind.extend(buffer, jax.tree.map(torch.Tensor.cpu, rows()))
    for _ in range(2 + prefetch):
        batch = buffer.sample()
        assert all(leaf.is_pinned() for leaf in kind.leaves(batch))
        assert kind.leaf(batch, "next", "reward").is_pinned()
        assert set(numbers(kind, batch)) <= set(range(COUNT))
    buffer.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_go_to_another_device_and_what_is_learned_comes_back(kind, prefetch, monkeypatch):
    """Moving to `meta` shows that every tensor is moved, ids and all, without a GPU."""
    buffer = filled(kind, prefetch=prefetch, to="meta", sampler=EXACT)
    batch = buffer.sample()
    assert {leaf.device.type for leaf in kind.leaves(batch)} == {"meta"}
    # And back: as if these were the values, which name row 0 and its first generation.
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, device: torch.zeros(self.shape, dtype=self.dtype)
    )
    kind.learn(buffer, batch, torch.ones(BATCH, device="meta") * 9)
    assert priorities(kind.core(buffer).state) == [0, *[1] * 7, 0, 0]
    buffer.close()


# Threads.


@pytest.mark.parametrize(
    ("capacity", "width"), [(CAPACITY, 1), pytest.param(256, 64, marks=pytest.mark.sweep)]
)
def test_writers_and_learners_at_once(kind, capacity, width):
    """No batch has half a row, and every row of every writer gets there."""
    buffer = kind.make(capacity, prefetch=2, sampler=EXACT)
    steps, errors = 40, []

    def filling(memory: torch.Tensor, number: int) -> dict[str, Any]:
        memory.fill_(number / 8)
        numbers = torch.full((COUNT,), number, device=DEVICE)
        return {"number": numbers, "next": {"reward": memory}}

    def guarded(work: Any) -> Any:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # or nobody would hear of it
                errors.append(error)

        return run

    def writer(number: int) -> Any:
        def work() -> None:
            memory = torch.zeros(COUNT, width, device=DEVICE)
            for step in range(steps):
                kind.extend(buffer, filling(memory, number * 1000 + step))

        return work

    def learner() -> None:
        for _ in range(steps):
            batch = buffer.sample()
            reward = kind.leaf(batch, "next", "reward")
            assert len(reward) == BATCH
            assert bool((reward == kind.leaf(batch, "number")[:, None] / 8).all())
            kind.learn(buffer, batch, torch.rand(BATCH, device=DEVICE) + 0.1)
            reward.fill_(-1)  # a batch is its owner's

    writer(0)()
    threads = [
        threading.Thread(target=guarded(work)) for work in (writer(1), writer(2), learner, learner)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    kind.core(buffer).raise_on_fault()
    assert len(buffer) == capacity
    found = contents(kind, buffer)
    newest = {number * 1000 + step for number in (1, 2) for step in range(steps)}
    assert set(found) <= newest
    assert {1000 + steps - 1, 2000 + steps - 1} & set(found)
    reward = np.asarray(stored(kind.core(buffer).state)["next"]["reward"])
    np.testing.assert_array_equal(reward, np.repeat(found, width).reshape(-1, width) / 8)
    buffer.close()


@pytest.mark.on_cpu
def test_of_a_state_that_is_replaced_no_memory_is_left(kind):
    def live() -> int:
        gc.collect()
        return sum(array.nbytes for array in jax.live_arrays())

    before = live()
    buffer = kind.make(batch_size=1)
    wide = torch.zeros(COUNT, 100_000, device=DEVICE)
    kind.extend(buffer, rows() | {"wide": wide})
    core, one = kind.core(buffer), live() - before
    assert one > 4e6
    for _ in range(3):
        buffer.sample()
        core.state = jax.tree.map(jnp.copy, core.state)
        assert live() - before < 1.2 * one
    core.state = core.state  # with the same arrays it is another state all the same
    buffer.empty()
    more = of_jax(rows(2, 5) | {"wide": wide[:2]})
    core.state = fbuf.add(jax.tree.map(jnp.copy, core.state), more)
    assert set(numbers(kind, buffer.sample())) <= {5, 6}
    assert live() - before < 1.2 * one
    buffer.close()
    del more
    assert live() - before < 0.1 * one


def test_a_state_of_the_same_arrays_is_another_state(kind, monkeypatch):
    """Where rows were added meanwhile in JAX, whatever `jax.device_put` returns of an array."""
    buffer = filled(kind)
    core = kind.core(buffer)
    before, state = core.contents.stamp, core.state
    with monkeypatch.context() as patch:
        patch.setattr(jax, "device_put", lambda tree, *_: tree)
        core.state = state
    assert core.contents.stamp is not before
    assert core.state.storage.words is state.storage.words


# Other processes.


HANDED_OVER = [lambda x: x, lambda x: {"of": [x]}, lambda x: x.sample]


class Wrapped:
    """Pickles what it holds by itself, as wrappers for lambdas do."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __getstate__(self) -> bytes:
        return pickle.dumps(self.held)


@BOTH
@pytest.mark.parametrize("made", few(HANDED_OVER, HANDED_OVER[1]))
@pytest.mark.parametrize("derived", few([False, True], True))
def test_a_buffer_is_sent_to_no_other_process(kind, made, derived):
    """It would be a copy there, whose rows are lost without a word."""
    buffer = filled(kind)
    if derived:  # a class that a user has made of it
        own = type("Own", (type(buffer),), {})
        buffer = own(CAPACITY, device=DEVICE)
    match = r"a buffer stays in the process that made it.*Send the rows.*or, for a buffer of its o"
    for module in (multiprocessing, torch.multiprocessing):
        for method in ("spawn", "forkserver"):
            process = module.get_context(method).Process(target=print, args=(made(buffer),))
            with pytest.raises(TypeError, match=match):
                process.start()
    process = multiprocessing.get_context("spawn").Process(target=print, args=(Wrapped(buffer),))
    with pytest.raises(TypeError, match=match):
        process.start()
    _, end = multiprocessing.Pipe()
    with pytest.raises(TypeError, match=match):
        end.send(made(buffer))
    with pytest.raises(TypeError, match=match):
        ForkingPickler.dumps(made(buffer))


# Saving.


def step(kind: Any, buffer: Any, number: int) -> list[torch.Tensor]:
    """The next calls of a learner, and all their results."""
    if number % 2:
        kind.extend(buffer, rows(COUNT, COUNT * number))
    batch = buffer.sample()
    told = [leaf.clone() for leaf in kind.leaves(batch)]
    kind.learn(buffer, batch, (kind.leaf(batch, "number") % 4 + number).float())
    told.append(torch.tensor(priorities(kind.core(buffer).state)))
    for leaf in kind.leaves(batch):
        leaf.zero_()  # a batch is its owner's, also one that was saved or loaded
    return told


@pytest.mark.parametrize(
    "laps", [pytest.param(1, marks=pytest.mark.sweep), 2], ids=["before the end", "around the end"]
)
@pytest.mark.parametrize("prefetch", [pytest.param(0, marks=pytest.mark.sweep), 2])
@pytest.mark.parametrize("way", ["state_dict", "directory"])
def test_a_run_goes_on_where_it_was(kind, prefetch, laps, way, tmp_path):
    def made(seed: int) -> Any:
        return kind.make(sampler=EXACT, seed=seed, prefetch=prefetch)

    buffer = made(1)
    for number in range(1, 2 * laps, 2):
        step(kind, buffer, number)
    if way == "directory":
        buffer.save(tmp_path)
        load = lambda resumed: resumed.load(tmp_path, episodes="keep")
    else:
        torch.save(buffer.state_dict(), tmp_path / "buffer.pt")
        saved = torch.load(tmp_path / "buffer.pt", weights_only=True)
        load = lambda resumed: resumed.load_state_dict(saved, episodes="keep")
    expected = [step(kind, buffer, number) for number in range(5, 9)]
    other = made(2)
    kind.extend(other, rows(COUNT, 50))  # which is forgotten
    other.sample()
    for resumed in (other, made(1)):
        load(resumed)
        for number, wanted in zip(range(5, 9), expected, strict=True):
            assert_same(step(kind, resumed, number), wanted)
        end = kind.core(buffer).state
        assert (int(end.ring.save_id[0]) != 0) == (way == "directory")
        assert_same(kind.core(resumed).state, end)
        resumed.close()
    buffer.close()


@pytest.mark.parametrize("way", ["state_dict", "directory"])
def test_a_loaded_buffer_joins_no_row_to_those_of_before(kind, way, tmp_path):
    """Unless whoever loads it says that the environments go on, too."""
    buffer = kind.make(sampler=fbuf.Uniform(window=2), **kind.unmarked)
    kind.extend(buffer, rows(4))
    buffer.save(tmp_path)
    saved = buffer.state_dict()
    for options, ends in (({}, [3]), ({"episodes": "end"}, [3]), ({"episodes": "keep"}, [])):
        other = kind.make(sampler=fbuf.Uniform(window=2), **kind.unmarked)
        for _ in range(2):  # as often as one likes
            if way == "directory":
                other.load(tmp_path, **options)
            else:
                other.load_state_dict(saved, **options)
        assert np.flatnonzero(flags(kind.core(other).state)).tolist() == ends
        kind.extend(other, rows(4, 4))
        assert np.flatnonzero(flags(kind.core(other).state)).tolist() == ends
        drawn = kind.core(other).contents.stored.backend.look(fbuf.stats)["num_starts"]
        assert drawn == 7 - len(ends)


def test_what_becomes_of_episodes_is_one_of_two(kind, tmp_path):
    buffer = filled(kind)
    buffer.save(tmp_path)
    before = bits(kind.core(buffer).state)
    for load in (lambda e: buffer.load(tmp_path, episodes=e), lambda e: buffer.load_state_dict(
        buffer.state_dict(), episodes=e
    )):  # fmt: skip
        for wrong in ("End", True, None):
            with pytest.raises(ValueError, match="episodes must be one of 'end', 'keep', got"):
                load(wrong)
    for x, y in zip(before, bits(kind.core(buffer).state), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("prefetch", [pytest.param(0, marks=pytest.mark.sweep), 2])
def test_saves_into_one_directory(kind, prefetch, tmp_path):
    """Only new rows are added to an old directory, and each save is the buffer of its moment."""
    buffer = kind.make(sampler=EXACT, prefetch=prefetch)
    for turn in range(1, 5):
        step(kind, buffer, turn)
        buffer.save(tmp_path)
        again = kind.make(sampler=EXACT, prefetch=prefetch)
        again.load(tmp_path, episodes="keep")
        assert_same(kind.core(again).state.storage, kind.core(buffer).state.storage)
        again.close()
    assert len(manifest.numbers(tmp_path)) == 2
    # Half of the turns add nothing, and no row is written twice.
    assert len(list(tmp_path.glob("shard-00000/rows-*"))) == 2
    buffer.close()


@pytest.mark.sweep
def test_a_directory_that_does_not_fit_changes_nothing(kind, tmp_path):
    filled(kind, sampler=EXACT).save(tmp_path)
    for other in (filled(kind, capacity=7, sampler=EXACT), filled(kind)):
        before = bits(kind.core(other).state)
        with pytest.raises(ValueError, match=r"same arguments|has the sampler"):
            other.load(tmp_path)
        for x, y in zip(before, bits(kind.core(other).state), strict=True):
            np.testing.assert_array_equal(x, y)
    other = kind.make(sampler=EXACT)
    kind.extend(other, rows(2) | {"more": torch.zeros(2)})
    with pytest.raises(ValueError, match="give none"):
        other.load(tmp_path)
    tmp_path = tmp_path / "other"
    fbuf.save(tmp_path, empty(sampler=EXACT))
    with pytest.raises(fbuf.CheckpointError, match="and no ReplayBuffer"):
        kind.make(sampler=EXACT).load(tmp_path)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_is_saved_is_a_copy_both_ways(kind, prefetch):
    buffer = filled(kind, sampler=EXACT, prefetch=prefetch)
    buffer.sample()
    saved = buffer.state_dict()
    before = bits(tensors_in(saved))
    expected = [step(kind, buffer, number) for number in range(1, 5)]
    for turn in range(3):
        other = kind.make(sampler=EXACT, prefetch=prefetch)
        other.load_state_dict(saved, episodes="keep")
        if turn == 2:
            for leaf in tensors_in(saved):
                leaf.untyped_storage().fill_(0)
        for number, wanted in zip(range(1, 5), expected, strict=True):
            assert_same(step(kind, other, number), wanted)
        if turn < 2:  # what is done with rows and batches that were loaded is no matter
            for x, y in zip(before, bits(tensors_in(saved)), strict=True):
                np.testing.assert_array_equal(x, y)
        other.close()
    buffer.close()


def test_what_was_loaded_is_written_in_place(kind):
    saved, buffer = filled(kind).state_dict(), kind.make()
    buffer.load_state_dict(saved)
    words = kind.core(buffer).state.storage.words
    before = words.unsafe_buffer_pointer()
    del words
    kind.extend(buffer, rows(COUNT, COUNT))
    assert kind.core(buffer).state.storage.words.unsafe_buffer_pointer() == before


def test_what_cannot_be_loaded_changes_nothing(kind):
    buffer = filled(kind, sampler=EXACT)
    saved = buffer.state_dict()
    before = bits(kind.core(buffer).state)
    alone = r"made with capacity=10, but this buffer was made with capacity=7; use the same arg"
    with pytest.raises(ValueError, match=alone):
        kind.make(7, sampler=EXACT).load_state_dict(saved)
    alone = r"made with sampler=Prioritized\([^;]*, but this buffer was made with sampler=Uniform\("
    with pytest.raises(ValueError, match=alone):
        kind.make().load_state_dict(saved)
    saved.get("buffer", saved)["version"] = 99
    with pytest.raises(ValueError, match="version 99"):
        buffer.load_state_dict(saved)
    for x, y in zip(before, bits(kind.core(buffer).state), strict=True):
        np.testing.assert_array_equal(x, y)


def test_an_emptied_buffer_is_saved_as_one(kind):
    buffer = filled(kind)
    buffer.empty()
    other = kind.make()
    other.load_state_dict(buffer.state_dict())
    with pytest.raises(RuntimeError, match="the buffer is empty"):
        other.sample()


FLAT = """
import json, random, sys
import fbuf, psutil, torch
from support import buffers

kind = getattr(buffers, sys.argv[1])()
rng, sizes = random.Random(0), []
buffer = kind.make(200, sampler=fbuf.Prioritized(), batch_size=64, prefetch=2)
for turn in range(12_000):
    count = rng.randint(1, 40)
    words = torch.full((count, 512), float(turn))
    kind.extend(buffer, {"number": torch.arange(count), "words": words})
    kind.learn(buffer, kind.sample(buffer), torch.rand(64))
    if turn % 600 == 599:
        sizes.append(psutil.Process().memory_info().rss)
kind.core(buffer).close()
print(json.dumps(sizes))
"""


@pytest.mark.sweep
def test_memory_stays_flat(kind):
    """12,000 times rows of varying number, a batch, and its priorities: after a quarter, nothing.

    If one batch in a hundred were left behind, the medians would be 7.9 MB apart. In a process of
    its own: other tests leave threads behind that take memory, too.
    """
    pytest.importorskip("psutil")
    command = [sys.executable, "-c", FLAT, type(kind).__name__]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=TESTS)
    sizes = json.loads(done.stdout.splitlines()[-1])
    assert np.median(sizes[15:]) - np.median(sizes[5:10]) < 1.5e6, sizes
