"""Samplers that draw as another sampler does, but for something of their own."""

from __future__ import annotations

import jax

from fbuf.samplers.protocol import Sampler
from fbuf.samplers.windows import Window, window_of


class Wrapper(Sampler):
    """Draw as `sampler` does, but for something of its own.

    Attributes:
        sampler: The wrapped sampler.
    """

    sampler: Sampler

    # Other samplers have fields by these names; to read them is all that anybody may do.
    @property
    def window(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The window of the wrapped sampler."""
        return self.sampler.window

    @property
    def stride(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The stride of the wrapped sampler."""
        return self.sampler.stride

    @property
    def fields(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The fields that the wrapped sampler looks at."""
        return self.sampler.fields

    @property
    def keeps_priorities(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the wrapped sampler keeps priorities."""
        return self.sampler.keeps_priorities

    @property
    def follows_episodes(self) -> bool:
        """Whether the ring must know where in its episode each row is: always, to tell starts."""
        return True

    @property
    def min_window(self) -> int:
        """Those steps that the wrapped sampler promises."""
        return self.sampler.min_window

    @property
    def may_draw_nothing(self) -> bool:
        """Whether a full buffer can have no row to draw."""
        return self.sampler.may_draw_nothing

    @property
    def can_retire(self) -> bool:
        """Whether the wrapped sampler can retire starts."""
        return self.sampler.can_retire

    @property
    def _window(self) -> Window:
        return window_of(self.sampler)

    def check_field(self, name: str, spec: jax.ShapeDtypeStruct) -> None:
        """Have the wrapped sampler check the field."""
        self.sampler.check_field(name, spec)
