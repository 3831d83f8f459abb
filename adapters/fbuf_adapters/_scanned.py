"""Collection from environments that are JAX functions: steps and adds in one `lax.scan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.adapter_api import changed_lanes, check, nowhere, place, refuse_consumed
from fbuf_adapters._fields import blank_rows, blank_specs, check_state, with_blank

Rows = TypeVar("Rows")

_FILLED = frozenset(("observation", "action", "reward", "next_observation"))


@dataclasses.dataclass(frozen=True)
class Stepped:
    """The results of a step of all environments: leaves `[num_envs, ...]`.

    Attributes:
        env_state: The environments, reset where an episode ended.
        observation: The first observation of the next step.
        reward: The reward.
        terminated: Whether the episode ended by itself.
        truncated: Whether it was cut off.
        next_observation: The next observation of this step; at an end the final one.
    """

    env_state: Any
    observation: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_observation: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Carry:
    """The state of the collection, which `scan` takes and returns beside the buffer.

    Attributes:
        env_state: The environments.
        observation: The observation that the policy sees next.
        key: The random key of the steps to come.
        fresh: No step has been made since the reset.
        left: The place behind the newest rows of the last `scan`. In a buffer that others have
            changed since, and in another one, open episodes are truncated first.
        episode_return: `[num_envs]`; the sums of rewards of the open episodes.
        episode_length: `[num_envs]`; the steps of the open episodes.
        episodes: The number of ended episodes, and the sums of their returns and lengths, each with
            the excess that rounding has added: float32 `[2, 3]`.
    """

    env_state: Any
    observation: Any
    key: jax.Array
    fresh: jax.Array
    left: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    episodes: jax.Array


class ScanCollector:
    """The part that the collectors of gymnax and brax share."""

    def __init__(
        self,
        reset: Callable[[jax.Array], tuple[Any, Any]],
        step: Callable[[jax.Array, Any, Any], Stepped],
        policy: Callable[[Any, Any, jax.Array], Any],
        params: Any,
        num_envs: int,
        key: jax.Array,
        blank: dict[str, Any] | None,
    ) -> None:
        """Collect with functions of all environments.

        Args:
            reset: Returns the environments and their observations, from a key.
            step: Returns the results of a step, from a key, the environments and actions.
            policy: See `fbuf_adapters.gymnax.Collector`.
            params: Likewise.
            num_envs: Likewise.
            key: Likewise.
            blank: Likewise.
        """
        check.integer("Collector", "num_envs", num_envs)
        check.key("Collector", key)
        self._reset, self._step, self._policy = reset, step, policy
        self._params = params
        self._num_envs = num_envs
        self._blank = blank_specs("Collector", blank)
        self._steps = 0
        self._carry: Carry = jax.jit(self.begin)(key)
        self._fields = with_blank("Collector", self._learned(), self._blank)
        self._compiled = jax.jit(self.scan, static_argnames="steps", donate_argnums=1)

    @property
    def item(self) -> dict[str, Any]:
        """One row, for `fbuf.init`: a dict of `jax.ShapeDtypeStruct`."""
        return {name: spec for name, spec in self._fields.items() if name != "next_observation"}

    @property
    def options(self) -> dict[str, Any]:
        """The other arguments that `fbuf.init` needs: `num_envs` and `autoreset`."""
        return {"num_envs": self._num_envs, "autoreset": "same_step"}

    def collect(self, state: fbuf.State[Rows], steps: int) -> fbuf.State[Rows]:
        """Make `steps` steps of each environment, and add them: one compiled program.

        Args:
            state: The buffer. It is consumed.
            steps: The number of steps, static: each number compiles a program of its own.

        Returns:
            The buffer with the rows in it.

        Raises:
            ValueError: If the buffer was made for other rows or environments.
            RuntimeError: If `state` has been consumed.
        """
        check.integer("Collector.collect", "steps", steps)
        check_state("Collector.collect", state, self._fields, self.options)
        refuse_consumed("add", state)
        self._carry, state = self._compiled(self._carry, state, self._params, steps=steps)
        self._steps += steps
        return state

    def publish(self, params: Any) -> None:
        """Use these weights from the next call."""
        self._params = params

    def stats(self) -> dict[str, Any]:
        """Return counts since the collector was made, after all steps.

        Returns:
            A dict: `steps` of all environments together; `episodes` that ended, and their
            `mean_return` and `mean_length` (None before the first).
        """
        total, more = np.asarray(self._carry.episodes, np.float64)
        count, returns, lengths = (total - more).tolist()
        return {
            "steps": self._steps * self._num_envs,
            "episodes": int(count),
            "mean_return": returns / count if count else None,
            "mean_length": lengths / count if count else None,
        }

    def begin(self, key: jax.Array) -> Carry:
        """Reset the environments; a pure function, for `scan`.

        Args:
            key: The random key of the environments and the policy.

        Returns:
            The state of the collection, for the first `scan`.
        """
        reset_key, key = jax.random.split(key)
        env_state, observation = self._reset(reset_key)
        none = jnp.zeros(self._num_envs)
        return Carry(
            env_state=env_state,
            observation=observation,
            key=key,
            fresh=jnp.array(True),
            left=nowhere(self._num_envs),
            episode_return=none,
            episode_length=none.astype(int),
            episodes=jnp.zeros((2, 3)),
        )

    def scan(self, carry: Carry, state: Any, params: Any, steps: int) -> tuple[Carry, Any]:
        """Make steps and add them; a pure function, for your own `jit`, `scan` and `vmap`.

        Args:
            carry: The state of the collection, returned by `begin` or this function.
            state: The buffer.
            params: The weights of the policy.
            steps: The number of steps of each environment, static.

        Returns:
            The new state of the collection, and the buffer with the rows in it.

        Raises:
            ValueError: If the buffer was made for other rows or environments.
        """
        check_state("Collector.scan", state, self._fields, self.options)
        others = changed_lanes(state.ring.cursor, carry.left, self._num_envs)
        state = fbuf.end_episode(state, mask=others | carry.fresh)
        carry = dataclasses.replace(carry, fresh=jnp.array(False))
        one = lambda loop, _: (self._one(params, *loop), None)
        carry, state = jax.lax.scan(one, (carry, state), None, length=steps)[0]
        return dataclasses.replace(carry, left=place(state.ring)), state

    def resume(self, carry: Carry, state: Any) -> Carry:
        """Go on behind the newest rows of a state: they are the last ones of this collection.

        Call it if you restore both from a checkpoint, with `fbuf.load(..., episodes="keep")`: no
        episode is truncated then. A pure function.

        Args:
            carry: The state of the collection, as it was saved with the buffer.
            state: The buffer.

        Returns:
            The state of the collection, for `scan`.
        """
        check_state("Collector.resume", state, self._fields, self.options)
        return dataclasses.replace(carry, left=place(state.ring))

    def _one(self, params: Any, carry: Carry, state: Any) -> tuple[Carry, Any]:
        """Make a step and add it."""
        carry, there, flags = self._row(params, carry)
        there |= blank_rows(self._blank, (self._num_envs,), jnp)
        given: dict[str, Any] = {"items": {name: there[name] for name in state.storage.item}}
        if state.next_obs is not None:
            given["next_observation"] = there["next_observation"]
        return carry, fbuf.add(state, **given, **flags)

    def _row(self, params: Any, carry: Carry) -> tuple[Carry, dict[str, Any], dict[str, Any]]:
        """Make a step; return the new state of the collection, the fields and the flags."""
        act_key, step_key, key = jax.random.split(carry.key, 3)
        returned = self._policy(params, carry.observation, act_key)
        action, extras = returned, {}
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict):
            action, extras = returned
        for name in _FILLED & extras.keys():
            raise ValueError(
                f"Collector: the policy returned an extra called {name!r}, which the collector "
                "fills itself; call it something else"
            )
        stepped = self._step(step_key, carry.env_state, action)
        terminated, truncated = stepped.terminated.astype(bool), stepped.truncated.astype(bool)
        reward = stepped.reward.astype(jnp.float32)
        ended = terminated | truncated
        total, length = carry.episode_return + reward, carry.episode_length + 1
        closed = jnp.stack([ended, jnp.where(ended, total, 0), jnp.where(ended, length, 0)])
        after = dataclasses.replace(
            carry,
            env_state=stepped.env_state,
            observation=stepped.observation,
            key=key,
            episode_return=jnp.where(ended, 0, total),
            episode_length=jnp.where(ended, 0, length),
            episodes=_summed(carry.episodes, closed.sum(axis=1).astype(jnp.float32)),
        )
        there: dict[str, Any] = {
            "observation": carry.observation,
            "action": action,
            "reward": reward,
            **extras,
            "next_observation": stepped.next_observation,
        }
        return after, there, {"terminated": terminated, "truncated": truncated}

    def _learned(self) -> dict[str, Any]:
        """Return one row of the filled fields."""
        row = lambda params, carry: self._row(params, carry)[1]
        there = jax.eval_shape(row, self._params, self._carry)

        def of_one(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
            if leaf.ndim == 0 or leaf.shape[0] != self._num_envs:
                raise ValueError(
                    f"Collector: {jax.tree_util.keystr(path)} must be of shape "
                    f"({self._num_envs}, ...), one for each environment, got {leaf.shape}; have "
                    "the policy return that"
                )
            return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

        return jax.tree_util.tree_map_with_path(of_one, there)


def _summed(sums: jax.Array, terms: jax.Array) -> jax.Array:
    """Return sums with more terms, without rounding, which would stop a count at 2**24.

    After Kahan (1965).
    """
    total, error = sums
    terms = terms - error
    after = total + terms
    return jnp.stack([after, (after - total) - terms])
