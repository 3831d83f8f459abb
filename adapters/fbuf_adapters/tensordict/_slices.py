"""Batches of slices of episodes, laid out in rows as TorchRL's slice samplers return them.

A batch of `S` slices of `L` steps has `S * L` rows, slice by slice. The batch has fewer rows if a
slice is shorter and is not padded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import torch
from tensordict import TensorDictBase

import fbuf
from fbuf_adapters.pytorch.crossing._unpack import free
from fbuf_adapters.tensordict._leaves import Form, Path, path_of, restored

MASK = ("collector", "mask")
"""TorchRL's key of the mask of a padded batch: False where a row is padding."""

_BESIDE = ("done", "terminated")
"""Names of the keys that TorchRL returns beside the key that marks last steps."""


@dataclasses.dataclass(frozen=True)
class SliceRows:
    """A batch of slices as `R` rows.

    Attributes:
        data: The stored rows: leaves `[R, ...]`.
        count: `R`.
        slot: int64 `[R]`.
        generation: int32 `[R]`.
        weight: float32 `[R]`: the weight of the slice.
        first: bool `[R]`: True at the first row of each slice.
        last: bool `[R]`: True at the last row of each slice; rows of padding do not count.
        there: bool `[R]`: False where a row is padding.
    """

    data: Any
    count: int
    slot: torch.Tensor
    generation: torch.Tensor
    weight: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    there: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Slices:
    """The layout of slices in rows.

    Attributes:
        length: `L`.
        lanes: The distance in slots from one step of an episode to the next.
        capacity: The capacity of the buffer.
        padded: Whether short slices are padded, by their last step.
        truncated_key: The key that marks last steps; None marks none.
        init_key: The key that marks first steps, if the key is stored; None marks none.
    """

    length: int
    lanes: int
    capacity: int
    padded: bool
    truncated_key: Path | None
    init_key: Path | None

    @property
    def keys(self) -> list[Any]:
        """Return all keys that mark slices."""
        found: list[Any] = [MASK] if self.padded else []
        if self.truncated_key is not None:
            found += map(self._beside, (self.truncated_key[-1], *_BESIDE))
        return found if self.init_key is None else [*found, _key(self.init_key)]

    def number(self, where: str, batch_size: int) -> int:
        """Return the number of slices that make `batch_size` rows."""
        if batch_size < 1 or batch_size % self.length:
            n = max(batch_size, 1) if batch_size < self.length else batch_size // self.length
            raise ValueError(
                f"{where}: batch_size counts rows and must be divisible by the slice length, "
                f"{self.length}, got {batch_size}; for {n} slices give {n * self.length}"
            )
        return batch_size // self.length

    def lay(self, sample: Any, form: Form) -> SliceRows:
        """Lay out a `fbuf.Sample` of `fbuf.SequenceSteps` in rows."""
        valid: torch.Tensor = sample.data.valid
        step = torch.arange(self.length, device=valid.device)
        size = valid.sum(1, keepdim=True)
        slot = sample.ids.slot.long().unsqueeze(1) + step * self.lanes
        # Behind the last slot the next lap begins. Laps are counted modulo 2**32, so in int32.
        generation = sample.ids.generation.unsqueeze(1) + (slot >= self.capacity).int()
        weight = sample.weight.unsqueeze(1).expand(slot.shape)
        take: Callable[[torch.Tensor], torch.Tensor]
        whole: Callable[[torch.Tensor], torch.Tensor]
        if bool(valid.all()):
            take = whole = _in_a_row
        elif not self.padded:
            take = whole = lambda leaf: leaf[valid]
        else:
            drawn = valid[:, 0].nonzero()
            steps = step.minimum(size - 1)[drawn[:, 0]]
            take = lambda leaf: leaf[drawn, steps].flatten(0, 1)
            whole = lambda leaf: leaf[drawn[:, 0]].flatten(0, 1)
        there = whole(valid)
        return SliceRows(
            data=restored(jax.tree.map(take, sample.data.item), form),
            count=len(there),
            slot=take(slot % self.capacity),
            generation=take(generation),
            weight=take(weight),
            first=whole((step == 0) & valid),
            last=whole(step == size - 1),
            there=there,
        )

    def marks(self, rows: SliceRows, data: TensorDictBase) -> dict[Any, torch.Tensor]:
        """Return the marks of first and last steps, by key; `data` holds the stored rows."""
        by_key: dict[Any, torch.Tensor] = {}
        if self.truncated_key is not None:
            cut = free(_like(rows.last, data.get(self.truncated_key, None)))
            done: Any = data.get(self._beside("done"), None)
            terminated: Any = data.get(self._beside("terminated"), None)
            by_key[_key(self.truncated_key)] = cut
            by_key[self._beside("done")] = cut.clone() if done is None else done | _like(cut, done)
            if terminated is None:
                by_key[self._beside("terminated")] = torch.zeros_like(cut)
        if self.padded:
            by_key[MASK] = rows.there
        if self.init_key is not None and (begun := data.get(self.init_key, None)) is not None:
            by_key[_key(self.init_key)] = begun | _like(rows.first, begun)
        return by_key

    def _beside(self, name: str) -> Any:
        """Return the key of this name beside `truncated_key`."""
        assert self.truncated_key is not None
        return _key((*self.truncated_key[:-1], name))


def layout_of(
    where: str,
    view: Any,
    slices: str,
    lanes: int,
    capacity: int,
    truncated_key: Any,
    init_key: Any,
) -> Slices | None:
    """Return the layout of slices in rows; None if batches keep the shape that the view gives."""
    if slices not in ("flat", "padded", "nested"):
        raise ValueError(
            f"{where}: slices must be 'flat', 'padded' or 'nested', got {slices!r}; 'flat' is how "
            "TorchRL returns slices"
        )
    if slices == "nested" or not isinstance(view, fbuf.Sequence):
        return None
    plain = fbuf.Sequence(view.length, boundary=view.boundary, fields=view.fields)
    if view != plain or view.boundary == "cross":
        raise ValueError(
            f"{where}: rows one after another have no place for what {view} returns beside them; "
            f"give slices='nested' for [slices, steps], or view=fbuf.Sequence({view.length})"
        )
    ends, begins = (None if key is None else path_of(key) for key in (truncated_key, init_key))
    return Slices(view.length, lanes, capacity, slices == "padded", ends, begins)


def _key(path: Path) -> Any:
    """Return a key in the form of TensorDict: a string if it has one part."""
    return path if len(path) > 1 else next(iter(path))


def _in_a_row(leaf: torch.Tensor) -> torch.Tensor:
    return free(leaf.flatten(0, 1))


def _like(mark: torch.Tensor, stored: torch.Tensor | None) -> torch.Tensor:
    """Return one bool a row, in the shape of the stored flag or, without one, `[R, 1]`."""
    if stored is not None and stored.numel() == mark.numel():
        return mark.reshape(stored.shape)
    return mark.reshape(-1, *[1] * (1 if stored is None else stored.ndim - 1))
