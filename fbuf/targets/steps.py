"""The steps of a batch, with the links between them and the values behind them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checks import values as check
from fbuf.sharded_state import ShardedSample
from fbuf.state import Rollout, Sample
from fbuf.targets.backward import shifted
from fbuf.views.n_step import NStepTransition
from fbuf.views.sequence import SequenceSteps

Steps = Rollout[Any] | Sample[Any] | ShardedSample[Any]
"""A batch whose rows follow one another; drawn ones are of the view `fbuf.Sequence`."""


class Path(NamedTuple):
    """Steps and what follows them; float32 or bool, with time along the first axis.

    Attributes:
        reward: The reward of the step.
        value: The value of the step's observation.
        following: The value of the next observation; 0 if the step terminated the episode.
        gamma: The discount.
        lambda_: The share of later steps.
        known: The step exists, and `following` is known.
        linked: The next step continues this one. If its target is unknown, its error is 0.
        learn: The step is for the loss, and `known`.
    """

    reward: jax.Array
    value: jax.Array
    following: jax.Array
    gamma: jax.Array
    lambda_: jax.Array
    known: jax.Array
    linked: jax.Array
    learn: jax.Array

    def surprise(self, value: jax.Array) -> jax.Array:
        """Return the one-step error of each step against `value`; 0 where it is not known."""
        return jnp.where(self.known, self.reward + self.gamma * self.following - value, 0)


class Layout:
    """The layout of a batch's steps: their shape, and which axis is time."""

    def __init__(self, function: str, batch: Any) -> None:
        """Lay out the steps of a batch for a function of this name."""
        self._function, self._batch = function, batch
        self._time_first = isinstance(batch.data, SequenceSteps) and batch.data.time_major
        self.shape: tuple[int, ...] = batch.terminated.shape
        if len(self.shape) not in (1, 2):
            raise ValueError(
                f"fbuf.{function}: batch must have steps of one or two axes, got {self.shape}; use "
                "jax.vmap over the others"
            )

    def path(self, reward: Any, value: Any, next_value: Any, gamma: Any, lambda_: Any) -> Path:
        """Return the steps, linked, with the values behind them."""
        there, learn = map(self._by_time, self._masks())
        terminated, truncated = map(self._by_time, (self._batch.terminated, self._batch.truncated))
        own = self.numbers("value", value)
        goes_on = there & shifted(there) & ~(terminated | truncated)
        known, at_end = there & (terminated | goes_on), jnp.zeros_like(own)
        if next_value is not None:
            known, at_end = there, self.numbers("next_value", next_value)
        return Path(
            reward=self.numbers("reward", reward),
            value=own,
            following=jnp.where(terminated, 0, jnp.where(goes_on, shifted(own), at_end)),
            gamma=self._one_or_many("gamma", gamma),
            lambda_=self._one_or_many("lambda_", lambda_),
            known=known,
            linked=goes_on,
            learn=learn & known,
        )

    def numbers(self, argument: str, value: Any) -> jax.Array:
        """Return a number for each step as float32, without its gradient, time first."""
        check.no_list(self._function, argument, value)
        if jnp.shape(value) != self.shape:
            raise ValueError(
                f"fbuf.{self._function}: {argument} must be of shape {self.shape}, one number for "
                f"each step of the batch, got {check.describe(value)}"
                + self._hint(jnp.shape(value))
            )
        if not check.is_real(jnp.result_type(value)):
            raise TypeError(
                f"fbuf.{self._function}: {argument} must be real, got {check.describe(value)}"
            )
        number = jax.lax.stop_gradient(jnp.asarray(value).astype(jnp.float32))
        return self._by_time(number)

    def back(self, steps: jax.Array) -> jax.Array:
        """Return steps in the layout of the batch."""
        return self._by_time(steps)  # a second swap of the axes undoes the first

    def _one_or_many(self, argument: str, value: Any) -> jax.Array:
        """Return one number for all steps, or one for each."""
        if jnp.shape(value):
            return self.numbers(argument, value)
        return jax.lax.stop_gradient(jnp.asarray(value).astype(jnp.float32))

    def _masks(self) -> tuple[jax.Array, jax.Array]:
        """Return a mask of the existing steps, and one of the steps for the loss."""
        mask, data = self._batch.mask, self._batch.data
        if not isinstance(data, SequenceSteps):
            return mask, mask
        drawn = jnp.expand_dims(mask, 0 if self._time_first else -1)
        return data.valid & drawn, data.loss_mask & drawn

    def _by_time(self, steps: jax.Array) -> jax.Array:
        return steps if self._time_first or steps.ndim == 1 else steps.T

    def _hint(self, shape: tuple[int, ...]) -> str:
        """Return the remedy for a wrong shape."""
        axis = 0 if self._time_first else len(self.shape) - 1
        longer = (*self.shape[:axis], self.shape[axis] + 1, *self.shape[axis + 1 :])
        if shape == longer:
            return "; give the values of what the steps led to as next_value, one for each step"
        if shape == (*self.shape, 1):
            return "; take [..., 0]"
        if shape == self.shape[::-1]:
            return "; give it in the layout of the batch"
        return ""


def is_batch(function: str, argument: str, value: Any) -> Any:
    """Return a batch whose rows follow one another; refuse any other value."""
    if not isinstance(value, Rollout | Sample | ShardedSample):
        raise TypeError(
            f"fbuf.{function}: {argument} must be rows that follow one another, as fbuf.rollout "
            f"and fbuf.pop return them, or a sample of fbuf.Sequence, got {type(value).__name__}"
        )
    data: Any = value.data
    if isinstance(data, NStepTransition) or not (
        isinstance(value, Rollout) or isinstance(data, SequenceSteps)
    ):
        raise TypeError(
            f"fbuf.{function}: {argument} must be rows that follow one another, got "
            f"{type(value).__name__} with {type(data).__name__} as data; draw with "
            "view=fbuf.Sequence(...), or read with fbuf.rollout(state, view=fbuf.Transition())"
        )
    return value


def fraction(function: str, argument: str, value: Any) -> Any:
    """Return a number from 0 to 1, a traced one, or an array of them; arrays are not checked."""
    if value is None:
        raise TypeError(f"fbuf.{function}: {argument} must be a number, got None")
    if isinstance(value, jax.Array | np.ndarray) and value.ndim:
        return value
    return check.scalar(function, argument, value, 1)


def bound(function: str, argument: str, value: Any) -> Any:
    """Return a number of at least 0, or a traced one."""
    if value is None:
        raise TypeError(f"fbuf.{function}: {argument} must be a number, got None")
    return check.scalar(function, argument, value)


CHECKS = {"batch": is_batch, "gamma": fraction, "lambda_": fraction}
"""Checks of the arguments that all functions have."""
