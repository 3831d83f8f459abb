"""Reading of CUDA graphs from what XLA logs, for the bars of the GPU build."""

from __future__ import annotations

import pytest

graphs = pytest.importorskip("benchmarks.evidence.cuda_graphs", reason="comes with a clone")

BEGIN = "I1129 06:17:26.206872 2769 command_executor.cc:124] " + graphs.GRAPH_MARK
FORK = f"""\
I1129 06:17:26.206601 2769 command_buffer_conversion_pass.cc:652] Module jit_steps enabled: [FUSION]
{BEGIN}Concurrent
I1129 06:17:26.207028 2769 command_executor.cc:116] first_fusion grid: [1, 1, 1] resources=[]
I1129 06:17:26.207091 2769 execution_graph.cc:122] Processing operation 0 first_fusion grid: [1, 1]
I1129 06:17:26.207109 2769 execution_graph.cc:122] Processing operation 1 left_fusion grid: [1, 1]
I1129 06:17:26.207113 2769 execution_graph.cc:122] Processing operation 2 kCopy resources=[token]
I1129 06:17:26.207118 2769 execution_graph.cc:122] Processing operation 3 last_fusion grid: [1, 1]
I1129 06:17:26.207209 2769 execution_graph.cc:93] Constructed execution graph with 4 nodes
node 0 (priority=2): in=[] out=[NodeEdge {{kind: execution, id: 1}}]
node 1 (priority=1): in=[NodeEdge {{kind: execution, id: 0}}] out=[NodeEdge {{kind: x, id: 3}}]
node 2 (priority=1): in=[] out=[NodeEdge {{kind: x, id: 3}}]
node 3 (priority=0): in=[NodeEdge {{kind: execution, id: 1}}, NodeEdge {{kind: x, id: 2}}] out=[]
I1129 06:17:26.207281 2769 command_buffer_conversion_pass.cc:564] Creating command buffer thunk
"""
"""A log as XLA writes it, with a graph of four nodes, two of which wait for none."""
COPIES = f"""\
{BEGIN}LHS
I1129 06:17:26.207173 2769 execution_graph.cc:122] Processing operation 0 kCopy resources=[token]
I1129 06:17:26.207177 2769 execution_graph.cc:122] Processing operation 1 kCopy resources=[token]
node 0 (priority=1): in=[] out=[NodeEdge {{kind: execution, id: 1}}]
node 1 (priority=0): in=[NodeEdge {{kind: execution, id: 0}}] out=[]
"""
"""A graph of copies, which lie before the loop."""
KERNELS = {"first_fusion": 1, "left_fusion": 1, "copy.5": 1, "last_fusion": 1}
STEP = "fbuf uniform, as in gpu_speed"


def test_nodes_wait_for_those_that_the_log_names():
    (graph,) = graphs.graphs_of(FORK)
    assert graph.names == ["first_fusion", "left_fusion", "kCopy", "last_fusion"]
    assert graph.after == [[], [0], [], [1, 2]]
    assert graph.depths() == [1, 2, 1, 3]


def test_a_step_has_its_graphs_alone_and_kernels_in_none_are_in_the_chain():
    found = graphs.captured("0.10.1", STEP, KERNELS, COPIES + FORK)
    assert (found.kernels, len(found.graphs), found.nodes, found.chain) == (4, 1, 4, 3)
    assert found.record()["graphs"] == [{"nodes": 4, "chain": 3}]
    again = {f"again_{name}": times for name, times in KERNELS.items()}
    log = FORK + FORK.replace(" first_fusion", " again_first_fusion")
    split = graphs.captured("0.10.1", STEP, KERNELS | {"sort": 2} | again, log)
    assert (split.kernels, len(split.graphs), split.nodes, split.chain) == (10, 2, 8, 3 + 3 + 2)
    more = graphs.captured("0.10.1", STEP, {"first_fusion": 1}, FORK)
    assert (more.kernels, more.nodes, more.chain) == (1, 4, 3)


def test_without_a_graph_all_kernels_are_a_chain():
    found = graphs.captured("0.10.1", STEP, {f"kernel_{n}": 1 for n in range(30)}, COPIES)
    assert (found.graphs, found.nodes, found.chain) == ([], 0, 30)
    assert found.missed == [f"a chain of 30, at most {graphs.bar_of('0.10.1', STEP)} wanted"]
    assert "| a chain of 30" in graphs.table([found])[-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("node 2 (priority", "vertex 2 (priority"),
        ("Processing operation 3 ", "Doing operation 3 "),
        ("node 3 (priority", "node 7 (priority"),
    ],
)
def test_a_log_in_other_words_is_refused(old, new):
    assert FORK.count(old) == 1
    with pytest.raises(ValueError, match="not as known"):
        graphs.graphs_of(FORK.replace(old, new))


def test_a_log_is_cut_where_a_step_begins():
    log = f"before\n{graphs.STEP_MARK}Uniform\n{FORK}{graphs.STEP_MARK}Prioritized\n{COPIES}"
    first, second = graphs.logs_by_step(log)
    assert [len(graphs.graphs_of(part)[0].names) for part in (first, second)] == [4, 2]


def test_a_bar_is_of_a_version_of_jax():
    least = dict(zip(graphs.VERSIONS, graphs.CHAINS[STEP], strict=True))
    assert {version: graphs.bar_of(version, STEP) for version in graphs.VERSIONS} == least
    assert graphs.bar_of("0.9.0", STEP) is None
    assert graphs.bar_of(graphs.VERSIONS[0], "flashbax uniform, as in gpu_speed") is None
