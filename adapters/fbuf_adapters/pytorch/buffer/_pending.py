"""A change of a state that has been asked for, and is made with the next draw.

On a GPU the call of a program takes longer than its work. One call then does for two.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax


@dataclasses.dataclass(frozen=True, eq=False)
class Pending:
    """A change that is still to be made. Nobody else writes to its arguments.

    Attributes:
        function: Makes the next leaves, in a compiled program; see `Change`.
        program: The same, compiled.
        given: Its arguments but the leaves.
        kind: A key of the compiled program.
        read: Is called with the new fault bits when the change was made. The memory of the
            arguments is kept until then.
        stamp: Names the state that comes of the change.
    """

    function: Callable[..., Any]
    program: Any
    given: tuple[Any, ...]
    kind: Any
    read: Callable[[jax.Array], object] | None
    stamp: object = dataclasses.field(default_factory=object)

    @property
    def call(self) -> Callable[[Any], Any]:
        """The program as a function of the leaves alone."""
        return functools.partial(self.program, *self.given)
