"""Computing the capacity that fits into memory."""

from __future__ import annotations

import bisect
from typing import Any

from fbuf.checks import sizes
from fbuf.checks import values as check
from fbuf.ops.nbytes import arguments_of_init, nbytes


def capacity_for(size: int | str, item: Any, **options: Any) -> int:
    """Find the largest capacity of a buffer that takes at most this much memory.

    Args:
        size: Bytes: an int, or a number with a unit, such as `"24GiB"`, `"500 MB"` or `"1.5TB"`.
            `GiB` and `G` are 1024**3 bytes, and `GB` is 1000**3.
        item: As for `fbuf.init`.
        options: All options of `fbuf.init`.

    Returns:
        A capacity for `fbuf.init` with the same options: a multiple of `num_envs`, and of the
        sampler's stride in every lane.

    Raises:
        ValueError: If `size` is no size, or too small for any buffer with these options. Also as
            `fbuf.init`.
        TypeError: If `size` is neither an int nor a str. Also as `fbuf.init`.

    Cost: 31 calls of `fbuf.nbytes`: a tenth of a second or so. No memory is allocated.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> frame = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)
        >>> fbuf.capacity_for("24GiB", frame, num_envs=8)
        913008
        >>> fbuf.nbytes(frame, 913_008, num_envs=8) <= 24 * 2**30
        True
    """
    budget = sizes.size("capacity_for", "size", size)
    given = arguments_of_init("capacity_for", item, 1, options)
    sampler, lanes = given["sampler"], given["num_envs"] or 1
    step = lanes * sampler.stride
    rows = max(sampler.window * lanes, given["max_ends"] or 1)
    smallest = -(-rows // step)
    counts = range(smallest, check.LARGEST_CAPACITY // step + 1)
    takes = lambda count: nbytes(item, count * step, **options)
    fitting = bisect.bisect_right(counts, budget, key=takes)
    if not fitting:
        raise ValueError(
            f"fbuf.capacity_for: size {size!r} is too small: the smallest buffer with these "
            f"options has a capacity of {smallest * step} and takes "
            f"{sizes.in_words(takes(smallest))}"
        )
    return counts[fitting - 1] * step
