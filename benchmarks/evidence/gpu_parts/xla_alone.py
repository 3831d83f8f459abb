"""M10 and M1: the cost of a node of a CUDA graph, and of a call, without a buffer."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from benchmarks.evidence.gpu_parts.bench import Bench, options


def nodes(bench: Bench) -> None:
    """Time nodes of a graph, in series and in parallel: microseconds a step, and a node.

    The nodes are sums of different lengths, of which XLA fuses none, in a scan.
    """
    import jax
    import jax.numpy as jnp

    steps, few, many = (20, 4, 12) if bench.cpu else (400, 10, 60)
    bench.calls = 3

    def program(count: int, parallel: bool, mode: str) -> Callable[[], Any]:
        given = [jnp.ones(64 + number) for number in range(count)]

        def step(x: Any, _: Any) -> Any:
            if parallel:  # the sums know nothing of each other
                return x + 1e-6 * sum(jnp.sum(numbers * x) for numbers in given), None
            for numbers in given:
                x = jnp.sum(numbers * x) * 1e-2
            return x, None

        run = jax.jit(lambda x: jax.lax.scan(step, x, None, steps)[0])
        compiled = run.lower(jnp.float32(1)).compile(compiler_options=options(mode))
        return functools.partial(compiled, jnp.float32(1))

    for mode in ("LHS", "CONCURRENT", "WHILE", "WHILE+CONCURRENT"):
        try:
            kinds = itertools.product((few, many), (False, True))
            found = bench.parts({(c, p): program(c, p, mode) for c, p in kinds})
            for parallel, what in enumerate(("in series", "in parallel")):
                least, most = (found[count, parallel].done / steps for count in (few, many))
                each = (most - least) / (many - few)
                bench.emit(
                    what=what, mode=mode, nodes=many, step_us=round(most, 2),
                    node_us=round(each, 3), n=0, batch=0,
                )  # fmt: skip
        except Exception as error:
            bench.failed(error, what="nodes", mode=mode)


def call_alone(bench: Bench) -> None:
    """Time a call of a compiled function by its arguments and results, with next to no work."""
    import jax
    import jax.numpy as jnp

    def program(inputs: int, results: int, mode: str) -> Callable[[], Any]:
        run = jax.jit(
            lambda given: [given[0] + number for number in range(1, results + 1)],
            keep_unused=True,
            compiler_options=options(mode),
        )
        return functools.partial(
            run, [jnp.full(256, number, jnp.int32) for number in range(inputs)]
        )

    kinds = [(9, results) for results in (1, 2, 3, 6, 11)] + [(1, 1), (30, 1), (30, 11)]
    every = [(*kind, mode) for kind in kinds for mode in ("LHS", "no graphs")]
    bench.n = 0
    bench.times({kind: program(*kind) for kind in every}, ("inputs", "results", "mode"))
