"""From chunks to a buffer: which fields it wants, and one program for chunks of all lengths."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

import fbuf
from fbuf_adapters.gymnasium._chunk import Chunk
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._spaces import Spec
from fbuf_adapters.gymnasium._trees import map_leaves

_VERSION = Spec((), np.dtype(np.int32))


def item_of(spec: dict[str, Any]) -> dict[str, Any]:
    """The item of a buffer for these fields."""
    return map_leaves(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), spec)


class Target:
    """Adds chunks of `num_envs` environments to buffers made for them.

    Args:
        spec: The fields there are, see `Stepper.spec`.
        options: What `fbuf.init` has to be given.
        size: How many steps every chunk is brought to, so that one program adds them all.
    """

    def __init__(self, spec: dict[str, Any], options: dict[str, Any], size: int) -> None:
        more = {"next_observation": spec["observation"], "version": _VERSION}
        self._fields = item_of({**spec, **more})
        self._options = options
        self._size = size

    def check(self, function: str, state: Any) -> None:
        """Refuse a buffer that the chunks do not fit into."""
        if not isinstance(state, fbuf.State):
            raise TypeError(
                f"Collector.{function}: state must be a fbuf.State, got {type(state).__name__}; "
                "make one with fbuf.init(collector.item, capacity, **collector.options)"
            )
        for name, wanted in self._options.items():
            found = getattr(state.ring, name)
            if found != wanted:
                raise CollectorError(
                    f"Collector.{function}: the buffer was made with {name}={found!r}, and the "
                    f"environments need {name}={wanted!r}; make it with fbuf.init(collector.item, "
                    "capacity, **collector.options)"
                )
        item: Any = state.storage.item
        if not isinstance(item, dict):
            raise CollectorError(
                f"Collector.{function}: the buffer's item is a {type(item).__name__}, and rows are "
                "dicts; make it with fbuf.init(collector.item, capacity, **collector.options)"
            )
        for name, stored in item.items():
            self._check_field(function, name, stored)
        if state.next_obs is not None and state.next_obs.field != "observation":
            raise CollectorError(
                f"Collector.{function}: the buffer was made with next_of={state.next_obs.field!r}; "
                "make it with next_of='observation'"
            )

    def _check_field(self, function: str, name: str, stored: Any) -> None:
        if name not in self._fields:
            raise CollectorError(
                f"Collector.{function}: the buffer's item has a field {name!r}, which nobody "
                f"fills; there are {', '.join(self._fields)}. Have the policy return it beside the "
                f"action, (action, {{{name!r}: ...}}), or leave it out of the item"
            )
        given = self._fields[name]
        form = lambda leaf: (tuple(leaf.shape), np.dtype(leaf.dtype))
        if jax.tree.structure(stored) != jax.tree.structure(given) or list(
            map(form, jax.tree.leaves(stored))
        ) != list(map(form, jax.tree.leaves(given))):
            raise CollectorError(
                f"Collector.{function}: the field {name!r} is {given}, and the buffer stores "
                f"{stored}; make it with fbuf.init(collector.item, capacity, **collector.options)"
            )

    def add(self, state: Any, chunk: Chunk, dummies: Any = None) -> Any:
        """Add a chunk to a buffer that was checked, which is consumed.

        Args:
            state: The buffer.
            chunk: The steps.
            dummies: bool `[num_envs]`: whose first row is a dummy. The buffer knows it by itself,
                unless it was cleared in between.
        """
        if chunk.fresh:
            state = fbuf.end_episode(state)
        if dummies is not None and dummies.any():
            opened = dataclasses.replace(state.ring.open, resets=np.asarray(dummies))
            state = dataclasses.replace(state, ring=dataclasses.replace(state.ring, open=opened))
        there: dict[str, Any] = {
            "observation": chunk.observation,
            "action": chunk.action,
            "reward": chunk.reward,
            **chunk.extras,
            "next_observation": chunk.next_observation,
            "version": np.full(chunk.reward.shape, chunk.version, np.int32),
        }
        given: dict[str, Any] = {
            "items": {name: there[name] for name in state.storage.item},
            "terminated": chunk.terminated,
            "truncated": chunk.truncated,
        }
        if state.next_obs is not None:
            given["next_observation"] = chunk.next_observation
        given = map_leaves(self._padded, given)
        mask = np.arange(self._size) < chunk.steps
        if not state.ring.lockstep:
            mask = np.repeat(mask[:, None], chunk.reward.shape[1], axis=1)
        return fbuf.add(state, **given, mask=mask, time_major=True)

    def _padded(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if len(array) == self._size:
            return array
        padded = np.zeros((self._size, *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        return padded
