"""The overrides of classes that users derive from Stable-Baselines3's buffers.

Each such method is called as Stable-Baselines3 calls it, or refused when the class is made. None is
left out silently: a program that shapes its rewards in one would train on others.
"""

from __future__ import annotations

import functools
from typing import Any

from stable_baselines3.common import buffers
from stable_baselines3.her import her_replay_buffer

from fbuf_adapters.sb3._checks import WHERE

_THEIRS: Any = her_replay_buffer.HerReplayBuffer
_HINDSIGHT = {
    name: getattr(_THEIRS, name)
    for name in (
        "_sample_goals",
        "_get_virtual_samples",
        "_get_real_samples",
        "_compute_episode_length",
    )
}
"""The methods of a buffer with goals that nothing here calls: goals are drawn with the rows."""

_HOOKS = {
    name: getattr(buffers.BaseBuffer, name)
    for name in ("_normalize_obs", "_normalize_reward", "to_torch")
}
"""The methods that are called for each batch."""

_OURS = "fbuf_adapters.sb3."


def hooked(buffer: Any, name: str) -> bool:
    """Tell whether a method of `_HOOKS` is another one in a buffer, in its class or in it alone."""
    if not buffer._derived:
        return False
    return getattr(type(buffer), name) is not _HOOKS[name] or name in vars(buffer)


def check_class(kind: Any) -> None:
    """Refuse a class of a user that overrides what is not called, or what must stay as it is."""
    if _is_ours(kind):
        return
    for name, theirs in _HINDSIGHT.items():
        if issubclass(kind, _THEIRS) and getattr(kind, name) is not theirs:
            raise TypeError(f"{kind.__name__}.{name} {_NOT_CALLED}")
    theirs = set(_THEIRS.__mro__)
    unchecked = [
        base
        for base in kind.__mro__
        if base not in theirs and not _is_ours(base) and "_derived" not in vars(base)
    ]
    if taken := sorted(own_names(kind) & {name for base in unchecked for name in vars(base)}):
        raise TypeError(f"{kind.__name__}.{taken[0]} {_TAKEN}")
    kind._derived = True


def check_attribute(buffer: Any, name: str) -> bool:
    """Refuse the same of an attribute that is set in one buffer; tell whether it overrides."""
    if name in _HINDSIGHT and isinstance(buffer, _THEIRS):
        raise AttributeError(f"{type(buffer).__name__}.{name} {_NOT_CALLED}")
    if name in own_names(type(buffer)):
        raise AttributeError(f"{type(buffer).__name__}.{name} {_TAKEN}")
    return name in _HOOKS or name == "_get_samples"


def _is_ours(kind: Any) -> bool:
    return kind.__module__.startswith(_OURS)


@functools.cache
def own_names(kind: Any) -> frozenset[str]:
    """Return the names that the bases of a class in this package reserve for themselves."""
    ours = filter(_is_ours, kind.__mro__)
    private = {name for base in ours for name in vars(base) if name[0] == "_" and "__" not in name}
    return frozenset({"memory"} | private - set(dir(_THEIRS)))


_NOT_CALLED = (
    f"is never called: {WHERE} draws rows and their goals together. Override sample, which "
    "returns the whole batch, or compute_reward of the environment; or derive from "
    "Stable-Baselines3's own HerReplayBuffer"
)

_TAKEN = f"has a name that {WHERE} uses itself; give it another one"
