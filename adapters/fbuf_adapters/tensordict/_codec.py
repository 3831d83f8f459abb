"""Rows of a buffer as TensorDicts, with the keys that TorchRL's programs read."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import torch
from tensordict import TensorDict, TensorDictBase

import fbuf
from fbuf_adapters.pytorch.crossing._containers import Nodes, built
from fbuf_adapters.pytorch.crossing._unpack import free
from fbuf_adapters.tensordict import _leaves
from fbuf_adapters.tensordict._leaves import Form, Leaves
from fbuf_adapters.tensordict._nodes import nodes_of_batch
from fbuf_adapters.tensordict._run import Run
from fbuf_adapters.tensordict._slices import Slices
from fbuf_adapters.tensordict._transforms import TransformChain

NAME = "fbuf_adapters.tensordict.TensorDictReplayBuffer"

NOTHING = (
    f"{NAME}.sample: there is nothing to draw: the buffer is empty, or no episode is as long as "
    "the sampler's window, or all priorities are 0; add rows, or ask can_sample() first"
)


class NothingToDraw(RuntimeError):
    """A batch without rows. Users see a RuntimeError; the buffer catches this class alone."""


class Codec:
    """Turn TensorDicts into leaves to store, and stored rows into TensorDicts.

    Attributes:
        run: The figures of the buffer, of which the codec reads `form`.
        layout: The layout of slices; None if batches keep the shape that the view gave them.
        transforms: The transforms of batches.
        looks: Whether to look for masked rows in each batch. On a GPU the look waits for the batch.
    """

    def __init__(
        self, run: Run, sampler: Any, view: Any, layout: Slices | None, device: Any
    ) -> None:
        self.run = run
        self.layout = layout
        self.transforms = TransformChain()
        self._view = view
        self._given_device = torch.device(device)
        self._prioritized = sampler.keeps_priorities
        self._of_form: Form | None = None
        self._of_batch: Nodes = {}
        self.looks = self._given_device.type == "cpu" or _may_lack_rows(sampler, view)

    @functools.cached_property
    def _device(self) -> torch.device:
        """The device in the form of a tensor's: with the number of the GPU."""
        return torch.empty(0, device=self._given_device).device

    @property
    def added(self) -> list[Any]:
        """Return the keys that `batch` may add to the stored ones."""
        return [*_leaves.ADDED, *(() if self.layout is None else self.layout.keys)]

    def items(self, leaves: Leaves) -> dict[str, Any]:
        """Return the leaves of rows as the tree that the buffer stores."""
        return _leaves.nested(_leaves.words(leaves) if _leaves.moves_bits(self._view) else leaves)

    def batch(self, sample: Any) -> TensorDictBase:
        """Return the TensorDict that TorchRL would make of a `fbuf.Sample`, transformed."""
        assert self.run.form is not None
        marks: dict[Any, torch.Tensor] = {}
        if self.layout is not None:
            rows = self.layout.lay(sample, self.run.form)
            if not rows.count:
                raise NothingToDraw(NOTHING)
            added = self._added(rows.slot, rows.generation, rows.weight)
            nodes = {path: axes for path, axes in (self.run.form.nodes or {}).items() if path}
            batch = _of_rows(rows.data | added, torch.Size([rows.count]), nodes, self._device)
            marks = self.layout.marks(rows, batch)
        else:
            batch, added = self._as_viewed(sample, self.run.form)
        if not (self.transforms.all or marks):
            return batch
        told, size = {key: batch[key] for key in added}, batch.batch_size
        batch = self.transforms(batch)
        # A transform may drop or reorder rows, and the added keys with them: set only missing keys.
        there = batch.keys()
        marks.update((key, value) for key, value in told.items() if key not in there)
        for key, value in marks.items():
            _set(batch, key, value, size)
        return batch

    def _as_viewed(self, sample: Any, form: Form) -> tuple[Any, dict[Any, torch.Tensor]]:
        """Return a batch in the shape that the view gave it, and the added keys."""
        dims = torch.Size()
        if isinstance(self._view, fbuf.Item):
            data, dims = _leaves.restored(sample.data, form), form.dims
        else:
            data = _leaves.plain(sample.data)
            if dataclasses.is_dataclass(sample.data):  # a view that returns more than the item
                data["item"] = _leaves.restored(data["item"], form)
            else:
                data = _leaves.restored(data, form)
        added = self._added(sample.ids.slot.long(), sample.ids.generation, sample.weight)
        if dims:
            added = {key: _repeated(numbers, dims) for key, numbers in added.items()}
        batch = _of_rows(data | added, sample.mask.shape, self._nodes(form), self._device)
        if self.looks and not bool(sample.mask.all()):  # a short batch, as in TorchRL
            batch = batch[sample.mask]
            if not len(batch):
                raise NothingToDraw(NOTHING)
        return batch, added

    def rows(self, data: Any, slots: torch.Tensor) -> Any:
        """Return rows `[B]` that were read, in the shape of their slots, transformed."""
        assert self.run.form is not None
        data = _leaves.restored(data, self.run.form) if _leaves.moves_bits(self._view) else data
        dims, nodes = self.run.form.dims, self.run.form.nodes or {}
        shaped = lambda leaf: free(leaf.reshape((*slots.shape, *leaf.shape[1:])))
        rows = _of_rows(jax.tree.map(shaped, data), slots.shape, nodes, self._device)
        rows.set("index", _repeated(slots, dims).to(self._device))
        return self.transforms(rows)

    def _nodes(self, form: Form) -> Nodes:
        """Return the batch dimensions of the TensorDicts in a batch of the view."""
        if self._of_form is not form:
            self._of_form, self._of_batch = form, nodes_of_batch(self._view, form.nodes or {})
        return self._of_batch

    def _added(
        self, slot: torch.Tensor, generation: torch.Tensor, weight: torch.Tensor
    ) -> dict[Any, torch.Tensor]:
        """Return the tensors added to a batch, by key."""
        weights = (weight, weight.clone()) if self._prioritized else ()
        return dict(zip(_leaves.ADDED, (slot, generation, *weights), strict=False))


