"""Full buffers of fbuf and of TorchRL, and M2: their calls in each mode."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from benchmarks import compare, peers
from benchmarks.evidence import gpu_calls, gpu_speed
from benchmarks.evidence.gpu_calls import Call
from benchmarks.evidence.gpu_parts.bench import Bench, options

KINDS = (False, True)


def full_state(bench: Bench, prioritised: bool) -> Any:
    """Return a full state of fbuf."""
    peer = peers.Fbuf(peers.ROW, bench.n, bench.batch, prioritised)
    return peers.filled(peer, bench.n // 10)


def of_fbuf(bench: Bench, prioritised: bool, **more: Any) -> Any:
    """Return a full `fbuf_adapters.pytorch.ReplayBuffer`."""
    from fbuf_adapters.pytorch import ReplayBuffer

    state = full_state(bench, prioritised)
    return ReplayBuffer.from_state(state, batch_size=bench.batch, seed=0, **more)


def of_torchrl(bench: Bench, prioritised: bool, item: Any = peers.ROW) -> Any:
    """Return a full buffer of TorchRL; None, which is noted, if it cannot be."""
    notes: list[str] = []
    try:
        cls = gpu_speed.classes(bench.device, notes)[gpu_speed.TORCHRL]
        found = peers.filled(cls(item, bench.n, bench.batch, prioritised), bench.n // 10)
    except (peers.Unable, ImportError, RuntimeError) as error:
        bench.failed(error, what="TorchRL", buffer=compare.KINDS[prioritised])
        return None
    for note in notes:
        bench.emit(what="TorchRL", buffer=compare.KINDS[prioritised], note=note)
    return found


def calls_of(bench: Bench, buffer: Any, item: Any, prioritised: bool) -> dict[str, Call]:
    """Return the calls of a buffer of either library."""
    ours = type(buffer).__module__.startswith("fbuf_adapters")
    made = gpu_calls.of_fbuf if ours else gpu_calls.of_torchrl
    return made(buffer, item, bench.batch, prioritised, bench.device)


def calls_in(mode: str) -> Callable[[Bench], None]:
    """Return the case of calls in a process that compiles all programs in a mode."""

    def measure(bench: Bench) -> None:
        """Time calls with CUDA graphs as they are, CONCURRENT, and without any.

        The mode is that of the process, but for "fbuf.sample in jit", which has its own.
        """
        for prioritised in KINDS:
            runs: dict[Any, Any] = {}
            buffer = of_fbuf(bench, prioritised)
            calls = calls_of(bench, buffer, peers.ROW, prioritised)
            runs |= {(f"ReplayBuffer, {what}", mode): call for what, call in calls.items()}
            runs |= draws(bench, prioritised, mode)
            if mode == "LHS" and (peer := of_torchrl(bench, prioritised)) is not None:
                calls = calls_of(bench, peer, peers.ROW, prioritised)
                runs |= {(f"TorchRL, {what}", "none"): call for what, call in calls.items()}
            kind = compare.KINDS[prioritised]
            named = {(*name, kind): run for name, run in runs.items()}
            bench.times(named, ("what", "mode", "buffer"))

    return measure


def draws(bench: Bench, prioritised: bool, mode: str) -> dict[Any, Callable[[], Any]]:
    """Return draws of JAX arrays in a process of a mode; in one of the default, in all modes."""
    import jax

    import fbuf

    state = full_state(bench, prioritised)
    keys = itertools.cycle(list(jax.random.split(jax.random.key(1), 16)))
    sample = lambda state, key: fbuf.sample(state, key, bench.batch)
    runs: dict[Any, Callable[[], Any]] = {("fbuf.sample", mode): lambda: sample(state, next(keys))}
    for one in ("LHS", "CONCURRENT", "no graphs") if mode == "LHS" else ():
        jitted = jax.jit(sample, compiler_options=options(one))
        runs["fbuf.sample in jit", one] = lambda jitted=jitted: jitted(state, next(keys))
    return runs
