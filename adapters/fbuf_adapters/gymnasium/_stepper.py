"""Steps environments with a policy, and gathers what comes in chunks of NumPy arrays."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._autoreset import autoreset
from fbuf_adapters.gymnasium._chunk import Chunk
from fbuf_adapters.gymnasium._closing import close
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._final_obs import NO_FINAL, final_observation, has_finals
from fbuf_adapters.gymnasium._info import Asked, Info, as_dict
from fbuf_adapters.gymnasium._policy import Actor
from fbuf_adapters.gymnasium._rows import Rows
from fbuf_adapters.gymnasium._spaces import Spec, cast, space_specs, stored_spec
from fbuf_adapters.gymnasium._trees import map_leaves, matched, paths


class Stepper:
    """Owns a vector environment, the observation it is at, and a policy.

    It knows nothing of JAX or of buffers. The first chunk resets the environments, and so does the
    first one after an exception.

    Args:
        envs: A `gymnasium.vector.VectorEnv`. The stepper closes it.
        policy: `policy(observation) -> action`, or `-> (action, extras)`.
        seed: For the first reset, as the environments take it. If it is one number, `policy.seed`
            is called now, if there is such a method, with another number that is made of it.
        info: Entries of info that become fields of the rows: those that the step returned.
        observe: Entries of info that become part of the observation: it is then a dict of
            `observation` and them.

    Raises:
        TypeError: If these are no vector environments, or no such entries.
        ValueError: If the environments do not say how they reset, or if a space cannot be stored.
    """

    def __init__(
        self, envs: Any, policy: Any, *, seed: Any = None, info: Asked = None, observe: Asked = None
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
        self._info = Info("info", info, self.num_envs)
        self._observe = Info("observe", observe, self.num_envs)
        self._seen: dict[str, Any] = {}
        """The newest entries that are part of the observation."""
        self._narrows = False
        """Whether observations come in a wider dtype than that of their space."""
        self.needs_final = True
        """Whether a final observation that the environments do not return is an error."""
        self._actor = Actor(policy, self.num_envs, action)
        self._observation: Any = None  # none: to be reset
        self._acted: Any = None  # what the policy returned at this observation, for the spec
        self._fresh = True
        self._version = 0
        self._begun: Chunk | None = None
        self._begun_once = False
        self._closed = False
        if isinstance(self._seed, int):
            self._actor.seed(apart(self._seed))

    @property
    def spec(self) -> dict[str, Any]:
        """The fields of a row as they are stored: trees of `Spec`.

        Asked for before the first chunk, it resets the environments and calls the policy. The first
        step takes the action of that call.
        """
        if self._actor.extras is None:
            self._reset()
            # It may write to what it is given, and the first row is of what was observed.
            self._acted = self._actor.policy(copy.deepcopy(self._observation))
            self._actor.checked(self._acted)
        extras = {name: stored_spec(s, name) for name, s in (self._actor.extras or {}).items()}
        for name in extras.keys() & self._info.specs.keys():
            raise CollectorError(
                f"Collector: the policy returned an extra called {name!r}, and so is one of info; "
                "call it something else"
            )
        return {
            "observation": map_leaves(lambda s: stored_spec(s, "observation"), self._space),
            "action": map_leaves(lambda s: stored_spec(s, "action"), self._actor.action),
            "reward": self._reward,
            **extras,
            **{name: stored_spec(spec, name) for name, spec in self._info.specs.items()},
        }

    def load(self, weights: Any, version: int) -> None:
        """Act with these weights from the next step on."""
        self._actor.load(weights)
        self._version = version
        self._acted = None  # with the weights before

    def chunk(self, steps: int, stop: Callable[[], bool] = lambda: False) -> Chunk:
        """Make steps. The arrays are new ones, and nobody writes to them again.

        If anything raises, the whole steps made so far wait in `begun`, and the next chunk begins
        with a reset. If they hold a number that cannot be stored, they are lost. Once `stop()` is
        True there are no further steps, and the chunk is shorter.
        """
        if self._closed or getattr(self._envs, "closed", False):
            raise CollectorError(
                "Collector: the environments are closed; make new ones, and another collector"
            )
        self._begun = None
        if self._observation is None:
            self._reset()
        rows = Rows(self.num_envs, steps, self._space, self._actor.action, self._reward)
        observation, acted, fresh = self._observation, self._acted, self._fresh
        self.restart()  # unless all goes well: the making of the chunk may raise, too
        try:
            observation = self._fill(rows, steps, stop, observation, acted)
            chunk = rows.chunk(self._version, fresh)
        except BaseException:
            if rows.steps:
                with contextlib.suppress(ValueError):  # a number that cannot be stored
                    self._begun = rows.chunk(self._version, fresh)
            raise
        self._observation = observation
        self._fresh = fresh and not rows.steps
        return chunk

    def begun(self) -> Chunk | None:
        """The whole steps of the chunk that raised, once; None if there were none."""
        begun, self._begun = self._begun, None
        return begun

    def restart(self) -> None:
        """Begin the next chunk with a reset: one was lost, so what follows belongs to nothing."""
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
            info = as_dict(info)
        except Exception as error:
            if not self._begun_once:
                raise
            raise CollectorError(
                "Collector: the environments raised before, and cannot be reset; make new ones, "
                "and another collector"
            ) from error
        self._begun_once, self._seed = True, None
        self._info.learn(info)
        if self._observe:
            self._observe.learn(info)
            self._space = {"observation": self._own_space, **self._observe.specs}
            observation = self._observed(observation, info)
        self._check(observation)
        self._observation = observation

    def _fill(
        self, rows: Rows, steps: int, stop: Callable[[], bool], observation: Any, acted: Any
    ) -> Any:
        """Make the steps, from an observation, and return the one after them.

        What each step does is written out here. Behind a step of the environments little is left in
        the processor's caches, and each function that is called costs up to a microsecond.
        """
        actor = self._actor
        # With "next_step" the row behind an end holds the final observation.
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
            action = actor.policy(observation) if acted is None else acted
            acted = None
            bare = isinstance(action, np.ndarray)
            if not (bare and (action.shape, action.dtype) == actor.plain):
                action, extras = actor.checked(action)
                rows.put_extras(step, extras)
            actions[step] = action  # before the step, which may write to it
            observation, reward, terminated, truncated, info = step_envs(action)
            if type(info) is not dict:
                info = as_dict(info)
            if of_info:
                ended = np.logical_or(terminated, truncated) if same_step else None
                rows.put_extras(step, self._info.read(info, ended))
            if observe:
                observation = self._observed(observation, info)
            if step == 0 or self._narrows:  # the others will be alike
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

    def _end(self, rows: Rows, step: int, ended: Any, observation: Any, info: Any) -> Any:
        """Keep the final observations, and return what the next step begins with."""
        if self.autoreset == "same_step":
            if not has_finals(info):
                if self.needs_final:
                    raise CollectorError(NO_FINAL)
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
            observation = self._observed(observation, as_dict(info))
            for name, seen in self._seen.items():  # of the others a reset tells nothing
                seen[~ended] = before[name][~ended]
        self._check(observation)
        return observation

    def _observed(self, observation: Any, info: Any) -> dict[str, Any]:
        """The observation, with the entries of info that belong to it."""
        self._seen = self._observe.read(info)
        return {"observation": observation, **self._seen}

    def _final(self, info: Any, env: int, entries: dict[str, Any] | None) -> Any:
        final = final_observation(info, env, self._own_space)
        if entries is None:
            return final
        return {"observation": final, **{name: array[env] for name, array in entries.items()}}

    def _check_numbers(self, reward: Any, terminated: Any, truncated: Any) -> None:
        """Refuse what is not one for each environment, and flags that are no flags."""
        flag = Spec((), np.dtype(np.bool_))
        wanted = (("reward", reward, self._reward), ("terminated", terminated, flag))
        for name, given, spec in (*wanted, ("truncated", truncated, flag)):
            array, shape = np.asarray(given), (self.num_envs, *spec.shape)
            if array.shape != shape or not np.can_cast(array.dtype, spec.dtype, "same_kind"):
                raise CollectorError(
                    f"Collector: the environments must return {name} as {spec.dtype} of shape "
                    f"{shape}, one for each, got {array.dtype} of shape {array.shape}"
                    + (_VECTOR if name == "reward" else "")
                )

    def _check(self, observation: Any) -> None:
        """Refuse observations that are not of their space: NumPy would broadcast or cut them."""
        leaves = matched(observation, self._space)
        if leaves is None:
            raise CollectorError(
                "Collector: the observation must be a tree like the observation space, got a "
                f"{type(observation).__name__}; correct the environment's observation_space"
            )
        for (path, spec), leaf in zip(paths(self._space), leaves, strict=True):
            array = np.asarray(leaf)
            if array.dtype != spec.dtype and not np.can_cast(array.dtype, spec.dtype):
                self._narrows = True  # then each is looked at
                if array.dtype.kind in "iuf" and spec.dtype.kind in "iuf":
                    cast(array, spec.dtype, f"observation{path}")
            wanted = (self.num_envs, *spec.shape)
            if array.shape != wanted or not np.can_cast(array.dtype, spec.dtype, "same_kind"):
                raise CollectorError(
                    f"Collector: observation{path} must be {spec.dtype} of shape {wanted}, as the "
                    f"observation space says, got {array.dtype} of shape {array.shape}; correct "
                    "the environment's observation_space"
                )


_VECTOR = "; if a reward is a vector, say so with the environments' attribute reward_space"


def _reward_shape(envs: Any) -> tuple[int, ...]:
    """That of one reward: MO-Gymnasium's environments say it if it is a vector."""
    space = getattr(envs, "reward_space", None) or getattr(envs.unwrapped, "reward_space", None)
    return () if space is None else tuple(space.shape)


def apart(seed: int) -> int:
    """Another number, in 31 bits, made of a seed: with the same one would draw the same noise."""
    return int(np.random.SeedSequence([seed, _APART]).generate_state(1)[0] >> 1)


_APART = 0x706F6C
"""Any number; the same in all versions, or runs would not be repeated."""
