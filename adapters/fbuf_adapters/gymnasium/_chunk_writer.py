"""From chunks to a buffer: which fields it wants, and few programs for chunks of all lengths."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fbuf_adapters._extra_fields import with_blank
from fbuf_adapters._fitting import check_rows
from fbuf_adapters.gymnasium._buffers import kind_of
from fbuf_adapters.gymnasium._chunk import Chunk
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._final_obs import NO_FINAL
from fbuf_adapters.gymnasium._spaces import Spec
from fbuf_adapters.gymnasium._trees import map_leaves

SMALL = 128
"""Steps; fewer are not worth an add of their own, but where little is collected at a time."""

_VERSION = Spec((), np.dtype(np.int32))


class Target:
    """Adds chunks of `num_envs` environments to buffers made for them.

    Args:
        spec: The fields that are filled, see `Stepper.spec`.
        blank: Those that are not, see `blank_specs`.
        options: What `fbuf.init` has to be given.
        size: The most steps of a chunk. All are brought to this length, to 128 or to 16 (if it is
            less, to an eighth of it), so that at most four programs add them all.
        owner: Who collects, for errors.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        blank: dict[str, Any],
        options: dict[str, Any],
        size: int,
        owner: str = "Collector",
    ) -> None:
        self._owner = owner
        more = {"next_observation": spec["observation"], "version": _VERSION}
        filled = map_leaves(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), {**spec, **more})
        self._fields = with_blank(owner, filled, blank)
        self._blank = blank
        self._options = options
        self._size = size
        small = min(size, SMALL)
        self._sizes = sorted({-(-small // 8), small, size})

    @property
    def item(self) -> dict[str, Any]:
        """One row, for `fbuf.init`."""
        more = ("next_observation", "version")
        return {name: spec for name, spec in self._fields.items() if name not in more}

    def check(self, function: str, buffer: Any) -> None:
        """Refuse a buffer that the chunks do not fit into, or that has been consumed."""
        where = f"{self._owner}.{function}"
        kind = kind_of(where, buffer)
        flags, num_envs = kind.flags(buffer), kind.num_envs(buffer)
        check_rows(where, flags, self._fields, self._options, num_envs, kind.make)
        kind.check(where, buffer)

    def keeps_next(self, buffer: Any) -> bool:
        """Whether a buffer that was checked has next observations."""
        flags = kind_of(self._owner, buffer).flags(buffer)
        return flags.next_obs is not None or "next_observation" in flags.storage.item

    def end_episode(self, buffer: Any) -> Any:
        """End all open episodes of a buffer that was checked, which is consumed."""
        return kind_of(self._owner, buffer).end_episode(buffer)

    def add(self, buffer: Any, chunk: Chunk, *, dummies: Any = None, envs: Any = None) -> Any:
        """Add a chunk to a buffer that was checked, which is consumed.

        Args:
            buffer: The buffer.
            chunk: The steps.
            dummies: bool `[num_envs]`: whose first row is a dummy. The buffer knows it by itself,
                unless it is another one than that of the chunk before.
            envs: bool `[num_envs]`: whose steps these are, if not all step together.
        """
        kind = kind_of(self._owner, buffer)
        if chunk.next_observation is None and self.keeps_next(buffer):
            raise CollectorError(NO_FINAL)
        if np.any(chunk.fresh):
            fresh = np.broadcast_to(chunk.fresh, chunk.terminated.shape[1:])
            buffer = kind.end_episode(buffer, fresh)
        if dummies is not None and dummies.any():
            buffer = kind.with_resets(buffer, dummies)
        state = kind.flags(buffer)
        given = _given(chunk, state)
        wanted = state.storage.item
        steps, num_envs = chunk.terminated.shape
        lead = (self._padded_size(steps), num_envs)
        if steps != lead[0]:
            given = map_leaves(lambda array: _padded(array, lead[0]), given)
        for name in self._blank.keys() & wanted.keys():
            zeros = lambda spec: np.zeros((*lead, *spec.shape), spec.dtype)
            given["items"][name] = jax.tree.map(zeros, self._blank[name])
        if not state.ring.lockstep:
            given["mask"] = np.repeat((np.arange(lead[0]) < steps)[:, None], num_envs, axis=1)
            if envs is not None:
                given["mask"] &= envs
        elif steps < self._size:
            given["mask"] = np.arange(lead[0]) < steps
        return kind.add(buffer, given)

    def _padded_size(self, steps: int) -> int:
        """One of a few sizes: who collects a few steps at a time shall not pay for many."""
        return next(size for size in self._sizes if steps <= size)


def _given(chunk: Chunk, state: Any) -> dict[str, Any]:
    """What `add` is given of a chunk: the fields that the buffer has."""
    there: dict[str, Any] = {
        "observation": chunk.observation,
        "action": chunk.action,
        "reward": chunk.reward,
        **chunk.extras,
        "next_observation": chunk.next_observation,
    }
    wanted = state.storage.item
    if "version" in wanted:
        there["version"] = np.full(chunk.terminated.shape, chunk.version, np.int32)
    given: dict[str, Any] = {
        "items": {name: there[name] for name in wanted if name in there},
        "terminated": chunk.terminated,
        "truncated": chunk.truncated,
    }
    if state.next_obs is not None:
        given["next_observation"] = chunk.next_observation
    return given


def _padded(array: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    padded = np.zeros((size, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded
