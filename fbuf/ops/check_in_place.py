"""Checking that a compiled step writes into the memory of its buffers."""

from __future__ import annotations

import collections
from typing import Any

import jax

from fbuf.ops.buffers_in import buffers_in, large_arrays, names_of
from fbuf.ops.larger import enlarged, is_small
from fbuf.ops.slow import refuse_slow
from fbuf.ops.whole import refuse_copies
from fbuf.xla.program import Array, Program
from fbuf.xla.whole import written_whole


def check_in_place(jitted: Any, *args: Any, timed: bool = False, **kwargs: Any) -> None:
    """Raise if a compiled step copies an array of a buffer, or cannot write into its memory.

    Such a step is right, but its time grows with the capacity. Call this once, with your training
    step, before the training:

        fbuf.check_in_place(step, state, key)

    It compiles the step for these arguments, and does not run the step unless `timed`. It reads
    the program for the buffers among the arguments, alone or within other trees.

    XLA copies small arrays as it likes. So the check replaces a buffer of less than 16,384 rows by
    the shapes of a larger one. No such array is allocated. So a test of a small program can use the
    check, too.

    The message names each cause, the parts of the buffer, and the remedy:

    - a branch: `lax.cond` returns the buffer changed, or as it was.
    - a select: `jnp.where` chooses between whole buffers. So does `lax.cond` under `vmap`.
    - a loop of another length for each seed, under `vmap`.
    - an order of reads: `fbuf.after` is missing.
    - a dtype that XLA makes wider to write into it.
    - a fill: `fbuf.clear` or `fbuf.init` inside the step.
    - a computation: any other that has an array as large as the buffer's.

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
        ValueError: If no argument has a buffer. If all buffers are small, and the step takes no
            larger ones, because other shapes follow from the capacity: give a larger capacity.
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

        A step that adds only now and then, and the message:

        >>> @functools.partial(jax.jit, donate_argnums=0)
        ... def at_times(state, due):
        ...     added = fbuf.add(state, jnp.ones(2))
        ...     return jax.tree.map(lambda new, old: jnp.where(due, new, old), added, state)
        >>> try:
        ...     fbuf.check_in_place(at_times, state, True)
        ... except RuntimeError as error:
        ...     print(str(error).split(": ")[1])
        this step writes whole arrays of a buffer. By a select
    """
    if not hasattr(jitted, "lower"):
        raise TypeError(
            "fbuf.check_in_place: the first argument must be what jax.jit returned, got "
            f"{type(jitted).__name__}; give jax.jit(step, donate_argnums=0)"
        )
    if not buffers_in((args, kwargs)):
        raise ValueError(
            "fbuf.check_in_place: among the arguments no buffer is there. A step must take its "
            "buffer as an argument, and not from an outer scope"
        )
    buffers, lowered = _lowered(jitted, args, kwargs)
    _refuse_twice((args, kwargs), lowered.args_info)
    donated = _are_donated(args, kwargs, lowered.args_info)
    if len(buffers_in(lowered.out_info)) > sum(donated):
        raise RuntimeError(
            "fbuf.check_in_place: the step returns a buffer that is not donated, so every call "
            "copies all of it; use jax.jit(step, donate_argnums=...), with the number of its "
            "argument"
        )
    program = Program(lowered.compile().as_text())
    changed = [buffer for buffer, given in zip(buffers, donated, strict=True) if given]
    # Losses come first: XLA copies an array before a change if no result takes its memory.
    kept = [array for buffer in changed for array in large_arrays(buffer)]
    names, note = names_of(buffers), _sizes(buffers, (args, kwargs))
    _refuse_lost(program.not_in_place(kept), names, note)
    arrays = [array for buffer in buffers for array in large_arrays(buffer)]
    refuse_copies(written_whole(program, arrays), names, note)
    if timed:
        refuse_slow(jitted, args, kwargs)


def _lowered(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """Lower a step for larger buffers in place of small ones, if the step accepts them.

    Returns:
        The buffers of the lowering, and the result of `jitted.lower`.
    """
    buffers, error = buffers_in((args, kwargs)), None
    if any(map(is_small, buffers)):
        try:
            larger_args, larger_kwargs = enlarged((args, kwargs))
            larger = buffers_in((larger_args, larger_kwargs))
            return larger, jitted.lower(*larger_args, **larger_kwargs)
        except Exception as raised:  # any exception, as the user's step raises it
            error = raised
    lowered = jitted.lower(*args, **kwargs)
    if not any(map(large_arrays, buffers)):
        raise ValueError(
            "fbuf.check_in_place: no buffer has an array of 16 KiB, so a copy would tell nothing, "
            "and the step takes no buffers of a larger capacity. Shapes in it follow from the "
            "capacity, or the buffers are a batch over a mesh. Give buffers of a larger capacity"
        ) from error
    return buffers, lowered


def _are_donated(args: tuple[Any, ...], kwargs: dict[str, Any], infos: Any) -> list[bool]:
    """Tell which buffers among the arguments are donated, from JAX's data on the arguments."""
    leaves = [[info.donated for info in jax.tree.leaves(buffer)] for buffer in buffers_in(infos)]
    if all(len({*of_buffer}) < 2 for of_buffer in leaves):
        return [all(of_buffer) for of_buffer in leaves]
    # An argument is donated as a whole. JAX reads the numbers for `jax.pmap` as those of leaves.
    named = {number for number, info in enumerate(jax.tree.leaves(infos)) if info.donated}
    of_args = [number in named for number, given in enumerate(args) for _ in buffers_in(given)]
    return of_args + [False for _ in buffers_in(kwargs)]


def _refuse_twice(given: Any, infos: Any) -> None:
    """Raise if an array is donated twice, which JAX refuses only when the step runs."""
    arrays, donated = jax.tree.leaves(given), [info.donated for info in jax.tree.leaves(infos)]
    if len(arrays) != len(donated):
        return  # static arguments are among the leaves
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


def _sizes(buffers: list[Any], given: Any) -> str:
    """Return a sentence on the replaced buffers, if any."""
    pairs = zip(buffers, buffers_in(given), strict=True)
    larger = [f"{buffer.capacity:,}" for buffer, old in pairs if buffer.capacity > old.capacity]
    return f" Small buffers were looked at with {' and '.join(larger)} rows." if larger else ""


def _refuse_lost(found: list[Array], names: dict[Array, str], note: str) -> None:
    """Raise for arrays whose memory no result takes."""
    if found:
        listed = ", ".join(f"{names[array]} {array.dtype}[{array.size:,}]" for array in found)
        raise RuntimeError(
            f"fbuf.check_in_place: no result lies in the memory of these arrays: {listed}.{note} "
            "Return the state that the step has changed, and return it once; do not donate a "
            "buffer that the step only reads"
        )
