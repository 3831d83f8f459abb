"""Draw the batch of a turn: compiled programs return the packed batch and the next turn."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fbuf
from fbuf.adapter_api import BatchDrawer, Calls, fold_in, returned_batch
from fbuf_adapters.pytorch._spec import Spec
from fbuf_adapters.pytorch.batches import _delivery, _modes
from fbuf_adapters.pytorch.batches._delivery import PackedBatch, TakenBatch
from fbuf_adapters.pytorch.batches._sizes import Sizes
from fbuf_adapters.pytorch.crossing import _dtypes, _packed
from fbuf_adapters.pytorch.crossing._to_torch import KeptAliases
from fbuf_adapters.pytorch.crossing._unpack import Axes, Unpack

PackedDraw = tuple[Callable[[], PackedBatch | TakenBatch], Any]
"""A function that returns the packed batch of a turn, and the next turn.

If several are drawn, the function returns all of them, with an axis before theirs. Beside it are
the turns after each, and the last of these once more."""

STATIC = ("batch_size", "batches")
"""The arguments of such programs that are part of them."""

Change = Callable[..., tuple[jax.Array, ...]]
"""Makes the next leaves of a state, in a compiled program: of its form, arguments and leaves."""

Unpackers = dict[tuple[int, bool], tuple[Unpack, Any]]
"""For each size of a batch, with 64 bits or without: what unpacks it, and its structure."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The way batches are drawn.

    Attributes:
        in_order: Whether the sampler's batches are numbered.
        drop_last: Whether to leave out the last batch of an epoch if it is short.
        view: The view of a drawn row.
        kind: The kind of the random key, in JAX's words.
    """

    in_order: bool
    drop_last: bool
    view: Any
    kind: str


class BatchRequest(NamedTuple):
    """A batch that is asked for.

    Attributes:
        key: The words of the key that chooses all batches. A key itself is no array to JAX, and is
            taken apart in Python: then a call of a program is more than one instruction.
        turn: Says which one this is.
        count: How many rows of `batch_size` are wanted; None is all.
        beta: As for `fbuf.sample`.
        batch_size: How many rows are drawn.
        size: How many rows the user asked for.
        batches: How many batches are drawn: this one, and those of the turns that follow.
    """

    key: jax.Array
    turn: Any
    count: Any
    beta: Any
    batch_size: int
    size: int
    batches: int = 1

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments beside the leaves, of a program that draws the batch."""
        return self.key, turn_beside(self.key, self.turn), self.count, self.beta

    @property
    def static(self) -> dict[str, int]:
        """The arguments that are part of the program."""
        return {"batch_size": self.batch_size, "batches": self.batches}

    def call(self, program: Any, newest: list[Any]) -> Callable[[], Any]:
        """The call, in one instruction, of a program that draws it from the newest leaves."""
        draw = functools.partial(program, *self.arguments, **self.static)
        return functools.partial(next, map(draw, newest))

    def kind(self, program: Any) -> Any:
        """Return a key of the compiled program."""
        return program, self.batch_size, self.batches, self.count is None, type(self.beta)


class SupportsBatches(Protocol):
    """A state with programs that draw batches of it: a `Backend`."""

    def draw(self, recipe: Recipe, asked: BatchRequest, ahead: bool) -> PackedDraw:
        """Draw a batch of a recipe from the newest state; see `BatchProgram`."""
        ...


