"""Checking that a compiled step writes into the memory of its buffers."""

from __future__ import annotations

import collections
import dataclasses
import time
from typing import Any, cast

import jax
import jax.numpy as jnp

from fbuf.ops.resize import empty_as
from fbuf.state import State
from fbuf.xla.program import Array, Program, array_of

_LARGE = 16 * 1024
"""Bytes of an array from which on a copy counts: XLA may copy a small one as it likes."""

_SMALLER = 64
"""Capacity of the buffer over that of the smaller one that a step is timed with."""

_SLOWER = 4
"""The most that the larger buffer may slow a step: its rows lie in slower memory."""

_ROUNDS = 15
"""Calls that are timed with either buffer."""


def check_in_place(jitted: Any, *args: Any, timed: bool = False, **kwargs: Any) -> None:
    """Raise if a compiled step copies an array of a buffer, or cannot write into its memory.

    Such a step is right, but its time grows with the capacity. Call this once, with the step that
    you train with, before the training:

        fbuf.check_in_place(step, state, key)

    It compiles the step for these arguments, and does not run the step unless `timed`. It reads
    the program for the buffers among the arguments, alone or within other trees.

    Args:
        jitted: The result of `jax.jit`. Donate the buffers that it returns: `donate_argnums`. A
            buffer that it only reads, such as one of demonstrations, need not be donated.
        *args: The arguments of a call. None is consumed. `jax.ShapeDtypeStruct` will do in place of
            arrays, as `jax.eval_shape` returns them.
        timed: Also run the step, with empty buffers of this capacity and of a 64th, and compare
            the times. Some versions of JAX copy where no program shows it. Needs arrays, one
            device, buffers that no `vmap` has batched, and room for one more buffer.
        **kwargs: The arguments by name.

    Raises:
        RuntimeError: If the step copies an array of a buffer, or returns a buffer that is not
            donated. Also if an array is donated twice, or if no result uses the memory of a donated
            buffer. If `timed`, also if a step takes over 4 times as long with the larger buffer.
            The message says what to do.
        ValueError: If no argument has a buffer, or if no buffer has an array of 16 KiB. A copy of
            a smaller array would tell nothing: give a larger capacity.
        TypeError: If `jitted` is no result of `jax.jit`.

    Cost: that of compiling the step, and a fraction of a second. Some versions of JAX keep the
    program for your own call, and all do if its compilation cache is on. With `timed` the step is
    compiled for both capacities, and runs 15 times with each: give a loop of few steps.

    Examples:
        >>> import fbuf, functools, jax, jax.numpy as jnp
        >>> @functools.partial(jax.jit, donate_argnums=0)
        ... def step(state, key):
        ...     state = fbuf.add(state, jnp.ones(2))
        ...     batch = fbuf.sample(state, key, 32)
        ...     return fbuf.after(state, batch), batch.data.mean()
        >>> state = fbuf.init(jnp.zeros(()), capacity=100_000)
        >>> fbuf.check_in_place(step, state, jax.random.key(0))
    """
    if not hasattr(jitted, "lower"):
        raise TypeError(
            "fbuf.check_in_place: the first argument must be what jax.jit returned, got "
            f"{type(jitted).__name__}; give jax.jit(step, donate_argnums=0)"
        )
    buffers = _buffers((args, kwargs))
    arrays = [array for buffer in buffers for array in _large_arrays(buffer)]
    if not arrays:
        what = "has an array of 16 KiB; give one of a larger capacity" if buffers else "is there"
        raise ValueError(
            f"fbuf.check_in_place: among the arguments no buffer {what}. A step must take its "
            "buffer as an argument, and not from an outer scope"
        )
    lowered = jitted.lower(*args, **kwargs)
    _refuse_twice((args, kwargs), lowered.args_info)
    donated = [_is_donated(buffer) for buffer in _buffers(lowered.args_info)]
    if len(_buffers(lowered.out_info)) > sum(donated):
        raise RuntimeError(
            "fbuf.check_in_place: the step returns a buffer that is not donated, so every call "
            "copies all of it; use jax.jit(step, donate_argnums=...), with the number of its "
            "argument"
        )
    program = Program(lowered.compile().as_text())
    changed = [buffer for buffer, given in zip(buffers, donated, strict=True) if given]
    # First what is lost: XLA copies an array whose memory no result takes, to change it.
    _refuse_lost(program.not_in_place([at for buffer in changed for at in _large_arrays(buffer)]))
    _refuse_copies(program.written_whole(arrays), _names(buffers))
    if timed:
        _refuse_slow(jitted, args, kwargs)


def _is_buffer(tree: Any) -> bool:
    """Tell a buffer, of one device or over a mesh, from any other tree."""
    return isinstance(tree, State) or (hasattr(tree, "blocks") and isinstance(tree.blocks, State))


def _is_donated(buffer: Any) -> bool:
    """Tell whether the arrays of a buffer are donated, by what JAX says of the arguments."""
    return all(info.donated for info in jax.tree.leaves(buffer))


def _buffers(tree: Any) -> list[Any]:
    """List the buffers in a tree."""
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=_is_buffer) if _is_buffer(leaf)]


