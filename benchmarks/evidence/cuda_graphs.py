"""Compile scanned steps for a GPU, and read which CUDA graphs XLA makes of them.

    python -m benchmarks.evidence.cuda_graphs [--also PYTHON] [--nodes]

It has the needs of `gpu_build`, which publishes what this prints, and takes three minutes. PYTHON
is the interpreter of another environment with these needs, such as one with another JAX.

No GPU is needed, and nothing runs. XLA logs each graph that it would capture: the nodes, and which
of them wait for which. The default scheduling mode, LHS, makes a list of the nodes, one behind the
other. CONCURRENT keeps to what they wait for, and is the mode of this report. The chain is the
longest list of nodes of which each waits for the one before it: no GPU takes less time than for
these. Kernels of a step that are in no graph are launched one by one, and count in the chain.

The steps are "step in scan" of `gpu_build`, and those of `gpu_speed`, of fbuf and of flashbax.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import report
from benchmarks.harness import ROOT, Record

CONCURRENT = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
LOGGED = "command_buffer_conversion_pass=3,command_executor=5,execution_graph=5"
"""The files of XLA that log graphs, and how much."""
CAPACITY = 10**6
"""The rows of the buffers of `gpu_speed` whose steps are read."""
VERSIONS = "0.10.1", "0.11.2"
CHAINS: dict[str, tuple[int, int]] = {
    "Uniform": (10, 10),
    "Prioritized": (20, 19),
    "Uniform(window=4)": (11, 11),
    "Prioritized(window=4)": (23, 22),
    "Uniform(window=4, by='episode')": (18, 18),
    "Prioritized(floor=1.0)": (19, 19),
    "Grouped(field='done', groups=2)": (16, 16),
    "FreshFirst": (11, 11),
    "FreshFirst(sampler=Prioritized)": (20, 21),
    "Limited(max_uses=4)": (18, 18),
    "Limited(sampler=Prioritized, max_uses=4, max_age=524288, version='version')": (53, 52),
    "fbuf uniform, as in gpu_speed": (6, 6),
    "fbuf prioritised, as in gpu_speed": (19, 19),
    "fbuf, removable=False uniform, as in gpu_speed": (3, 3),
    "fbuf, removable=False prioritised, as in gpu_speed": (18, 18),
}
"""The bars: the longest chain that a step may have, with each of `VERSIONS` of JAX."""

# --- reading XLA's log ---------------------------------------------------------------------------

STEP_MARK = "### step "
GRAPH_MARK = "CreateCommandOperations with synchronization mode: "
OPERATION = re.compile(r"Processing operation (\d+) (\S+)")
NODE = re.compile(r"^node (\d+) \(priority=\d+\): in=\[(.*?)\] out=\[", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Graph:
    """A CUDA graph.

    Attributes:
        names: The name of each node.
        after: For each node, those that it waits for.
    """

    names: list[str]
    after: list[list[int]]

    def depths(self) -> list[int]:
        """For each node, the length of the longest chain that ends with it."""
        depths: list[int] = []
        for before in self.after:  # XLA numbers the nodes in an order in which they may run
            depths.append(1 + max((depths[node] for node in before), default=0))
        return depths


def logs_by_step(log: str) -> list[str]:
    """Return the parts of a log behind its marks, one a step."""
    return log.split(STEP_MARK)[1:]


def graphs_of(log: str) -> list[Graph]:
    """Return the CUDA graphs in a log of XLA.

    Raises:
        ValueError: If the log has a graph that cannot be read: XLA's words have changed.
    """
    found = []
    for part in log.split(GRAPH_MARK)[1:]:
        names = {int(number): name for number, name in OPERATION.findall(part)}
        nodes = {int(number): before for number, before in NODE.findall(part)}
        if not nodes or list(nodes) != list(range(len(nodes))) or nodes.keys() != names.keys():
            raise ValueError(f"a CUDA graph of XLA's log is not as known: {part[:300]}")
        after = [[int(one) for one in re.findall(r"id: (\d+)", each)] for each in nodes.values()]
        found.append(Graph([names[number] for number in nodes], after))
    return found


@dataclasses.dataclass(frozen=True)
class Captured:
    """A scanned step, and what XLA captures of it.

    Attributes:
        jax: The version of JAX.
        step: The name of the step.
        kernels: How many kernels a step launches.
        graphs: The graphs of the step.
        nodes: How many nodes all graphs have.
        chain: The longest chain of each graph, added up, and the kernels that are in none.
        missed: The bars that were missed.
    """

    jax: str
    step: str
    kernels: int
    graphs: list[Graph]
    nodes: int
    chain: int
    missed: list[str]

    def record(self) -> Record:
        """Return the figures, without each node."""
        sizes = [{"nodes": len(one.names), "chain": max(one.depths())} for one in self.graphs]
        fields = dataclasses.fields(self)
        return {field.name: getattr(self, field.name) for field in fields} | {"graphs": sizes}


def captured(jax: str, step: str, kernels: dict[str, int], log: str) -> Captured:
    """Put the program of a step and its log together.

    Args:
        jax: The version of JAX.
        step: The name of the step.
        kernels: How often a step launches each kernel.
        log: The log of XLA meanwhile.
    """
    # Around the loop there may be a graph, too: of copies, which have no name, or of other kernels.
    graphs = [one for one in graphs_of(log) if not kernels.keys().isdisjoint(one.names)]
    launched, nodes = sum(kernels.values()), sum(len(one.names) for one in graphs)
    chain = sum(max(one.depths()) for one in graphs) + max(0, launched - nodes)
    most = bar_of(jax, step)
    missed = [] if most is None or chain <= most else [f"a chain of {chain}, at most {most} wanted"]
    return Captured(jax, step, launched, graphs, nodes, chain, missed)


def bar_of(jax: str, step: str) -> int | None:
    """Return the longest chain that a step may have, or None."""
    return dict(zip(VERSIONS, CHAINS.get(step, ()), strict=False)).get(jax)


# --- the process that compiles -------------------------------------------------------------------


def steps() -> Iterator[tuple[str, Any, Any]]:
    """Yield scanned steps: name, function and arguments, of which the first is donated."""
    from benchmarks.evidence import gpu_build

    for samplers, cases in (
        (gpu_build.SAMPLERS, gpu_build.cases),
        (gpu_build.CHOOSERS, gpu_build.choices),
    ):
        for sampler in samplers:
            yield (
                gpu_build.brief(sampler),
                *cases(gpu_build.SMALL, sampler)[gpu_build.IN_SCAN],
            )
    yield from steps_of_speed()


def steps_of_speed() -> Iterator[tuple[str, Any, Any]]:
    """Yield the steps of `gpu_speed`."""
    import jax

    from benchmarks import compare, harness, peers
    from benchmarks.evidence import gpu_build

    own: list[type[peers.Peer]] = [peers.Fbuf, peers.Stays]
    kinds = [(cls, prioritized) for cls in own for prioritized in (False, True)]
    for cls, prioritized in [*kinds, (peers.Flashbax, False)]:
        try:
            peer = cls(peers.ROW, CAPACITY, compare.MAIN, prioritized)
        except ImportError:
            continue  # flashbax is there for comparison only
        state = jax.eval_shape(peer.init)
        step, rest, inputs = compare.parts_of_scan(peer, state, compare.STEP, gpu_build.STEPS, [])
        name = f"{peer.name} {compare.KINDS[prioritized]}, as in gpu_speed"
        yield name, harness.scanned(step), ((state, *rest), inputs)


def compile_steps() -> None:
    """Compile all steps, with a mark in the log before each, and print what each launches."""
    from benchmarks.evidence import gpu_build

    if message := gpu_build.missing():
        sys.exit(message)
    import jax

    found = []
    for name, function, arguments in steps():
        print(f"{STEP_MARK}{name}", file=sys.stderr, flush=True)
        compiled = gpu_build.compiled_for_gpu(function, arguments, (0,), CONCURRENT)
        _, _, _, launches = gpu_build.read(compiled.as_text(), sys.maxsize)
        turns = gpu_build.STEPS
        kernels = {one.name: one.times // turns for one in launches if one.times >= turns}
        found.append({"jax": jax.__version__, "step": name, "kernels": kernels})
    print(json.dumps(found))


# --- the process that reads ----------------------------------------------------------------------


def found_by(python: str) -> list[Captured]:
    """Return what the JAX of an interpreter has XLA capture.

    Raises:
        RuntimeError: If the steps could not be compiled.
    """
    environment = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": LOGGED, "PYTHONPATH": str(ROOT)}
    command = [python, "-m", "benchmarks.evidence.cuda_graphs", "--worker"]
    with tempfile.TemporaryFile("w+") as log:  # XLA writes to the process's own stderr
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=log, text=True, check=False, cwd=ROOT,
            env=os.environ | environment,
        )  # fmt: skip
        log.seek(0)
        logged = log.read()
    if done.returncode:
        raise RuntimeError(f"{python}: {(logged.strip().splitlines() or ['no message'])[-1]}")
    programs = json.loads(done.stdout.splitlines()[-1])
    parts = zip(programs, logs_by_step(logged), strict=True)
    return [captured(**program, log=part) for program, part in parts]


def found_by_all(also: Sequence[str]) -> list[Captured]:
    """Return the same of this interpreter, and of others."""
    return [one for python in (sys.executable, *also) for one in found_by(python)]


def table(found: Sequence[Captured]) -> list[str]:
    """The report, as lines of Markdown."""
    head = ["jax", "step", "kernels", "graphs", "nodes", "longest chain", "bars"]
    rows = [
        [one.jax, one.step, f"{one.kernels}", f"{len(one.graphs)}", f"{one.nodes}", f"{one.chain}",
         "; ".join(one.missed) or ("held" if bar_of(one.jax, one.step) else "-")]
        for one in found
    ]  # fmt: skip
    return report.table(head, rows)


def missed(found: Sequence[Captured]) -> list[str]:
    """Return the bars that were missed."""
    return [f"{one.step}, jax {one.jax}: {text}" for one in found for text in one.missed]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option of all scripts that call `found_by_all`."""
    parser.add_argument(
        "--also", action="append", default=[], metavar="PYTHON", help="another interpreter, too"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--nodes", action="store_true", help="also print every node")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        compile_steps()
        return
    from benchmarks.evidence import gpu_build

    if message := gpu_build.missing():
        print(message)
        return
    found = found_by_all(options.also)
    for one in found if options.nodes else ():
        print(f"{one.jax}, {one.step}:")
        for graph in one.graphs:
            nodes = zip(graph.names, graph.depths(), graph.after, strict=True)
            for number, (name, depth, after) in enumerate(nodes):
                print(f"  {number} {name}: depth {depth}, after {after}")
    print("\n".join(table(found)))
    gpu_build.end(missed(found))


if __name__ == "__main__":
    main()
