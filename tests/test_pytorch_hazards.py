"""What goes wrong where JAX and PyTorch share memory, with the bare libraries and not with ours.

Each test first lets it go wrong. Where that is a matter of time, time is made for it: what JAX has
to compute first takes so long that PyTorch comes before it. More of them are in `test_pytorch.py`,
by what crosses.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import (  # noqa: E402
    ReplayBuffer,
    add_from_torch,
    from_torch,
    to_torch,
)

ROWS, WIDTH = 64, 32


@jax.jit
def _busy(x: Any) -> Any:
    """The same values, a good while later."""
    y = jnp.ones((600, 600))
    y = jax.lax.fori_loop(0, 40, lambda _, y: jnp.tanh(y @ y / 600), y)
    return x + (0 * y[0, 0]).astype(x.dtype)


def late(state: fbuf.State[Any]) -> fbuf.State[Any]:
    """A state on which everything else has to wait."""
    return state.__class__(
        **{name: getattr(state, name) for name in ("storage", "ring", "nexts", "index", "sampler")},
        fault=_busy(state.fault.astype(jnp.float32)).astype(jnp.uint32),
    )


def state_of(width: int = WIDTH) -> fbuf.State[Any]:
    state = fbuf.init(jnp.zeros(width), 4 * ROWS)
    return jax.block_until_ready(jax.device_put(state, jax.devices("cpu")[0]))


def stored(state: Any) -> Any:
    return np.asarray(state.storage.rows())[:ROWS]


# A simulator writes its next outputs where the last ones were.


def by_dlpack(state: Any, rows: Any) -> Any:
    return fbuf.add(late(state), jax.dlpack.from_dlpack(rows))


def by_numpy(state: Any, rows: Any) -> Any:
    return fbuf.add(late(state), rows.numpy())


def ours(state: Any, rows: Any) -> Any:
    return add_from_torch(late(state), rows)


def ours_as_object(state: Any, rows: Any) -> Any:
    buffer = ReplayBuffer(4 * ROWS, item=torch.zeros(WIDTH))
    buffer.state = late(buffer.state)
    buffer.extend(rows)
    return buffer.state


def wrong_rows(add: Any) -> int:
    rows = torch.ones(ROWS, WIDTH)
    state = add(state_of(), rows)
    rows.fill_(7)
    return int((stored(state) != 1).any(axis=1).sum())


def test_rows_of_a_tensor_that_is_reused_at_once():
    for bare in (by_dlpack, by_numpy):
        wrong_rows(bare)  # compile
    assert wrong_rows(by_dlpack) == ROWS
    assert wrong_rows(by_numpy) == ROWS
    assert wrong_rows(ours) == 0
    assert wrong_rows(ours_as_object) == 0


def test_priorities_of_a_tensor_that_is_reused_at_once():
    def total(update: Any) -> float:
        state = fbuf.init(0.0, 4, sampler=fbuf.Prioritized(alpha=1.0, eps=0.0))
        state = fbuf.add(state, jnp.zeros(4))
        ids = fbuf.sample(state, jax.random.key(0), 4).ids
        priority = torch.ones(4)
        state = update(late(state), ids, priority)
        priority.fill_(50)
        return float(fbuf.stats(state)["priority_total"])

    def ours(state: Any, ids: Any, priority: Any) -> Any:
        buffer = ReplayBuffer(
            4, item=torch.tensor(0.0), sampler=fbuf.Prioritized(alpha=1.0, eps=0.0)
        )
        buffer.state = state
        buffer.update_priority(to_torch(ids), priority)
        return buffer.state

    def bare(state: Any, ids: Any, priority: Any) -> Any:
        return fbuf.update_priority(state, ids, priority.numpy())

    total(bare)
    assert total(bare) > 50
    assert total(ours) == 4


KINDS = {
    "aligned": lambda: torch.ones(2**18),
    "int64": lambda: torch.ones(2**18, dtype=torch.int64),
    "misaligned": lambda: torch.ones(2**18 + 1)[1:],
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_import_that_is_overwritten_at_once(kind):
    slow = jax.jit(lambda x, y: jnp.sum(_busy(y) * 0) + jnp.sum(x.astype(jnp.float32)))

    def wrong(convert: Any) -> bool:
        tensor = KINDS[kind]()
        result = slow(convert(tensor), jnp.zeros(()))
        tensor.fill_(7)
        return float(result) != 2**18

    slow(jnp.ones(2**18), jnp.zeros(()))
    found = sum(wrong(jax.dlpack.from_dlpack) for _ in range(10))
    # All but the first copy what they import, at a time of their own: it is told (`pytest -rP`).
    print(f"wrong with bare DLPack, {kind}: {found} of 10")
    assert found > 0 or kind != "aligned"
    assert not any(wrong(lambda tensor: from_torch(tensor, narrow=True)) for _ in range(5))


# A tensor on the memory of a buffer.


def pointer(state: Any) -> int:
    return state.storage.words.unsafe_buffer_pointer()


def test_what_autograd_keeps_blocks_writing_in_place_too():
    state = fbuf.add(state_of(), jnp.ones((ROWS, WIDTH)))
    before = pointer(state)
    weight = torch.ones((), requires_grad=True)
    view = torch.from_dlpack(state.storage.words)
    loss = (view.view(torch.float32) * weight).sum()
    del view
    state = fbuf.add(state, jnp.ones((ROWS, WIDTH)))
    assert pointer(state) != before  # copied, without a word
    del loss

    # Batches are arrays of their own: keep them, and what autograd makes of them, as you like.
    buffer = ReplayBuffer(4 * ROWS, batch_size=8, prefetch=2)
    buffer.extend(torch.ones(ROWS, WIDTH))
    before = pointer(buffer.state)
    kept = []
    for _ in range(5):
        batch = buffer.sample()
        kept.append((batch, (batch.data * weight).sum()))
        buffer.extend(torch.ones(ROWS, WIDTH))
    assert pointer(buffer.state) == before
    buffer.close()


def test_some_copies_of_an_array_are_none():
    for same in (lambda x: x[:], jnp.asarray, lambda x: x.reshape(x.shape), jax.lax.stop_gradient):
        state = state_of()
        before = pointer(state)
        view = torch.from_dlpack(same(state.storage.words))
        state = fbuf.add(state, jnp.ones((ROWS, WIDTH)))
        assert pointer(state) != before  # bare: it was the buffer's own memory after all
        assert not view.any()

        state = state_of()
        before = pointer(state)
        view = to_torch(same(state.storage.words), copy=True)
        state = fbuf.add(state, jnp.ones((ROWS, WIDTH)))
        assert pointer(state) == before


def test_imported_rows_compile_once_more(caplog):
    def compiled(add: Any, state: Any) -> int:
        caplog.clear()
        with jax.log_compiles():
            for _ in range(3):
                state = add(state, torch.ones(3, 7))
        return sum("Finished XLA compilation" in r.getMessage() for r in caplog.records)

    def bare(state: Any, rows: Any) -> Any:
        return fbuf.add(state, jax.dlpack.from_dlpack(rows))

    assert compiled(bare, fbuf.init(jnp.zeros(7), 11)) == 2
    assert compiled(add_from_torch, fbuf.init(jnp.zeros(7), 13)) == 1
    buffer = ReplayBuffer(17, item=torch.zeros(7))

    def ours(_: Any, rows: Any) -> Any:
        buffer.extend(rows)

    assert compiled(ours, None) == 1


# Lifetime, and many at once.


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


def test_batches_give_their_memory_back():
    psutil = pytest.importorskip("psutil")
    buffer = ReplayBuffer(1000, batch_size=500)
    buffer.extend(torch.ones(1000, 512))
    sizes = []
    for step in range(300):  # a megabyte each
        buffer.sample()
        if step >= 100:
            sizes.append(psutil.Process().memory_info().rss)
    assert max(sizes[-50:]) - max(sizes[:50]) < 20e6
