"""Fields with NaN, and fields that never change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import numpy as np

from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.doctor.rewards import likely_fields
from fbuf.doctor.stretches import ACTIONS, OBSERVATIONS
from fbuf.doctor.text import count

_FEW = 64
"""The fewest rows for a finding on equal values."""

# The remedies for rows with NaN: remove or correct them.
_OF_A_BUFFER = (
    "fbuf.check_finite(state) raises an error whose slots are all such rows: state = "
    "fbuf.remove(state, fbuf.ids_at(state, error.slots))."
)
_TO_CORRECT = (
    "fbuf.check_finite(state) raises an error whose slots are all such rows. This buffer has "
    "removable=False, so correct them: state = fbuf.write(state, fbuf.ids_at(state, error.slots), "
    "fields)."
)
_OF_A_MESH = (
    "A batch knows the ids of the rows it has: state = fbuf.remove(state, batch.ids, mask=bad), "
    "where bad is True for draws of such rows."
)
_CORRECTED_OVER_A_MESH = (
    "A batch knows the ids of the rows it has, and this buffer has removable=False, so correct "
    "them: state = fbuf.write(state, batch.ids, fields, mask=bad), where bad is True for draws of "
    "such rows."
)

_FRAME = 1024
"""A field with at least this many numbers is a frame."""

_BOUND = 0.8
"""The suspicious share of actions at their bounds."""

_NAMED = 5
"""The most fields with separate findings of the same fault."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    bad = [(name, leaf) for name, leaf in leaves.items() if leaf.not_finite]
    for name, leaf in bad[:_NAMED]:
        yield Finding(
            "error",
            "not_finite",
            f"{_called(name)} holds NaN or an infinity in {leaf.not_finite:,} of "
            f"{count(leaf.rows, 'row')}, one of them in {found.place(leaf.newest_bad)}.",
            f"Look at the row where it is made. {_remedy(found)}",
        )
    rewards = {name for name, _ in likely_fields(found.parts[0].layout)}
    if found.reward is not None:
        rewards.add(found.reward[0])
    same = {
        name: leaf
        for name, leaf in leaves.items()
        if leaf.rows >= _FEW and leaf.alike and not leaf.not_finite and name not in rewards
    }
    yield from _actions(leaves, same)
    observations = [name for name in leaves if is_named(name, OBSERVATIONS)]
    if observations and all(name in same for name in observations):
        rows = same[observations[0]].rows
        yield Finding(
            "warning",
            "observation_constant",
            f"{_called(', '.join(observations[:_NAMED]))} is the same in all {rows:,} rows.",
            "Look at what you give fbuf.add: the observation of each step, and not that of the "
            "reset. A simulator may write into the array that you keep: copy it. In a bandit this "
            "is as it should be.",
        )
        same = {name: leaf for name, leaf in same.items() if name not in observations}
    yield from _frames(leaves)
    yield from _saturated(found)
    for name in [name for name, leaf in same.items() if _is_never_written(name, leaf)][:_NAMED]:
        yield Finding(
            "warning",
            "never_written",
            f"{_called(name)} is 0 in all {same[name].rows:,} rows.",
            "Look at whether you give the field to fbuf.add. If it is of no use, leave it out of "
            "the item.",
        )


def _remedy(found: Found) -> str:
    """Return the remedy for rows with NaN."""
    if not found.parts[0].state.ring.removable:
        return _CORRECTED_OVER_A_MESH if found.over_mesh else _TO_CORRECT
    return _OF_A_MESH if found.over_mesh else _OF_A_BUFFER


def _frames(leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Find frames of bytes with values 0 and 1 only: rounded frames of floats."""
    for name, leaf in leaves.items():
        is_frame = (
            leaf.dtype == np.uint8 and len(leaf.shape) > 1 and math.prod(leaf.shape) >= _FRAME
        )
        if is_frame and leaf.rows and not leaf.zero and leaf.most <= 1:
            yield Finding(
                "warning",
                "frames_dark",
                f"{_called(name)} holds bytes that are all 0 or 1.",
                "Store frames as the environment returns them, from 0 to 255, and divide what you "
                "sample. Frames that were divided before lose all but one bit as bytes. If they "
                "are masks, all is well.",
            )


def _saturated(found: Found) -> Iterator[Finding]:
    """Find actions that lie at their least and largest number nearly always."""
    action = [of.action for of in found.stretches if of.action.size]
    if not action:
        return
    numbers = np.concatenate(action)
    least, most = numbers.min(axis=0), numbers.max(axis=0)
    inside = (numbers > least) & (numbers < most)
    share = 1 - float(inside.mean())
    whole = (numbers == np.round(numbers)).all()  # whole numbers are discrete choices
    if len(numbers) < _FEW or share < _BOUND or whole or not inside.any():
        return
    yield Finding(
        "warning",
        "actions_saturated",
        f"{share:.0%} of all numbers of actions are the least or the largest one, from "
        f"{least.min():g} to {most.max():g}: the policy lies at its bounds.",
        "Look at the scale of the policy's output and of its noise: actions may be clipped from a "
        "far larger range. If the task wants all or nothing, all is well.",
    )


def _actions(leaves: Mapping[str, Leaf], same: dict[str, Leaf]) -> Iterator[Finding]:
    """Find equal actions, and take the action out of the constant fields."""
    actions = [name for name in leaves if is_named(name, ACTIONS)]
    if actions and all(name in same for name in actions):
        leaf = same[actions[0]]
        value = f"{leaf.least:g}" if leaf.least == leaf.most else "one and the same vector"
        yield Finding(
            "warning",
            "actions_alike",
            f"{_called(', '.join(actions[:_NAMED]))} is {value} in all {leaf.rows:,} rows.",
            "Explore: the policy may be stuck at one action, epsilon may be 0, or the action may "
            "not be stored.",
        )
    for name in actions:
        same.pop(name, None)


def is_named(name: str, names: frozenset[str]) -> bool:
    """Tell whether a field or a parent of it has one of these names."""
    return not names.isdisjoint(name.split(".")) and "next" not in name.split(".")


def _is_never_written(name: str, leaf: Leaf) -> bool:
    """Tell whether a field of zeros is suspicious; a flag or a single integer may be 0."""
    is_number = leaf.shape == () and not jnp.issubdtype(leaf.dtype, jnp.inexact)
    ends = {"terminated", "truncated", "done", "dones", "terminal", "terminals", "timeout"}
    return leaf.zero and not is_number and name.split(".")[-1] not in ends


def _called(name: str) -> str:
    return f"The field {name!r}" if name else "The item"
