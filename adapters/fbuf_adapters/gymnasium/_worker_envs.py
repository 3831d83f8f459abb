"""What a worker steps with: its environments, its policy, and a note of where it is just now."""

from __future__ import annotations

import functools
import pickle
import random
import sys
import traceback
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fbuf_adapters.gymnasium._heartbeat import POLICY, STARTING, Board
from fbuf_adapters.gymnasium._messages import Failed
from fbuf_adapters.gymnasium._stepper import Stepper, apart
from fbuf_adapters.gymnasium._watched import Watched, WatchedPolicy


class Station:
    """Makes and closes the environments of one worker, and tells which of them has failed."""

    def __init__(self, board: Board, seat: int) -> None:
        """Note on this seat of the board what is done."""
        self._board = board
        self._seat = seat
        self._envs: list[Watched] = []
        self._vector: SyncVectorEnv | None = None

    def open(self, payload: bytes, envs: slice, seed: int) -> tuple[Stepper, Any]:
        """Make the environments; return what steps them, and what the weights are read with."""
        self._board.at(self._seat, STARTING)
        make_env, policy, weights, info, observe = pickle.loads(payload)
        _seed(apart(seed))

        def make(env: int) -> Watched:
            say = functools.partial(self._board.at, self._seat, env)
            say()
            self._envs.append(Watched(make_env(), env, say))
            return self._envs[-1]

        self._vector = SyncVectorEnv(
            [functools.partial(make, env) for env in range(envs.start, envs.stop)],
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        self._with_vector_rewards()
        _seed(apart(seed))  # also what the environments have imported
        watched = WatchedPolicy(policy, self._board, self._seat)
        stepper = Stepper(self._vector, watched, seed=seed, info=info, observe=observe)
        return stepper, weights

    def _with_vector_rewards(self) -> None:
        """Have room for them, as MO-Gymnasium does: Gymnasium itself has one number for each."""
        vector: Any = self._vector
        space = getattr(self._envs[0].unwrapped, "reward_space", None)
        if space is not None:
            vector.reward_space = space
            vector._rewards = np.zeros((len(self._envs), *space.shape))

    def failed(self, error: BaseException) -> Failed:
        """Where the worker was, and what happened there."""
        place = self._board.where(self._seat)
        reason = "".join(traceback.format_exception_only(error)).strip()
        for env in self._envs if place != POLICY else ():
            differing = env.differing()
            if differing is not None:
                place, reason = env.number, f"{differing} ({reason})"
                break
        trace = "".join(traceback.format_exception(error))
        return Failed(place, reason, trace[-20_000:])

    def close(self) -> None:
        """Close the environments that were made."""
        if self._vector is not None:
            self._vector.close()


def _seed(seed: int) -> None:
    """Seed the global generators: what was copied into all workers would act alike in all."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  users draw from the global one
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
