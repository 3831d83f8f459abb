"""Calls that change a buffer: from the user's tensors to a function of `fbuf`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import torch

import fbuf
from fbuf_adapters.pytorch._spec import NAME, where
from fbuf_adapters.pytorch.batches._sizes import Sizes
from fbuf_adapters.pytorch.buffer._backend import Backend, Operation
from fbuf_adapters.pytorch.buffer._contents import Backing, Contents
from fbuf_adapters.pytorch.crossing import (
    _containers,
    _dtypes,
    _inputs,
    _listed,
    _taken,
    _tensors,
    _time_major,
)
from fbuf_adapters.pytorch.crossing._error import convert
from fbuf_adapters.pytorch.crossing._item import learn


@dataclasses.dataclass(frozen=True)
class _Change:
    """A call of a function of `fbuf`, prepared.

    Attributes:
        operation: The function.
        given: Its arguments by name, as the user gave them.
        instead: Arguments in place of some of these: turned or padded.
        feed_all: Makes the arguments ready for JAX, or refuses one by its name.
        as_given: Called to tell of a fault, if the arguments are as they were given.
        static: The arguments that are part of the program.
        waits: Whether the call may wait for the next draw. The arguments are then copies.
    """

    operation: Operation
    given: dict[str, Any]
    instead: dict[str, Any]
    feed_all: _inputs.FeedAll
    as_given: Operation
    static: dict[str, Any] = dataclasses.field(default_factory=dict)
    waits: bool = False


class Writer:
    """Changes the contents of a buffer. It pads batches to sizes with a program."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._spec = contents.spec
        self._sizes = Sizes()

    def add(
        self,
        items: Any,
        next_observation: Any,
        options: dict[str, Any],
        *,
        batch: bool,
        time_major: bool = False,
    ) -> None:
        """Add one item, or a batch of them.

        Args:
            items: The items, as the user gave them.
            next_observation: Likewise.
            options: The other arguments of `fbuf.add` that are values, by name.
            batch: Whether it is a batch, or one item or one step of all environments.
            time_major: As for `fbuf.add`.
        """
        function, name = ("extend", "items") if batch else ("add", "item")
        _tensors.check_torch(f"{NAME}.{function}")
        contents, spec = self._contents, self._spec
        stored = contents.stored
        item = None if stored is None else stored.learned.item
        observed = None if item is None else _taken.field(item, spec.buffer.next_of)
        if batch and type(items) is list:
            items, next_observation = (
                [_taken.as_tensors(one, form) for one in rows] if type(rows) is list else rows
                for rows, form in ((items, item), (next_observation, observed))
            )
            items, next_observation = self._stacked(item, items, next_observation, time_major)
        given_items, items = items, _containers.plain(items)
        next_observation = _containers.plain(next_observation)
        items = _taken.as_tensors(items, item)
        next_observation = _taken.as_tensors(next_observation, observed)
        given = {"items": items, "next_observation": next_observation, **options}
        feed_all = functools.partial(self._feed_rows, f"{NAME}.{function}", name)
        with contents.lock:
            contents.check_open(function)
            while True:
                before = contents.stored
                stored = self._stored(function, name, items, batch)
                change = self._as_stored(stored, given, feed_all, batch, time_major)
                grown = contents.with_end_room(stored, options, time_major)
                before, stored = grown if before is stored else before, grown
                try:
                    self._run(stored.backend, change)
                except (ValueError, TypeError):
                    stored.learned.check_tree(where(function), name, items)
                    if not batch:
                        _check_one(where(function), options, spec.lead)
                    raise
                if contents.stored is before:
                    contents.stored = stored
                    break
                # A signal handler has called meanwhile, and may have added the first row.
                if contents.stored is not None and contents.stored.backend is stored.backend:
                    break
            if not contents.rebuild:
                contents.rebuild += _containers.container_of(given_items, batch + spec.lead)

    def change(self, operation: Operation, **given: Any) -> None:
        """Call a function of a state, and take its result for the state."""
        function = operation.__name__
        _tensors.check_torch(f"{NAME}.{function}")
        with self._contents.lock:
            stored = self._contents.made(function)
            if operation is fbuf.end_episode:
                ends = self._contents.end_room.all_ends(given["mask"])
                stored = self._contents.with_end_room(stored, ends, time_major=False)
            backend = stored.backend
            waits = operation is fbuf.update_priority and backend.may_defer and _may_wait(given)
            instead: dict[str, Any] = {}
            if isinstance(given.get("ids"), fbuf.Ids):
                packed = self._packed_ids(given, waits)
                if _dtypes.x64():
                    given["ids"] = jax.tree.map(_short, given["ids"])
                instead = self._sizes.fit_ids(function, given) or packed
            feed = functools.partial(self._feed, copy=waits)
            feed_all = lambda given: convert(f"{NAME}.{function}", given, feed)
            change = _Change(operation, given, instead, feed_all, operation, waits=waits)
            self._run(backend, change)

    def _packed_ids(self, given: dict[str, Any], waits: bool) -> dict[str, Any]:
        """Return the ids in the memory of JAX, if they are those of a batch and all lies on a GPU.

        JAX waits for torch's stream with the other arguments, and so for what has read the ids.
        If the call waits for a draw, JAX must have them to itself: as int64 torch has copies.
        """
        if waits and not self._spec.int64:
            return {}
        packed = self._contents.delivery.handed.packed(given["ids"])
        if packed is None or self._spec.on_host:
            return {}
        others = [value for name, value in given.items() if name != "ids"]
        return {"ids": packed} if _inputs.on_gpu(others) else {}

    def _stacked(self, item: Any, items: list[Any], following: Any, time_major: bool) -> Any:
        """Return a list of items as a batch, and the next observations likewise."""
        axis = 0 if time_major else self._spec.lead
        batch = _listed.stacked(where("extend"), items, item, 1 + self._spec.lead, axis)
        if batch is not items and type(following) is list:
            following = _listed.side_by_side(where("extend"), "next_observation", following, axis)
        return batch, following

    def _stored(self, function: str, name: str, items: Any, batch: bool) -> Backing:
        """Return the rows to which items are added: the first items determine the item."""
        contents, lead = self._contents, batch + self._spec.lead
        if contents.stored is None:  # and it stays so, should this call fail
            if batch:
                _listed.refuse_inner_lists(f"{NAME}.{function}", items)
            fed = convert(f"{NAME}.{function}", {name: items}, self._feed_row)[name]
            learned = learn(where(function), fed, lead, items)
            return contents.calls.apart(lambda: contents.make(learned))
        stored = contents.made(function)
        if not stored.learned.has_axes(items, lead):
            stored.learned.check_axes(where(function), name, items, lead, batch)
        return stored

    def _as_stored(
        self,
        stored: Backing,
        given: dict[str, Any],
        feed_all: _inputs.FeedAll,
        batch: bool,
        time_major: bool,
    ) -> _Change:
        """Return the call that adds rows, with steps first and padded if they are a batch."""
        as_given = functools.partial(fbuf.add, time_major=time_major)
        instead: dict[str, Any] = {}
        if batch:
            spec, ndim = self._spec, stored.learned.first_ndim
            if spec.lead and not time_major:
                envs: Any = spec.buffer.num_envs
                instead = _time_major.steps_first(given, envs, ndim) or {}
                time_major = bool(instead)
            axis = 0 if time_major else spec.lead
            turned = given | instead
            instead |= self._sizes.fit_rows(turned, axis, 1 + spec.lead, ndim, spec.whole_steps)
        return _Change(fbuf.add, given, instead, feed_all, as_given, {"time_major": time_major})

    def _run(self, backend: Backend, change: _Change) -> None:
        """Change the state; the tensors are their owner's again when this returns."""

        def ready(given: dict[str, Any], copy: bool = False) -> tuple[list[Any], Any]:
            state, feed_all = lambda: backend.state, change.feed_all
            return _inputs.ready(change.operation, state, given, feed_all, narrow=True, copy=copy)

        try:
            leaves, structure = ready(change.given | change.instead, change.waits)
            if change.waits:
                read = _inputs.letting_torch_wait(change.given)
                backend.defer(change.operation, leaves, structure, read)
                return
            of_host = any(isinstance(leaf, np.ndarray) for leaf in leaves)
            by_streams = not of_host and _inputs.on_gpu(change.given)
            wait = not by_streams
            backend.change(change.operation, leaves, structure, wait=wait, **change.static)
            if by_streams:
                _inputs.let_torch_wait(backend.fault)
        except (ValueError, TypeError):
            if change.instead or change.waits:  # tell of the shapes as they were given
                leaves, structure = ready(change.given)
                whole = structure.unflatten(leaves)
                trace = functools.partial(jax.eval_shape, lambda s, g: change.as_given(s, **g))
                self._contents.calls.apart(lambda: trace(backend.state, whole))
            raise

    def _feed_rows(self, function: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """Make the arguments of `fbuf.add` ready; items are tensors, and nothing else."""
        rows = {name: given["items"], "next_observation": given["next_observation"]}
        others = {argument: given[argument] for argument in given if argument not in _ROWS}
        fed = convert(function, rows, self._feed_row) | convert(function, others, self._feed)
        return {"items": fed.pop(name), **fed}

    def _feed_row(self, leaf: Any) -> Any:
        """Make a leaf of an item ready."""
        if not isinstance(leaf, torch.Tensor):
            raise _tensors.no_tensor(leaf)
        return self._feed(leaf)

    def _feed(self, leaf: Any, copy: bool = False) -> Any:
        """Make a leaf ready: from the device of batches, with integers as JAX keeps them.

        With `copy`, nobody else has the memory of one on a GPU, or its words are copied later.
        """
        if not isinstance(leaf, torch.Tensor):
            return leaf
        spec = self._spec
        if spec.to is not None and leaf.device != spec.device and _same(leaf.device, spec.to):
            leaf = leaf.to(spec.device)
        return _inputs.feed_narrow(leaf, {spec.jax_device}, copy)


_ROWS = ("items", "next_observation")


def _may_wait(given: dict[str, Any]) -> bool:
    """Whether a later call with copies of the arguments means the same.

    Arrays of JAX's their owner may donate, and with 64 bits numbers of Python's are others.
    """
    leaves = jax.tree.leaves(given)
    return not _dtypes.x64() and not any(isinstance(leaf, jax.Array) for leaf in leaves)


def _check_one(where: str, options: Mapping[str, Any], lead: int) -> None:
    """Raise if a flag of one item is given for several."""
    for name, value in options.items():
        if name != "alpha" and getattr(value, "ndim", 0) > lead:
            column = lead and value.ndim == 2 and value.shape[1] == 1
            said = "a column; use .squeeze(-1)" if column else "a batch; use extend()"
            raise ValueError(
                f"{where} {name} is of shape {tuple(value.shape)}: this looks like {said}"
            )


def _short(leaf: Any) -> Any:
    """Return a leaf of ids in 32 bits, also where JAX has 64."""
    if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.int64:
        return leaf.clamp(-1, 2**31 - 1).int()
    return leaf


def _same(device: torch.device, wanted: torch.device) -> bool:
    """Tell whether a device is the wanted one; `"cuda"` is any of them."""
    return device.type == wanted.type and wanted.index in (None, device.index)
