"""Faults where JAX and PyTorch share memory, with the bare libraries and not with ours.

Each test first lets it go wrong. Where that is a matter of time, time is made for it: JAX has to
compute for so long that PyTorch comes first. More of them are in `test_crossing.py`, by the kind of
array that crosses.
"""

from __future__ import annotations

import dataclasses
import gc
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import (  # noqa: E402 (after the skip)
    ReplayBuffer,
    add_from_torch,
    from_torch,
    to_torch,
)
from support import buffers  # noqa: E402 (after the skip)
from support.buffers import EXACT  # noqa: E402 (after the skip)

ROWS, WIDTH, LARGE = 64, 32, 1024
"""Rows of LARGE numbers are too large to be packed: JAX reads them where they are."""


@jax.jit
def _busy(x: Any) -> Any:
    """The same values, a good while later."""
    y = jnp.ones((400, 400))
    y = jax.lax.fori_loop(0, 40, lambda _, y: jnp.tanh(y @ y / 400), y)
    return x + (0 * y[0, 0]).astype(x.dtype)


def late(state: fbuf.State[Any]) -> fbuf.State[Any]:
    """A state on which everything else has to wait."""
    fault = _busy(state.fault.astype(jnp.float32)).astype(jnp.uint32)
    return dataclasses.replace(state, fault=fault)


def often(found: Any) -> bool:
    """Whether it goes wrong: on a machine that has other things to do, not every time."""
    return any(found() for _ in range(20))


# A simulator writes its next outputs where the last ones were.


def memory(width: int = WIDTH) -> dict[str, Any]:
    """The arrays that a simulator fills at every step."""
    return {"x": torch.ones(ROWS, width), "td_error": torch.ones(ROWS, 1)}


def exact(width: int = WIDTH) -> fbuf.State[Any]:
    """A buffer for such rows."""
    item = {"x": np.zeros(width, np.float32), "td_error": np.zeros(1, np.float32)}
    state = fbuf.init(item, ROWS, sampler=EXACT)
    return jax.block_until_ready(jax.device_put(state, jax.devices("cpu")[0]))


@jax.jit
def bare(state: Any, rows: Any, priority: Any) -> Any:
    return fbuf.add(state, rows, priority=priority)


def by_dlpack(state: Any, rows: Any) -> Any:
    priority = jax.dlpack.from_dlpack(rows["td_error"][:, 0])
    return bare(late(state), jax.tree.map(jax.dlpack.from_dlpack, rows), priority)


def by_numpy(state: Any, rows: Any) -> Any:
    return bare(late(state), jax.tree.map(torch.Tensor.numpy, rows), rows["td_error"][:, 0].numpy())


def by_add_from_torch(state: Any, rows: Any) -> Any:
    return add_from_torch(late(state), rows, priority=rows["td_error"][:, 0])


def by_object(state: Any, rows: Any, **options: Any) -> Any:
    buffer = ReplayBuffer(ROWS, item=jax.tree.map(lambda x: x[0], rows), sampler=EXACT)
    buffer.state = late(buffer.state)
    buffer.extend(rows, priority=rows["td_error"][:, 0], **options)
    return buffer.state


def by_object_with_a_number(state: Any, rows: Any) -> Any:
    """An argument that is no tensor goes another way."""
    return by_object(state, rows, alpha=2.0)


def by_tensordict(state: Any, rows: Any) -> Any:
    tensordict = pytest.importorskip("tensordict")
    kind = buffers.KINDS["tensordicts"]
    buffer = kind.make(ROWS, sampler=EXACT, device="cpu")
    given = tensordict.TensorDict(rows, batch_size=[ROWS])
    buffer.extend(given.clone())  # its item is known then
    buffer.buffer.state = late(buffer.buffer.state)
    buffer.extend(given)
    return buffer.buffer.state


