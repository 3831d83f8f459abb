"""Ids that come back from a GPU: as they were handed out, or changed."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import threading
import weakref
from typing import Any

import jax
import pytest

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import ReplayBuffer  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.batches import _handed_ids  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.crossing import _dlpack, _lifetime  # noqa: E402 (after the skip)
from support.emulated_gpu import emulated_gpu  # noqa: E402

import fbuf  # noqa: E402

pytestmark = pytest.mark.on_cpu

B = 8


def make(**options: Any) -> ReplayBuffer:
    options = {"sampler": fbuf.Prioritized(), "batch_size": B, "seed": 1} | options
    buffer = ReplayBuffer(40, **options)
    number = torch.arange(30)
    buffer.extend({"x": number.float(), "n": number, "wide": torch.ones(30, 20)})
    return buffer


def priorities(ids: Any) -> torch.Tensor:
    """One for each row, so that a row with that of another shows."""
    return torch.arange(1, len(ids.slot) + 1).float()


def probabilities(buffer: ReplayBuffer) -> list[Any]:
    """All that draws depend on."""
    stored: Any = buffer.contents.stored
    return [leaf.tolist() for leaf in jax.tree.leaves(stored.backend.state.index)]


def imports(crossed: list[str], call: Any) -> int:
    """Count the tensors that went in."""
    crossed.clear()
    call()
    return crossed.count("in")


def update(buffer: ReplayBuffer, ids: Any) -> None:
    buffer.update_priority(ids, priorities(ids))


def as_on_the_host(drawn: Any, imported: int | None = None, call: Any = update, **options: Any):
    """Give ids back to a buffer on a GPU; what comes of that comes of it on the host, too.

    Args:
        drawn: A function of a buffer that returns ids.
        imported: How many tensors are to go in.
        call: Gives them back.
        options: Those of the buffer.
    """

    def run(crossed: list[str]) -> Any:
        buffer = make(**options)
        ids = drawn(buffer)
        went = imports(crossed, lambda: call(buffer, ids))
        found = probabilities(buffer), jax.tree.map(lambda leaf: leaf.tolist(), buffer[:]["x"])
        buffer.close()
        return found, went

    expected, _ = run([])
    with emulated_gpu() as crossed:
        found, went = run(crossed)
    assert found == expected
    assert imported in (went, None)


def of_a_batch(buffer: ReplayBuffer) -> Any:
    return buffer.sample().ids


def edited(change: Any) -> Any:
    """Ids of which something was changed in place."""

    def call(ids: Any) -> Any:
        change(ids)
        return ids

    return call


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("int64", [False, True])
def test_ids_that_come_back_as_they_were_are_not_taken_in(int64, prefetch):
    buffer = make(int64=int64, prefetch=prefetch)
    twin = make(int64=int64, prefetch=prefetch)
    with emulated_gpu() as crossed:
        for _ in range(4):
            batch, other = buffer.sample(), twin.sample()
            assert imports(crossed, lambda ids=batch.ids: update(buffer, ids)) == 1
            changed = fbuf.Ids(other.ids.slot.clone(), other.ids.generation.clone())
            assert imports(crossed, lambda ids=changed: update(twin, ids)) == 3
            assert probabilities(buffer) == probabilities(twin)
    buffer.close()
    twin.close()


def by_set(ids):
    ids.slot.data = ids.slot.data.flip(0)


def by_strides(ids):
    ids.slot.data = ids.slot.data.as_strided((B,), (0,))


CHANGES = {
    "a slot": edited(lambda ids: ids.slot.__setitem__(0, -1)),
    "all slots": edited(lambda ids: ids.slot.copy_(ids.slot.flip(0))),
    "a generation": edited(lambda ids: ids.generation.add_(1)),
    "a view": edited(lambda ids: ids.slot[2:].fill_(-1)),
    "detached": edited(lambda ids: ids.slot.detach().fill_(-1)),
    "other memory": edited(by_set),
    "other strides": edited(by_strides),
    "clone": lambda ids: fbuf.Ids(ids.slot.clone(), ids.generation.clone()),
    "flipped": lambda ids: fbuf.Ids(ids.slot.flip(0), ids.generation.flip(0)),
    "half": lambda ids: fbuf.Ids(ids.slot[:4], ids.generation[:4]),
    "part": lambda ids: fbuf.Ids(ids.slot, ids.generation.clone()),
    "deepcopy": copy.deepcopy,
}


def pickled(ids):
    file = io.BytesIO()
    torch.save((ids.slot, ids.generation), file)
    return fbuf.Ids(*torch.load(io.BytesIO(file.getvalue())))


CHANGES["pickled"] = pickled


@pytest.mark.parametrize("int64", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_ids_that_were_changed_are_taken_in(name, int64):
    as_on_the_host(lambda buffer: CHANGES[name](of_a_batch(buffer)), 3, int64=int64)


def test_ids_of_two_batches_are_taken_in():
    def of_two(buffer):
        kept.extend(buffer.sample() for _ in range(2))
        return fbuf.Ids(kept[-1].ids.slot, kept[-2].ids.generation)

    kept: list[Any] = []
    as_on_the_host(of_two, 3)


def test_ids_of_another_buffer_are_taken_in():
    def run(crossed):
        one, other = make(), make(seed=2)
        ids, again = one.sample().ids, copy.deepcopy(one)
        went = [imports(crossed, lambda x=x: update(x, ids)) for x in (other, again, one)]
        return [probabilities(buffer) for buffer in (one, other, again)], went

    expected, _ = run([])
    assert expected[0] == expected[2]
    with emulated_gpu() as crossed:
        assert run(crossed) == (expected, [3, 3, 1])


def test_other_arguments_go_with_ids():
    half = torch.arange(B) < 4
    for imported, call in (
        (2, lambda buffer, ids: buffer.update_priority(ids, priorities(ids), mask=half)),
        (1, lambda buffer, ids: buffer.update_priority(ids, priorities(ids), alpha=0.3)),
        (1, lambda buffer, ids: buffer.write(ids, {"x": priorities(ids)})),
        (1, lambda buffer, ids: buffer.remove(ids, mask=half)),
        (2, lambda buffer, ids: buffer.remove(ids)),  # nothing has JAX wait for torch's stream
    ):
        as_on_the_host(of_a_batch, imported, call)


def test_numbers_of_python_do_not_have_the_host_wait():
    buffer = make()
    with emulated_gpu() as crossed:
        ids = buffer.sample().ids
        buffer.update_priority(ids, priorities(ids), alpha=0.5)
        assert crossed[-1] == "out"  # torch's stream waits
        crossed.clear()
        buffer.add({"x": torch.ones(()), "n": torch.tensor(1), "wide": torch.ones(20)}, mask=True)
        assert crossed[-1] == "out"


def test_faults_speak_of_the_ids_that_were_given():
    buffer = make()
    with emulated_gpu():
        ids = buffer.sample().ids
        with pytest.raises(ValueError, match=r"ReplayBuffer\.update_priority: priority .*\(8,\)"):
            buffer.update_priority(ids, torch.ones(3))
        with pytest.raises(TypeError, match="requires grad"):
            buffer.update_priority(ids, torch.ones(B, requires_grad=True))
        update(buffer, ids)


@pytest.mark.parametrize("size", [5, 8, 13])
def test_sizes_that_are_padded(size):
    def change(buffer):
        for _ in range(3):
            ids = buffer.sample(size).ids
        return ids

    buffer, twin = make(), make()
    for _ in range(2):
        ids = change(twin)
        update(twin, ids)
    with emulated_gpu():
        for _ in range(2):
            ids = change(buffer)
            update(buffer, ids)
    assert probabilities(buffer) == probabilities(twin)


@pytest.mark.parametrize("int64", [False, True])
def test_a_batch_lives_no_longer_than_its_tensors(int64):
    buffer = make(int64=int64)
    with emulated_gpu() as crossed:
        arrays = spied(buffer)
        batch = buffer.sample()
        alive = weakref.ref(arrays.pop()[0])
        ids = batch.ids
        del batch
        gone(alive)
        assert (alive() is None) == int64  # or they lie in its memory
        went = imports(crossed, lambda: update(buffer, ids))
        assert went == (3 if int64 else 1)
        del ids
        gone(alive)
        assert alive() is None
    twin = make(int64=int64)
    ids = twin.sample().ids
    update(twin, ids)
    assert probabilities(buffer) == probabilities(twin)


def spied(buffer: ReplayBuffer) -> list[Any]:
    """A list that gets the packed arrays of each batch."""
    delivery, found = buffer.contents.delivery, []
    note = delivery.handed.note

    def spy(batch: Any, arrays: Any, *others: Any) -> None:
        found.append(arrays)
        note(batch, arrays, *others)

    delivery.handed.note = spy
    return found


def gone(alive: Any) -> None:
    """Forget what is not needed any more."""
    gc.collect()
    _lifetime.forget_finished()
    gc.collect()


def test_another_tensor_in_the_place_of_one_that_is_gone_is_not_taken_for_it():
    memory = torch.zeros(B)
    for _ in range(100):
        seen = _handed_ids._Seen(tensor := memory.view(B))
        assert seen.is_still(tensor)
        name = id(tensor)
        del tensor
        other = memory.view(B)
        assert not seen.is_still(other)
        if id(other) == name:
            break
    else:
        pytest.skip("Python has used no address again")


def test_ids_of_batches_and_updates_that_are_padded_are_taken_in():
    buffer = make()
    with emulated_gpu() as crossed:
        ids = buffer.sample(5).ids  # the batch is padded, and this first update is not
        assert imports(crossed, lambda: update(buffer, ids)) == 3
        whole = buffer.sample().ids  # and the other way round
        assert imports(crossed, lambda: update(buffer, whole)) == 3
        assert imports(crossed, lambda: update(buffer, whole)) == 1


def test_only_the_newest_batches_are_remembered():
    buffer = make()
    with emulated_gpu() as crossed:
        batches = [buffer.sample() for _ in range(_handed_ids._BATCHES + 1)]
        first, second = batches[0].ids, batches[1].ids
        assert imports(crossed, lambda: update(buffer, first)) == 3
        assert imports(crossed, lambda: update(buffer, second)) == 1


def test_batches_without_priorities_are_not_remembered():
    buffer = make(sampler=fbuf.Uniform())
    with emulated_gpu():
        kept = buffer.sample()
    assert len(buffer.contents.delivery.handed._batches) == 0
    assert kept.ids.slot.shape == (B,)


def test_batches_of_the_host_are_not_remembered():
    """There a tensor goes in as NumPy's, faster than it is found."""
    buffer = make()
    kept = buffer.sample()
    assert len(buffer.contents.delivery.handed._batches) == 0
    assert kept.ids.slot.shape == (B,)


