"""A chunk that is being filled, a step at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._chunk import Chunk
from fbuf_adapters.gymnasium._spaces import Spec, stored
from fbuf_adapters.gymnasium._trees import map_leaves


class Rows:
    """Room for so many steps of all environments, in the dtypes of the spaces.

    What is assigned to a step of `observation`, `action`, `reward`, `terminated` or `truncated` is
    copied: environments may go on to write to their own arrays.
    """

    def __init__(
        self, num_envs: int, steps: int, observation: Any, action: Any, reward: Spec
    ) -> None:
        self._lead = lead = (steps, num_envs)
        self._space = observation
        # One more: each step's next observation is that of the row after it.
        self._observation = _room((steps + 1, num_envs), observation)
        self._action = _room(lead, action)
        self._extras: dict[str, np.ndarray[Any, Any]] = {}
        self._final: Any = None
        self.observation = _assignable(self._observation)
        self.action = _assignable(self._action)
        # Wide: what 32 bits cannot hold is found when the chunk is made.
        self.reward = _room(lead, Spec(reward.shape, np.dtype(np.float64)))
        self.terminated = np.empty(lead, np.bool_)
        self.truncated = np.empty(lead, np.bool_)
        self.steps = 0
        """How many whole steps there are."""
        self.lacks_final = False
        """The environments did not return the final observation of an episode."""

    @property
    def final(self) -> Any:
        """Room for what ended episodes, where the next row holds another observation.

        Once it was asked for, each end in the chunk must have been written to it.
        """
        if self._final is None:
            self._final = _room(self._lead, self._space)
        return _assignable(self._final)

    def put_extras(self, step: int, extras: dict[str, Any]) -> None:
        """Take over what the policy returned beside the action, or what was read of info."""
        for name, array in extras.items():
            room = self._extras.get(name)
            if room is None:
                room = np.empty((self._lead[0], *array.shape), array.dtype)
                self._extras[name] = room
            room[step] = array

    def chunk(self, version: int, fresh: bool) -> Chunk:
        """The whole steps, as they are stored."""
        steps = self.steps
        whole = map_leaves(lambda a: stored(a[: steps + 1], "observation"), self._observation)
        return Chunk(
            observation=map_leaves(lambda a: a[:-1], whole),
            action=map_leaves(lambda a: stored(a[:steps], "action"), self._action),
            reward=stored(self.reward[:steps], "reward"),
            terminated=self.terminated[:steps],
            truncated=self.truncated[:steps],
            next_observation=None if self.lacks_final else self._following(whole),
            extras={n: stored(a[:steps], n) for n, a in self._extras.items()},
            version=version,
            fresh=fresh,
        )

    def _following(self, observations: Any) -> Any:
        """The next observations: those of the next rows, but at ends if these hold others."""
        rows = map_leaves(lambda a: a[1:], observations)
        if self._final is None:
            return rows
        ended = self.terminated[: self.steps] | self.truncated[: self.steps]

        def replaced(array: np.ndarray[Any, Any], final: np.ndarray[Any, Any]) -> Any:
            array = array.copy()
            array[ended] = stored(final[: self.steps][ended], "observation")
            return array

        return map_leaves(replaced, rows, self._final)


def _room(lead: tuple[int, int], space: Any) -> Any:
    """A tree of arrays like a space."""

    def room(spec: Spec) -> np.ndarray[Any, Any]:
        return np.empty((*lead, *spec.shape), spec.dtype)

    return map_leaves(room, space)


def _assignable(tree: Any) -> Any:
    """What a tree can be assigned to a part of, as to an array."""
    return tree if isinstance(tree, np.ndarray) else _Tree(tree)


class _Tree:
    """A tree of arrays."""

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays

    def __setitem__(self, part: Any, tree: Any) -> None:
        map_leaves(lambda room, leaf: room.__setitem__(part, leaf), self._arrays, tree)
