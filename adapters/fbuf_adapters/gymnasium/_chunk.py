"""Chunks: a few steps of all environments, and arrays to fill step by step."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._spaces import Spec, map_leaves, stored


@dataclasses.dataclass(frozen=True)
class StepChunk:
    """`T` steps of `E` environments: trees of NumPy arrays `[T, E, ...]`, as they are stored.

    Attributes:
        observation: The observations that the policy saw.
        action: The actions that it took.
        reward: float32 `[T, E]`, or `[T, E, K]`.
        terminated: bool `[T, E]`.
        truncated: bool `[T, E]`.
        next_observation: The next observations of the steps: at the end of an episode its final
            observation. None if the environments did not return final observations.
        extras: The policy's output beside the action, and the entries of info.
        version: The version of the policy that acted; or int32 `[E]`.
        fresh: Whether the environments were reset before the first of these steps. Then open
            episodes of the chunk before never end. A bool, or bool `[E]`.
        resets: The number of these steps, of all environments, that only reset one.
    """

    observation: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    next_observation: Any
    extras: dict[str, Any]
    version: Any
    fresh: Any
    resets: int = 0

    @property
    def steps(self) -> int:
        """`T`."""
        return len(self.terminated)

    @property
    def made(self) -> int:
        """The steps of all environments together, without resets."""
        return self.terminated.size - self.resets


class ChunkRows:
    """Arrays for a number of steps of all environments, in the dtypes of the spaces.

    Values assigned to a step of `observation`, `action`, `reward`, `terminated` or `truncated` are
    copied, as environments may change their own arrays.
    """

    def __init__(
        self, num_envs: int, steps: int, observation: Any, action: Any, reward: Spec
    ) -> None:
        self._lead = lead = (steps, num_envs)
        self._space = observation
        # One row more: the next observation of each step is in the row after it.
        self._observation = _empty((steps + 1, num_envs), observation)
        self._action = _empty(lead, action)
        self._extras: dict[str, np.ndarray[Any, Any]] = {}
        self._final: Any = None
        self.observation = _assignable(self._observation)
        self.action = _assignable(self._action)
        # In 64 bits: a number that 32 bits cannot hold is found when the chunk is made.
        self.reward = np.empty((*lead, *reward.shape), np.float64)
        self.terminated = np.empty(lead, np.bool_)
        self.truncated = np.empty(lead, np.bool_)
        self.steps = 0
        """The number of whole steps."""
        self.lacks_final = False
        """Whether the environments left out the final observation of an episode."""

    @property
    def final(self) -> Any:
        """Arrays for final observations, which the next row does not hold.

        After their first use, the final observation of each end in the chunk must be written.
        """
        if self._final is None:
            self._final = _empty(self._lead, self._space)
        return _assignable(self._final)

    def put_extras(self, step: int, extras: dict[str, Any]) -> None:
        """Copy the policy's output beside the action, or entries of info."""
        for name, array in extras.items():
            if name not in self._extras:
                self._extras[name] = np.empty((self._lead[0], *array.shape), array.dtype)
            self._extras[name][step] = array

    def ended(self) -> np.ndarray[Any, Any]:
        """Return which of the whole steps ended an episode: bool `[T, E]`."""
        return self.terminated[: self.steps] | self.truncated[: self.steps]

    def chunk(self, version: int, fresh: bool, resets: int = 0) -> StepChunk:
        """Return the whole steps, as they are stored."""
        steps = self.steps
        whole = map_leaves(lambda a: stored(a[: steps + 1], "observation"), self._observation)
        return StepChunk(
            observation=map_leaves(lambda a: a[:-1], whole),
            action=map_leaves(lambda a: stored(a[:steps], "action"), self._action),
            reward=stored(self.reward[:steps], "reward"),
            terminated=self.terminated[:steps],
            truncated=self.truncated[:steps],
            next_observation=None if self.lacks_final else self._following(whole),
            extras={n: stored(a[:steps], n) for n, a in self._extras.items()},
            version=version,
            fresh=fresh,
            resets=resets,
        )

    def _following(self, observations: Any) -> Any:
        """Return the next observations: those of the next rows, or at ends the final ones."""
        rows = map_leaves(lambda a: a[1:], observations)
        if self._final is None:
            return rows
        ended = self.ended()

        def replaced(array: np.ndarray[Any, Any], final: np.ndarray[Any, Any]) -> Any:
            array = array.copy()
            array[ended] = stored(final[: self.steps][ended], "observation")
            return array

        return map_leaves(replaced, rows, self._final)


def _empty(lead: tuple[int, int], space: Any) -> Any:
    """Return a tree of arrays like a space."""
    return map_leaves(lambda spec: np.empty((*lead, *spec.shape), spec.dtype), space)


def _assignable(tree: Any) -> Any:
    """Return an object with item assignment of trees, like an array."""
    return tree if isinstance(tree, np.ndarray) else _Tree(tree)


class _Tree:
    """A tree of arrays."""

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays

    def __setitem__(self, part: Any, tree: Any) -> None:
        map_leaves(lambda array, leaf: array.__setitem__(part, leaf), self._arrays, tree)
