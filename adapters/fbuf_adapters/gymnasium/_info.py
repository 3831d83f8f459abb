"""Entries of the environments' info: fields of rows, parts of observations, final observations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._spaces import FILLED, Spec, cast, stored_dtype

Asked = Iterable[str] | Mapping[str, Any] | None
"""Names of entries that `reset` returns; or names, each with the value where an entry is absent."""

NO_FINAL = (
    "Collector: an episode ended, and info has no 'final_obs', though the environments say that "
    "they reset in the same step; have them return it, or make them with "
    "autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP. A buffer without next_of and "
    "next_observation needs none"
)

_FINALS = "final_obs", "final_observation"
"""Gymnasium's name of final observations, and its name before 1.0."""


def has_finals(info: Mapping[str, Any]) -> bool:
    """Return whether the environments returned final observations."""
    return any(name in info for name in _FINALS)


def final_observation(info: Mapping[str, Any], env: int, space: Any) -> Any:
    """Return the final observation of an environment; it may be the environment's own array.

    Gymnasium's vector environments give an object array of observations, and of dicts a dict of
    arrays. Others give one dense array.
    """
    return _picked(info[next(name for name in _FINALS if name in info)], env, space)


def _picked(found: Any, env: int | None, space: Any) -> Any:
    """Return an environment's part of a batch; with `env=None`, `found` itself; check its type."""
    if isinstance(space, dict) and isinstance(found, dict):
        return {name: _picked(found[name], env, part) for name, part in space.items()}
    if isinstance(space, tuple) and isinstance(found, tuple):
        return tuple(_picked(part, env, own) for part, own in zip(found, space, strict=True))
    if env is not None:
        return _picked(found[env], None, space)
    if not isinstance(space, Spec) or np.shape(found) != space.shape:
        raise CollectorError(
            f"Collector: the final observation in info is a {type(found).__name__} of shape "
            f"{np.shape(found)}, and the observation space has {space}; have the environments "
            "return it as they return other observations"
        )
    return found


def as_dict(info: Any) -> Mapping[str, Any]:
    """Return the info of vector environments; merge a list of dicts into a dict of arrays."""
    if isinstance(info, Mapping):
        return info
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for of_env in info for name in of_env):
        entries, there = np.empty(len(info), object), np.array([name in one for one in info])
        for env in there.nonzero()[0].tolist():
            entries[env] = info[env][name]
        found |= {name: entries, f"_{name}": there}
    return found


