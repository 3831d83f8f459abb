"""One meaning in two forms: one for CPU, and one for every other platform.

`jax.lax.platform_dependent` traces both and lowers one. Where JAX knows nothing but CPUs, the other
form is not traced at all, which takes less time.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

from jax import lax
from jax.extend.backend import backends

_T = TypeVar("_T")


def by_platform(*operands: Any, cpu: Callable[..., _T], default: Callable[..., _T]) -> _T:
    """`cpu(*operands)` where the program is made for CPU, elsewhere `default(*operands)`.

    Args:
        operands: Arrays, or trees of them.
        cpu: The form for CPU.
        default: The form for every other platform, of the same meaning, shapes and dtypes.
    """
    if not compiles_for_others() and set(backends()) == {"cpu"}:
        return cpu(*operands)
    return lax.platform_dependent(*operands, cpu=cpu, default=default)


@functools.cache
def compiles_for_others() -> bool:
    """Whether JAX has what it takes to compile for other devices, even if there are none here."""
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return bool(plugins) or importlib.util.find_spec("libtpu") is not None