def _large_arrays(buffer: Any) -> list[Array]:
    """List the arrays of a buffer that must not be copied, as large as a device has them."""
    devices = 1 if isinstance(buffer, State) else buffer.num_devices
    leaves = jax.tree.leaves(buffer)
    large = [leaf for leaf in leaves if leaf.size * leaf.dtype.itemsize // devices >= _LARGE]
    return [array_of((leaf.size // devices,), leaf.dtype) for leaf in large]


def _refuse_twice(given: Any, infos: Any) -> None:
    """Raise if an array is donated twice, which JAX refuses only when the step runs."""
    arrays, donated = jax.tree.leaves(given), [info.donated for info in jax.tree.leaves(infos)]
    if len(arrays) != len(donated):
        return  # static arguments lie among them
    counts = collections.Counter(
        id(array)
        for array, is_donated in zip(arrays, donated, strict=True)
        if is_donated and isinstance(array, jax.Array)
    )
    for array in arrays:
        if counts[id(array)] > 1:
            raise RuntimeError(
                f"fbuf.check_in_place: an array {array.dtype}{list(array.shape)} is among the "
                "donated arguments twice, and JAX cannot write two results into it; copy one, as "
                "for a target network: jax.tree.map(jnp.copy, params)"
            )


def _names(buffers: list[Any]) -> dict[Array, str]:
    """Return the part of a buffer that each large array may be."""
    names: dict[Array, str] = {}
    for buffer in buffers:
        devices = 1 if isinstance(buffer, State) else buffer.num_devices
        for path, leaf in jax.tree.leaves_with_path(buffer):
            array = array_of((leaf.size // devices,), leaf.dtype)
            names.setdefault(array, jax.tree_util.keystr(path).lstrip("."))
    return names


def _refuse_copies(found: list[tuple[Array, str]], names: dict[Array, str]) -> None:
    """Raise for arrays that are written whole."""
    if not found:
        return
    counts = collections.Counter(found)
    listed = ", ".join(
        f"{names.get(array, 'an array')}, {array.dtype}[{array.size:,}] "
        f"({kind}{f', {count} times' if count > 1 else ''})"
        for (array, kind), count in sorted(counts.items(), key=lambda item: -item[0][0].size)
    )
    raise RuntimeError(
        f"fbuf.check_in_place: this step writes whole arrays of a buffer: {listed}. If the "
        "state comes out of jax.lax.cond, jnp.where or a loop of a different length for each seed: "
        "return what to write from the branch, and write behind it, as with fbuf.update_priority("
        "..., mask=due). Else, for a copy: XLA does not see that rows are read before they are "
        "overwritten. Call state = fbuf.after(state, batch) after the sample, in the same function "
        "or a later one. Call it before the state goes into or out of a loop. Besides, fbuf.clear "
        "zeroes the sampler's index. An array of yours of that type and size looks the same: try "
        "another capacity"
    )


def _refuse_lost(found: list[Array]) -> None:
    """Raise for arrays whose memory no result takes."""
    if found:
        listed = ", ".join(f"{array.dtype}[{array.size:,}]" for array in found)
        raise RuntimeError(
            f"fbuf.check_in_place: no result lies in the memory of these arrays: {listed}. Return "
            "the state that the step has changed, and return it once; do not donate a buffer that "
            "the step only reads"
        )


def _refuse_slow(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if a step takes longer the larger its buffers are."""
    runs = [_TimedStep(jitted, _resized((args, kwargs), smaller)) for smaller in (_SMALLER, 1)]
    for _ in range(_ROUNDS):  # by turns: what else the machine does then slows down both
        for run in runs:
            run.call()
    # The least: whatever else the machine does can only add to it.
    small, large = (min(run.seconds) for run in runs)
    if large > _SLOWER * small:
        raise RuntimeError(
            f"fbuf.check_in_place: this step takes {large * 1e6:,.0f} us, and {small * 1e6:,.0f} "
            f"with buffers of a {_SMALLER}th of the capacity, though the program copies nothing "
            f"that can be seen. Use another version of JAX (this is {jax.__version__})"
        )


@dataclasses.dataclass
class _TimedStep:
    """A step that is called again and again with the buffers that it returns.

    Attributes:
        jitted: The step.
        given: Its arguments, by position and by name.
        seconds: How long each call took, without the first.
    """

    jitted: Any
    given: tuple[tuple[Any, ...], dict[str, Any]]
    seconds: list[float] = dataclasses.field(default_factory=list)
    compiled: bool = False

    def call(self) -> None:
        """Run the step, and keep its buffers for the next call."""
        if not self.compiled:
            self.compiled = True
            self.call()
            self.seconds.clear()
        # Other donated arguments are the user's own.
        args, kwargs = jax.block_until_ready(_without_buffers(jnp.copy, self.given))
        begun = time.perf_counter()
        result = jax.block_until_ready(self.jitted(*args, **kwargs))
        self.seconds.append(time.perf_counter() - begun)
        returned = iter(_buffers(result))
        self.given = jax.tree.map(
            lambda leaf: next(returned) if _is_buffer(leaf) else leaf,
            self.given,
            is_leaf=_is_buffer,
        )


def _resized(given: Any, smaller: int) -> Any:
    """Return the arguments of a step with empty buffers of a fraction of the capacity."""

    def empty(leaf: Any) -> Any:
        if not _is_buffer(leaf):
            return leaf
        if not isinstance(leaf, State) or jnp.ndim(leaf.fault):
            raise ValueError(
                "fbuf.check_in_place: only steps of one buffer on one device can be timed; leave "
                "timed out"
            )
        state = cast(State[Any], leaf)
        step = state.ring.lanes * state.sampler.stride
        capacity = max(state.capacity // smaller // step, 1) * step
        return jax.jit(empty_as, static_argnums=1)(state, capacity)

    return jax.tree.map(empty, given, is_leaf=_is_buffer)


def _without_buffers(function: Any, tree: Any) -> Any:
    """Call a function with each array that is not of a buffer."""
    return jax.tree.map(
        lambda leaf: (
            leaf if _is_buffer(leaf) or not isinstance(leaf, jax.Array) else function(leaf)
        ),
        tree,
        is_leaf=_is_buffer,
    )
