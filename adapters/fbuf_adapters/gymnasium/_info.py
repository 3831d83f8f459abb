"""Entries of the environments' info that go into rows, or into observations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._spaces import Spec, cast, stored_dtype

Asked = Iterable[str] | Mapping[str, Any] | None
"""Names, whose first entry `reset` returns; or names, each with what stands where there is none."""

_TAKEN = (
    "observation",
    "action",
    "reward",
    "next_observation",
    "terminated",
    "truncated",
    "version",
)


def as_dict(info: Any) -> Mapping[str, Any]:
    """What vector environments return; of a list of dicts, one for each, the dict of arrays."""
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

    Gymnasium's vector environments return an entry as an array, and whose it is as `_name`. Where
    one has none, a value of the caller's stands, or zero.

    Args:
        argument: What the caller calls them.
        asked: Which.
        num_envs: Of how many environments.

    Raises:
        TypeError: If they are asked for by a string.
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
            if name in _TAKEN:
                raise ValueError(
                    f"Collector: {argument} has {name!r}, which the collector fills itself"
                )
        self._argument = argument
        self._num_envs = num_envs
        self._absent = {n: None if v is None else np.asarray(v) for n, v in absent.items()}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._absent)

    @property
    def specs(self) -> dict[str, Spec]:
        """The shape and dtype of each, for one environment."""
        return {n: Spec(v.shape, v.dtype) for n, v in self._absent.items() if v is not None}

    def learn(self, info: Mapping[str, Any]) -> None:
        """Take shapes and dtypes that were not given from what `reset` returned.

        Raises:
            CollectorError: If it has not returned an entry, or as no numbers.
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
        """The entries of one step.

        Args:
            info: What the environments returned.
            ended: bool `[num_envs]`: whose episode ended in the step and whose info may be the one
                of a reset. Theirs is in `info["final_info"]`; without that it is of the step. None
                is nobody's.
        """
        found = {name: self._filled(name, info) for name in self._absent}
        if ended is not None and "final_info" in info and ended.any():
            for name, array in found.items():
                self._put_final(array, name, info["final_info"], ended)
        return found

    def final(self, info: Mapping[str, Any], ended: Any) -> dict[str, Any]:
        """Those of a step, of episodes that ended in it: the last entries before the reset."""
        if "final_info" not in info:
            raise CollectorError(
                f"Collector: an episode ended, and info has no 'final_info', so it is not known "
                f"what {', '.join(map(repr, self._absent))} were at its end; have the environments "
                "return it, or make the buffer without next observations"
            )
        return self.read(info, ended)

    def _filled(self, name: str, info: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        absent = self._absent[name]
        assert absent is not None
        filled = np.empty((self._num_envs, *absent.shape), absent.dtype)
        filled[...] = absent
        if name in info:
            array, known = self._array(name, info[name])
            there = known & np.asarray(info.get(f"_{name}", True))
            filled[there] = self._like(name, array[there])
        return filled

    def _put_final(self, into: Any, name: str, final: Any, ended: Any) -> None:
        """Replace those of ended episodes by theirs, and by what stands for none."""
        into[ended] = self._absent[name]
        if isinstance(final, Mapping):
            if name in final:
                array, known = self._array(name, final[name])
                there = ended & known & np.asarray(final.get(f"_{name}", True))
                into[there] = self._like(name, array[there])
        elif final is not None:  # one dict each, as older versions return it
            for env in ended.nonzero()[0].tolist():
                entry = (final[env] or {}).get(name)
                if entry is not None:
                    into[env] = self._like(name, np.asarray(entry)[None])[0]

    def _array(self, name: str, entry: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """An entry as an array, and who has one: Gymnasium makes arrays of objects with None."""
        if isinstance(entry, Mapping):
            raise CollectorError(
                f"Collector: info[{name!r}] is a dict; have a wrapper put what is in it into info "
                "itself, and name that"
            )
        array, known = np.asarray(entry), np.ones(self._num_envs, np.bool_)
        if array.dtype == object and array.shape[:1] == (self._num_envs,):
            known = np.array([e is not None for e in array])
            if not known.any():
                return self._none(name), known
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

    def _none(self, name: str) -> np.ndarray[Any, Any]:
        """An array of no meaning, like the entry."""
        absent = self._absent[name]
        return np.zeros((self._num_envs, *(() if absent is None else absent.shape)))

    def _like(self, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Entries in the dtype of those before; NumPy would broadcast or cut what differs."""
        spec = self.specs[name]
        fits = np.can_cast(array.dtype, spec.dtype, "same_kind")
        if len(array) and (array.shape[1:] != spec.shape or not fits):
            raise CollectorError(
                f"Collector: info[{name!r}] must be {spec.dtype} of shape "
                f"{(self._num_envs, *spec.shape)}, as {self._argument} or reset says, got "
                f"{array.dtype} of shape {(self._num_envs, *array.shape[1:])}"
            )
        return cast(array, spec.dtype, f"info[{name!r}]") if len(array) else array
