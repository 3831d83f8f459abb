"""Updates of priorities that wait for the next draw mean what updates at once do."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import pickle
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fbuf

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import ReplayBuffer, _spec  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.batches import _drawer  # noqa: E402 (after the skip)
from support.buffers import BATCH, KINDS, assert_same, bits, rows  # noqa: E402
from support.emulated_gpu import emulated_gpu  # noqa: E402
from support.reentry import call_at_line  # noqa: E402

pytestmark = pytest.mark.on_cpu

FORMS = {"numpy": contextlib.nullcontext, "gpu": emulated_gpu}
"""The ways in which tensors of the host cross."""


def waiting(buffer: Any) -> Any:
    """Have updates of a buffer wait, as those on a GPU do."""
    core(buffer).contents.stored.backend.defers = True
    return buffer


def core(buffer: Any) -> ReplayBuffer:
    return getattr(buffer, "buffer", buffer)


def pending(buffer: Any) -> int:
    """Count the updates that wait."""
    return len(core(buffer).contents.stored.backend._pending)


def make(kind: str = "tensors", count: int = 8, **options: Any) -> Any:
    options = {"sampler": fbuf.Prioritized()} | options
    buffer = KINDS[kind].make(**options)
    KINDS[kind].extend(buffer, rows(count))
    return buffer


def numbers(step: int = 0, count: int = BATCH) -> torch.Tensor:
    return (torch.arange(count).float() * 7 + step) % 11 + 0.5


def all_of(buffer: Any) -> Any:
    """All that draws depend on."""
    return jax.tree.leaves(core(buffer).contents.stored.backend.state)


def loaded(buffer, path):
    buffer.save(path)
    again = make()
    again.load(path, episodes="keep")
    return jax.tree.leaves(again.state.index)


def faults(buffer):
    raised = []
    try:
        buffer.raise_on_fault()
    except RuntimeError as error:
        raised.append(str(error))
    return len(raised)


LOOKS = {
    "len": len,
    "stats": lambda b: sorted(b.stats().items()),
    "detailed": lambda b: sorted(b.stats(detailed=True).items()),
    "can_sample": lambda b: b.can_sample(),
    "repr": lambda b: repr(b).replace("fbuf", ""),
    "raise_on_fault": faults,
    "state": lambda b: bits(b.state),
    "set_state": lambda b: setattr(b, "state", jax.tree.map(jnp.copy, b.state)),
    "state_dict": lambda b: bits(b.state_dict()["state"]),
    "load_state_dict": lambda b: b.load_state_dict(b.state_dict(), episodes="keep"),
    "pickle": lambda b: bits(all_of(pickle.loads(pickle.dumps(b)))),
    "copy": lambda b: bits(all_of(copy.copy(b))),
    "deepcopy": lambda b: bits(all_of(copy.deepcopy(b))),
    "read": lambda b: bits(b[:]),
    "episodes": lambda b: [bits(e) for e in b.episodes()],
    "extend": lambda b: b.extend(rows(8, 100)),
    "add": lambda b: b.add(jax.tree.map(lambda leaf: leaf[0], rows(1, 50))),
    "end_episode": lambda b: b.end_episode(),
    "empty": lambda b: b.empty(),
    "remove": lambda b: b.remove(b.contents.told.ids),
    "write": lambda b: b.write(b.contents.told.ids, {"number": torch.arange(BATCH)}),
    "report": lambda b: len(str(fbuf.report(b))),
    "sample": lambda b: bits(b.sample()),
    "another size": lambda b: bits(b.sample(3)),
    "drop_ahead": lambda b: b.drop_ahead(),
}
DOES_NOT_LOOK = ("drop_ahead",)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("look", LOOKS)
def test_whatever_looks_has_the_update_made_first(look, form):
    buffers = make(), waiting(make())
    found = []
    with FORMS[form]():
        for buffer in buffers:
            batch = buffer.contents.told = buffer.sample()
            priority = numbers()
            priority[3] = torch.nan
            buffer.update_priority(batch.ids, priority)
            buffer.update_priority(batch.ids, numbers(1)[:BATCH], mask=torch.arange(BATCH) < 9)
            assert pending(buffer) == (buffer is buffers[1])
            found.append(LOOKS[look](buffer))
            assert pending(buffer) == (look in DOES_NOT_LOOK and buffer is buffers[1])
        assert_same(*found)
        for _ in range(2):
            if look != "empty":
                assert_same(buffers[0].sample(), buffers[1].sample())
        assert_same(*map(all_of, buffers))
        assert_same(*[int(b.contents.stored.backend.fault) for b in buffers])


def test_a_checkpoint_has_it(tmp_path):
    buffers = make(), waiting(make())
    found = []
    for number, buffer in enumerate(buffers):
        buffer.update_priority(buffer.sample().ids, numbers())
        found.append(loaded(buffer, tmp_path / str(number)))
    assert_same(*found)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_run_is_the_same_to_the_last_bit(kind, prefetch, form):
    face = KINDS[kind]
    buffers = [make(kind, prefetch=prefetch) for _ in range(2)]
    waiting(buffers[1])
    with FORMS[form]():
        for step in range(8):
            batches = [face.sample(buffer, beta=0.5 if step % 2 else None) for buffer in buffers]
            assert_same(*map(face.leaves, batches))
            for buffer, batch in zip(buffers, batches, strict=True):
                face.learn(buffer, batch, numbers(step), alpha=None if step % 3 else 0.3)
            if step % 3 == 2:
                for buffer in buffers:
                    face.extend(buffer, rows(8, 8 * step))
        assert pending(buffers[1])
        assert_same(*map(all_of, buffers))
    for buffer in buffers:
        core(buffer).close()


SAMPLERS = {
    "window": {"sampler": fbuf.Prioritized(window=2), "view": fbuf.Sequence(2)},
    "buffer": {"sampler": fbuf.Prioritized(normalize="buffer", beta=1.0)},
    "mixture": {"sampler": fbuf.Mixture(recent=0.2, recent_rows=4)},
}


@pytest.mark.parametrize("int64", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_and_widths(name, int64):
    buffers = [make(int64=int64, **SAMPLERS[name]) for _ in range(2)]
    waiting(buffers[1])
    with emulated_gpu():
        for step in range(5):
            batches = [buffer.sample(BATCH if step % 2 else 5) for buffer in buffers]
            assert_same(*batches)
            for buffer, batch in zip(buffers, batches, strict=True):
                buffer.update_priority(batch.ids, numbers(step, len(batch.ids.slot)))
        assert_same(*map(all_of, buffers))


def counted(buffer: Any) -> list[Any]:
    """A list that gets the kind of each call of a program."""
    backend, found = core(buffer).contents.stored.backend, []
    calls = backend._calls

    class Counting:
        settle, apart = calls.settle, calls.apart

        def __call__(self, kind: Any, call: Any) -> Any:
            found.append(kind)
            return calls(kind, call)

    backend._calls = Counting()
    for program in backend._programs.values():
        if isinstance(program, _drawer.BatchProgram):
            program._calls = backend._calls
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_one_call_of_a_program(kind):
    face, buffer = KINDS[kind], waiting(make(kind))
    for _ in range(3):
        face.learn(buffer, face.sample(buffer), numbers())
    found = counted(buffer)
    with emulated_gpu():
        face.learn(buffer, face.sample(buffer), numbers())
    assert len(found) == 1


def test_the_program_writes_in_place():
    buffer = ReplayBuffer(2**14, sampler=fbuf.Prioritized(), batch_size=BATCH, seed=0)
    buffer.extend(rows(2**14))
    waiting(buffer)
    buffer.update_priority(buffer.sample().ids, numbers())
    before = {x.unsafe_buffer_pointer() for x in buffer.contents.stored.backend._kept[0]}
    (change,) = buffer.contents.stored.backend._pending
    kept = buffer.contents.stored.backend._kept[0]
    stream = buffer.contents.stream
    asked = _drawer.BatchRequest(stream.drawer._words, stream._turn, None, None, BATCH, BATCH)
    program = buffer.contents.stored.backend._programs["draw"].after(change.function)
    compiled = program.lower(change.given, asked.arguments, kept, **asked.static).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2**15
    buffer.sample()
    after = {x.unsafe_buffer_pointer() for x in buffer.contents.stored.backend._kept[0]}
    assert len(before & after) > len(after) / 2


# Errors.

ERRORS = {
    "shape": lambda b, ids: b.update_priority(ids, torch.ones(3)),
    "ints": lambda b, ids: b.update_priority(ids, torch.ones(BATCH, dtype=torch.bool)),
    "grad": lambda b, ids: b.update_priority(ids, torch.ones(BATCH, requires_grad=True)),
    "alpha": lambda b, ids: b.update_priority(ids, numbers(), alpha=-1.0),
    "mask": lambda b, ids: b.update_priority(ids, numbers(), mask=torch.ones(3).bool()),
    "ids": lambda b, ids: b.update_priority(ids.slot, numbers()),
    "float ids": lambda b, ids: b.update_priority(
        fbuf.Ids(ids.slot.float(), ids.generation), numbers()
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ERRORS)
def test_what_is_wrong_is_told_by_the_call(name, form):
    said = []
    with FORMS[form]():
        for buffer in (make(), waiting(make())):
            ids = buffer.sample().ids
            buffer.update_priority(ids, numbers())
            with pytest.raises((ValueError, TypeError)) as error:
                ERRORS[name](buffer, ids)
            said.append(str(error.value))
            assert len(buffer) == 8
    assert said[0] == said[1]


def test_a_sampler_without_priorities_is_told_by_the_call():
    buffer = waiting(make(sampler=fbuf.Uniform()))
    ids = buffer.sample().ids
    for _ in range(2):
        with pytest.raises(ValueError, match="priorities"):
            buffer.update_priority(ids, numbers())
    assert not pending(buffer)


def test_an_update_of_an_empty_buffer_is_a_change_of_it():
    """Draws of it are masked from then on."""
    item = jax.tree.map(lambda leaf: leaf[0], rows(1))
    ids = fbuf.Ids(torch.full((4,), -1).int(), torch.zeros(4).int())
    for waits in (False, True):
        buffer = KINDS["tensors"].make(item=item, sampler=fbuf.Prioritized())
        buffer.end_episode()
        buffer.empty()
        if waits:
            waiting(buffer)
        with pytest.raises(RuntimeError, match="empty"):
            buffer.sample()
        buffer.update_priority(ids, numbers(0, 4))
        assert pending(buffer) == waits
        assert not buffer.sample().mask.any()


# Whose memory it is.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("int64", [False, True])
@pytest.mark.parametrize(
    ("count", "dtype"), [(BATCH, torch.float32), (BATCH, torch.float16), (2**16, torch.float32)]
)
def test_tensors_are_their_owners_when_the_call_returns(form, int64, count, dtype):
    buffers = [make(int64=int64, batch_size=count) for _ in range(2)]
    waiting(buffers[1])
    with FORMS[form]():
        for buffer in buffers:
            ids = buffer.sample().ids
            priority, mask = numbers(0, count).to(dtype), torch.arange(count) % 3 > 0
            buffer.update_priority(ids, priority, mask=mask)
            assert pending(buffer) == (buffer is buffers[1])
            for tensor in (priority, mask, ids.slot, ids.generation):
                tensor.fill_(1)
        assert_same(*map(all_of, buffers))


def test_arrays_of_jax_are_read_at_once():
    """Their owner may donate them."""
    buffer = waiting(make())
    ids = buffer.sample().ids
    given = jnp.asarray(numbers().numpy())
    buffer.update_priority(ids, given)
    assert not pending(buffer)
    given.delete()
    buffer.sample()


@pytest.mark.parametrize("way", ["state", "set", "from_state"])
def test_a_state_that_others_have_is_consumed_at_once(way):
    buffer = make()
    ids = buffer.sample().ids
    if way == "from_state":
        state = jax.tree.map(jnp.copy, buffer.state)
        buffer = ReplayBuffer.from_state(state, batch_size=BATCH, seed=0)
        waiting(buffer)
    else:
        waiting(buffer)
        buffer.update_priority(ids, numbers())
        state = buffer.state
        if way == "set":
            buffer.state = state
    buffer.update_priority(ids, numbers())
    with pytest.raises(RuntimeError, match="consumed"):
        fbuf.end_episode(state)
    buffer.update_priority(ids, numbers())
    assert pending(buffer)
    buffer.sample()


def test_what_is_never_made_leaves_nothing():
    buffer = waiting(make())
    buffer.update_priority(buffer.sample().ids, numbers())
    alive = weakref.ref(buffer.contents.stored.backend._pending[0])
    buffer.close()
    del buffer
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("look", [len, lambda b: bits(b.sample())])
def test_64_bits_may_be_on_when_it_is_made(look):
    buffers = make(), waiting(make())
    found = []
    for buffer in buffers:
        ids = buffer.sample().ids
        buffer.update_priority(ids, numbers(), alpha=0.4)
        with jax.enable_x64(True):
            found.append(look(buffer))
            buffer.update_priority(ids, numbers(1))
            assert not pending(buffer)
    assert_same(*found)
    assert_same(*map(all_of, buffers))


def test_rows_on_the_host_are_changed_at_once(monkeypatch):
    monkeypatch.setattr(_spec.Spec, "defers", True)
    buffer = make(host=True)
    buffer.update_priority(buffer.sample().ids, numbers())
    assert not pending(buffer)


def test_a_gpu_has_updates_wait_and_a_cpu_has_not():
    spec = make().contents.spec
    assert not spec.defers
    assert dataclasses.replace(spec, to=None).defers is False
    object.__setattr__(spec, "device", torch.device("cuda"))
    assert spec.defers


# Interrupts and threads.


def interrupt() -> None:
    raise KeyboardInterrupt


def add_one(state: Any, by: Any) -> Any:
    """An operation that shows how often it was done."""
    return dataclasses.replace(state, fault=state.fault + by)


STEPS = {
    "draw": lambda b: b.sample(),
    "look": lambda b: b.contents.stored.backend.look(fbuf.size),
    "extend": lambda b: b.extend(rows(8)),
}


@pytest.mark.parametrize("then", STEPS)
@pytest.mark.parametrize("handler", ["raises", "draws", "updates"])
def test_at_each_line_an_update_is_made_once(then, handler):
    buffer = waiting(make())
    backend = buffer.contents.stored.backend
    leaves, structure = jax.tree.flatten({"by": jnp.uint32(1)})
    done = 0

    def defer() -> None:
        nonlocal done
        with buffer.lock:
            backend.defer(add_one, leaves, structure, None)
        done += 1

    def call() -> None:
        defer()
        STEPS[then](buffer)

    handlers = {"raises": interrupt, "draws": buffer.sample, "updates": defer}
    for _ in range(2):
        call()
    number, left = 1, True
    while left:
        before = int(backend.fault)
        assert before == done
        with contextlib.suppress(KeyboardInterrupt):
            left = call_at_line(number, call, handlers[handler])
        found = int(backend.fault)
        if handler == "raises":
            assert found in (done, done + 1)
            done = found
        assert found == done
        number += 1 if then == "draw" else 3
    assert number > 30


def test_threads_update_and_draw():
    buffer = waiting(make())
    errors: list[BaseException] = []

    def work(step: int) -> None:
        try:
            for _ in range(30):
                buffer.update_priority(buffer.sample().ids, numbers(step))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(buffer) == 8
    buffer.raise_on_fault()
