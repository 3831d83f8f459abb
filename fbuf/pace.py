"""The number of gradient steps due for the environment steps made."""

from __future__ import annotations

import dataclasses
import fractions
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._arrays import Array
from fbuf._pytree import pytree
from fbuf.checks import values as check

_PARTS = 10_000
"""The largest denominator of a float's fraction; below 1 the largest numerator of the inverse."""

_LARGEST = 2**30
"""The largest product of numerator and denominator, and the largest debt: int32 holds both."""


@pytree
class PaceCounter:
    """The counter of `fbuf.Pace`: a pytree of three int32 scalars, for you to carry and to save.

    Attributes:
        warmup: The environment steps left of the warm-up.
        part: The debt beyond whole gradient steps, in parts of the ratio's denominator.
        owed: Whole gradient steps that are due, and were not handed out for lack of room (`most`).

    Examples:
        >>> import fbuf
        >>> fbuf.Pace(0.25, warmup=2).init()
        PaceCounter(warmup=Array(2, dtype=int32), part=Array(0, dtype=int32), owed=Array(0, dtype=int32))
    """  # noqa: E501  (an example of one line)

    warmup: jax.Array
    """The environment steps left of the warm-up."""
    part: jax.Array
    """The debt beyond whole gradient steps, in parts of the ratio's denominator."""
    owed: jax.Array
    """Whole gradient steps that are due, and were not handed out for lack of room (`most`)."""