def _repeated(numbers: torch.Tensor, dims: torch.Size) -> torch.Tensor:
    """Return one number a row, repeated over the batch dimensions of an item, as a copy."""
    one = numbers.reshape(torch.Size([*numbers.shape, *[1] * len(dims)]))
    wide = one.expand(torch.Size([*numbers.shape, *dims]))
    return wide.clone(memory_format=torch.contiguous_format)


def _of_rows(data: dict[Any, Any], lead: torch.Size, nodes: Nodes, device: torch.device) -> Any:
    """Return a TensorDict without checking its leaves: a check takes ten microseconds a leaf."""
    if not nodes or (len(nodes) == 1 and nodes.get(()) == ((), ())):
        # No public name of tensordict's leaves the check out.
        return TensorDict._new_unsafe(data, lead, device)  # pyright: ignore[reportPrivateUsage]
    return built(data, lead, nodes, device)


def _may_lack_rows(sampler: Any, view: Any) -> bool:
    """Return whether a batch of a filled buffer may have fewer rows than requested."""
    whole = isinstance(view, fbuf.Item) and not sampler.follows_episodes
    if isinstance(sampler, fbuf.Prioritized):
        return not whole or sampler.may_draw_nothing
    return not whole or type(sampler) is not fbuf.Uniform


def _set(batch: Any, key: Any, value: torch.Tensor, size: torch.Size) -> None:
    """Set a key of a transformed batch; `size` is the batch size before the transforms."""
    if batch.numel() != size.numel():
        raise RuntimeError(
            f"{NAME}.sample: a transform made {batch.numel()} rows of {size.numel()}, so that "
            f"{key!r} says nothing about them; call it with the batch that sample() returns instead"
        )
    if batch.batch_size != size:
        value = value.reshape(*batch.batch_size, *value.shape[len(size) :])
    batch.set(key, value)
