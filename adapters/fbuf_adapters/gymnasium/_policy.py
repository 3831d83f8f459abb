"""What a policy returned, checked against what environments take."""

from __future__ import annotations

from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._spaces import Spec, cast, stored_dtype
from fbuf_adapters.gymnasium._trees import map_leaves, matched, paths


class Actor:
    """A policy, and the check of all that it returns: NumPy would broadcast or cut what differs."""

    def __init__(self, policy: Any, num_envs: int, action: Any) -> None:
        """Check against these specs of one action."""
        self.policy = policy
        self._num_envs = num_envs
        self.action = action
        self.extras: dict[str, Spec] | None = None
        """The specs of what it returns beside the action, known after the first check."""
        self.plain: tuple[tuple[int, ...], np.dtype[Any]] | None = None
        """An array of this shape and dtype needs no further check. None if there are extras."""
        self._batch = None
        if isinstance(action, Spec):  # of the usual, which is then compared in one go
            self._batch = (num_envs, *action.shape), action.dtype

    def checked(self, returned: Any) -> tuple[Any, dict[str, Any]]:
        """The action, in the dtypes of the space, and the extras, as arrays."""
        extras: Any = {}
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict):
            returned, extras = returned
        return self._action(returned), self._extras(extras)

    def seed(self, number: int) -> None:
        """Have the policy seed its own generators, if it says how."""
        seed = getattr(self.policy, "seed", None)
        if callable(seed):
            seed(number)

    def load(self, weights: Any) -> None:
        """Hand the policy new weights."""
        self.policy.load(weights)

    def _action(self, given: Any) -> Any:
        if self._batch is not None:
            array = _array(given)
            if (array.shape, array.dtype) == self._batch:
                return array
            return self._leaf("", array, self.action, given)
        leaves = matched(given, self.action)
        if leaves is None:
            wanted = ", ".join(f"action{path}" for path, _ in paths(self.action))
            raise CollectorError(
                f"Collector: the policy must return an action like its space, with {wanted}, "
                f"got {_described(given)}; beside the action it may return a dict: (action, extras)"
            )
        checked = [
            self._leaf(path, _array(leaf), spec, leaf)
            for (path, spec), leaf in zip(paths(self.action), leaves, strict=True)
        ]
        ordered = iter(checked)
        return map_leaves(lambda _: next(ordered), self.action)

    def _leaf(
        self, path: str, array: np.ndarray[Any, Any], spec: Spec, given: Any
    ) -> np.ndarray[Any, Any]:
        shape = (self._num_envs, *spec.shape)
        if array.shape != shape or not _fits(array.dtype, spec.dtype):
            came = _described(given if array.dtype == object else array)
            raise CollectorError(
                f"Collector: the policy must return action{path} as {spec.dtype} of shape {shape}, "
                f"[num_envs, ...] of the action space; got {came}"
            )
        return cast(array, spec.dtype, f"the policy's action{path}")

    def _extras(self, given: dict[str, Any]) -> dict[str, Any]:
        if not given and not self.extras:
            self.extras = {}
            self.plain = self._batch
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
            if array.shape != (self._num_envs, *spec.shape) or not _fits(array.dtype, spec.dtype):
                raise CollectorError(
                    f"Collector: the policy returned the extra {name!r} as {_described(array)}, "
                    f"and before as {spec.dtype} of shape {(self._num_envs, *spec.shape)}; return "
                    "the same each time"
                )
            extras[name] = cast(array, spec.dtype, f"the extra {name!r}")
        return extras

    def _extra(self, name: str, array: np.ndarray[Any, Any]) -> Spec:
        if name in _TAKEN:
            raise CollectorError(
                f"Collector: the policy returned an extra called {name!r}, which the collector "
                "fills itself; call it something else"
            )
        if array.ndim == 0 or len(array) != self._num_envs:
            raise CollectorError(
                f"Collector: the policy must return the extra {name!r} of shape "
                f"({self._num_envs}, ...), one for each environment; got {_described(array)}"
            )
        stored_dtype(array.dtype, f"the extra {name!r}")
        return Spec(array.shape[1:], array.dtype)


_TAKEN = frozenset(
    ("observation", "action", "reward", "next_observation", "terminated", "truncated", "version")
)


def _array(value: Any) -> np.ndarray[Any, Any]:
    """As NumPy has it, also of a tensor that a gradient is followed through."""
    return np.asarray(value.detach() if getattr(value, "requires_grad", False) else value)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, dict):
        return f"a dict of {sorted(value)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple) else "")


def _fits(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values may be cast: an integer of another width keeps its value, which is checked."""
    integers = given.kind in "iu" and wanted.kind in "iu"
    return integers or np.can_cast(given, wanted, "same_kind")