class TensorDrawer(BatchDrawer):
    """Draw the batches of a buffer of tensors. Call the methods with the lock of the buffer held.

    A turn is uint32 `[2]` on the device: the number of the batch in two words. Without replacement,
    it is the number of the epoch and the place in it.

    Attributes:
        key: The key of all batches; it lies where they are drawn.
        sizes: The sizes that have programs.
    """

    def __init__(self, spec: Spec, key: jax.Array, delivery: _delivery.Delivery) -> None:
        """Take the arguments of the buffer; nothing is drawn yet."""
        self.key, self._words = key, jax.random.key_data(key)
        sampler, kind = spec.buffer.sampler, str(jax.random.key_impl(key))
        self._recipe = Recipe(sampler.without_replacement, spec.drop_last, spec.view, kind)
        self._delivery = delivery
        self._stream = _delivery.stream_for(spec.device, spec.to) if spec.prefetch else None
        self.sizes = Sizes()
        if spec.batch_size is not None:
            self.sizes.fitting("sample", spec.batch_size)

    def draw(
        self, source: SupportsBatches, turn: jax.Array, size: int, option: Any
    ) -> tuple[Callable[[], Any], jax.Array]:
        """Draw the batch of a turn; `option` is beta."""
        made, after = self._packed(source, turn, size, option, ahead=False)
        return functools.partial(self._delivery, made, waits=True), after

    def draw_ahead(
        self, source: SupportsBatches, turn: jax.Array, size: int, option: Any, context: Any
    ) -> tuple[Callable[[], Any], jax.Array]:
        """Draw the batch of a turn for the thread, which makes tensors of it under some modes."""
        made, after = self._packed(source, turn, size, option, ahead=True)
        make = functools.partial(self._delivery, made)
        if context is not None:
            make = functools.partial(_modes.under, context, make)
        stream = self._stream  # and not this object, which pending batches would keep
        return lambda: _delivery.Ahead(make, stream).take, after

    def draw_several(
        self, source: SupportsBatches, turn: Any, size: int, option: Any, count: int
    ) -> list[tuple[Callable[[], Any], Any]]:
        """Draw the batches of a turn and of those that follow, in one program."""
        asked = self._asked(turn, size, option, count)
        make, after = source.draw(self._recipe, asked, False)
        if asked.batches == 1:
            return [(functools.partial(self._delivery, make, waits=True), after)]
        turns, last = after
        packed: Any = make()  # NumPy makes one batch at a time
        whole = dataclasses.replace(packed, aliases=KeptAliases())

        def delivered(number: int) -> Any:
            one = dataclasses.replace(whole, number=number)
            return self._delivery(lambda: one, waits=True)

        each = [*(_Among(turns, number) for number in range(count - 1)), last]
        return [(functools.partial(delivered, n), turn) for n, turn in enumerate(each)]

    def _packed(
        self, source: SupportsBatches, turn: Any, size: int, beta: Any, ahead: bool
    ) -> PackedDraw:
        """Draw the batch of a turn."""
        return source.draw(self._recipe, self._asked(turn, size, beta), ahead)

    def _asked(self, turn: Any, size: int, beta: Any, batches: int = 1) -> BatchRequest:
        """Return the request for a batch, of a program of its size or of the next known one.

        If the size has no program of its own, it asks for one batch: the next call may have one.
        """
        fitting = self.sizes.fitting("sample", size)
        words = self._words
        if fitting is None:
            return BatchRequest(words, turn, None, beta, size, size, batches)
        return BatchRequest(words, turn, np.int32(size), beta, fitting, size)

    def exists(self, turn: jax.Array) -> bool:
        """Tell whether the program that was to compute a turn did so."""
        try:
            turn.block_until_ready()
        except jax.errors.JaxRuntimeError:
            return False
        return True

    def array(self, turn: Any) -> jax.Array:
        """Return a turn as an array: it may lie in one with others, or be a number."""
        return turn_beside(self._words, turn)

    def turn(self, words: Any) -> jax.Array:
        """Return a turn on the device."""
        return _beside(self._words, np.asarray(words, np.uint32))

    def of_run(self, key: jax.Array, sizes: list[int]) -> TensorDrawer:
        """Return the drawer of another run: its key, and its known sizes, see `Sizes.own`."""
        other = copy.copy(self)
        other.key, other.sizes = _beside(self._words, key), Sizes()
        other._words = jax.random.key_data(other.key)
        if sizes:
            other.sizes.own["sample"] = list(sizes)
        return other

    def loaded(self, batch: Any) -> Callable[[], Any]:
        """Return a function that takes a loaded batch, which was drawn ahead."""
        place = functools.partial(self._delivery.place, batch)
        return _delivery.Ahead(place, self._stream).take


