"""Memory that two libraries share: what the bare ones do to it, and that the adapter prevents it.

Donation (a, b), memory that is given back too early (d, e), tensors that are reused (k). Calls in
a CUDA graph, and around one (l).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from stage import (
    DANGER,
    FACT,
    LEFT,
    ONE_BY_ONE,
    POOL,
    PROMISE,
    Found,
    Stage,
    check,
    error_of,
    milliseconds,
    on_gpu,
    verdict,
)

# --- (a), (b): donation --------------------------------------------------------------------------


@check("a", DANGER, "with a bare tensor on a buffer's memory, the next write fails")
def a_view_of_what_is_donated(stage: Stage) -> Found:
    """Why a state is refused: on GPU the write raises, on CPU it copies everything, silently."""
    import jax
    import jax.numpy as jnp
    import torch

    import fbuf

    array = jnp.arange(4096.0)
    tensor = torch.from_dlpack(array)
    before = tensor.clone()
    write = jax.jit(lambda x: x + 1, donate_argnums=0)
    raised = error_of(lambda: jax.block_until_ready(write(array)))
    stage.wait()
    kept = torch.equal(tensor, before)
    state = jax.block_until_ready(fbuf.init({"x": jnp.zeros(4)}, 64))
    words = torch.from_dlpack(state.storage.words)
    rows = {"x": jnp.ones((8, 4))}
    of_add = error_of(lambda: jax.block_until_ready(fbuf.add(state, rows)))
    del words
    text = (
        f"donating an array: {raised or 'no error'}; array deleted: {array.is_deleted()}; "
        f"tensor keeps its values: {kept}; fbuf.add: {of_add or 'no error'}"
    )
    holds = kept and all("external reference" in message.lower() for message in (raised, of_add))
    return on_gpu(stage, holds, text)


@check("a, adapter", PROMISE, "to_torch refuses a state; tensors of a batch hinder no write")
def a_batch_hinders_nothing(stage: Stage) -> Found:
    """With a batch's tensors alive, adds go on in place and leave them as they are."""
    import jax
    import jax.numpy as jnp
    from fbuf_adapters import pytorch

    import fbuf

    state = fbuf.add(fbuf.init({"x": jnp.zeros(4)}, 64), {"x": jnp.ones((64, 4))})
    refused = error_of(lambda: pytorch.to_torch(state))
    tensors = pytorch.to_torch(fbuf.sample(state, jax.random.key(0), 32))
    place = state.storage.words.unsafe_buffer_pointer()
    for _ in range(stage.rounds):
        state = jax.block_until_ready(fbuf.add(state, {"x": jnp.full((64, 4), 2.0)}))
    in_place = state.storage.words.unsafe_buffer_pointer() == place
    stage.wait()
    kept = bool((tensors.data["x"] == 1).all())
    text = f"refused: {refused[:60]}...; written in place: {in_place}; batch kept: {kept}"
    right = refused.startswith("InteropError") and in_place and kept
    return on_gpu(stage, right, text, right)


def donate(stage: Stage, bring: Callable[[Any], Any], function: Callable[[Any], Any]) -> str:
    """Donate what a tensor was brought over as, and say what became of the tensor."""
    import jax
    import torch

    tensor = torch.arange(4096.0, device=stage.device)
    before = tensor.clone()
    stage.wait()
    array = bring(tensor)
    raised = error_of(lambda: jax.block_until_ready(jax.jit(function, donate_argnums=0)(array)))
    stage.wait()
    kept = "tensor untouched" if torch.equal(tensor, before) else "tensor OVERWRITTEN"
    return kept + (f"; {raised}" if raised else "")


@check("b, it fits", DANGER, "XLA writes into a tensor whose array is donated", may_abort=True)
def donated_import(stage: Stage) -> Found:
    """Why imports are copied: the result takes the place of the tensor's values."""
    import jax

    text = donate(stage, jax.dlpack.from_dlpack, lambda x: x * 2 + 1)
    return on_gpu(stage, "OVERWRITTEN" in text or "Error" in text, text)


