"""The error for arrays of a buffer that a step writes whole: the parts, and the remedy."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

from fbuf.xla.program import Array
from fbuf.xla.whole import Cause, Whole

_REMEDIES = {
    Cause.BRANCH: (
        "lax.cond or lax.switch returns the buffer changed from one branch, and otherwise from "
        "another. With JAX 0.11.2 or newer any branch may change it. Before, on CPU, only the "
        "first function of lax.cond may, or the last of two in lax.switch: swap the functions, as "
        "in lax.cond(~due, ...). Draw before the last change of the branch, and put no branch "
        "into a branch. Else return what to write, and write behind the branch, as with "
        "fbuf.update_priority(..., mask=due)"
    ),
    Cause.SELECT: (
        "jnp.where or lax.select chooses between whole buffers. Under jax.vmap so does lax.cond, "
        "if its condition is another one for each seed. Take a condition that is the same for all "
        "seeds, as of a counter that no vmap batches. The result of fbuf.size is, if fbuf.init is "
        "inside the vmapped function. Or write each time, with mask= of fbuf.add and "
        "fbuf.update_priority"
    ),
    Cause.LOOP: (
        "under jax.vmap, each turn chooses between whole buffers. Let the loops of all seeds have "
        "as many turns, and leave rows out by mask= of fbuf.add and fbuf.update_priority"
    ),
    Cause.ORDER: (
        "XLA does not see that rows are read before they are overwritten. Call state = "
        "fbuf.after(state, batch) right after the sample, in the same function, or on the batch "
        "that a function of yours returns. Call it before the state goes into or out of a loop. "
        "Read the newest state alone: the rows of an older one may be overwritten"
    ),
    Cause.DTYPE: (
        "to write numbers of this dtype, XLA makes the whole array wider, and narrow again. Store "
        "their bits as unsigned integers: jax.lax.bitcast_convert_type"
    ),
    Cause.FILL: (
        "every entry becomes the same number. fbuf.clear does this to the sampler's index, and "
        "fbuf.init to all of a buffer; call them outside of the step"
    ),
    Cause.COMPUTED: (
        "every entry is computed. Change rows by the functions of fbuf alone, and keep fbuf.rows "
        "and the like outside of the step"
    ),
}
"""The explanation of each cause, with the remedy."""

_HIDES = frozenset((Cause.BRANCH, Cause.SELECT, Cause.LOOP, Cause.DTYPE))
"""Causes that may hide another one."""


def refuse_copies(found: Sequence[Whole], names: Mapping[Array, str], note: str) -> None:
    """Raise for arrays that are written whole.

    Args:
        found: The arrays, with their causes.
        names: The part of a buffer that each array may be.
        note: A sentence on the sizes of the buffers, or nothing.
    """
    if not found:
        return
    causes = [cause for cause in Cause if any(cause is of for _, of in found)]
    listed = " ".join(
        f"By {cause.value}: {_counted([at for at, of in found if of is cause], names)}: "
        f"{_REMEDIES[cause]}."
        for cause in causes
    )
    hides = " Then check again: another cause may stand behind." if _HIDES & {*causes} else ""
    raise RuntimeError(
        f"fbuf.check_in_place: this step writes whole arrays of a buffer. {listed}{hides}{note} "
        "An array of yours of that type and size looks the same: try another capacity"
    )


def _counted(arrays: Sequence[Array], names: Mapping[Array, str]) -> str:
    """Return arrays as text, the largest first, with their counts."""
    counts = collections.Counter(arrays)
    return ", ".join(
        f"{names.get(array, 'an array')} {array.dtype}[{array.size:,}]"
        f"{f' ({count} times)' if count > 1 else ''}"
        for array, count in sorted(counts.items(), key=lambda item: -item[0].size)
    )
