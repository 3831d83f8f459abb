"""Uniform batches, made with NumPy in the memory of a buffer on the CPU.

They are the batches of the compiled program, to the last bit. For a few rows NumPy takes less time
than the call of a program, and the way of its result to PyTorch. The random bits of many batches
come from one program.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf.adapter_api import Calls, UniformRows, below_on_host, bits, fold_in, of_newest, wait_for
from fbuf_adapters.pytorch.batches._delivery import TakenBatch
from fbuf_adapters.pytorch.batches._drawer import BatchRequest, Numbered, PackedDraw, Recipe
from fbuf_adapters.pytorch.crossing import _dtypes

_MOST = 1024
"""The rows of the largest batch; for more a program is as fast."""

_WORDS = 4096
"""The rows that bits are made for at once."""


class _Bits:
    """The random bits of batches that follow one another.

    Attributes:
        key: The words of the key that chooses all batches.
        numbers: The numbers of the batches.
    """

    def __init__(self, key: jax.Array, first: int, words: Any) -> None:
        """Take the bits of the batches from `first` on: uint32 `[2, batches, B]`."""
        self.key, self.numbers = key, range(first, first + words.shape[1])
        self._words = words.astype(np.uint64)
        self._last: tuple[int, Any] = (0, None)

    def slots(self, number: int, size: int, total: int) -> np.ndarray[Any, Any]:
        """Return the first `size` slots of a batch, drawn among `total` rows: int64."""
        at = number - self.numbers.start
        last, slots = self._last
        if last != total:
            self._last = total, None
            return below_on_host(self._words[:, at, :size], total)
        if slots is None:  # asked for again: the buffer is full
            slots = below_on_host(self._words, total)
            self._last = total, slots
        return slots[at, :size]


class NumpyDraws:
    """Draw batches of states of one form. Call it with a lock held."""

    def __init__(self, recipe: Recipe, calls: Calls, form: Any) -> None:
        """Take the form; nothing is compiled yet."""
        self._rows = UniformRows(form, recipe.view)
        self._kind, self._calls = recipe.kind, calls
        self._fault = jax.tree.unflatten(form, list(range(form.num_leaves))).fault
        self._bits: dict[int, _Bits] = {}

    @staticmethod
    def of(recipe: Recipe, calls: Calls, form: Any, leaves: tuple[Any, ...]) -> NumpyDraws | None:
        """Return what draws so from a state; None if only a program can."""
        (device,) = leaves[0].devices()
        serves = device.platform == "cpu" and UniformRows.serves(form, recipe.view)
        return NumpyDraws(recipe, calls, form) if serves else None

    def __call__(
        self, newest: list[tuple[jax.Array, ...]], asked: BatchRequest
    ) -> PackedDraw | None:
        """Return a function that returns the batch, and the next turn; None asks for the program.

        The rows are taken here: once the lock is free, other rows may be written in their place.
        """
        if asked.batches > 1 or asked.batch_size > _MOST or _dtypes.x64():
            return None
        turn = Numbered.of(asked.turn)
        bits = self._bits_of(asked, turn)
        slots = functools.partial(bits.slots, turn.number, asked.size)
        taken = of_newest(lambda: newest[0], functools.partial(self._taken, slots))
        if taken is None:
            return None
        batch = TakenBatch(taken, self._rows.tree)
        return lambda: batch, Numbered(turn.number + 1)

    def _taken(self, slots: Any, leaves: tuple[jax.Array, ...]) -> list[Any] | None:
        """Take the rows of a batch from a state that is ready."""
        if not leaves[self._fault].is_ready():
            wait_for(leaves[self._fault])
        return self._rows.draw(leaves, slots)

    def _bits_of(self, asked: BatchRequest, turn: Numbered) -> _Bits:
        """Return random bits with those of a batch."""
        size = asked.batch_size
        found = self._bits.get(size)
        if found is None or found.key is not asked.key or turn.number not in found.numbers:
            program = _drawing_bits(self._kind, size, max(_WORDS // size, 1))
            made = self._calls(program, functools.partial(program, asked.key, turn.words()))
            found = self._bits[size] = _Bits(asked.key, turn.number, np.asarray(made))
        return found


@functools.cache
def _drawing_bits(kind: str, size: int, batches: int) -> Any:
    """Return a program that makes the random bits of batches; see `fbuf.sample`."""

    @jax.jit
    def program(key: jax.Array, turn: jax.Array) -> jax.Array:
        typed = jax.random.wrap_key_data(key, impl=kind)

        def step(turn: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            low = turn[1] + 1
            after = jnp.stack([turn[0] + (low == 0).astype(jnp.uint32), low])
            return after, bits(fold_in(typed, turn[0], turn[1]), (2, size))

        return lax.scan(step, turn, None, batches)[1].swapaxes(0, 1)

    return program
