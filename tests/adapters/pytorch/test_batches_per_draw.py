"""Several batches that one program draws are those of as many calls of `sample`."""

from __future__ import annotations

import contextlib
import copy
import pickle
import signal
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fbuf

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import ReplayBuffer  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.crossing import _lifetime, _to_torch, _unpack  # noqa: E402 (after the skip)
from support.buffers import BATCH, KINDS, PAIRS, assert_same, bits, rows  # noqa: E402
from support.emulated_gpu import Stream, emulated_gpu  # noqa: E402
from support.reentry import call_at_line  # noqa: E402

pytestmark = pytest.mark.on_cpu

K = 3

SAMPLERS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {"sampler": fbuf.Prioritized()},
    "shuffled": {"sampler": fbuf.Shuffled(), "batch_size": 3},
    "drop_last": {"sampler": fbuf.Shuffled(), "batch_size": 3, "drop_last": True},
    "windows": PAIRS,
    "by episode": {"sampler": fbuf.Uniform(window=2, by="episode"), "view": fbuf.Sequence(2)},
}
FORMS = {"numpy": contextlib.nullcontext, "gpu": emulated_gpu}


def core(buffer: Any) -> ReplayBuffer:
    return getattr(buffer, "buffer", buffer)


def make(kind: str = "tensors", count: int = 8, **options: Any) -> Any:
    face = KINDS[kind]
    if kind == "tensordicts" and options.get("view") is not None:
        options |= face.unmarked
    buffer = face.make(**options)
    face.extend(buffer, rows(count))
    return buffer


def both(kind: str = "tensors", **options: Any) -> tuple[Any, Any]:
    """A buffer that draws several batches at once, and one that draws each by itself."""
    return make(kind, batches_per_draw=K, **options), make(kind, **options)


def left(buffer: Any) -> int:
    """Count the batches that are drawn and not handed out."""
    return len(core(buffer).contents.stream.waiting()[0])


def leaves(kind: str, batch: Any) -> Any:
    return KINDS[kind].leaves(batch)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_they_are_those_of_as_many_calls(name, kind, form):
    """As if all calls came at the first of them; later changes are seen by the next draw."""
    several, single = both(kind, **SAMPLERS[name])
    with FORMS[form]():
        for draw in range(3):
            expected = [single.sample() for _ in range(K)]
            for number in range(K):
                batch = several.sample()
                assert_same(leaves(kind, batch), leaves(kind, expected[number]))
                for buffer in (several, single):
                    KINDS[kind].extend(buffer, rows(2, 10 * draw + number))
            assert left(several) == 0


@pytest.mark.parametrize("options", [{"int64": False}, {"transform": True}])
@pytest.mark.parametrize("form", FORMS)
def test_ways_of_delivery(options, form):
    if options.get("transform"):
        options = {"transform": lambda batch: batch.data["next"]["reward"].mul_(2) is None or batch}
    with FORMS[form]():
        several, single = both(sampler=fbuf.Prioritized(), **options)
        for step in range(2 * K):
            batches = several.sample(), single.sample()
            assert_same(*batches)
            if step % K == K - 1:
                for buffer, batch in zip((several, single), batches, strict=True):
                    buffer.update_priority(batch.ids, torch.arange(BATCH).float())


def test_updates_that_wait_go_with_the_draw():
    several, single = both(sampler=fbuf.Prioritized())
    several.contents.stored.backend.defers = True
    for _ in range(3):
        expected = [single.sample() for _ in range(K)]
        for number in range(K):
            batch = several.sample()
            assert_same(batch, expected[number])
            for buffer in (several, single):
                buffer.update_priority(batch.ids, torch.arange(BATCH).float() + number)
        assert several.contents.stored.backend._pending


@pytest.mark.parametrize("form", FORMS)
def test_no_two_tensors_share_memory(form):
    with FORMS[form]():
        buffer = make(batches_per_draw=K, sampler=fbuf.Prioritized(), int64=False)
        tensors = [leaf for _ in range(K) for leaf in jax.tree.leaves(buffer.sample())]
        for tensor in tensors:
            assert tensor._base is None
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
        before = bits(tensors)
        for number, tensor in enumerate(tensors):
            tensor.fill_(1)
            assert_same(tensors[number + 1 :], before[number + 1 :])


def test_a_small_tensor_keeps_no_memory_of_other_batches(monkeypatch):
    """But for a little; see the page about PyTorch."""
    memory, seen = _unpack._memory, []
    monkeypatch.setattr(_unpack, "_memory", lambda array: seen.append(memory(array)) or seen[-1])
    buffer = ReplayBuffer(100, batch_size=64, batches_per_draw=8, seed=0)
    buffer.extend({"x": torch.ones(100, 128), "n": torch.arange(100).int()})
    data = buffer.sample().data
    lies_in = lambda tensor: any(
        0 <= tensor.data_ptr() - array.ctypes.data < array.nbytes for array in seen
    )
    assert lies_in(data["x"])
    assert not lies_in(data["n"])