def _beside(words: jax.Array, array: Any) -> jax.Array:
    """Return an array where the batches are drawn: where the words of their key lie."""
    (device,) = words.devices()
    return jax.device_put(array, device)


def turn_beside(words: jax.Array, turn: Any) -> jax.Array:
    """Return a turn as an array, where the words of the key lie."""
    return _beside(words, turn.words()) if isinstance(turn, _Among | Numbered) else turn


@dataclasses.dataclass(frozen=True, eq=False)
class Numbered:
    """The turn of a batch by its number, for draws on the host."""

    number: int

    @staticmethod
    def of(turn: Any) -> Numbered:
        """Return any turn so."""
        if isinstance(turn, Numbered):
            return turn
        words = turn.words() if isinstance(turn, _Among) else np.asarray(turn)
        high, low = words.tolist()
        return Numbered(high << 32 | low)

    def words(self) -> np.ndarray[Any, Any]:
        """Return the turn: uint32 `[2]`."""
        high, low = divmod(self.number % 2**64, 2**32)
        return np.array([high, low], np.uint32)

    def block_until_ready(self) -> None:
        """Return at once, for no program computes it."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Among:
    """A turn among those that a program has returned: few of them are looked at."""

    turns: jax.Array
    number: int

    def words(self) -> np.ndarray[Any, Any]:
        """Return the turn; it waits for the program."""
        return np.asarray(self.turns)[self.number]

    def block_until_ready(self) -> None:
        """Wait for the program, or raise what it has raised."""
        self.turns.block_until_ready()


class BatchProgram:
    """Draw batches of a state. Call it with a lock held."""

    def __init__(self, recipe: Recipe, calls: Calls, form: Any) -> None:
        """Prepare the program for states of this form; its first call compiles the program."""
        self._program, self._unpackers = compiled(form, recipe)
        self._form, self._recipe, self._calls = form, recipe, calls
        self._axes: Axes | None = None

    def __call__(
        self, newest: list[tuple[jax.Array, ...]], asked: BatchRequest, ahead: bool
    ) -> PackedDraw:
        """Return a function that returns the batch, which is being computed, and the next turn."""
        program = self._program
        called = self._calls(asked.kind(program), asked.call(program, newest))
        return self.drawn(called, newest[0], asked)

    def after(self, change: Change) -> Any:
        """Return a program that makes a change first; it takes what both take, leaves at the end.

        It writes into the leaves that it is given. It returns the new ones, and what is drawn.
        """
        return _changing_and_drawing(change, self._form, self._recipe)

    def drawn(self, called: Any, leaves: Any, asked: BatchRequest) -> PackedDraw:
        """Return what the program has drawn, of leaves of these shapes and dtypes."""
        packed, after = called
        if asked.count is not None and self._axes is None:
            found = functools.partial(batch_axes, self._program, self._unpackers, leaves, asked)
            self._axes = self._calls.apart(found)
        unpack, tree = self._unpackers[asked.batch_size, _dtypes.x64()]
        axes = None if asked.count is None else self._axes
        drawn = PackedBatch(packed, unpack, tree, asked.size, axes)
        return lambda: drawn, after


def turning(form: Any, recipe: Recipe, draw: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that draws the batch of a turn, and says which one is next.

    Args:
        form: The structure of the state.
        recipe: How batches are drawn.
        draw: Draws one of a state and a key, as arrays; it gets the arguments of `fbuf.sample`.
    """

    def in_epoch(state: Any, key: Any, turn: Any, count: Any, batch_size: int) -> Any:
        rows = fbuf.stats(state)["epoch_size"].astype(jnp.uint32)
        asked = jnp.uint32(batch_size) if count is None else count.astype(jnp.uint32)
        over = (turn[1] >= rows) | (recipe.drop_last & (turn[1] + asked > rows))
        epoch, first = turn[0] + over.astype(jnp.uint32), jnp.where(over, 0, turn[1])
        step = (epoch & 0x7FFFFFFF).astype(jnp.int32), first.astype(jnp.int32)
        drawn = draw(state, key, batch_size, beta=None, step=step, count=count)
        return drawn, jnp.stack([epoch, first + asked])

    def alone(
        state: Any, key: Any, turn: Any, count: Any, beta: Any, batch_size: int
    ) -> tuple[Any, jax.Array]:
        key = fold_in(key, turn[0], turn[1])
        drawn = draw(state, key, batch_size, beta=beta, step=None, count=count)
        low = turn[1] + 1
        return drawn, jnp.stack([turn[0] + (low == 0).astype(jnp.uint32), low])

    def program(
        key: Any,
        turn: Any,
        count: Any,
        beta: Any,
        leaves: tuple[jax.Array, ...],
        batch_size: int,
        batches: int,
    ) -> tuple[Any, Any]:
        state, key = (
            jax.tree.unflatten(form, leaves),
            jax.random.wrap_key_data(key, impl=recipe.kind),
        )

        def one(turn: Any) -> tuple[Any, jax.Array]:
            if recipe.in_order:
                return in_epoch(state, key, turn, count, batch_size)
            return alone(state, key, turn, count, beta, batch_size)

        if batches == 1:
            with returned_batch():  # where there are more, a kernel puts each among the others
                return one(turn)

        def step(turn: Any, _: None) -> tuple[Any, Any]:
            drawn, after = one(turn)
            return after, (drawn, after)

        last, (drawn, turns) = lax.scan(step, turn, None, batches)
        return drawn, (turns, last)

    return program


