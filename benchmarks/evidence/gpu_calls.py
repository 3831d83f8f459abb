"""Time the calls of buffers that PyTorch programs hold; `gpu_speed` and `gpu_parts` use it.

The buffers are `fbuf_adapters.pytorch.ReplayBuffer` and TorchRL's `ReplayBuffer`. Both have their
rows on one device, and take and return tensors there.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import compare

CALLS = SAMPLE, EXTEND, UPDATE, LOOP = "sample", "extend", "update_priority", "loop of all calls"


@dataclasses.dataclass(frozen=True)
class Call:
    """A call to be timed.

    Attributes:
        run: The call. It gets what `before` returns.
        settle: Waits until all that was asked for is done; it gets the result of `run`.
        before: Makes ready; it is not timed.
    """

    run: Callable[[Any], Any]
    settle: Callable[[Any], None]
    before: Callable[[], Any] = lambda: None


@dataclasses.dataclass(frozen=True)
class Times:
    """Microseconds of a call.

    Attributes:
        returned: Until the call has returned: time of the host.
        done: From the begin of the call until its results are there, on the device.
        dropped: To let go of its results afterwards.
    """

    returned: float
    done: float
    dropped: float


def times_of(call: Call) -> Times:
    """Time one call."""
    clock = time.perf_counter
    given = call.before()
    call.settle(given)
    begun = clock()
    result = call.run(given)
    returned = clock()
    call.settle(result)
    done = clock()
    del result
    return Times(*((t * 1e6) for t in (returned - begun, done - begun, clock() - done)))


def median(taken: list[Times]) -> Times:
    """Return the median of each figure."""
    return Times(*map(statistics.median, zip(*map(dataclasses.astuple, taken), strict=True)))


def round_of(call: Call, seconds: float, most: int = 200) -> Callable[[], Times]:
    """Return a function that takes one round: calls for so long, or `most`, but at least three."""

    def figure() -> Times:
        times_of(call)  # the first one after those of another buffer finds cold caches
        taken: list[Times] = []
        end = time.perf_counter() + seconds
        while len(taken) < 3 or (time.perf_counter() < end and len(taken) < most):
            taken.append(times_of(call))
        return median(taken)

    return figure


# --- the calls of each library -------------------------------------------------------------------


def tensors(item: Mapping[str, Any], count: int, device: str) -> dict[str, Any]:
    """Return random rows, as tensors on a device."""
    import torch

    from benchmarks import peers

    rows = peers.random_rows(item, count, seed=4)
    return {name: torch.tensor(leaf, device=device) for name, leaf in rows.items()}


def errors(batch: int, device: str) -> Any:
    """Return random priorities."""
    import torch

    return torch.rand(batch, device=device)


def of_fbuf(
    buffer: Any, item: Mapping[str, Any], batch: int, prioritized: bool, device: str
) -> dict[str, Call]:
    """Return the calls of a full `fbuf_adapters.pytorch.ReplayBuffer`."""
    rows, priority = tensors(item, compare.ADDED, device), errors(batch, device)

    def loop(_: Any) -> Any:
        drawn = buffer.sample()
        if prioritized:
            buffer.update_priority(drawn.ids, priority)
        buffer.extend(rows)
        return drawn

    def update(drawn: Any) -> None:
        buffer.update_priority(drawn.ids, priority)

    def settle(_: Any) -> None:
        settled(device, lambda: buffer.state)

    calls = {
        SAMPLE: Call(lambda _: buffer.sample(), settle),
        EXTEND: Call(lambda _: buffer.extend(rows), settle),
        LOOP: Call(loop, settle),
    }
    return calls | ({UPDATE: Call(update, settle, buffer.sample)} if prioritized else {})


def of_torchrl(
    buffer: Any, item: Mapping[str, Any], batch: int, prioritized: bool, device: str
) -> dict[str, Call]:
    """Return the calls of a full `ReplayBuffer` of TorchRL."""
    from tensordict import TensorDict

    rows = TensorDict(tensors(item, compare.ADDED, device), batch_size=[compare.ADDED])
    priority = errors(batch, device)

    def sample() -> Any:
        return buffer.sample(batch, return_info=prioritized)

    def loop(_: Any) -> Any:
        drawn = sample()
        if prioritized:
            buffer.update_priority(drawn[1]["index"], priority)
        buffer.extend(rows)
        return drawn

    def update(drawn: Any) -> None:
        buffer.update_priority(drawn[1]["index"], priority)

    def settle(_: Any) -> None:
        settled(device)

    calls = {
        SAMPLE: Call(lambda _: sample(), settle),
        EXTEND: Call(lambda _: buffer.extend(rows), settle),
        LOOP: Call(loop, settle),
    }
    return calls | ({UPDATE: Call(update, settle, sample)} if prioritized else {})


def settled(device: str, results: Callable[[], Any] = lambda: None) -> None:
    """Wait for all work on a device; on CPU, where torch has none of its own, for JAX's results."""
    import jax
    import torch

    if device == "cuda":
        torch.cuda.synchronize()  # for all streams, JAX's too
    else:
        jax.block_until_ready(results())


def numbers_of_fields(
    calls: Mapping[tuple[str, str], Call], label: str, notes: list[str]
) -> dict[tuple[str, str], int]:
    """Try each call, and return how many tensors its buffer hands out; those that fail are noted.

    Args:
        calls: The calls, by their name and that of the buffer.
        label: Says what is measured.
        notes: Gets the failures.
    """
    numbers: dict[tuple[str, str], int] = {}
    failed: set[str] = set()
    for (what, name), call in calls.items():
        if name in failed:
            continue
        try:
            times_of(call)
            numbers[what, name] = fields(calls[SAMPLE, name].run(None))
        except Exception as error:  # the others are measured all the same
            failed.add(name)
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            notes.append(f"{name}, {label}, {what}: FAILED, {text}")
    return numbers


def fields(drawn: Any) -> int:
    """Count the tensors that a buffer hands out."""
    import jax
    from tensordict import TensorDictBase

    if isinstance(drawn, TensorDictBase):
        return len(drawn.keys())
    if isinstance(drawn, tuple) and isinstance(drawn[0], TensorDictBase):
        return len(drawn[0].keys()) + len(drawn[1])
    return len(jax.tree.leaves(drawn))


def as_many(item: Mapping[str, Any], batch: Any, prioritized: bool) -> dict[str, Any]:
    """Return an item with which TorchRL hands out as many numbers as fbuf with this one.

    Args:
        item: The item.
        batch: A batch of fbuf's. For a slot and a weight, TorchRL has an index and a weight.
        prioritized: Whether TorchRL hands these out.
    """
    import jax
    import numpy as np

    more = jax.tree.leaves(dataclasses.replace(batch, data=None))
    kept = more[1:-1] if prioritized else more
    return dict(item) | {
        f"more {number}": jax.ShapeDtypeStruct(leaf.shape[1:], np.asarray(leaf[:0].cpu()).dtype)
        for number, leaf in enumerate(kept)
    }
