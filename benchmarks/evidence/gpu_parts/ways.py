"""M3 to M5: batches as tensors, by ways that the adapter might take."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from benchmarks import compare, peers
from benchmarks.evidence import gpu_calls
from benchmarks.evidence.gpu_parts import buffers, crossing
from benchmarks.evidence.gpu_parts.bench import Bench, microseconds, options

OBJECT = "ReplayBuffer"


class Draws:
    """A program that draws `times` batches of a state at once, and packs them."""

    def __init__(self, bench: Bench, state: Any, times: int = 1, mode: str = "LHS") -> None:
        """Compile nothing yet; the state is not donated."""
        import jax

        import fbuf

        self._state, batch = state, times * bench.batch
        draw = lambda state, key: fbuf.sample(state, key, batch)
        keys = jax.random.split(jax.random.key(3), 16)
        self._keys = itertools.cycle(list(keys))
        shapes, self.structure = jax.tree.flatten(jax.eval_shape(draw, state, keys[0]))
        self.packing = crossing.Packing(shapes, times)
        self.drawn: Callable[[Any, Any], list[Any]] = lambda state, key: self.packing.pack(
            jax.tree.leaves(draw(state, key))
        )
        self._run = jax.jit(self.drawn, compiler_options=options(mode))

    def packed(self) -> list[Any]:
        """Draw, and return the packed arrays."""
        return self._run(self._state, next(self._keys))

    def across(self, arrays: list[Any], how: str, way: str) -> tuple[list[Any], list[Any]]:
        """Return the batches as tensors, with the arrays, which have to outlive them."""
        tensors = [crossing.exported(array, how) for array in arrays]
        leaves = self.packing.unpack(tensors, way)
        return [self.structure.unflatten(one) for one in leaves], arrays

    def call(self, how: str, way: str) -> Callable[[], Any]:
        """Return a call that draws and hands over; tried, and held against the packed arrays."""
        import numpy as np

        batches, arrays = self.across(self.packed(), how, way)
        rewards = np.concatenate([batch.data["reward"].cpu().numpy() for batch in batches])
        words = np.asarray(arrays[0]).view(np.float32)
        if not np.isin(rewards, words).all():
            raise RuntimeError(f"{how}, {way}: the tensors are not what was drawn")
        return lambda: self.across(self.packed(), how, way)


def one_batch(bench: Bench) -> None:
    """Time `ReplayBuffer.sample`, and ways to hand over what one program draws and packs.

    "nothing" is the program alone. Storage is one a leaf, one for all, or torch's own copy.
    """
    for prioritised in buffers.KINDS:
        runs: dict[Any, Callable[[], Any]] = {}
        objects = {ahead: buffers.of_fbuf(bench, prioritised, prefetch=ahead) for ahead in (0, 2)}
        for ahead, buffer in objects.items():
            runs[OBJECT, f"prefetch={ahead}", "apart"] = buffer.sample
        draws = Draws(bench, buffers.full_state(bench, prioritised))
        runs["program", "nothing", "-"] = draws.packed
        for how, way in itertools.product(crossing.EXPORTS, crossing.WAYS):
            runs["program", how, way] = draws.call(how, way)
        if (peer := buffers.of_torchrl(bench, prioritised)) is not None:
            runs["TorchRL", "-", "-"] = lambda peer=peer, more=prioritised: peer.sample(
                bench.batch, return_info=more
            )
        kind = compare.KINDS[prioritised]
        named = {(*name, kind): run for name, run in runs.items()}
        bench.times(named, ("what", "export", "storage", "buffer"))
        for buffer in objects.values():
            buffer.close()


def several_batches(bench: Bench) -> None:
    """Time K batches that one program draws, and that cross as one: microseconds a batch."""
    state = buffers.full_state(bench, prioritised=False)
    kinds = [(k, way, "LHS") for k in (1, 2, 4, 8) for way in (crossing.APART, crossing.COPIED)]
    kinds += [(k, crossing.APART, mode) for k in (1, 8) for mode in ("CONCURRENT", "no graphs")]
    runs = {
        (k, way, mode): Draws(bench, state, k, mode).call(crossing.CPP, way)
        for k, way, mode in kinds
    }
    for (k, way, mode), times in bench.parts(runs).items():
        bench.emit(K=k, storage=way, mode=mode, **microseconds(times, k))


def training_step(bench: Bench) -> None:
    """Time the loop of draw, new priorities and 16 rows: of objects, and as one program.

    The program gives the batch before its priorities, adds rows, and draws.
    """
    for prioritised in (True, False):
        loop = gpu_calls.LOOP
        buffer = buffers.of_fbuf(bench, prioritised)
        batch = buffer.sample()
        runs: dict[Any, Any] = {
            (OBJECT, gpu_calls.fields(batch)): buffers.calls_of(
                bench, buffer, peers.ROW, prioritised
            )[loop]
        }
        for how in crossing.EXPORTS:
            runs[f"one program, imports {how}", gpu_calls.fields(batch)] = in_one_program(
                bench, prioritised, how
            )
        more = gpu_calls.as_many(peers.ROW, batch, prioritised)
        for item in (peers.ROW, more):
            if (peer := buffers.of_torchrl(bench, prioritised, item)) is not None:
                call = buffers.calls_of(bench, peer, item, prioritised)[loop]
                runs["TorchRL", gpu_calls.fields(call.run(None))] = call
        kind = compare.KINDS[prioritised]
        named = {(*name, kind): run for name, run in runs.items()}
        bench.times(named, ("what", "fields", "buffer"))


def in_one_program(bench: Bench, prioritised: bool, how: str) -> Callable[[], Any]:
    """Return a call that does the whole step with one program, whose state is donated."""
    import jax

    import fbuf

    state = buffers.full_state(bench, prioritised)
    draws = Draws(bench, state)
    ids = jax.jit(lambda state, key: fbuf.sample(state, key, bench.batch).ids)
    keys = itertools.cycle(list(jax.random.split(jax.random.key(4), 16)))

    def step(state: Any, before: Any, key: Any, rows: Any, priority: Any) -> Any:
        if prioritised:
            state = fbuf.update_priority(state, before, priority)
        state = fbuf.add(state, rows)
        batch = fbuf.sample(state, key, bench.batch)
        return state, batch.ids, draws.packing.pack(jax.tree.leaves(batch))

    run = jax.jit(step, donate_argnums=0)
    kept = [state, ids(state, next(keys))]
    rows = gpu_calls.tensors(peers.ROW, compare.ADDED, bench.device)
    priority = gpu_calls.errors(bench.batch, bench.device)

    def call() -> Any:
        given = {name: crossing.imported(leaf, how) for name, leaf in rows.items()}
        key, new = next(keys), crossing.imported(priority, how)
        kept[0], kept[1], arrays = run(kept[0], kept[1], key, given, new)
        return draws.across(arrays, crossing.CPP, crossing.APART)

    return call
