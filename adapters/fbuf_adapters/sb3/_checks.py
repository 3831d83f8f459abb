"""Checks of the arguments of a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np

from fbuf.adapter_api import Sampler

WHERE = "fbuf_adapters.sb3.ReplayBuffer"


def integer(name: str, value: Any, smallest: int, largest: int) -> int:
    """Return an int of this range; refuse any other value."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{WHERE}: {name} must be an int, got {value!r}")
    if not smallest <= value <= largest:
        raise ValueError(f"{WHERE}: {name} must be from {smallest} to {largest}, got {value}")
    return int(value)


def choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{WHERE}: {name} must be one of {list(choices)}, got {value!r}")


def sampler(value: Any) -> None:
    """Refuse a sampler that does not draw at random."""
    if not isinstance(value, Sampler):
        raise TypeError(
            f"{WHERE}: sampler must be one of fbuf, such as fbuf.Prioritized(), got {value!r}"
        )
    if value.notes_draws:
        raise ValueError(
            f"{WHERE}: sampler={type(value).__name__} remembers what was drawn, and this buffer "
            "draws with fbuf.sample, which keeps nothing of it; use fbuf.Uniform, fbuf.Prioritized "
            "or fbuf.Mixture(recent=...)"
        )
    if value.without_replacement or value.is_queue:
        raise ValueError(
            f"{WHERE}: sampler={type(value).__name__} draws in an order, and off-policy "
            "algorithms draw at random; use fbuf.Uniform, fbuf.Prioritized or fbuf.Mixture"
        )


def flags(name: str, given: Any, n_envs: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return flags of all environments: bool `[n_envs]`."""
    array = np.asarray(given)
    if array.dtype == bool and array.shape == (n_envs,):
        return array
    if array.size != n_envs:
        raise ValueError(
            f"{WHERE}.add: {name} must be of shape ({n_envs},), one for each environment, got "
            f"{array.shape}; make the buffer with the n_envs of your environments"
        )
    return array.reshape(n_envs).astype(bool)


def timeouts(infos: Any, n_envs: int) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Return which episodes infos say that were cut off: bool `[n_envs]`; None for no episode."""
    if isinstance(infos, dict) or len(infos) != n_envs:
        raise ValueError(
            f"{WHERE}.add: infos must be a list of {n_envs} dicts, one for each environment, got "
            f"{type(infos).__name__} of length {len(infos)}; or make the buffer with "
            "handle_timeout_termination=False, and give as done what terminated an episode"
        )
    found = [bool(info.get("TimeLimit.truncated", False)) for info in infos]
    return np.array(found) if any(found) else None