# Calls that drop them.

DROPS = {
    "remove": lambda b, ids: b.remove(ids),
    "empty": lambda b, ids: (b.empty(), b.extend(rows(8, 20))),
    "state": lambda b, ids: setattr(b, "state", jax.tree.map(jnp.copy, b.state)),
    "drop_ahead": lambda b, ids: b.drop_ahead(),
    "another size": lambda b, ids: b.sample(5),
    "load": lambda b, ids: b.load_state_dict(make().state_dict()),
}


@pytest.mark.parametrize("name", DROPS)
def test_what_drops_them_has_the_next_turn_be_that_of_the_next_batch(name):
    several, single = both()
    if name == "remove":  # of rows of which some are left
        buffers = [make(batches_per_draw=n, batch_size=3) for n in (K, 1)]
        several, single = buffers
    for buffer in (several, single):
        ids = buffer.sample().ids
        DROPS[name](buffer, ids)
    assert left(several) == 0
    for _ in range(K):
        assert_same(several.sample(), single.sample())


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_epochs(kind, drop_last):
    options = {"sampler": fbuf.Shuffled(), "batch_size": 3, "drop_last": drop_last}
    several, single = both(kind, **options)
    for _ in range(3):
        found, expected = list(several), list(single)
        assert len(found) == (2 if drop_last else 3)
        for one, other in zip(found, expected, strict=True):
            assert_same(leaves(kind, one), leaves(kind, other))
    for _, batch in zip(range(1), single, strict=False):  # an epoch that is broken off
        del batch
    next(iter(several))
    for one, other in zip(several, single, strict=True):
        assert_same(leaves(kind, one), leaves(kind, other))


@pytest.mark.parametrize("way", ["state_dict", "directory", "pickle", "deepcopy", "copy"])
@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_run_goes_on_with_those_that_are_left(way, taken, tmp_path):
    calls = []
    options = {"sampler": fbuf.Prioritized(), "transform": lambda b: calls.append(1) or b}
    if way == "pickle":
        del options["transform"]
    buffer = make(batches_per_draw=K, **options)
    for _ in range(taken):
        buffer.sample()
    if way == "state_dict":
        other = make(batches_per_draw=K, **options)
        other.load_state_dict(buffer.state_dict(), episodes="keep")
    elif way == "directory":
        buffer.save(tmp_path)
        other = make(batches_per_draw=K, **options)
        other.load(tmp_path, episodes="keep")
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(buffer))
    else:
        other = getattr(copy, way)(buffer)
    for step in range(2 * K):
        one, two = buffer.sample(), other.sample()
        assert_same(one.data, two.data)
        if step == K - 1:
            for each in (buffer, other):
                each.extend(rows(2, 30))
    assert len(calls) in (0, taken + (K - taken) + 2 * (2 * K - (K - taken)))


def test_sizes_of_a_loaded_run_are_those_of_as_many_calls():
    """A size that has no program of its own yet gets one with its second batch."""
    of_another = make(batch_size=5, sampler=fbuf.Prioritized())
    buffers = both(batch_size=6, sampler=fbuf.Prioritized())
    for buffer in buffers:
        buffer.load_state_dict(of_another.state_dict())
    for _ in range(2 * K):
        assert_same(buffers[0].sample(), buffers[1].sample())


def test_a_save_makes_batches_under_its_own_modes():
    found = []
    buffer = make(
        batches_per_draw=K, transform=lambda b: found.append(torch.is_grad_enabled()) or b
    )
    buffer.sample()
    with torch.no_grad():
        buffer.state_dict()
    for _ in range(K - 1):
        buffer.sample()
    assert found == [True] + [False] * (K - 1)


# Interrupts, errors and threads.