@check("b, it does not", DANGER, "the same if the result has another shape", may_abort=True)
def donated_import_of_no_use(stage: Stage) -> Found:
    """XLA may abort the process if memory that is not its own is donated, and not needed."""
    import jax

    text = donate(stage, jax.dlpack.from_dlpack, lambda x: (x * 2 + 1)[:100])
    return on_gpu(stage, "OVERWRITTEN" in text or "Error" in text, text)


@check("b, copy=True", DANGER, "from_dlpack(copy=True) of JAX does not prevent it", may_abort=True)
def donated_copy(stage: Stage) -> Found:
    """Why the adapter copies by PyTorch: on CPU, JAX's own copying import makes no copy."""
    import jax

    text = donate(
        stage, lambda tensor: jax.dlpack.from_dlpack(tensor, copy=True), lambda x: x * 2 + 1
    )
    return verdict("OVERWRITTEN" in text, text)


@check("b, adapter", PROMISE, "what from_torch returns may be donated")
def donated_from_torch(stage: Stage) -> Found:
    """Its arrays are JAX's own, whatever the shape of the result."""
    from fbuf_adapters import pytorch

    texts = [
        donate(stage, pytorch.from_torch, function)
        for function in (lambda x: x * 2 + 1, lambda x: (x * 2 + 1)[:100])
    ]
    right = all(text == "tensor untouched" for text in texts)
    return on_gpu(stage, right, "; ".join(texts), right)


# --- (d), (e): how long memory lives -------------------------------------------------------------


@dataclasses.dataclass
class Dropped:
    """Look at results whose input was dropped before it had been read."""

    wrong: int = 0
    reused: int = 0  # memory of the input went to a later array
    early: int = 0  # JAX had written the later arrays while PyTorch was still to read
    host: float = 0.0  # most seconds until JAX's calls had returned
    share: float = 0.0  # the same as a share of the round

    def __str__(self) -> str:
        return (
            f"wrong {self.wrong}, memory reused {self.reused}, written before it was read "
            f"{self.early}; host held up at most {milliseconds(self.host)}, "
            f"{self.share:.0%} of the round"
        )


def drop_early(
    stage: Stage, share: Callable[[Any], Any], fence: bool = False, aside: bool = False
) -> Dropped:
    """Give PyTorch a kernel on a tensor, drop the tensor before the kernel runs, go on in JAX.

    Args:
        stage: Where.
        share: Makes a tensor of an array.
        fence: Whether JAX's next call takes an array that PyTorch is to write after its kernel.
        aside: Whether the kernel is given to another stream than the tensor was handed over on.
    """
    import jax
    import jax.numpy as jnp
    import torch

    make = jax.jit(lambda value, *_: jnp.full(stage.count, value), keep_unused=True)
    one, two = jnp.float32(1), jnp.float32(2)
    result = torch.zeros(stage.count, device=stage.device)
    other: Any = torch.cuda.Stream() if aside else None
    found = Dropped()
    for number in range(stage.rounds + 1):
        array = jax.block_until_ready(make(one))
        place = array.unsafe_buffer_pointer()
        tensor = share(array)
        del array
        result.zero_()
        where: Any = contextlib.nullcontext()
        if aside:
            other.wait_stream(torch.cuda.current_stream())
            where = torch.cuda.stream(other)
        with where:
            if number > 0:  # the first round loads all kernels, which may wait for everything
                stage.sleep()
            torch.mul(tensor, 1, out=result)
            has_read = stage.mark()
            start = time.perf_counter()
            after = ()
            if fence:
                after = (jax.dlpack.from_dlpack(torch.zeros(1, device=stage.device)),)
            del tensor
        later = [make(two, *after) for _ in range(4)]
        host = time.perf_counter() - start
        jax.block_until_ready(later)
        early = not has_read()
        stage.wait()
        whole = time.perf_counter() - start
        if number > 0:
            found.wrong += bool((result != 1).any())
            found.reused += any(x.unsafe_buffer_pointer() == place for x in later)
            found.early += early
            found.host = max(found.host, host)
            found.share = max(found.share, host / whole)
        del later
    return found


