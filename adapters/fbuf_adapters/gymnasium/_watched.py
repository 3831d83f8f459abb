"""An environment and a policy that say where they are, and keep what tells who was wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from fbuf_adapters.gymnasium._heartbeat import POLICY, Board
from fbuf_adapters.gymnasium._spaces import space_specs
from fbuf_adapters.gymnasium._trees import matched, paths

_NOTHING = object()


class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of a worker."""

    def __init__(self, env: Any, number: int, say: Callable[[], None]) -> None:
        """Call `say` at each step."""
        super().__init__(env)
        self.number = number
        self._say = say
        self._returned: Any = _NOTHING

    def reset(self, **kwargs: Any) -> Any:
        """As the environment."""
        self._say()
        returned = self.env.reset(**kwargs)
        self._returned = returned[0]
        return returned

    def step(self, action: Any) -> Any:
        """As the environment."""
        self._say()
        returned = self.env.step(action)
        self._returned = returned[0]
        if len(returned) == 5 and (returned[2] or returned[3]):
            # It is kept over the reset, which may write to the same array.
            return copy.deepcopy(returned[0]), *returned[1:]
        return returned

    def differing(self) -> str | None:
        """How its last observation differs from its space, if it does: NumPy says that of none."""
        if self._returned is _NOTHING:
            return None
        try:
            specs = space_specs(self.env.observation_space, "")
        except Exception:  # a space that cannot be stored: that is what has been raised
            return None
        leaves = matched(self._returned, specs)
        if leaves is None:
            return "its observation is another tree than its observation space"
        for (path, spec), leaf in zip(paths(specs), leaves, strict=True):
            if np.shape(leaf) != spec.shape:
                return (
                    f"its observation{path} is of shape {np.shape(leaf)}, and its observation "
                    f"space says {spec.shape}"
                )
        return None


class WatchedPolicy:
    """The policy of a worker."""

    def __init__(self, policy: Any, board: Board, seat: int) -> None:
        """Say on its seat of the board when it acts; stop when that says so."""
        self._policy = policy
        self._board = board
        self._seat = seat

    def __call__(self, observation: Any) -> Any:
        """As the policy."""
        self._board.check(self._seat)
        self._board.at(self._seat, POLICY)
        return self._policy(observation)

    def seed(self, number: int) -> None:
        """As the policy, if it has that."""
        seed = getattr(self._policy, "seed", None)
        if callable(seed):
            self._board.at(self._seat, POLICY)
            seed(number)

    def load(self, weights: Any) -> None:
        """As the policy."""
        self._board.at(self._seat, POLICY)
        self._policy.load(weights)