class Info:
    """Reads some entries of info: arrays `[num_envs, ...]` of NumPy.

    Gymnasium's vector environments return an entry as an array. The array `_name` tells which
    environments have the entry. The caller's value, or zero, stands for an absent entry.

    Args:
        argument: The caller's name of this argument, for errors.
        asked: The names of the entries.
        num_envs: The number of environments.

    Raises:
        TypeError: If `asked` is a string.
        ValueError: If a name is that of another field.
    """

    def __init__(self, argument: str, asked: Asked, num_envs: int) -> None:
        if isinstance(asked, str):
            raise TypeError(
                f"Collector: {argument} must be names, or a dict of names and what stands where an "
                f"environment has none, got {asked!r}; give {argument}=({asked!r},)"
            )
        absent = asked if isinstance(asked, Mapping) else dict.fromkeys(asked or ())
        for name in absent:
            if name in FILLED:
                raise ValueError(
                    f"Collector: {argument} has {name!r}, which the collector fills itself"
                )
        self._argument = argument
        self._num_envs = num_envs
        self._absent: dict[str, Any] = {
            n: None if v is None else np.asarray(v) for n, v in absent.items()
        }

    def __bool__(self) -> bool:
        """Return whether there are any entries."""
        return bool(self._absent)

    @property
    def specs(self) -> dict[str, Spec]:
        """The shape and dtype of each, for one environment."""
        return {n: Spec(v.shape, v.dtype) for n, v in self._absent.items() if v is not None}

    def learn(self, info: Mapping[str, Any]) -> None:
        """Take the missing shapes and dtypes from the info of a reset.

        Raises:
            CollectorError: If an entry is absent, or is no numbers.
        """
        for name, absent in self._absent.items():
            if absent is None:
                if name not in info:
                    raise CollectorError(
                        f"Collector: {self._argument} has {name!r}, and reset returns an info "
                        f"without it, with {', '.join(map(repr, info)) or 'nothing'}; say what one "
                        f"is, {self._argument}={{{name!r}: np.bool_(False)}}: the value stands "
                        "where an environment has none"
                    )
                absent = self._absent[name] = np.zeros_like(self._array(name, info[name])[0][0])
            stored_dtype(absent.dtype, f"info[{name!r}]")

    def read(self, info: Mapping[str, Any], ended: Any = None) -> dict[str, Any]:
        """Return the entries of one step.

        Args:
            info: The info that the environments returned.
            ended: bool `[num_envs]`: the environments whose episode ended in the step, if their
                info may be that of a reset. Their last info is then in `info["final_info"]`.
        """
        found = {name: self._filled(name, info) for name in self._absent}
        if ended is not None and "final_info" in info and ended.any():
            for name, array in found.items():
                self._put_final(array, name, info["final_info"], ended)
        return found

    def final(self, info: Mapping[str, Any], ended: Any) -> dict[str, Any]:
        """Return the last entries before the reset, of episodes that ended in a step."""
        if "final_info" not in info:
            raise CollectorError(
                f"Collector: an episode ended, and info has no 'final_info', so it is not known "
                f"what {', '.join(map(repr, self._absent))} were at its end; have the environments "
                "return it, or make the buffer without next observations"
            )
        return self.read(info, ended)

    def _filled(self, name: str, info: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        absent = self._absent[name]
        filled = np.empty((self._num_envs, *absent.shape), absent.dtype)
        filled[...] = absent
        self._put(filled, name, info, True)
        return filled

    def _put(self, into: Any, name: str, info: Mapping[str, Any], envs: Any) -> None:
        """Replace the entries of some environments by the entries of an info, where present."""
        if name in info:
            array, known = self._array(name, info[name])
            there = envs & known & np.asarray(info.get(f"_{name}", True))
            into[there] = self._like(name, array[there])

    def _put_final(self, into: Any, name: str, final: Any, ended: Any) -> None:
        """Replace the entries of ended episodes by final ones, or by the default."""
        into[ended] = self._absent[name]
        if isinstance(final, Mapping):
            self._put(into, name, final, ended)
        elif final is not None:  # older versions return one dict an environment
            for env in ended.nonzero()[0].tolist():
                entry = (final[env] or {}).get(name)
                if entry is not None:
                    into[env] = self._like(name, np.asarray(entry)[None])[0]

    def _array(self, name: str, entry: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return an entry as an array, and a mask of the environments with an entry.

        Gymnasium makes arrays of objects, with None for an absent entry.
        """
        if isinstance(entry, Mapping):
            raise CollectorError(
                f"Collector: info[{name!r}] is a dict; have a wrapper copy the entries of the dict "
                "into info, and name these entries"
            )
        array, known = np.asarray(entry), np.ones(self._num_envs, np.bool_)
        if array.dtype == object and array.shape[:1] == (self._num_envs,):
            known = np.array([e is not None for e in array])
            if not known.any():
                return np.zeros((len(array), *np.shape(self._absent[name]))), known
            like = np.zeros_like(np.asarray(next(e for e in array if e is not None)))
            try:
                array = np.stack([like if e is None else np.asarray(e) for e in array])
            except ValueError as error:
                raise CollectorError(
                    f"Collector: info[{name!r}] differs in shape from one environment to the next "
                    f"({error}); rows have one form"
                ) from error
        if array.dtype.kind not in "fiub" or array.shape[:1] != (self._num_envs,):
            raise CollectorError(
                f"Collector: info[{name!r}] must be numbers of shape ({self._num_envs}, ...), one "
                f"for each environment, got {array.dtype} of shape {array.shape}"
            )
        return array, known

    def _like(self, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return entries in the dtype of earlier ones; NumPy would broadcast or cut others."""
        spec = self.specs[name]
        if not len(array) or (array.shape[1:], array.dtype) == (spec.shape, spec.dtype):
            return array
        what, why = f"info[{name!r}] must be", f"as {self._argument} or reset says"
        spec.check(array, len(array), what, why)
        return cast(array, spec.dtype, f"info[{name!r}]")