@check(
    "d",
    DANGER,
    "memory of a dropped tensor is overwritten before it is read",
    company=ONE_BY_ONE,
    memory=POOL,
)
def lifetime_bare(stage: Stage) -> Found:
    """A tensor's last reference frees its memory, though a kernel is still to read it."""
    import torch

    found = drop_early(stage, torch.from_dlpack)
    return on_gpu(stage, found.wrong > 0, f"of {stage.rounds} rounds: {found}")


@check(
    "d, adapter",
    PROMISE,
    "to_torch keeps memory until PyTorch has read it, and no longer",
    company=ONE_BY_ONE,
    memory=POOL,
)
def lifetime_held(stage: Stage) -> Found:
    """On the stream it was handed over on, and on another that is current when it is dropped."""
    import jax
    import jax.numpy as jnp
    from fbuf_adapters import pytorch

    def in_use() -> int:
        stage.wait()
        pytorch.to_torch(jnp.zeros(1))  # lets go of what it needs no more
        stage.wait()
        pytorch.to_torch(jnp.zeros(1))
        statistics = jax.devices()[0].memory_stats()
        return statistics["bytes_in_use"] if statistics else 0

    before = in_use()
    found = {"current stream": drop_early(stage, pytorch.to_torch)}
    if stage.gpu:
        found["another stream"] = drop_early(stage, pytorch.to_torch, aside=True)
    kept = in_use() - before
    texts = [f"{name}: {one}" for name, one in found.items()]
    text = f"of {stage.rounds} rounds: {'; '.join(texts)}; {kept:,} bytes kept at the end"
    # Had JAX not written before PyTorch read, nothing would have been put to the test.
    tested = all(one.early > 0 for one in found.values())
    right = all(one.wrong == 0 for one in found.values()) and kept < 4 * stage.count
    if stage.gpu and not tested:
        return {"verdict": LEFT, "text": f"JAX never wrote while PyTorch was to read; {text}"}
    return on_gpu(stage, right, text, right)


@check(
    "e", FACT, "a fence orders JAX behind PyTorch without blocking", company=ONE_BY_ONE, memory=POOL
)
def fence(stage: Stage) -> Found:
    """The other cure: JAX's next call takes an array that PyTorch's stream is to write first."""
    import torch

    found = drop_early(stage, torch.from_dlpack, fence=True)
    holds = found.wrong == 0 and found.early == 0 and found.share < 0.5
    return on_gpu(stage, holds, f"of {stage.rounds} rounds: {found}")


# --- (k): simulators that reuse their tensors ----------------------------------------------------


def reuse(stage: Stage, add: Callable[[Any, Any], Any]) -> tuple[int, float, float]:
    """Add rows while JAX is busy, and write into their tensor at once.

    Returns:
        How often the buffer then held something else, and most seconds that an add took; the
        same as a share of the round.
    """
    import jax
    import jax.numpy as jnp
    import torch

    import fbuf

    slow = stage.slow()
    tensor = torch.zeros(4096, 256, device=stage.device)
    wrong, longest, share = 0, 0.0, 0.0
    for number in range(stage.rounds + 1):
        state = fbuf.init({"x": jnp.zeros(256)}, len(tensor))
        state = jax.block_until_ready(jax.device_put(state, jax.devices()[0]))
        tensor.fill_(1)
        stage.wait()
        if number > 0:  # the first one compiles
            slow()
        start = time.perf_counter()
        state = add(state, tensor)
        taken = time.perf_counter() - start
        tensor.fill_(-1)
        jax.block_until_ready(state)
        stage.wait()
        whole = time.perf_counter() - start
        rows = state.storage.read(jnp.arange(state.capacity))["x"]
        if number > 0:
            wrong += bool((rows != 1).any())
            longest = max(longest, taken)
            share = max(share, taken / whole)
    return wrong, longest, share


