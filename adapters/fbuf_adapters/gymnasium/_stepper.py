"""Stepping environments with a policy, into chunks of NumPy arrays."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium import _info
from fbuf_adapters.gymnasium._chunk import ChunkRows, StepChunk
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._policy import CheckedPolicy
from fbuf_adapters.gymnasium._spaces import (
    FLAG,
    Spec,
    cast,
    matched,
    paths,
    space_specs,
    stored_specs,
)
from fbuf_adapters.gymnasium._vector_envs import autoreset, close


class Stepper:
    """Owns a vector environment, its newest observation, and a policy; without JAX or buffers.

    The first chunk resets the environments, and so does the first one after an exception.

    Args:
        envs: A `gymnasium.vector.VectorEnv`. The stepper closes it.
        policy: `policy(observation) -> action`, or `-> (action, extras)`.
        seed: For the first reset, as the environments take it. If it is one number, and the policy
            has a method `seed`, that is called now, with another number made of this one.
        info: Entries of the step's info that become fields of the rows.
        observe: Entries of info that become part of the observation, which is then a dict of
            `observation` and these entries.

    Raises:
        TypeError: If `envs` are no vector environments, or the names of entries are a string.
        ValueError: If the environments do not say how they reset, or a space cannot be stored.
    """

    def __init__(
        self,
        envs: Any,
        policy: Any,
        *,
        seed: Any = None,
        info: _info.Asked = None,
        observe: _info.Asked = None,
    ) -> None:
        if not hasattr(envs, "single_observation_space"):
            raise TypeError(
                f"Collector: envs must be a gymnasium.vector.VectorEnv, got a "
                f"{type(envs).__name__}; make them with gymnasium.make_vec(name, num_envs)"
            )
        self._envs = envs
        self._seed = int(seed) if isinstance(seed, np.integer) else seed
        self.num_envs = int(envs.num_envs)
        self.autoreset = autoreset(envs)
        self._own_space = space_specs(envs.single_observation_space, "the observation space")
        self._space = self._own_space
        action = space_specs(envs.single_action_space, "the action space")
        self._reward = Spec(_reward_shape(envs), np.dtype(np.float32))
        self._info = _info.Info("info", info, self.num_envs)
        self._observe = _info.Info("observe", observe, self.num_envs)
        self._seen: dict[str, Any] = {}
        """The newest entries of info in the observation."""
        self._narrows = False
        """Whether observations have a wider dtype than their space."""
        self.needs_final = True
        """Whether a missing final observation is an error."""
        self._policy = CheckedPolicy(policy, self.num_envs, action)
        self._observation: Any = None  # None: to be reset
        self._acted: Any = None  # the policy's output at this observation, if `spec` asked for it
        self._fresh = True
        self._ended = np.zeros(self.num_envs, np.bool_)
        """The environments whose next step only resets them."""
        self._version = 0
        self._partial: StepChunk | None = None
        self._was_reset = False
        self._closed = False
        if isinstance(self._seed, int):
            self._policy.seed(derived_seed(self._seed))

    @property
    def spec(self) -> dict[str, Any]:
        """The fields of a row as they are stored: trees of `Spec`.

        Before the first chunk it resets the environments and calls the policy. The first step then
        takes the action of that call.
        """
        if self._policy.extras is None:
            self._reset()
            # A copy: the policy may write to its argument, which the first row is to store.
            self._acted = self._policy.policy(copy.deepcopy(self._observation))
            self._policy.checked(self._acted)
        extras = self._policy.extras or {}
        for name in extras.keys() & self._info.specs.keys():
            raise CollectorError(
                f"Collector: an extra of the policy and an entry of info are both called {name!r}; "
                "rename the extra"
            )
        return {
            "observation": stored_specs(self._space, "observation"),
            "action": stored_specs(self._policy.action, "action"),
            "reward": self._reward,
            **{n: stored_specs(spec, n) for n, spec in {**extras, **self._info.specs}.items()},
        }

    def load(self, weights: Any, version: int) -> None:
        """Use these weights from the next step."""
        self._policy.policy.load(weights)
        self._version = version
        self._acted = None  # the action is from earlier weights

    def chunk(self, steps: int, stop: Callable[[], bool] = lambda: False) -> StepChunk:
        """Make steps, into new arrays. The chunk is shorter if `stop()` becomes True meanwhile.

        If anything raises, the whole steps made so far wait in `partial_chunk`, and the next chunk
        begins with a reset. If one of these steps holds a number that cannot be stored, all are
        lost.
        """
        if self._closed or getattr(self._envs, "closed", False):
            raise CollectorError(
                "Collector: the environments are closed; make new ones, and another collector"
            )
        self._partial = None
        if self._observation is None:
            self._reset()
        rows = ChunkRows(self.num_envs, steps, self._space, self._policy.action, self._reward)
        observation, acted, fresh = self._observation, self._acted, self._fresh
        ended = np.zeros_like(self._ended) if fresh else self._ended
        self.restart()  # undone below, unless anything raises
        try:
            observation = self._fill(rows, steps, stop, observation, acted)
            chunk = self._made(rows, fresh, ended)
        except BaseException:
            if rows.steps:
                with contextlib.suppress(ValueError):  # a number that cannot be stored
                    self._partial = self._made(rows, fresh, ended)
            raise
        self._observation = observation
        self._fresh = fresh and not rows.steps
        return chunk

    def _made(self, rows: ChunkRows, fresh: bool, before: np.ndarray[Any, Any]) -> StepChunk:
        """Return the whole steps, with the environments that had ended before, bool `[E]`."""
        if self.autoreset != "next_step":
            return rows.chunk(self._version, fresh)
        ended = np.concatenate([before[None], rows.ended()])
        self._ended = ended[-1]
        return rows.chunk(self._version, fresh, int(np.count_nonzero(ended[:-1])))

    def partial_chunk(self) -> StepChunk | None:
        """Return, once, the whole steps of an interrupted chunk; None without any."""
        partial, self._partial = self._partial, None
        return partial

    def restart(self) -> None:
        """Begin the next chunk with a reset, as a chunk was lost with parts of its episodes."""
        self._observation = self._acted = None
        self._fresh = True

    def close(self) -> None:
        """Close the environments."""
        if not self._closed:
            close(self._envs)
            self._closed = True

    def _reset(self) -> None:
        if self._observation is not None:
            return
        try:
            observation, info = self._envs.reset(seed=self._seed)
            info = _info.as_dict(info)
        except Exception as error:
            if not self._was_reset:
                raise
            raise CollectorError(
                "Collector: the environments raised before, and cannot be reset; make new ones, "
                "and another collector"
            ) from error
        self._was_reset, self._seed = True, None
        self._info.learn(info)
        if self._observe:
            self._observe.learn(info)
            self._space = {"observation": self._own_space, **self._observe.specs}
            observation = self._observed(observation, info)
        self._check(observation)
        self._observation = observation

    def _fill(
        self, rows: ChunkRows, steps: int, stop: Callable[[], bool], observation: Any, acted: Any
    ) -> Any:
        """Make the steps, beginning at an observation, and return the last observation.

        All work of a step is written out here. After a step of the environments little is left in
        the processor's caches, so each call of a function costs up to a microsecond.
        """
        policy = self._policy
        # With "next_step" the row after an end holds the final observation.
        replaced = self.autoreset != "next_step"
        same_step = self.autoreset == "same_step"
        of_info, observe = bool(self._info), bool(self._observe)
        observations, actions, rewards = rows.observation, rows.action, rows.reward
        terminations, truncations = rows.terminated, rows.truncated
        step_envs = self._envs.step
        observations[0] = observation
        for step in range(steps):
            if stop():
                break
            action = policy.policy(observation) if acted is None else acted
            acted = None
            bare = isinstance(action, np.ndarray)
            if not (bare and (action.shape, action.dtype) == policy.plain):
                action, extras = policy.checked(action)
                rows.put_extras(step, extras)
            actions[step] = action  # before the step, which may write to it
            observation, reward, terminated, truncated, info = step_envs(action)
            if type(info) is not dict:
                info = _info.as_dict(info)
            if of_info:
                ended = np.logical_or(terminated, truncated) if same_step else None
                rows.put_extras(step, self._info.read(info, ended))
            if observe:
                observation = self._observed(observation, info)
            if step == 0 or self._narrows:  # later observations have the same shape and dtype
                self._check(observation)
            if step == 0:
                self._check_numbers(reward, terminated, truncated)
            rewards[step] = reward
            terminations[step] = terminated
            truncations[step] = truncated
            # The quickest way to look for a True.
            if replaced and (1 in terminations[step].tobytes() or 1 in truncations[step].tobytes()):
                ended = terminations[step] | truncations[step]
                observation = self._end(rows, step, ended, observation, info)
            observations[step + 1] = observation
            rows.steps = step + 1
        return observation

    def _end(self, rows: ChunkRows, step: int, ended: Any, observation: Any, info: Any) -> Any:
        """Keep the final observations, and return the first observation of the next step."""
        if self.autoreset == "same_step":
            if not _info.has_finals(info):
                if self.needs_final:
                    raise CollectorError(_info.NO_FINAL)
                rows.lacks_final = True
                return observation
            final, entries = rows.final, self._observe.final(info, ended) if self._observe else None
            for env in ended.nonzero()[0].tolist():
                final[step, env] = self._final(info, env, entries)
            return observation
        rows.final[step] = observation
        observation, info = self._envs.reset(options={"reset_mask": ended})
        if self._observe:
            before = self._seen
            observation = self._observed(observation, _info.as_dict(info))
            for name, seen in self._seen.items():  # a reset has no entries of other environments
                seen[~ended] = before[name][~ended]
        self._check(observation)
        return observation

    def _observed(self, observation: Any, info: Any) -> dict[str, Any]:
        """Return the observation, together with its entries of info."""
        self._seen = self._observe.read(info)
        return {"observation": observation, **self._seen}

    def _final(self, info: Any, env: int, entries: dict[str, Any] | None) -> Any:
        final = _info.final_observation(info, env, self._own_space)
        if entries is None:
            return final
        return {"observation": final, **{name: array[env] for name, array in entries.items()}}

    def _check_numbers(self, reward: Any, terminated: Any, truncated: Any) -> None:
        """Refuse rewards and flags of a wrong shape or dtype: each environment has one of each."""
        wanted = (("reward", reward, self._reward), ("terminated", terminated, FLAG))
        for name, given, spec in (*wanted, ("truncated", truncated, FLAG)):
            what = f"the environments must return {name} as"
            remedy = _VECTOR if name == "reward" else ""
            spec.check(np.asarray(given), self.num_envs, what, "one for each", remedy)

    def _check(self, observation: Any) -> None:
        """Refuse observations that differ from their space: NumPy would broadcast or cut them."""
        leaves = matched(observation, self._space)
        if leaves is None:
            raise CollectorError(
                "Collector: the observation must be a tree like the observation space, got a "
                f"{type(observation).__name__}; correct the environment's observation_space"
            )
        for (path, spec), leaf in zip(paths(self._space), leaves, strict=True):
            array = np.asarray(leaf)
            if array.dtype != spec.dtype and not np.can_cast(array.dtype, spec.dtype):
                self._narrows = True  # the caller then checks each observation
                if array.dtype.kind in "iuf" and spec.dtype.kind in "iuf":
                    cast(array, spec.dtype, f"observation{path}")
            what = f"observation{path} must be"
            spec.check(array, self.num_envs, what, "as the observation space says", _CORRECT)


_CORRECT = "; correct the environment's observation_space"
_VECTOR = "; if a reward is a vector, say so with the environments' attribute reward_space"


def _reward_shape(envs: Any) -> tuple[int, ...]:
    """Return the shape of one reward, a vector's if the environments have a `reward_space`."""
    space = getattr(envs, "reward_space", None) or getattr(envs.unwrapped, "reward_space", None)
    return () if space is None else tuple(space.shape)


def derived_seed(seed: int) -> int:
    """Return another seed of 31 bits, as the same seed would draw equal noise."""
    return int(np.random.SeedSequence([seed, _SALT]).generate_state(1)[0] >> 1)


_SALT = 0x706F6C
"""An arbitrary constant, which no version changes, so that runs can be repeated."""
