"""flashbax's own tests of its buffers, run through `fbuf_adapters.flashbax`.

Two of its test files are left out: `sum_tree_test.py` calls its sum tree, and `vault_test.py` its
files, and neither is part of the front.

flashbax's tests also call the functions that its buffers are made of. Below the front is called by
these names: a function here only renames, or makes the buffer with arguments that come late there.

Two of the tests are tried in 720 ways, which takes half an hour. All others take two minutes:
`python -m tests.peers flashbax -k "not doesnt_sample"`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax

_ODD = (
    "makes a time axis of 256 steps with a period of 3, which flashbax's own "
    "make_prioritised_trajectory_buffer never does: there, too, it is 255"
)
_STARTS = (
    "calls the function with which flashbax counts windows, and not a buffer; "
    "tests/adapters/flashbax compares the windows themselves"
)
_PER = "prioritised_trajectory_buffer_test.py::"
KNOWN: dict[str, str] = {
    f"{_PER}test_add_max_length": _ODD,
    f"{_PER}test_add_and_can_sample_prioritised": _ODD,
    **{f"{_PER}test_human_case_{number}": _STARTS for number in (1, 2, 3)},
    "prioritised_flat_buffer_test.py::test_adjust_priorities": (
        "draws from a buffer that has one step and no pair, and gives the pairs that it got "
        "priorities; here such indices name no row"
    ),
}

MODULES = (
    *("trajectory_buffer", "flat_buffer", "item_buffer", "trajectory_queue", "mixer", "utils"),
    *(f"prioritised_{name}_buffer" for name in ("trajectory", "flat", "item")),
)
"""The modules of flashbax whose functions and classes become those of the front."""

LENGTH = 5
"""The fixture `sample_sequence_length` of flashbax's tests of trajectory buffers."""


def tests(folder: Path) -> list[Path]:
    """Return flashbax's test files of buffers, where it is installed."""
    import flashbax

    found = sorted(Path(flashbax.__file__).parent.glob("buffers/*_test.py"))
    utils = Path(flashbax.__file__).parent / "utils_test.py"
    return [utils, *(path for path in found if path.name != "sum_tree_test.py")]


def replace() -> None:
    """Put the front's functions in the place of flashbax's, in flashbax's modules."""
    import flashbax
    from fbuf_adapters import flashbax as front
    from flashbax.buffers import sum_tree

    if not hasattr(jax, "tree_map"):  # JAX has taken the name away since flashbax's last version
        jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
    for module in MODULES:
        own, theirs = vars(getattr(front, module)), vars(getattr(flashbax, module))
        theirs.update(
            {public: own[public] for public in own if public in theirs and public[0] != "_"}
        )

    of_leaves = sum_tree.get
    vars(sum_tree)["get"] = lambda tree, ids: of_leaves(tree, _leaves(tree.buffer, ids))

    _trajectory(flashbax.trajectory_buffer, front)
    _prioritised(flashbax.prioritised_trajectory_buffer, front)
    _queue(flashbax.trajectory_queue, front)


def _leaves(buffer: Any, ids: Any) -> jax.Array:
    """Return the leaves of flashbax's sum tree that indices of the front name."""
    ring, period = buffer.ring, buffer.sampler.stride
    step, environment = ids.slot // ring.lanes, ids.slot % ring.lanes
    return environment * (ring.lane_length // period) + step // period


def _trajectory(module: Any, front: Any) -> None:
    """Make the functions of the trajectory buffer, of the buffer that their arguments describe."""

    def made(state: Any = None, **options: Any) -> Any:
        some = {"sample_batch_size": 1, "sample_sequence_length": 1, "period": 1}
        return front.make_trajectory_buffer(
            **{"min_length_time_axis": 1} | some | _sizes(state) | options
        )

    def init(experience: Any, add_batch_size: int, max_length_time_axis: int) -> Any:
        sizes = {"add_batch_size": add_batch_size, "max_length_time_axis": max_length_time_axis}
        return made(**sizes).init(experience)

    def sample(state: Any, key: Any, batch_size: int, sequence_length: int, period: int) -> Any:
        window = {"sample_sequence_length": sequence_length, "period": period}
        buffer = made(state, sample_batch_size=batch_size, **window)
        # In the front these are arguments of the buffer that `init` belongs to.
        sampler = buffer.init.keywords["sampler"]
        changed = dataclasses.replace(state.buffer, sampler=sampler)
        return buffer.sample(state.replace(buffer=changed), key)

    def can_sample(state: Any, min_length_time_axis: int) -> Any:
        return made(state, min_length_time_axis=min_length_time_axis).can_sample(state)

    module.init, module.sample, module.can_sample = init, sample, can_sample
    module.add = lambda state, batch: made(state).add(state, batch)


def _prioritised(module: Any, front: Any) -> None:
    """Make the functions of the prioritised trajectory buffer in the same way."""

    def made(state: Any = None, **options: Any) -> Any:
        some = {"sample_batch_size": 1, "sample_sequence_length": LENGTH, "period": 1}
        return front.make_prioritised_trajectory_buffer(
            **{"min_length_time_axis": 1} | some | _sizes(state) | options
        )

    def init(experience: Any, add_batch_size: int, max_length_time_axis: int, period: int) -> Any:
        sizes = {"add_batch_size": add_batch_size, "max_length_time_axis": max_length_time_axis}
        return made(**sizes, period=period).init(experience)

    def add(state: Any, batch: Any, sequence_length: int, period: int, device: str) -> Any:
        window = {"sample_sequence_length": sequence_length, "period": period}
        return made(state, **window, device=device).add(state, batch)

    def sample(state: Any, key: Any, batch_size: int, sequence_length: int, period: int) -> Any:
        window = {"sample_sequence_length": sequence_length, "period": period}
        return made(state, sample_batch_size=batch_size, **window).sample(state, key)

    def set_priorities(
        state: Any, indices: Any, priorities: Any, priority_exponent: float, device: str
    ) -> Any:
        buffer = made(state, priority_exponent=priority_exponent, device=device)
        return buffer.set_priorities(state, indices, priorities)

    module.prioritised_init, module.prioritised_add = init, add
    module.prioritised_sample, module.set_priorities = sample, set_priorities


def _queue(module: Any, front: Any) -> None:
    """Make the functions of the queue in the same way."""

    def made(state: Any = None, **options: Any) -> Any:
        some = {"add_sequence_length": 1, "sample_sequence_length": 1}
        return front.make_trajectory_queue(**some | _sizes(state) | options)

    def init(experience: Any, add_batch_size: int, max_length_time_axis: int) -> Any:
        sizes = {"add_batch_size": add_batch_size, "max_length_time_axis": max_length_time_axis}
        return made(**sizes).init(experience)

    def can_add(state: Any, add_sequence_length: int, max_length_time_axis: int) -> Any:
        return made(state, add_sequence_length=add_sequence_length).can_add(state)

    def can_sample(state: Any, sample_sequence_length: int, max_length_time_axis: int) -> Any:
        return made(state, sample_sequence_length=sample_sequence_length).can_sample(state)

    module.init, module.can_add, module.can_sample = init, can_add, can_sample
    module.add = lambda state, batch: made(state).add(state, batch)
    module.sample = lambda state, length: made(state, sample_sequence_length=length).sample(state)


def _sizes(state: Any) -> dict[str, int]:
    """Return the sizes that a state has."""
    if state is None:
        return {}
    ring = state.buffer.ring
    return {"add_batch_size": ring.lanes, "max_length_time_axis": ring.lane_length}