@check(
    "k",
    DANGER,
    "rows added from a reused tensor are those of the next step",
    company=ONE_BY_ONE,
    memory=POOL,
)
def reused_bare(stage: Stage) -> Found:
    """JAX reads later than the call returns, and PyTorch does not know."""
    import jax

    import fbuf

    wrong, longest, _ = reuse(
        stage, lambda state, x: fbuf.add(state, {"x": jax.dlpack.from_dlpack(x)})
    )
    text = f"wrong {wrong} of {stage.rounds}; an add took at most {milliseconds(longest)}"
    return on_gpu(stage, wrong > 0, text)


@check(
    "k, adapter",
    PROMISE,
    "add_from_torch lets a tensor be reused at once, and does not block",
    company=ONE_BY_ONE,
    memory=POOL,
)
def reused_safely(stage: Stage) -> Found:
    """PyTorch's stream waits until JAX has read."""
    from fbuf_adapters import pytorch

    wrong, longest, share = reuse(stage, lambda state, x: pytorch.add_from_torch(state, {"x": x}))
    text = (
        f"wrong {wrong} of {stage.rounds}; an add took at most {milliseconds(longest)}, "
        f"{share:.0%} of the round"
    )
    return on_gpu(stage, share < 0.5, text, wrong == 0)


# --- (l): CUDA graphs ----------------------------------------------------------------------------


@check("l, adapter", PROMISE, "a buffer refuses calls in a CUDA graph, and goes on after it")
def captured(stage: Stage) -> Found:
    """Replays would not run JAX; and what JAX is refused there may take the buffer with it."""
    import torch
    from fbuf_adapters import pytorch

    number = torch.arange(64.0, device=stage.device)
    buffer = pytorch.ReplayBuffer(128, batch_size=16, device=stage.device)
    buffer.extend(number)
    if not stage.gpu:
        return on_gpu(stage, False, "there are no CUDA graphs")

    def in_a_graph(call: Callable[[], Any]) -> str:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            raised = error_of(call)
            number.add(1)
        return raised

    calls = {
        "sample": buffer.sample,
        "extend": lambda: buffer.extend(number),
        "len": lambda: len(buffer),
    }
    raised = {name: in_a_graph(call) for name, call in calls.items()}
    refused = all(text.startswith("InteropError") for text in raised.values())
    buffer.extend(number + 64)
    stage.wait()
    found = buffer.sample(1000).data
    right = len(buffer) == 128 and set(found.unique().tolist()) == set(map(float, range(128)))
    text = f"refused: {refused}; {raised['sample'][:90]}...; goes on: {right}"
    return on_gpu(stage, refused and right, text)


@check("l, out", PROMISE, "a CUDA graph reads each batch that sample(out=) writes")
def captured_batches(stage: Stage) -> Found:
    """The replays, and the priorities made of them, are those of a loop that captures nothing."""
    import torch
    from fbuf_adapters import pytorch

    import fbuf

    def run(captures: bool) -> list[Any]:
        sampler = fbuf.Prioritized(alpha=1.0)
        options = {"sampler": sampler, "batch_size": 16, "device": stage.device, "seed": 0}
        buffer = pytorch.ReplayBuffer(128, **options)
        buffer.extend(torch.arange(128.0, device=stage.device))
        batch, priority = buffer.sample(), torch.zeros(16, device=stage.device)
        step = lambda: priority.copy_(batch.data).mul_(batch.weight).add_(1)
        if captures:
            step()
            stage.wait()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            step = graph.replay
        seen = []
        for _ in range(10 * stage.rounds):
            buffer.sample(out=batch)
            step()
            buffer.update_priority(batch.ids, priority)
            seen.append(priority.clone())
        buffer.raise_on_fault()
        return [one.tolist() for one in seen]

    bare = run(captures=False)
    differ = len({str(one) for one in bare}) == len(bare)
    found = run(captures=stage.gpu)
    wrong = sum(one != other for one, other in zip(found, bare, strict=True))
    text = f"wrong {wrong} of {len(bare)} batches; they differ from each other: {differ}"
    return on_gpu(stage, wrong == 0, text, differ and wrong == 0)
