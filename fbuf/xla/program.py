"""A compiled program: which large arrays are written whole, and which are results in place.

A step of a buffer changes some rows of its arrays. In the text of the program such a change is a
scatter or a `dynamic-update-slice`. Any other instruction that results in an array of the buffer
computes every entry of the array.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply)=%?([\w.\-]+)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d+),")

_LONG_NAMES = (("bfloat", "bf"), ("float8_", "f8"), ("float4_", "f4"), ("uint", "u"), ("int", "s"))
"""First letters of the names of dtypes that NumPy lacks: there, and in XLA."""

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

_WRITES_ROWS = frozenset(("scatter", "dynamic-update-slice"))
"""Instructions that write some entries of their first operand, in place."""


class Array(NamedTuple):
    """The type of an array, and how many entries it has: a reshaped copy is a copy, too."""

    dtype: str
    size: int


def array_of(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Return the type that XLA gives an array of this shape and dtype."""
    kind = {"b": "pred", "u": "u", "i": "s", "f": "f", "c": "c"}.get(dtype.kind)
    bits = "" if dtype.kind == "b" else str(8 * dtype.itemsize)
    name = str(dtype) if kind is None else kind + bits
    for long, short in _LONG_NAMES:
        name = name.replace(long, short)
    return Array(name, int(np.prod(shape, dtype=np.int64)))


@dataclasses.dataclass(frozen=True)
class _Instruction:
    """A line of a program.

    Attributes:
        name: Its name.
        arrays: Those of its result.
        opcode: Its kind.
        operands: The names of its operands.
        called: The computation that a fusion is made of.
    """

    name: str
    arrays: tuple[Array, ...]
    opcode: str
    operands: tuple[str, ...]
    called: str | None


class Program:
    """The text of a compiled program, as far as it tells of whole arrays."""

    def __init__(self, text: str) -> None:
        """Take the text that `jax.stages.Compiled.as_text` returns."""
        self._head = text.split("\n", 1)[0]
        self._bodies: dict[str, dict[str, _Instruction]] = {}
        self._roots: dict[str, str] = {}
        self._entry = ""
        body: dict[str, _Instruction] = {}
        for line in text.splitlines():
            if begins := _COMPUTATION.match(line):
                body = self._bodies[begins[1]] = {}
                if line.startswith("ENTRY"):
                    self._entry = begins[1]
            elif found := _INSTRUCTION.match(line):
                body[found[2]] = _instruction(found)
                if found[1]:
                    self._roots[next(reversed(self._bodies))] = found[2]

    def written_whole(self, arrays: Iterable[Array]) -> list[tuple[Array, str]]:
        """List the instructions that compute every entry of one of these arrays.

        Returns:
            The array and the kind of instruction, such as `copy`, for each of them.
        """
        wanted = frozenset(arrays)
        return [
            (array, instruction.opcode)
            for instruction in self._on_their_own()
            for at, array in enumerate(instruction.arrays)
            if array in wanted
            and instruction.opcode not in _MAKES_ANEW
            and not self._keeps(instruction, at)
        ]

    def not_in_place(self, arrays: Iterable[Array]) -> list[Array]:
        """List those of these arrays for which no result lies in the memory of an argument."""
        _, found, listed = self._head.partition("input_output_alias={")
        aliases = listed.split("entry_computation_layout")[0] if found else ""
        numbers = set(map(int, _ALIAS.findall(aliases)))
        arguments = [of for of in self._bodies[self._entry].values() if of.opcode == "parameter"]
        given = (of.arrays[0] for of in arguments if int(of.operands[0]) in numbers)
        there = collections.Counter(given)
        missing = collections.Counter(arrays)
        missing.subtract(there)
        return [array for array, count in missing.items() for _ in range(count)]

    def _on_their_own(self) -> Iterator[_Instruction]:
        """List the instructions that are not a part of a fusion."""
        everything = [of for body in self._bodies.values() for of in body.values()]
        fused = {of.called for of in everything if of.opcode == "fusion"}
        for name, body in self._bodies.items():
            if name not in fused:
                yield from body.values()

    def _keeps(self, instruction: _Instruction, at: int) -> bool:
        """Tell whether a result is an operand, at most with some rows written."""
        if instruction.opcode in _PASSES_ON or instruction.opcode in _WRITES_ROWS:
            return True
        if instruction.opcode != "fusion" or instruction.called is None:
            return False
        body = self._bodies[instruction.called]
        root = body[self._roots[instruction.called]]
        if root.opcode == "tuple":
            root = body[root.operands[at]]
        while root.opcode == "bitcast" or root.opcode in _WRITES_ROWS:
            root = body[root.operands[0]]
        return root.opcode == "parameter"


def _instruction(found: re.Match[str]) -> _Instruction:
    """Return the instruction of a line."""
    _, name, kind, opcode, rest = found.groups()
    arrays = tuple(Array(dtype, _entries(dims)) for dtype, dims in _ARRAY.findall(kind))
    inside = rest.split(")", 1)[0]
    operands = (inside,) if opcode == "parameter" else tuple(_OPERAND.findall(inside))
    called = _CALLED.search(rest)
    return _Instruction(name, arrays, opcode, operands, called[1] if called else None)


def _entries(dims: str) -> int:
    """Return the number of entries of an array."""
    return int(np.prod([int(dim) for dim in dims.split(",") if dim], dtype=np.int64))