def test_rows_on_the_host():
    as_on_the_host(of_a_batch, host=True)


@pytest.mark.parametrize("within", ["inference_mode", "no_grad"])
def test_modes_of_torch(within):
    mode = getattr(torch, within)

    def change(buffer):
        with mode():
            ids = buffer.sample().ids
            if within == "inference_mode":  # it does not count writes
                ids.slot[0] = -1
        return ids

    buffer, twin = make(), make()
    ids = change(twin)
    update(twin, ids)
    with emulated_gpu():
        ids = change(buffer)
        update(buffer, ids)
    assert probabilities(buffer) == probabilities(twin)


@pytest.mark.parametrize("transform", ["grad", "vmap", "functionalize"])
def test_a_batch_that_is_drawn_within_a_transform_of_a_function(transform):
    buffer = make(int64=True)
    found = []

    def inside(x):
        found.append(buffer.sample().data["x"].sum())
        return x.sum()

    with emulated_gpu():
        getattr(torch.func, transform)(inside)(torch.ones(3, 3))
        ids = buffer.sample().ids
        update(buffer, ids)
    assert len(found) == 1


def test_a_transform_of_batches_may_change_ids():
    def change(batch):
        slot = batch.ids.slot.flip(0)
        return dataclasses.replace(batch, ids=fbuf.Ids(slot, batch.ids.generation.flip(0)))

    def write(batch):
        batch.ids.slot[:3] = -1
        return batch

    for transform in (change, write, lambda batch: batch):
        as_on_the_host(of_a_batch, transform=transform)
        as_on_the_host(of_a_batch, transform=transform, prefetch=2)


