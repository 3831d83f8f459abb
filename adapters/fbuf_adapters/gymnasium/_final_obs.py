"""The final observations of episodes, where environments reset in the step that ended them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._spaces import Spec

NO_FINAL = (
    "Collector: an episode ended, and info has no 'final_obs', though the environments say that "
    "they reset in the same step; have them return it, or make them with "
    "autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP. A buffer without next_of and "
    "next_observation needs none"
)

_NAMES = "final_obs", "final_observation"
"""What Gymnasium calls them, and what it called them before 1.0."""


def has_finals(info: dict[str, Any]) -> bool:
    """Whether the environments returned final observations."""
    return any(name in info for name in _NAMES)


def final_observation(info: dict[str, Any], env: int, space: Any) -> Any:
    """That of an environment whose episode ended in this step; it may be the environment's own.

    Gymnasium's vector environments give an object array of observations, and of dicts a dict of
    arrays. Others give one dense array.
    """
    found = info.get("final_obs")
    if isinstance(space, Spec) and isinstance(found, np.ndarray):  # mostly, so it comes first
        final = found[env]
        if isinstance(final, np.ndarray) and final.shape == space.shape:
            return final
    return _picked(info[next(name for name in _NAMES if name in info)], env, space)


def _picked(found: Any, env: int, space: Any) -> Any:
    if isinstance(found, dict):
        return {name: _picked(found[name], env, part) for name, part in space.items()}
    if isinstance(found, tuple):  # a batched tuple, one part each
        return tuple(_picked(part, env, own) for part, own in zip(found, space, strict=True))
    return _checked(found[env], space)


def _checked(final: Any, space: Any) -> Any:
    if isinstance(space, Spec) and isinstance(final, np.ndarray) and final.shape == space.shape:
        return final
    if isinstance(space, dict) and isinstance(final, dict):
        return {name: _checked(final[name], part) for name, part in space.items()}
    if isinstance(space, tuple) and isinstance(final, tuple):
        return tuple(_checked(part, own) for part, own in zip(final, space, strict=True))
    if not isinstance(space, Spec) or np.shape(final) != space.shape:
        raise CollectorError(
            f"Collector: the final observation in info is a {type(final).__name__} of shape "
            f"{np.shape(final)}, and the observation space has {space}; have the environments "
            "return it as they return other observations"
        )
    return np.array(final, space.dtype)