def wrong(add: Any, width: int = WIDTH) -> tuple[int, int]:
    """Count the rows, and the priorities, that are those of the next step."""
    rows = memory(width)
    state = add(exact(width), rows)
    for leaf in rows.values():
        leaf.fill_(7)
    found = jax.tree.map(np.asarray, buffers.stored(state))
    rows_wrong = (found["x"] != 1).any(1) | (found["td_error"] != 1).any(1)
    return int(rows_wrong.sum()), sum(p != 1 for p in buffers.priorities(state))


@pytest.mark.sweep
@pytest.mark.parametrize("way", [by_dlpack, pytest.param(by_numpy, marks=pytest.mark.sweep)])
def test_bare_rows_of_a_tensor_that_is_reused_at_once_are_wrong(way):
    wrong(way)  # compile
    assert often(lambda: wrong(way)[0] == ROWS)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "way",
    [
        by_add_from_torch,
        pytest.param(by_object, marks=pytest.mark.sweep),
        pytest.param(by_object_with_a_number, marks=pytest.mark.sweep),
        by_tensordict,
    ],
)
@pytest.mark.parametrize("width", [WIDTH, pytest.param(LARGE, marks=pytest.mark.sweep)])
def test_a_tensor_that_is_added_may_be_reused_at_once(way, width):
    assert [wrong(way, width) for _ in range(2)] == [(0, 0)] * 2  # the first of them compiles


@pytest.mark.sweep
def test_what_is_given_later_may_be_reused_at_once():
    """Priorities, and fields that are written."""
    buffer = ReplayBuffer(ROWS, item=jax.tree.map(lambda x: x[0], memory()), sampler=EXACT)
    buffer.extend(memory(), priority=torch.ones(ROWS))
    ids = to_torch(fbuf.ids_at(buffer.state, np.arange(ROWS, dtype=np.int32)))

    @jax.jit
    def update(state: Any, priority: Any) -> Any:
        return fbuf.update_priority(state, from_torch_ids, priority)

    def by_bare() -> bool:
        priority = torch.ones(ROWS)
        state = update(late(buffer.state), priority.numpy())
        priority.fill_(50)
        return 50.0 in buffers.priorities(state)

    from_torch_ids = from_torch(ids)
    by_bare()
    assert often(by_bare)
    for _ in range(2):  # the first of them compiles
        given = torch.full((ROWS,), 3.0)
        buffer.state = late(buffer.state)
        buffer.update_priority(ids, given)
        given.fill_(50)
        assert buffers.priorities(buffer.state) == [3.0] * ROWS
        fields = torch.full((ROWS, WIDTH), 3.0)
        buffer.state = late(buffer.state)
        buffer.write(ids, {"x": fields})
        fields.fill_(50)
        assert bool((np.asarray(buffers.stored(buffer.state)["x"]) == 3).all())


KINDS = {
    "aligned": lambda: torch.ones(2**18),
    "int64": lambda: torch.ones(2**18, dtype=torch.int64),
    "misaligned": lambda: torch.ones(2**18 + 1)[1:],
}


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind", ["aligned", "misaligned", pytest.param("int64", marks=pytest.mark.sweep)]
)
def test_an_import_that_is_overwritten_at_once(kind):
    slow = jax.jit(lambda x, y: jnp.sum(_busy(y) * 0) + jnp.sum(x.astype(jnp.float32)))

    def wrong(convert: Any) -> bool:
        tensor = KINDS[kind]()
        result = slow(convert(tensor), jnp.zeros(()))
        tensor.fill_(7)
        return float(result) != 2**18

    slow(jnp.ones(2**18), jnp.zeros(()))
    # All but the first copy what they import, at a time of their own: that is no matter here.
    assert kind != "aligned" or often(lambda: wrong(jax.dlpack.from_dlpack))
    assert not any(wrong(lambda tensor: from_torch(tensor, narrow=True)) for _ in range(2))


# A tensor on the memory of a buffer.


def filled() -> fbuf.State[Any]:
    return fbuf.add(buffers.empty(), buffers.of_jax(buffers.rows()))