def test_threads_draw_and_give_back_at_once():
    buffer = make()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                ids = buffer.sample().ids
                update(buffer, ids)
        except BaseException as error:
            errors.append(error)

    with emulated_gpu():
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert errors == []
    assert _dlpack._imports


def by_a_replay(ids):
    """As a CUDA graph writes: nothing counts it."""
    ids.slot.data[:3] = -1


WRITES = {
    "nothing": lambda ids: None,
    "counted": lambda ids: ids.slot.__setitem__(0, -1),
    "not counted": by_a_replay,
}


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("int64", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_ids_that_were_written_into_an_earlier_batch_are_taken_in(name, int64, prefetch):
    def drawn(buffer):
        batch = buffer.sample()
        for _ in range(2):
            buffer.sample(out=batch)
            WRITES[name](batch.ids)
        return batch.ids

    as_on_the_host(drawn, 3, int64=int64, prefetch=prefetch)


def test_ids_that_were_written_in_inference_mode_are_taken_in():
    def drawn(buffer):
        batch = buffer.sample()
        with torch.inference_mode():
            buffer.sample(out=batch)
        return batch.ids

    as_on_the_host(drawn, 3)


def test_a_batch_that_was_written_into_another_lives_no_longer():
    buffer = make()
    with emulated_gpu():
        arrays = spied(buffer)
        batch = buffer.sample()
        kept = weakref.ref(arrays.pop()[0])
        buffer.sample(out=batch)
        alive = weakref.ref(arrays.pop()[0])
        gone(alive)
        assert alive() is None
        assert kept() is not None  # the tensors of the batch lie there
        assert batch.ids.slot.shape == (B,)