@functools.cache
def compiled(form: Any, recipe: Recipe) -> tuple[Any, Unpackers]:
    """Return the program that draws and packs a batch, and returns the next turn; the unpackers."""
    program, unpackers = _drawing(form, recipe)
    return jax.jit(program, static_argnames=STATIC), unpackers


@functools.cache
def _changing_and_drawing(change: Change, form: Any, recipe: Recipe) -> Any:
    """Compile a change and the draw after it."""
    draw, _ = _drawing(form, recipe)

    @functools.partial(jax.jit, static_argnames=STATIC, donate_argnums=2)
    def program(
        given: tuple[Any, ...], asked: tuple[Any, ...], leaves: Any, **static: int
    ) -> tuple[tuple[jax.Array, ...], Any]:
        # Apart, so that XLA computes each as it does alone, to the last bit.
        leaves = lax.optimization_barrier(change(form, *given, leaves))
        return leaves, draw(*asked, leaves, **static)

    return program


@functools.cache
def _drawing(form: Any, recipe: Recipe) -> tuple[Callable[..., Any], Unpackers]:
    """Return the function of `compiled`, and the unpackers."""
    unpackers: Unpackers = {}

    def draw(state: Any, key: Any, batch_size: int, **options: Any) -> tuple[jax.Array, ...]:
        sample = fbuf.sample(state, key, batch_size, view=recipe.view, **options)
        return packed(sample, batch_size, unpackers)

    return turning(form, recipe, draw), unpackers


def packed(sample: Any, batch_size: int, unpackers: Unpackers) -> tuple[jax.Array, ...]:
    """A batch, packed; it is noted what unpacks it."""
    found, tree = jax.tree.flatten(sample)
    layout = _packed.layout(found)
    unpackers[batch_size, _dtypes.x64()] = Unpack(layout), tree
    return _packed.pack(layout, found)


def batch_axes(program: Any, unpackers: Unpackers, leaves: Any, asked: BatchRequest) -> Axes:
    """The axes of what a program draws, of leaves that may be shapes and dtypes."""
    for size in (1, 2):
        one = functools.partial(program, batch_size=size, batches=1)
        jax.eval_shape(one, *asked.arguments, leaves)
    one, two = (unpackers[size, _dtypes.x64()][0].shapes for size in (1, 2))
    return tuple(
        next((axis for axis, (m, n) in enumerate(zip(a, b, strict=True)) if m != n), None)
        for a, b in zip(one, two, strict=True)
    )
