"""M8 and M9: rows of other widths, and memory of torch's that JAX fills."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from typing import Any

from benchmarks.evidence.gpu_parts.bench import Bench


def gathers(bench: Bench) -> None:
    """Time gathers of rows of other widths and kinds, and the bytes that they read and write."""
    import jax
    import jax.numpy as jnp

    from fbuf.xla.loop import gathered

    def frames(words: Any, slots: Any) -> Any:
        rows = jax.lax.bitcast_convert_type(gathered(words, slots), jnp.uint8)
        return rows.reshape(-1, 84, 84, 4)

    def seen_as_words(pictures: Any, slots: Any) -> Any:
        words = jax.lax.bitcast_convert_type(pictures.reshape(-1, 7056, 4), jnp.uint32)
        return frames(words, slots)

    def numbers(gather: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        # As a learner reads them: XLA makes one kernel of it, or two.
        return lambda rows, slots: gather(rows, slots).astype(jnp.bfloat16) / 255

    few, steps, bench.calls = 1000 if bench.cpu else 100_000, 4, 3  # frames: 2.8 GB
    rows: dict[str, tuple[int, Any, Any, Any]] = {
        f"u32 [N, {width}]": (bench.n, (width,), jnp.uint32, gathered) for width in (25, 28, 32)
    }
    rows["17 of 25"] = bench.n, (25,), jnp.uint32, lambda w, s: gathered(w, s)[:, 6:23]
    pictures: dict[str, tuple[int, Any, Any, Any]] = {
        "u8 frames": (few, (84, 84, 4), jnp.uint8, gathered),
        "frames in u32": (few, (7056,), jnp.uint32, frames),
    }
    if not bench.cpu:  # there XLA would convert the whole array
        pictures["u8 frames, seen as u32"] = few, (84, 84, 4), jnp.uint8, seen_as_words
    learned = {
        f"{name}, in bfloat16": (n, row, dtype, numbers(gather))
        for name, (n, row, dtype, gather) in pictures.items()
    }

    def call_of(kind: tuple[int, Any, Any, Any], batch: int) -> tuple[Callable[[], Any], int]:
        n, row, dtype, gather = kind
        words = jnp.ones((n, *row), dtype)
        slots = jax.random.randint(jax.random.key(2), (steps, batch), 0, n)
        shape = jax.eval_shape(gather, words, slots[0])
        run = jax.jit(
            lambda words, out, slots: jax.lax.scan(
                lambda _, some: (gather(words, some), None), out, slots
            )[0],
            donate_argnums=1,
        )
        out = [jnp.zeros(shape.shape, shape.dtype)]

        def call() -> Any:
            out[0] = run(words, out[0], slots)
            return out[0]

        return call, min(out[0].nbytes, batch * words.nbytes // n) + out[0].nbytes

    sizes = (64,) if bench.cpu else (4096, 65_536)
    for kinds, batch in [*itertools.product((rows, pictures), sizes), (learned, sizes[0])]:
        made = {name: call_of(kind, batch) for name, kind in kinds.items()}
        for name, times in bench.parts({name: call for name, (call, _) in made.items()}).items():
            us, moved = times.done / steps, made[name][1]
            bench.emit(
                what=name, batch=batch, n=kinds[name][0], done_us=round(us, 2),
                MB=round(moved / 2e6, 2), GB_s=round(moved / us / 1e3, 1),
            )  # fmt: skip
        del made
        gc.collect()


def ring(bench: Bench) -> None:
    """Have donated programs fill a tensor of torch's: is it the same memory, and is that safe?"""
    import jax
    import torch

    bench.n = bench.batch = 0
    ones = lambda: torch.ones(8192, dtype=torch.int32, device=bench.device)
    fill = jax.jit(lambda out: out + 1, donate_argnums=0)
    times, tensor, same = 100 if bench.cpu else 10_000, ones(), 0
    bench.settle(None)
    array = fill(jax.dlpack.from_dlpack(tensor)).block_until_ready()
    begun = time.perf_counter()
    for _ in range(times):
        array = fill(array)
        same += array.unsafe_buffer_pointer() == tensor.data_ptr()
    bench.settle(array)
    us = (time.perf_counter() - begun) / times * 1e6
    bench.emit(
        what=f"filled {times} times", done_us=round(us, 1), same_memory=same,
        tensor_shows=int(tensor[0]), array_shows=int(array[0]),
    )  # fmt: skip
    for first in ("tensor", "array"):  # an abort here ends the process, and the report says so
        tensor = ones()
        bench.settle(None)
        array = fill(jax.dlpack.from_dlpack(tensor))
        bench.settle(array)
        if first == "tensor":
            del tensor
            shows = int(fill(array)[0])
        else:
            del array
            shows = int(tensor[0])
        bench.emit(what=f"{first} freed first", shows=shows)