def pointer(state: Any) -> int:
    return state.storage.words.unsafe_buffer_pointer()


@pytest.mark.on_cpu
def test_what_autograd_keeps_blocks_writing_in_place_too():
    state = filled()
    before = pointer(state)
    weight = torch.ones((), requires_grad=True)
    view = torch.from_dlpack(state.storage.words)
    loss = (view.view(torch.float32) * weight).sum()
    del view
    state = fbuf.add(state, buffers.of_jax(buffers.rows()))
    assert pointer(state) != before  # copied, without a word
    del loss

    # Batches are arrays of their own: keep them, and what autograd makes of them, as you like.
    buffer = buffers.KINDS["tensors"].make(prefetch=2, device="cpu")
    buffer.extend(buffers.rows(device="cpu"))
    before = pointer(buffer.state)
    kept = []
    for _ in range(5):
        batch = buffer.sample()
        kept.append((batch, (batch.data["next"]["reward"] * weight).sum()))
        buffer.extend(buffers.rows(device="cpu"))
    assert pointer(buffer.state) == before
    buffer.close()


@pytest.mark.on_cpu
def test_some_copies_of_an_array_are_none():
    for same in (lambda x: x[:], jnp.asarray, lambda x: x.reshape(x.shape), jax.lax.stop_gradient):
        state = filled()
        before = pointer(state)
        view = torch.from_dlpack(same(state.storage.words))
        seen = view.clone()
        state = fbuf.add(state, buffers.of_jax(buffers.rows(8, 20)))
        assert pointer(state) != before  # bare: it was the buffer's own memory after all
        assert torch.equal(view, seen)

        state = filled()
        before = pointer(state)
        view = to_torch(same(state.storage.words), copy=True)
        state = fbuf.add(state, buffers.of_jax(buffers.rows(8, 20)))
        assert pointer(state) == before
        assert torch.equal(view, seen)


@pytest.mark.sweep
def test_imported_rows_compile_once_more(caplog):
    def compiled(add: Any, state: Any) -> int:
        caplog.clear()
        jax.config.update("jax_log_compiles", True)  # in all threads
        try:
            for _ in range(3):
                state = add(state, torch.ones(3, 7))
        finally:
            jax.config.update("jax_log_compiles", False)
        return sum("Finished XLA compilation" in r.getMessage() for r in caplog.records)

    add = jax.jit(fbuf.add, donate_argnums=0)

    def bare(state: Any, rows: Any) -> Any:
        return add(state, jax.dlpack.from_dlpack(rows))

    assert compiled(bare, fbuf.init(jnp.zeros(7), 11)) == 2
    buffer = ReplayBuffer(13, item=torch.zeros(7))

    def ours(_: Any, rows: Any) -> Any:
        buffer.extend(rows)

    assert compiled(ours, None) == 1


# Lifetime, and many at once.


@pytest.mark.on_cpu
def test_a_view_outlives_delete():
    array = jnp.arange(1000.0)
    bare, ours = torch.from_dlpack(array), to_torch(array)
    array.delete()
    gc.collect()
    jnp.full(1000, 7.0).block_until_ready()
    np.testing.assert_array_equal(bare.numpy(), np.arange(1000))
    np.testing.assert_array_equal(ours.numpy(), np.arange(1000))


def test_round_trips_of_many_threads_keep_their_values():
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(100):
                there = to_torch(jnp.full(64, number * 1000.0 + step))
                back = from_torch(there)
                there.zero_()
                assert float(back.sum()) == 64 * (number * 1000 + step)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


@pytest.mark.sweep
def test_batches_give_their_memory_back():
    psutil = pytest.importorskip("psutil")
    buffer = ReplayBuffer(1000, batch_size=500)
    buffer.extend(torch.ones(1000, 512))
    sizes = []
    for step in range(200):  # a megabyte each
        buffer.sample()
        if step >= 100:
            sizes.append(psutil.Process().memory_info().rss)
    assert max(sizes[-50:]) - max(sizes[:50]) < 20e6
