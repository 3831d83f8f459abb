"""Tags: random numbers that tell the rows of one buffer from those of another.

The ids of a buffer count from its tag. So an id of another buffer, or of an abandoned run, names no
row here. Comparing a tag costs nothing, as it is part of the generation.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import secrets
from collections.abc import Generator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf.xla.filled import traced

ROW = 4
"""The row of a ring's cursor that holds the tag. A checkpoint has the rows before it."""

_SPREAD = 0x9E3779B9
"""The golden ratio of 2**32: its multiples lie far from each other."""

MOST_LAPS = 2**16
"""The laps that an id may be late. A later id was made for another buffer."""


_agreed: contextvars.ContextVar[int | None] = contextvars.ContextVar("_agreed", default=None)
"""The tag of all new buffers, while it is not None."""

_traced = itertools.count()
"""The number of the next tag of a compiled program."""


def new() -> jax.Array | int:
    """Return a tag for a new buffer: int32.

    A compiled program makes one each time it runs. The compiler's own generator needs no key, and
    tells two runs of one program apart. It begins alike in each program, so they have numbers.
    """
    if (agreed := _agreed.get()) is not None:
        return agreed
    if not traced():
        return secrets.randbits(32) - 2**31
    # All processes of a cluster must compile the same program, and one of them may have made more.
    number = 0 if jax.distributed.is_initialized() else next(_traced)
    bits = lax.rng_uniform(jnp.uint32(0), jnp.uint32(2**32 - 1), ())
    return lax.bitcast_convert_type(bits + jnp.uint32(number * _SPREAD % 2**32), jnp.int32)


@contextlib.contextmanager
def alike(tag: int) -> Generator[None]:
    """Give all new buffers one tag, as shards of one buffer in several processes."""
    token = _agreed.set(tag)
    try:
        yield
    finally:
        _agreed.reset(token)


def of(cursor: jax.Array) -> int:
    """Return the tag of a buffer from the cursor of its ring. No array of the buffer is kept."""
    return int(jax.device_get(jnp.copy(cursor))[ROW, 0])


def renewed(saved: np.ndarray) -> np.ndarray:
    """Return the cursor of a loaded buffer with a new tag: int32 `[..., 5, heads]`.

    Cursors of checkpoints and of older versions have no tag.
    """
    kept = saved[..., :ROW, :]
    return np.concatenate([kept, np.full_like(kept[..., :1, :], new())], axis=-2)
