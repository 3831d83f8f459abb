"""A case of a check: its subject and history, for error messages."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.samplers import Sampler
from fbuf.testing.pair import Pair, Shape

SHAPES = (Shape(None, 12), Shape(3, 12, True, "next_step"), Shape(3, 12, False))
"""One lane, environments that step together, and environments that do not."""

STEPS = (3, 14)
"""The steps of an add: a few, and more than a lane of `SHAPES` has."""


@dataclasses.dataclass
class Case:
    """A history of a buffer, with the sampler or view under test.

    Attributes:
        check: The name of the check.
        subject: The sampler or the view.
        shape: The shape of the buffer; None before a shape is chosen.
        seed: The seed of the history; None before a history begins.
        done: The names of the operations so far.
    """

    check: str
    subject: Any
    shape: Shape | None = None
    seed: int | None = None
    done: list[str] = dataclasses.field(default_factory=list[str])

    def fail(self, sentence: str, cause: Exception | None = None) -> NoReturn:
        """Raise an error with the failure, and the way to repeat it."""
        where = ""
        if self.done:
            where = f" It came after the operations {', '.join(self.done)}."
        if self.shape is not None:
            where += f" To repeat it, give shapes=[{self.shape}]"
            where += f" and seeds=[{self.seed}]." if self.seed is not None else "."
        raise AssertionError(
            f"fbuf.testing.{self.check}: {self.subject!r}: {sentence}.{where}"
        ) from cause

    def require(self, holds: Any, sentence: str) -> None:
        """Raise the error unless a condition holds."""
        if not holds:
            self.fail(sentence)

    @contextlib.contextmanager
    def doing(self, what: str) -> Generator[None]:
        """Add the operation under way to an exception."""
        try:
            yield
        except AssertionError:
            raise
        except Exception as error:
            text = str(error).partition("\n")[0]
            self.fail(f"{what} raises {type(error).__name__}: {text}", error)

    def close(self, one: Any, other: Any, sentence: str) -> None:
        """Raise the error unless two trees are equal, up to the last digits of real numbers."""
        self.require(jax.tree.structure(one) == jax.tree.structure(other), sentence)
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        self.require(all(equal(x, y) for x, y in pairs), sentence)


def equal(one: Any, other: Any) -> bool:
    """Return whether two arrays are equal; real numbers may differ in the last digits."""
    one, other = plain(one), plain(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if np.issubdtype(one.dtype, np.inexact):
        return bool(np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True))
    return bool((one == other).all())


def plain(leaf: Any) -> np.ndarray:
    """Return an array of NumPy; a random key as its numbers."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    # NumPy takes the small floats of JAX for bytes.
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def check_static(case: Case) -> None:
    """Require that JAX can take a sampler or a view as a static argument."""
    subject = case.subject
    with case.doing("hash(...)"):
        hash(subject)
    case.require(
        copy.copy(subject) == subject,
        "it is not equal to a copy of itself, so every call compiles anew; make it a frozen "
        "dataclass",
    )


def draw(state: Any, key: Any, batch_size: int, view: Any = fbuf.Item(), step: Any = 0) -> Any:
    """Draw with the function for the sampler; return the state and the batch.

    From Python the state is not consumed.
    """
    if state.sampler.notes_draws:
        return fbuf.draw(state, key, batch_size, view=view, donate=False)
    number = step if state.sampler.without_replacement else None
    return state, fbuf.sample(state, key, batch_size, view=view, step=number)


def histories(
    case: Case,
    sampler: Sampler,
    shapes: Sequence[Sequence[Any]] | None,
    seeds: Sequence[int],
    operations: int,
    **options: Any,
) -> Iterator[tuple[Case, Pair, np.random.Generator]]:
    """Yield a buffer after each operation of each history, for each possible shape."""
    refused: Exception | None = None
    served = False
    for given in SHAPES if shapes is None else shapes:
        fields: Any = given
        shape = Shape(*fields)
        if options.get("next_of"):  # so that no end is lost
            options["max_ends"] = shape.length * (shape.num_envs or 1)
        for seed in seeds:
            here = dataclasses.replace(case, shape=shape, seed=seed, done=[])
            try:
                pair = Pair(shape, sampler, shape.autoreset, **options)
            except ValueError as error:  # a sampler may refuse some buffers
                refused = error
                break
            served = True
            rng, often = np.random.default_rng(seed), (0.1, 0.4, 0.0)[seed % 3]
            yield here, pair, rng
            for _ in range(operations):
                with here.doing("an operation on the buffer"):
                    kind = pair.step(rng, STEPS, often)
                here.done.append(kind)
                yield here, pair, rng
            here.done.append("add")
            with here.doing("an operation on the buffer"):
                pair.add(STEPS[0], rng, often, plain=True)  # so that a row remains
                if pair.keeps_priorities:
                    pair.update(rng, 2, twice=True)
                    here.done.append("update")
            yield here, pair, rng
    if not served:
        case.fail(f"fbuf.init refuses every shape; the last one with: {refused}", refused)
