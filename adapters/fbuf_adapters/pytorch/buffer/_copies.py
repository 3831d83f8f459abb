"""Copies and pickles of a buffer, alone or within an agent: its arguments and its `state_dict`."""

from __future__ import annotations

import abc
import copy
import io
import threading
from typing import Any, ClassVar, Self

import torch

from fbuf.adapter_api import Episodes, check_stays_in_process


class Copied(abc.ABC):
    """Make copies of an object that owns memory, a lock and maybe a thread.

    Attributes:
        _own_attributes: The attributes that a copy makes anew. Those of a derived class are copied.
    """

    _own_attributes: ClassVar[frozenset[str]]

    @abc.abstractmethod
    def _lock_of_copies(self) -> threading.RLock:  # pyright: ignore[reportGeneralTypeIssues]
        """Return the lock to hold meanwhile."""

    @abc.abstractmethod
    def _for_copies(self) -> dict[str, Any]:
        """Return the arguments of a copy, beside the `state_dict`; they can be pickled."""

    @abc.abstractmethod
    def _remake(self, made_with: dict[str, Any]) -> None:
        """Become an empty buffer, made with the result of `_for_copies`."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that future calls depend on."""

    @abc.abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any], *, episodes: Episodes = "end") -> None:
        """Go on where `state_dict` was called."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what `pickle` and `copy.deepcopy` need: the arguments and the contents.

        Raises:
            TypeError: If `multiprocessing` is about to send the buffer to another process.
        """
        check_stays_in_process(self)
        saved = io.BytesIO()  # pickle cannot read tensors of unsigned integers back
        with self._lock_of_copies():
            torch.save(self.state_dict(), saved)
            made_with = self._for_copies()
        others = {k: v for k, v in vars(self).items() if k not in self._own_attributes}
        return {"made_with": made_with, "state": saved.getvalue(), "attributes": others}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        """Make the same buffer in memory of its own, and end the open episodes."""
        self._become(saved, "end")

    def __copy__(self) -> Self:
        """Return a copy of the buffer, in the midst of the same episodes."""
        other = type(self).__new__(type(self))
        other._become(self.__getstate__(), "keep")
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy of the buffer, in the midst of the same episodes, and of its transforms."""
        other = memo[id(self)] = type(self).__new__(type(self))
        other._become(copy.deepcopy(self.__getstate__(), memo), "keep")
        return other

    def _become(self, saved: dict[str, Any], episodes: Episodes) -> None:
        self._remake(saved["made_with"])
        vars(self).update(saved.get("attributes", {}))
        # It was in the same pickle, whose reader has trusted all of it.
        state = torch.load(io.BytesIO(saved["state"]), weights_only=False)
        self.load_state_dict(state, episodes=episodes)
