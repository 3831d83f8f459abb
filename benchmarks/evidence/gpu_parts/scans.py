"""M6 and M7: the step in a scan, in XLA's modes, and with other shapes of the tree."""

from __future__ import annotations

import concurrent.futures
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks import compare, harness, peers
from benchmarks.evidence import versus
from benchmarks.evidence.gpu_parts.bench import Bench, microseconds, options

FBUF, FLASHBAX = "fbuf", "flashbax"
TREES = {"16/512": (16, 512), "32/32": (32, 32), "32/1024": (32, 1024)}
"""Shapes of the sum tree: the children of a node, and the most nodes at the top."""
MODES = ("LHS", "CONCURRENT", "WHILE+CONCURRENT", "WHILE", "unroll")


class Constants(importlib.abc.MetaPathFinder):
    """Changes two constants of fbuf while it is imported, before others take them over."""

    def __init__(self, fanout: int, top: int) -> None:
        """Take the new values."""
        self._new = {
            "fbuf.trees.levels": ("FANOUT", fanout),
            "fbuf.trees.sum_tree": ("TOP", top),
        }

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Find a module as Python does, and have it changed when it has been run."""
        if name not in self._new:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        loader: Any = spec.loader
        constant, value = self._new[name]
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            if not hasattr(module, constant):
                raise AttributeError(f"{name} has no {constant}")
            setattr(module, constant, value)

        loader.exec_module = exec_module
        return spec


@contextmanager
def changed(fanout: int, top: int) -> Iterator[None]:
    """Have what is imported meanwhile know other constants."""
    finder = Constants(fanout, top)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def fbuf_of(shape: str) -> Any:
    """Import fbuf anew, with another shape of the tree."""
    with changed(*TREES[shape]):
        return versus.load(str(harness.ROOT))


def peer_of(bench: Bench, variant: str, prioritised: bool) -> peers.Peer:
    """Return the library of a variant."""
    given = peers.ROW, bench.n, bench.batch, prioritised
    if variant == FLASHBAX:
        return peers.Flashbax(*given)
    return peers.Fbuf(*given, module=None if variant == FBUF else fbuf_of(variant))


def scans(
    bench: Bench, prioritised: bool, batch: int, variants: Sequence[str], modes: Sequence[str]
) -> None:
    """Time adding 16 rows, a draw and, if prioritised, new priorities: microseconds a step."""
    import jax

    bench.batch, bench.calls = (64 if bench.cpu else batch), 3
    steps = 10 if bench.cpu else max(40, 400 * 256 // batch)
    kind, lowered = compare.KINDS[prioritised], {}
    for variant in variants:
        try:
            peer = peer_of(bench, variant, prioritised)
            box = harness.Box(peers.filled(peer, bench.n // 10))
            step, rest, inputs = compare.parts_of_scan(peer, box.state, compare.STEP, steps, [])
            run = jax.jit(harness.scanned(step), donate_argnums=0)
            lowered[variant] = run.lower((box.state, *rest), inputs), box, rest, inputs
        except Exception as error:
            bench.failed(error, what=variant, buffer=kind)

    def build(key: tuple[str, str]) -> Any:
        lower, box, rest, inputs = lowered[key[0]]
        if bench.left() < 12:  # time to measure those that are there
            return TimeoutError("left, time was up")
        try:
            program = lower.compile(compiler_options=options(key[1]))
        except Exception as error:
            return error
        return scan_call(program, box, jax.tree.map(lambda leaf: leaf.copy(), rest), inputs)

    # The modes that decide most come first: the rest may be left out.
    keys = [(variant, mode) for mode in modes for variant in lowered]
    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        programs = dict(zip(keys, pool.map(build, keys), strict=True))
    for (variant, mode), why in programs.items():
        if isinstance(why, Exception):
            bench.failed(why, what=variant, mode=mode, buffer=kind)
    calls = {key: program for key, program in programs.items() if callable(program)}
    for (variant, mode), times in bench.parts(calls).items():
        bench.emit(what=variant, mode=mode, buffer=kind, **microseconds(times, steps))


def scan_call(program: Any, box: harness.Box, rest: list[Any], inputs: Any) -> Callable[[], Any]:
    """Return a call of a scan. Those of one variant take turns with one buffer."""
    kept = [rest]

    def call() -> Any:
        box.state, *kept[0] = program((box.state, *kept[0]), inputs)
        return kept[0]  # all results of a program are ready at once

    return call


def uniform(bench: Bench) -> None:
    """Time uniform steps in a scan, in each mode: microseconds a step."""
    scans(bench, False, 256, (FBUF, FLASHBAX), MODES)


def prioritised(bench: Bench) -> None:
    """Time prioritised steps in a scan, in each mode: microseconds a step."""
    scans(bench, True, 256, (FBUF,), MODES)


def large_uniform(bench: Bench) -> None:
    """Time uniform steps of 4,096 rows in a scan, in three modes: microseconds a step."""
    scans(bench, False, 4096, (FBUF, FLASHBAX), MODES[:3])


def large_prioritised(bench: Bench) -> None:
    """Time prioritised steps of 4,096 rows in a scan, in three modes: microseconds a step."""
    scans(bench, True, 4096, (FBUF,), MODES[:3])


def trees(bench: Bench) -> None:
    """Time prioritised steps with other shapes of the tree: children of a node / nodes at the top.

    The shapes are those of constants of fbuf, which are changed while it is imported.
    """
    scans(bench, True, 256, tuple(TREES), MODES[:2])
