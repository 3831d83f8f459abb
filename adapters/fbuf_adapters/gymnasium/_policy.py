"""A policy and the check of its output against the action space."""

from __future__ import annotations

from typing import Any

import numpy as np

from fbuf_adapters.gymnasium import _spaces
from fbuf_adapters.gymnasium._errors import CollectorError


class CheckedPolicy:
    """A policy, and the check of its output: NumPy would broadcast or cut arrays that differ."""

    def __init__(self, policy: Any, num_envs: int, action: Any) -> None:
        """Check against these specs of one action."""
        self.policy = policy
        self._num_envs = num_envs
        self.action = action
        self.extras: dict[str, _spaces.Spec] | None = None
        """The specs of the extras, known after the first check."""
        self.plain: tuple[tuple[int, ...], np.dtype[Any]] | None = None
        """The shape and dtype of an action that needs no further check. None with extras."""

    def checked(self, returned: Any) -> tuple[Any, dict[str, Any]]:
        """Return the action, in the dtypes of the space, and the extras, as arrays."""
        extras: Any = {}
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict):
            returned, extras = returned
        return self._action(returned), self._extras(extras)

    def seed(self, number: int) -> None:
        """Have the policy seed its own generators, if it has a method for that."""
        seed = getattr(self.policy, "seed", None)
        if callable(seed):
            seed(number)

    def _action(self, given: Any) -> Any:
        if isinstance(self.action, _spaces.Spec):
            return self._leaf("", given, self.action)
        leaves = _spaces.matched(given, self.action)
        if leaves is None:
            wanted = ", ".join(f"action{path}" for path, _ in _spaces.paths(self.action))
            raise CollectorError(
                f"Collector: the policy must return an action like its space, with {wanted}, "
                f"got {_described(given)}; beside the action it may return a dict: (action, extras)"
            )
        specs = _spaces.paths(self.action)
        checked = [self._leaf(p, leaf, s) for (p, s), leaf in zip(specs, leaves, strict=True)]
        ordered = iter(checked)
        return _spaces.map_leaves(lambda _: next(ordered), self.action)

    def _leaf(self, path: str, given: Any, spec: _spaces.Spec) -> np.ndarray[Any, Any]:
        array, shape = _array(given), (self._num_envs, *spec.shape)
        if array.shape != shape or not _castable(array.dtype, spec.dtype):
            came = _described(given if array.dtype == object else array)
            raise CollectorError(
                f"Collector: the policy must return action{path} as {spec.dtype} of shape {shape}, "
                f"[num_envs, ...] of the action space; got {came}"
            )
        return _spaces.cast(array, spec.dtype, f"the policy's action{path}")

    def _extras(self, given: dict[str, Any]) -> dict[str, Any]:
        if not given and not self.extras:
            self.extras = {}
            if isinstance(self.action, _spaces.Spec):
                self.plain = (self._num_envs, *self.action.shape), self.action.dtype
            return given
        extras = {name: _array(value) for name, value in given.items()}
        if self.extras is None:
            self.extras = {name: self._extra(name, array) for name, array in extras.items()}
            return extras
        if extras.keys() != self.extras.keys():
            raise CollectorError(
                f"Collector: the policy returned the extras {sorted(extras)}, and before "
                f"{sorted(self.extras)}; return the same each time"
            )
        for name, array in extras.items():
            spec = self.extras[name]
            shape = (self._num_envs, *spec.shape)
            if array.shape != shape or not _castable(array.dtype, spec.dtype):
                raise CollectorError(
                    f"Collector: the policy returned the extra {name!r} as {_described(array)}, "
                    f"and before as {spec.dtype} of shape {shape}; return the same each time"
                )
            extras[name] = _spaces.cast(array, spec.dtype, f"the extra {name!r}")
        return extras

    def _extra(self, name: str, array: np.ndarray[Any, Any]) -> _spaces.Spec:
        if name in _spaces.FILLED:
            raise CollectorError(
                f"Collector: the policy returned an extra called {name!r}, which the collector "
                "fills itself; call it something else"
            )
        if array.ndim == 0 or len(array) != self._num_envs:
            raise CollectorError(
                f"Collector: the policy must return the extra {name!r} of shape "
                f"({self._num_envs}, ...), one for each environment; got {_described(array)}"
            )
        _spaces.stored_dtype(array.dtype, f"the extra {name!r}")
        return _spaces.Spec(array.shape[1:], array.dtype)


def _array(value: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array, also of a tensor with a gradient."""
    return np.asarray(value.detach() if getattr(value, "requires_grad", False) else value)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, dict):
        return f"a dict of {sorted(value)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple) else "")


def _castable(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether a dtype may be cast: integers of any width, as their values are checked."""
    integers = given.kind in "iu" and wanted.kind in "iu"
    return given == wanted or integers or np.can_cast(given, wanted, "same_kind")