@dataclasses.dataclass(frozen=True)
class Pace:
    """A ratio of gradient steps to environment steps, counted exactly.

    `pace.init()` makes a counter, and `due, counter = pace.due(counter, added)` says how many steps
    are due now. The count is exact however long you train: the ratio is a fraction, and no sum of
    floats. Both work in `jit`, `scan` and `fori_loop`; `Pace` itself is static.

    Reverb counts samples for each insert, and a gradient step takes `batch_size` samples:
    `ratio = samples_per_insert / batch_size`, see `Pace.from_samples_per_insert`.

    Attributes:
        ratio: Gradient steps for each environment step, of at least 0: an int, a
            `fractions.Fraction`, or a float. A float stands for the nearest fraction with small
            parts (0.1 is 1/10, 1e-5 is 1/100000). All environments count: a step of 8 environments
            is 8 steps.
        warmup: The first environment steps, for which no gradient step is due. An int of at least
            0.

    Raises:
        TypeError: If `ratio` or `warmup` is not a number of that kind.
        ValueError: If one is negative or not finite, or if the product of the fraction's parts
            passes 2**30.

    Examples:
        >>> import fbuf, jax
        >>> pace = fbuf.Pace(0.25, warmup=2)
        >>> counter, made = pace.init(), []
        >>> for step in range(12):
        ...     due, counter = pace.due(counter, 1)
        ...     made.append(int(due))
        >>> made
        [0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0]

    References:
        Cassirer et al., arXiv:2102.04736 (Reverb's rate limiter).
    """

    ratio: float | fractions.Fraction
    warmup: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        ratio: Any = self.ratio
        if isinstance(ratio, bool) or not isinstance(
            ratio, int | float | fractions.Fraction | np.integer | np.floating
        ):
            raise TypeError(f"fbuf.Pace: ratio must be a number, got {ratio!r}")
        if not 0 <= ratio <= _LARGEST:
            raise ValueError(f"fbuf.Pace: ratio must be from 0 to 2**30, got {ratio}")
        found = self.fraction
        if found.numerator * found.denominator > _LARGEST:
            raise ValueError(
                f"fbuf.Pace: ratio is {found}, whose parts are too large to count in 32 bits; take "
                "a simpler fraction, the product of whose parts is at most 2**30"
            )
        check.integer("Pace", "warmup", self.warmup, smallest=0)

    @property
    def fraction(self) -> fractions.Fraction:
        """The exact fraction that is counted."""
        exact = self._exact
        if not isinstance(self.ratio, float | np.floating):
            return exact
        if exact >= 1 or exact == 0:
            return exact.limit_denominator(_PARTS)
        # A small ratio is inverted: else the error would be as large as the ratio.
        return 1 / (1 / exact).limit_denominator(_PARTS)

    @property
    def _exact(self) -> fractions.Fraction:
        """The ratio as it was given. Made of Python's numbers, for those of NumPy overflow."""
        ratio: Any = self.ratio
        return fractions.Fraction(ratio.item() if isinstance(ratio, np.generic) else ratio)

    @classmethod
    def from_samples_per_insert(
        cls, samples_per_insert: float | fractions.Fraction, batch_size: int, *, warmup: int = 0
    ) -> Pace:
        """Make a pace from the number of draws of each inserted row on average, as Reverb counts.

        Args:
            samples_per_insert: Drawn rows for each row that is added, of at least 0.
            batch_size: The number of rows that a gradient step draws, an int of at least 1.
            warmup: As for `Pace`; Reverb's `min_size_to_sample`.

        Raises:
            TypeError: As for `Pace`.
            ValueError: As for `Pace`.

        Examples:
            >>> import fbuf
            >>> fbuf.Pace.from_samples_per_insert(32, 256).fraction
            Fraction(1, 8)
        """
        size = check.integer("Pace.from_samples_per_insert", "batch_size", batch_size)
        given = cls(samples_per_insert)  # so that it is checked
        if isinstance(samples_per_insert, float | np.floating):
            return cls(float(samples_per_insert) / size, warmup=warmup)
        return cls(given.fraction / size, warmup=warmup)

    def samples_per_insert(self, batch_size: int) -> fractions.Fraction:
        """Return the average draws of each row, if a gradient step draws `batch_size` rows."""
        size = check.integer("Pace.samples_per_insert", "batch_size", batch_size)
        return self.fraction * size

    def init(self) -> PaceCounter:
        """Return a counter of no steps."""
        return PaceCounter(jnp.int32(self.warmup), jnp.int32(0), jnp.int32(0))

    def due(
        self,
        counter: PaceCounter,
        added: Array | int,
        *,
        most: Array | int | None = None,
    ) -> tuple[jax.Array, PaceCounter]:
        """Count environment steps, and return the number of gradient steps due for them.

        Args:
            counter: The counter of the last call, or `pace.init()`.
            added: The environment steps made since, an integer of at least 0; may be traced. With
                several environments, the steps of all together. A step that only reset an
                environment is none, so count `collector.stats()["steps"]`, and not its calls.
            most: The most gradient steps to return, an integer of at least 0; may be traced. The
                rest is due at a later call. None is any number.

        Returns:
            The number of gradient steps to make now, an int32 scalar: the bound of a `fori_loop`,
            say; and the counter after them. The debt is at most 2**30; more is not counted.

        Raises:
            TypeError: If `counter` is not a counter, or `added` is left out.
            ValueError: If `added` or `most` is not one integer, or is negative and not traced.

        Cost: O(1). Call it inside `jit`: from Python each of its small steps is a call of its own.
        """
        check.instance("Pace.due", "counter", counter, PaceCounter, "pace.init()")
        number = check.count("Pace.due", "added", added)
        if number is None:
            raise TypeError("fbuf.Pace.due: added is None; give the environment steps made since")
        made = jnp.maximum(jnp.asarray(number, jnp.int32), 0)
        ratio = self.fraction
        above, below = ratio.numerator, ratio.denominator
        counted = jnp.maximum(made - counter.warmup, 0)
        whole, rest = counted // below, counted % below
        parts = counter.part + rest * above
        # After this many whole turns of the ratio the debt would pass its limit.
        turns = jnp.minimum(whole, _LARGEST // max(above, 1))
        new = turns * above + parts // below
        owed = counter.owed + jnp.minimum(new, _LARGEST - counter.owed)
        due = owed
        if most is not None:
            most = jnp.asarray(check.count("Pace.due", "most", most), jnp.int32)
            due = jnp.minimum(owed, jnp.maximum(most, 0))
        left = jnp.maximum(counter.warmup - made, 0)
        return due, PaceCounter(left, parts % below, owed - due)