def test_an_error_of_the_transform_leaves_its_batch_out():
    seen = []

    def transform(batch: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            raise ValueError("not this one")
        return batch

    several, single = both()
    several = make(batches_per_draw=K, transform=transform)
    batches = [single.sample() for _ in range(5)]
    assert_same(several.sample(), batches[0])
    with pytest.raises(ValueError, match="not this one"):
        several.sample()
    for number in (2, 3, 4):
        assert_same(several.sample(), batches[number])


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_that_was_broken_off_is_that_of_the_first_call(form):
    """The transform had begun to write to it, and rows have come since."""
    calls: list[int] = []

    def transform(batch: Any) -> Any:
        calls.append(1)
        batch.data["next"]["reward"].mul_(2)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return batch

    single = make(transform=lambda b: b.data["next"]["reward"].mul_(2) is None or b)
    expected = [single.sample() for _ in range(K)]
    with FORMS[form]():
        several = make(batches_per_draw=K, transform=transform)
        assert_same(several.sample(), expected[0])
        with pytest.raises(KeyboardInterrupt):
            several.sample()
        several.extend(rows(8, 50))
        assert_same(several.sample(), expected[1])
        assert_same(several.sample(), expected[2])


@pytest.mark.parametrize("transform", [False, True])
def test_a_call_that_is_broken_off_at_any_line_returns_its_batch_next(transform):
    change = {"transform": lambda b: b.data["next"]["reward"].mul_(2) is None or b}
    options = {"batch_size": 4} | (change if transform else {})
    several = make(batches_per_draw=K, **options)
    single = make(**options)
    several.sample()
    single.sample()

    def interrupt() -> None:
        raise KeyboardInterrupt

    stream, number, more = several.contents.stream, 1, True
    while more:
        found: list[Any] = []
        last = stream._last
        keep = lambda found=found: found.append(several.sample())
        with contextlib.suppress(KeyboardInterrupt):
            more = call_at_line(number, keep, interrupt)
        if not found:
            if stream._unfinished is None and stream._last is not last:
                single.sample()  # it was about to return, where Python handles no signal
            keep()
        assert_same(found[0], single.sample())
        number += 1
    assert number > 20


def test_threads_get_each_batch_once():
    buffer = make(batches_per_draw=4, sampler=fbuf.Shuffled(), batch_size=2, int64=True)
    seen: list[int] = []

    def work() -> None:
        for _ in range(8):
            seen.extend(buffer.sample().data["number"].tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == sorted(list(range(8)) * 8)


def test_a_handler_that_draws_gets_another_batch():
    buffer = make(batches_per_draw=K, sampler=fbuf.Shuffled(), batch_size=2)
    seen: list[int] = []
    draw = lambda: seen.extend(buffer.sample().data["number"].tolist())
    for number in range(1, 40):
        call_at_line(number, draw, draw)
    assert signal.getsignal(signal.SIGUSR1) is not draw
    whole = len(seen) // 8 * 8
    for at in range(0, whole, 8):
        assert len(seen[at : at + 8]) == 8
    counts = [seen[:whole].count(n) for n in range(8)]
    assert max(counts) - min(counts) <= 2


# Modes and streams of torch.


@pytest.mark.parametrize("form", FORMS)
def test_modes_are_those_of_the_call_that_returns_a_batch(form):
    with FORMS[form]():
        several, single = both(int64=False)
        found = []
        with torch.inference_mode():
            found.append(several.sample())
        assert found[0].data["number"].is_inference()
        found.append(several.sample())
        with torch.inference_mode():
            found.append(several.sample())
        assert not found[1].data["next"]["reward"].is_inference()
        found[1].data["next"]["reward"].requires_grad_().sum().backward()
        inside = []
        torch.func.grad(lambda x: inside.append(several.sample()) or x.sum())(torch.ones(3))
        found += [None, several.sample()]
        for number in range(5):
            expected = single.sample()
            if found[number] is not None:
                assert_same(found[number], expected)


def test_a_tensor_that_was_made_under_inference_mode_is_made_again():
    aliases, array = _to_torch.KeptAliases(), jnp.ones(3)
    with torch.inference_mode():
        assert aliases.of(array).is_inference()
    tensor = aliases.of(array)
    assert not tensor.is_inference()
    assert aliases.of(array) is tensor


def test_each_array_is_handed_over_once():
    with emulated_gpu() as crossed:
        buffer = make(batches_per_draw=K)
        crossed.clear()
        buffer.sample()
        first = crossed.count("out")
        for _ in range(K - 1):
            buffer.sample()
        assert crossed.count("out") == first
        buffer.sample()
        assert crossed.count("out") == 2 * first


def test_another_stream_waits_for_the_first(monkeypatch):
    waited = []

    class Waiting(Stream):
        def wait_stream(self, other: Any) -> None:
            waited.append((self, other))

    one, two = Waiting(done=True), Waiting(done=True)
    monkeypatch.setattr(_lifetime, "_taking", set())
    with emulated_gpu():
        array = jnp.ones(3)
        aliases = _to_torch.KeptAliases()
        for stream in (one, one, two):
            monkeypatch.setattr(torch.cuda, "current_stream", lambda *_, stream=stream: stream)
            aliases.of(array)
        assert waited == [(two, one)]
        assert _lifetime._taking == {two}


# Arguments.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batches_per_draw": 0}, "batches_per_draw"),
        ({"batches_per_draw": 2, "batch_size": None}, "batches_per_draw needs a batch_size"),
        ({"batches_per_draw": 2, "prefetch": 1}, r"prefetch=1 with one; leave one of them out"),
        ({"batches_per_draw": 2, "host": True}, "use prefetch"),
    ],
)
def test_what_does_not_go_together_is_refused(kind, options, said):
    with pytest.raises(ValueError, match=said):
        KINDS[kind].make(**options)
    with pytest.raises(TypeError, match="batches_per_draw"):
        KINDS[kind].make(batches_per_draw=1.5)


def test_one_is_as_without():
    buffer = make(batches_per_draw=1, batch_size=None)
    buffer.sample(4)
    assert left(buffer) == 0
