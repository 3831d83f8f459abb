"""A compiled program, read from its text: its instructions, and which results lie in arguments."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_FUSED = re.compile(r"\bcalls=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"\b(?:branch_computations=\{([^}]*)\}|(?:true|false)_computation=(%?[\w.\-]+))"
)
_PATH = re.compile(r'\bop_name="([^"]*)"')
_OPERAND = re.compile(r"%([\w.\-]+)")
_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d+),")

_LONG_NAMES = (("bfloat", "bf"), ("float8_", "f8"), ("float4_", "f4"), ("uint", "u"), ("int", "s"))
"""First letters of the names of dtypes that NumPy lacks: there, and in XLA."""

WRITES_ROWS = frozenset(("scatter", "dynamic-update-slice"))
"""Instructions that write some entries of their first operand, in place."""


class Array(NamedTuple):
    """The type of an array, and how many entries it has: a reshaped copy is a copy, too."""

    dtype: str
    size: int


def array_of(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Return the type that XLA gives an array of this shape and dtype."""
    kind = {"b": "pred", "u": "u", "i": "s", "f": "f", "c": "c"}.get(dtype.kind)
    bits = "" if dtype.kind == "b" else str(8 * dtype.itemsize)
    name = kind + bits if kind is not None and dtype.isbuiltin == 1 else str(dtype)
    for long, short in _LONG_NAMES:
        name = name.replace(long, short)
    return Array(name, int(np.prod(shape, dtype=np.int64)))


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a program.

    Attributes:
        name: Its name.
        computation: The name of its computation.
        arrays: Those of its result.
        opcode: Its kind.
        operands: The names of its operands.
        fused: The computation inside a fusion.
        branches: The branches of a `conditional`.
        path: The functions of JAX behind it, such as `jit(step)/vmap()/select_n`. XLA
            gives none to what it adds by itself.
    """

    name: str
    computation: str
    arrays: tuple[Array, ...]
    opcode: str
    operands: tuple[str, ...]
    fused: str | None
    branches: tuple[str, ...]
    path: str


class Program:
    """The text of a compiled program, as far as it tells of whole arrays."""

    def __init__(self, text: str) -> None:
        """Take the text that `jax.stages.Compiled.as_text` returns."""
        self._head = text.split("\n", 1)[0]
        self._bodies: dict[str, dict[str, Instruction]] = {}
        self._roots: dict[str, str] = {}
        self._entry, computation = "", ""
        for line in text.splitlines():
            if begins := _COMPUTATION.match(line):
                computation = begins[1]
                self._bodies[computation] = {}
                if line.startswith("ENTRY"):
                    self._entry = computation
            elif found := _INSTRUCTION.match(line):
                self._bodies[computation][found[2]] = _instruction(found, computation)
                if found[1]:
                    self._roots[computation] = found[2]

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

    def on_their_own(self) -> Iterator[Instruction]:
        """List the instructions that are not a part of a fusion."""
        everything = [of for body in self._bodies.values() for of in body.values()]
        fused = {of.fused for of in everything if of.opcode == "fusion"}
        for name, body in self._bodies.items():
            if name not in fused:
                yield from body.values()

    def computing(self, instruction: Instruction, at: int) -> Instruction:
        """Return the instruction that computes a result, before some rows of it are written.

        It is a parameter if a fusion writes rows of an operand, or none at all.
        """
        body, root = self._bodies[instruction.computation], instruction
        if instruction.opcode == "fusion" and instruction.fused is not None:
            body = self._bodies[instruction.fused]
            root = body[self._roots[instruction.fused]]
            if root.opcode == "tuple":
                root = body[root.operands[at]]
            while root.opcode == "bitcast" or root.opcode in WRITES_ROWS:
                root = body[root.operands[0]]
        return root


def _instruction(found: re.Match[str], computation: str) -> Instruction:
    """Return the instruction of a line."""
    _, name, kind, opcode, rest = found.groups()
    arrays = tuple(Array(dtype, _entries(dims)) for dtype, dims in _ARRAY.findall(kind))
    inside = rest.split(")", 1)[0]
    operands = (inside,) if opcode == "parameter" else tuple(_OPERAND.findall(inside))
    fused, path = _FUSED.search(rest), _PATH.search(rest)
    listed = ",".join(several or one for several, one in _BRANCHES.findall(rest))
    branches = tuple(name.strip(" %") for name in listed.split(",") if name)
    return Instruction(
        name,
        computation,
        arrays,
        opcode,
        operands,
        fused[1] if fused else None,
        branches,
        path[1] if path else "",
    )


def _entries(dims: str) -> int:
    """Return the number of entries of an array."""
    return int(np.prod([int(dim) for dim in dims.split(",") if dim], dtype=np.int64))
