"""Arrays of a buffer that a compiled program writes whole, and why.

A step of a buffer changes some rows of its arrays. In the text of the program such a change is a
scatter or a `dynamic-update-slice`. Any other instruction that results in an array of the buffer
computes every entry of the array.

XLA adds copies by itself, and these say nothing of their cause. It is read from what else happens
to that array in the same part of the program.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from fbuf.xla.program import WRITES_ROWS, Array, Instruction, Program

_PASSES_ON = frozenset(
    (
        *("parameter", "tuple", "get-tuple-element", "bitcast", "opt-barrier"),
        *("while", "conditional", "call", "copy-done"),
        *("async-start", "async-update", "async-done"),
    )
)
"""Instructions that hand arrays on as they are."""

_MAKES_ANEW = frozenset(("dot", "convolution", "iota", "rng", "rng-bit-generator", "constant"))
"""Instructions whose result is no array of a buffer, but may be as large by chance."""


class Cause(enum.Enum):
    """A reason to write an array whole, by the name that a user reads."""

    BRANCH = "a branch"
    """One branch returns it changed, and another one returns it, too."""
    SELECT = "a select"
    """Each entry is chosen, by one condition, of two arrays."""
    LOOP = "a loop of another length for each seed"
    """As a select: the array of a seed that has ended its loop stays as it is."""
    ORDER = "an order of reads"
    """Rows are read that may be overwritten before."""
    DTYPE = "a dtype"
    """Numbers are written as wider ones."""
    FILL = "a fill"
    """Each entry becomes the same number."""
    COMPUTED = "a computation"
    """Each entry is computed in another way."""


_SIGNS = {"select": Cause.SELECT, "convert": Cause.DTYPE, "broadcast": Cause.FILL}
"""Causes by the kind of instruction."""

_NEEDS_THE_OLD = frozenset((Cause.SELECT, Cause.LOOP, Cause.DTYPE))
"""Causes for which XLA also copies the operand of an instruction."""


class Whole(NamedTuple):
    """An array that is written whole, once, and why."""

    array: Array
    cause: Cause


def written_whole(program: Program, arrays: Iterable[Array]) -> list[Whole]:
    """List the instructions that compute every entry of one of these arrays."""
    wanted = frozenset(arrays)
    everything = list(program.on_their_own())
    written = [
        (array, of.computation, _sign(computing))
        for of in everything
        for at, array in enumerate(of.arrays)
        if array in wanted
        for computing in (program.computing(of, at),)
        if not _keeps(of, computing)
    ]
    near = {(array, place): cause for array, place, cause in written if cause in _NEEDS_THE_OLD}
    copied = {(array, place) for array, place, cause in written if cause is None}
    branching = [of for of in everything if of.opcode == "conditional"]
    split = {
        (array, place)
        for of in branching
        for array in of.arrays
        if any((array, branch) in copied for branch in of.branches)
        for place in (of.computation, *of.branches)
    }
    causes = dict.fromkeys(split, Cause.BRANCH) | near
    return [
        Whole(array, cause or causes.get((array, place), Cause.ORDER))
        for array, place, cause in written
    ]


def _keeps(instruction: Instruction, computing: Instruction) -> bool:
    """Tell whether a result is an operand, at most with some rows written, or no such array."""
    if instruction.opcode == "fusion":
        return computing.opcode == "parameter"
    return instruction.opcode in _PASSES_ON | WRITES_ROWS | _MAKES_ANEW


def _sign(computing: Instruction) -> Cause | None:
    """Return the cause of a whole write, from the instruction alone: None for a copy."""
    if computing.opcode in ("copy", "copy-start"):
        return None
    cause = _SIGNS.get(computing.opcode, Cause.COMPUTED)
    # JAX names the choice by the loop that it makes of a batch of loops.
    by_loop = cause is Cause.SELECT and computing.path.endswith("/while")
    return Cause.LOOP if by_loop else cause
