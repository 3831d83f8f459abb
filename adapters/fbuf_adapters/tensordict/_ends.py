"""Ends of episodes, read from the flags, the ids and the marked beginnings in TensorDicts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

import fbuf
from fbuf_adapters.pytorch import InteropError
from fbuf_adapters.pytorch.buffer._backend import Backend
from fbuf_adapters.tensordict._codec import NAME
from fbuf_adapters.tensordict._leaves import WIDE, Form, Leaves, Path, path_of

IDS = (("collector", "traj_ids"), ("episode",))
"""Keys where TorchRL looks for ids of episodes, in this order."""

FLAGS = (("next", "terminated"), ("next", "truncated"), ("next", "done"))
"""Keys where TorchRL stores flags."""

_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
)
"""Dtypes that ids may have."""


@dataclasses.dataclass(frozen=True)
class Newest:
    """The episodes of the newest rows, one a lane.

    Attributes:
        ids: The id of each episode; None without ids.
        ended: bool: whether the episode ended at its newest row.
    """

    ids: np.ndarray[Any, Any] | None
    ended: np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Told:
    """The ends of episodes that the rows of one `extend` show.

    Attributes:
        terminated: bool, in the leading shape of the rows; None means nowhere.
        truncated: The same. A row is also True if only the next row shows the end: by another id,
            or by a beginning.
        before: bool, one or `[num_envs]`: the lanes whose open episode these rows do not continue;
            None if there are none. Such an episode may have ended already.
        newest: The episodes of the newest of these rows; None without ids and beginnings.
    """

    terminated: torch.Tensor | None
    truncated: torch.Tensor | None
    before: torch.Tensor | None
    newest: Newest | None


class Ends:
    """Read the ends of episodes from added rows, and keep the newest episode of each lane.

    Data without flags, ids and beginnings is an error if the sampler follows episodes. It never is
    one with `traj_key=False` and `end_keys=()`.

    Args:
        traj_key: The key of the ids. None looks for the keys in `IDS`; False reads no ids.
        end_keys: The keys of the flags. None looks for the keys in `FLAGS`; `()` reads no flags.
        init_key: The key of the flags that mark beginnings; None reads no beginnings.
        num_envs: The number of environments; None means one lane.
        autoreset: As for `fbuf.init`. With `"next_step"`, ids and beginnings are not read.
        sampler: The sampler of the buffer.
        view: The view of the buffer.

    Raises:
        ValueError: If `traj_key` names a key, and `autoreset` is `"next_step"`.
    """

    def __init__(
        self,
        traj_key: Any,
        end_keys: Any,
        init_key: Any,
        num_envs: int | None,
        autoreset: str,
        sampler: Any,
        view: Any,
    ) -> None:
        if autoreset == "next_step":
            if traj_key not in (None, False):
                raise ValueError(
                    f"{NAME}.__init__: traj_key is {traj_key!r}, but with autoreset='next_step' "
                    "only flags tell the step that resets from others; leave traj_key out"
                )
            traj_key, init_key = False, None
        self._given: Path | None = None
        self._candidates: tuple[Path, ...] = IDS
        if traj_key is not None:
            self._candidates = () if traj_key is False else (path_of(traj_key),)
            self._given = self._candidates[0] if self._candidates else None
        self._flags = FLAGS if end_keys is None else tuple(path_of(key) for key in end_keys)
        self._init = None if init_key is None else path_of(init_key)
        self._lanes = num_envs
        self._follower = _follower(sampler, view, autoreset)
        self._strict = sampler.follows_episodes and bool(self._candidates or self._flags)
        self._newest: Newest | None = None

    def read(self, where: str, leaves: Leaves, lead: torch.Size, check_order: bool) -> Told:
        """Return the ends of episodes in rows of a leading shape; call `keep` to remember them.

        With `check_order`, ids that show the rows of several environments in turn are an error.
        Rows that were added at different times may return to an id, and need `check_order=False`.
        """
        terminated, truncated = self._read_flags(where, leaves, lead)
        ids = self._read_ids(where, leaves, lead)
        begins = self._read_beginnings(where, leaves, lead)
        if ids is None and begins is None:
            if self._strict and terminated is None and truncated is None:
                raise InteropError(
                    f"{where}: {self._follower} follows episodes, but nothing in data says where "
                    "they end: no ('next', 'terminated'), ('next', 'truncated'), ('next', 'done'), "
                    "('collector', 'traj_ids'), 'episode' or 'is_init'; name the key of the flags "
                    "with end_keys, or the key of the ids with traj_key; if all rows are one "
                    "episode, give end_keys=() and traj_key=False"
                )
            return Told(terminated, truncated, None, None)
        ended = np.zeros((self._lanes or 1, lead.numel() // (self._lanes or 1)), np.bool_)
        for flag in (terminated, truncated):
            if flag is not None:
                ended |= flag.cpu().numpy().reshape(ended.shape)
        cut = np.zeros_like(ended)
        if ids is not None:
            cut[:, :-1] = (ids[:, 1:] != ids[:, :-1]) & ~ended[:, :-1]
            if self._follower is not None and check_order and cut.any():
                self._check_order(where, ids, cut[:, :-1])
        if begins is not None:
            cut[:, :-1] |= begins[:, 1:] & ~ended[:, :-1]
        if cut.any():
            ended |= cut
            told = torch.from_numpy(cut).reshape(lead)
            truncated = told if truncated is None else truncated | told.to(truncated.device)
        # Copies, because the caller may soon write to the tensors.
        newest = Newest(None if ids is None else ids[:, -1].copy(), ended[:, -1].copy())
        return Told(terminated, truncated, self._left(ids, begins), newest)

    def _left(
        self, ids: np.ndarray[Any, Any] | None, begins: np.ndarray[Any, Any] | None
    ) -> torch.Tensor | None:
        """Return the lanes whose newest episode their first new row does not continue."""
        known = self._newest
        left = np.zeros(self._lanes or 1, np.bool_)
        if ids is not None and known is not None and known.ids is not None:
            left |= known.ids != ids[:, 0]
        if begins is not None:
            left |= begins[:, 0]
        if known is not None:
            left &= ~known.ended
        if not left.any():
            return None
        before = torch.from_numpy(left)
        return before[0] if self._lanes is None else before

    def keep(self, told: Told) -> None:
        """Remember the newest episodes, once the rows have been added."""
        self._newest = told.newest

    @property
    def knows_ids(self) -> bool:
        """Return whether the ids of the newest episodes are known, which tell one from another."""
        return self._newest is not None and self._newest.ids is not None

    def forget(self) -> None:
        """Forget the newest episodes, because all rows were removed."""
        self._newest = None

    def look(self, backend: Backend, form: Form) -> None:
        """Read the newest episodes from the buffer, after other code has changed it."""
        key = next((key for key in self._candidates if key in form.dtypes), None)
        self._newest = None
        if key is None or form.dtypes[key] not in _DTYPES:
            return
        name = ".".join(key)
        newest = fbuf.newest_ids(backend.state, 1)
        batch = backend.read(newest, view=fbuf.Item(fields=(name,)))
        found = np.asarray(batch.data[name])
        if form.dtypes[key] in WIDE and found.dtype == np.int32:
            found = np.ascontiguousarray(found).view(np.float64)
        lanes = self._lanes or 1
        if found.size == lanes:
            ended = np.asarray(batch.terminated | batch.truncated | ~batch.mask)
            self._newest = Newest(found.reshape(lanes), ended.reshape(lanes))

    def _read_flags(
        self, where: str, leaves: Leaves, lead: torch.Size
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return where the flags say that episodes terminate, and where they are truncated."""
        found: dict[str, torch.Tensor] = {}
        for key in self._flags:
            flag = self._read_flag(where, leaves, lead, key, "name other flags with end_keys")
            if flag is None:
                continue
            kind = key[-1] if key[-1] in ("terminated", "truncated") else "done"
            found[kind] = found[kind] | flag if kind in found else flag
        terminated, truncated, done = map(found.get, ("terminated", "truncated", "done"))
        if done is None:
            return terminated, truncated
        if terminated is None:  # as TorchRL completes what an environment leaves out
            return (done if truncated is None else done > truncated), truncated
        rest = done > terminated
        return terminated, rest if truncated is None else truncated | rest

    def _read_beginnings(
        self, where: str, leaves: Leaves, lead: torch.Size
    ) -> np.ndarray[Any, Any] | None:
        """Return which rows begin an episode, bool `[lanes, steps]`; None if no flag tells."""
        if self._init is None:
            return None
        begins = self._read_flag(where, leaves, lead, self._init, "give init_key=None")
        return None if begins is None else begins.reshape(self._lanes or 1, -1).cpu().numpy()

    def _read_flag(
        self, where: str, leaves: Leaves, lead: torch.Size, key: Path, advice: str
    ) -> torch.Tensor | None:
        """Return a flag as bool, shaped `lead`; None if it is missing, or unreadable but unused."""
        flag = leaves.get(key)
        if flag is None:
            return None
        if flag.numel() != lead.numel():
            if self._follower is None:
                return None
            raise InteropError(
                f"{where}: data[{_shown(key)}] must be one flag a row, {list(lead)} or "
                f"{[*lead, 1]}, because {self._follower} follows episodes, got "
                f"{list(flag.shape)}; reduce it with .any(), or {advice}"
            )
        flag = flag.reshape(lead)
        return flag if flag.dtype is torch.bool else flag != 0

    def _read_ids(
        self, where: str, leaves: Leaves, lead: torch.Size
    ) -> np.ndarray[Any, Any] | None:
        """Return the ids of the episodes, `[lanes, steps]`; None if there are none."""
        for key in self._candidates:
            ids = leaves.get(key)
            if ids is not None:
                break
        else:
            if self._given is None:
                return None
            raise InteropError(
                f"{where}: data has no {_shown(self._given)}, which traj_key names; name the key "
                "of the ids, or leave traj_key out to go by the flags"
            )
        if ids.numel() != lead.numel() or ids.dtype not in _DTYPES:
            if self._follower is None:
                return None
            raise InteropError(
                f"{where}: data[{_shown(key)}] must be one number a row, {list(lead)} or "
                f"{[*lead, 1]}, to tell {self._follower} which episode a row is of, got "
                f"{ids.dtype} {list(ids.shape)}; store one number a row, name another key with "
                "traj_key, or give traj_key=False to go by the flags alone"
            )
        return ids.reshape(self._lanes or 1, -1).cpu().numpy()

    def _check_order(
        self, where: str, ids: np.ndarray[Any, Any], left: np.ndarray[Any, Any]
    ) -> None:
        """Raise if rows return to an episode that they left before its end."""
        for lane, (of_lane, cuts) in enumerate(zip(ids, left, strict=True)):
            before: set[Any] = set()
            turns = np.flatnonzero(of_lane[1:] != of_lane[:-1])
            for turn in turns.tolist():
                if cuts[turn]:
                    before.add(of_lane[turn].item())
                if of_lane[turn + 1].item() not in before:
                    continue
                of = "" if self._lanes is None else f" of environment {lane}"
                raise InteropError(
                    f"{where}: row {turn + 1}{of} is of episode {of_lane[turn + 1]} again, though "
                    "rows of another one came between. If these are environments that step "
                    "together, one after the other, make the buffer with num_envs and give "
                    "extend() [num_envs, T]; if an id is used again, set ('next', 'truncated') "
                    "where its first episode ends"
                )


def _shown(key: Path) -> str:
    return ", ".join(map(repr, key))


def _follower(sampler: Any, view: Any, autoreset: str) -> str | None:
    """Return the sampler, view or option that needs the ends of episodes, as words for errors.

    With None nothing needs them, and unreadable data is ignored instead of an error.
    """
    if sampler.follows_episodes:
        return f"the sampler fbuf.{type(sampler).__name__}"
    if not isinstance(view, fbuf.Item):
        return f"the view fbuf.{type(view).__name__}"
    return "autoreset='next_step'" if autoreset == "next_step" else None
