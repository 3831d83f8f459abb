"""TensorDicts in and out, with the names of TorchRL's replay buffers."""

from __future__ import annotations

import copy
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, cast

try:
    import torch
    from tensordict import (
        TensorDict,
        TensorDictBase,
        is_leaf_nontensor,  # pyright: ignore[reportPrivateUsage]
    )
except ModuleNotFoundError as error:
    if error.name not in ("torch", "tensordict"):  # both are there, and lack something themselves
        raise
    raise ImportError(
        'fbuf_adapters.tensordict needs PyTorch and TensorDict: pip install "fbuf[tensordict]"'
    ) from error

import fbuf
from fbuf_adapters.pytorch import InteropError, ReplayBuffer

__all__ = ["TensorDictReplayBuffer"]

_NAME = "fbuf_adapters.tensordict.TensorDictReplayBuffer"
_OURS = ("index", "index_generation", "_weight", "priority_weight")
"""What a batch has beside what was stored."""

_NOTHING = (
    f"{_NAME}.sample: there is nothing to draw: the buffer is empty, or no episode is as long as "
    "the sampler's window; call can_sample() first"
)

_WIDE = (torch.float64, torch.complex128)
"""Dtypes that JAX would cut, and their bits are kept instead."""


class TensorDictReplayBuffer:
    """A replay buffer for TorchRL programs: change the constructor, and nothing else.

    It has the methods of `torchrl.data.TensorDictReplayBuffer`, and takes and returns the same
    keys. What is better: draws are exact at any size, updates of priorities take O(B log N), an
    update for a row that was overwritten is ignored, and the same seed gives the same batches. What
    is different:

    - All rows have the same keys, shapes and dtypes. A row that differs is an error.
    - `int64` is stored in 32 bits and comes back as int64. A number that needs more bits is an
      error. `float64` keeps all its bits.
    - Weights are divided by the largest in the batch, where TorchRL divides by the largest in the
      buffer. For that, use `fbuf.Prioritized(normalize="buffer")`.
    - A sampler cannot be changed. Set `alpha` and `beta` of the buffer instead.
    - Rows cannot be indexed (`rb[3]`). Use `fbuf.read` or `fbuf.rows` of `rb.buffer.state`.

    Args:
        capacity: As for `fbuf.init`.
        num_envs: As for `fbuf.init`. TensorDicts are then `[num_envs]` for one step, or `[num_envs,
            T]`, as collectors return them.
        autoreset: As for `fbuf.init`.
        sampler: As for `fbuf.init`. The ends of episodes are taken from `("next", "terminated")`
            and `("next", "truncated")`; if there is neither, from `("next", "done")`.
        view: What a drawn row turns into. The fields of the view's result become keys. Views other
            than `fbuf.Item()` refuse 64-bit floats.
        batch_size: For iteration, and for `sample()` without a `batch_size`.
        priority_key: The key where `extend` and `update_tensordict_priority` look for priorities.
        transform: A TorchRL transform, or a function of a TensorDict. The buffer calls it with
            every batch, and calls its `inv`, if it has one, with everything that you write.
        device: As for `fbuf_adapters.pytorch.ReplayBuffer`. The same holds for the arguments below.
        seed: See there.
        pin_memory: See there.
        to: See there.
        prefetch: See there.

    Attributes:
        buffer: The `fbuf_adapters.pytorch.ReplayBuffer` that holds the rows.
        alpha: The exponent for priorities that you give from now on; None is the sampler's.
        beta: The exponent for weights of batches drawn from now on; None is the sampler's.

    Examples:
        >>> import fbuf, torch
        >>> from fbuf_adapters.tensordict import TensorDictReplayBuffer
        >>> from tensordict import TensorDict
        >>> rb = TensorDictReplayBuffer(100, sampler=fbuf.Prioritized(), batch_size=4)
        >>> _ = rb.extend(TensorDict({"obs": torch.ones(8, 3)}, batch_size=[8]))
        >>> batch = rb.sample()
        >>> sorted(batch.keys())
        ['_weight', 'index', 'index_generation', 'obs', 'priority_weight']
        >>> batch["td_error"] = torch.rand(4)
        >>> rb.update_tensordict_priority(batch)
    """

    def __init__(
        self,
        capacity: int,
        *,
        num_envs: int | None = None,
        autoreset: Any = "same_step",
        sampler: Any = fbuf.Uniform(),
        view: Any = fbuf.Item(),
        batch_size: int | None = None,
        priority_key: str | tuple[str, ...] = "td_error",
        transform: Callable[[Any], Any] | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        pin_memory: bool = False,
        to: torch.device | str | None = None,
        prefetch: int = 0,
    ) -> None:
        self.buffer = ReplayBuffer(
            capacity,
            num_envs=num_envs,
            autoreset=autoreset,
            sampler=sampler,
            view=view,
            batch_size=batch_size,
            device=device,
            seed=seed,
            transform=self._assemble,
            pin_memory=pin_memory,
            to=to,
            prefetch=prefetch,
        )
        self.alpha: float | None = None
        self.beta: float | None = None
        self._capacity = capacity
        self._num_envs = num_envs
        self._plain_items = isinstance(view, fbuf.Item)
        self._in_part = sampler.in_order or sampler.follows_episodes
        """Whether there may be rows, and fewer to draw than are asked for."""
        self._batch_size = batch_size
        self._device = torch.device(device)
        self._priority_key = priority_key
        self._prioritized = sampler.keeps_priorities
        self._dtypes: dict[tuple[str, ...], torch.dtype] | None = None
        """Of all leaves, as they were given."""
        self._item_dims = torch.Size()
        """Batch dimensions that are within an item."""
        self._cursor = 0
        self._seen: Any = None
        """The state that the cursor is of: another one may have been written to elsewhere."""
        self._write_count = 0
        self._ready = False
        self._iterator: Iterator[TensorDictBase] | None = None
        self._transforms: list[Any] = []
        if transform is not None:
            self.append_transform(transform)

    # Writing.

    def add(self, data: TensorDictBase) -> int:
        """Add one item, a TensorDict without a batch dimension.

        Args:
            data: The item.

        Returns:
            The slot of the item; -1 if a transform keeps it back.

        Raises:
            InteropError: As `extend`.
        """
        if self._num_envs is not None:
            raise InteropError(
                f"{_NAME}.add: one item is a step of one environment, but this buffer has "
                f"{self._num_envs} environments; give extend() one step of all, [{self._num_envs}]"
            )
        _check_tensordict("add", data)
        slots = self.extend(data.unsqueeze(0))
        return int(slots[0]) if len(slots) else -1

    def extend(self, data: Any) -> torch.Tensor:
        """Add a batch of items.

        Args:
            data: A TensorDict whose first batch dimension counts the items, `B`; with environments
                see `num_envs`. The priority key, if it is there, holds the priorities of the items,
                `[B]` or `[B, 1]`, and is stored like all other keys. Without it the items get the
                sampler's default.

        Returns:
            int64 of those dimensions: the slots of the items.

        Raises:
            InteropError: If `data` is not a TensorDict, has no batch dimension, or has a leaf that
                cannot be stored: it requires grad, is not a tensor, or differs from the first call.
            RuntimeError: If the buffer is closed.
        """
        _check_tensordict("extend", data)
        for transform in reversed(self._transforms):
            data = transform.inv(data) if hasattr(transform, "inv") else data
            if data is None:  # it keeps them back
                return torch.zeros(0, dtype=torch.int64)
        if not data.batch_dims:
            raise InteropError(
                f"{_NAME}.extend: data has no batch dimension; give extend() a batch, or add() "
                "one item"
            )
        given = data.batch_size
        if self._num_envs is not None and data.batch_dims == 1:
            data = data.unsqueeze(1)
        lead = data.batch_size[: 1 if self._num_envs is None else 2]
        count = lead.numel()
        if count == 0:
            return torch.zeros(given[: len(lead)], dtype=torch.int64)
        leaves = self._leaves(data)
        priority = None
        if self._prioritized and (found := data.get(self._priority_key, None)) is not None:
            priority = found.detach().reshape(*lead, -1).amax(-1).float()
        with self.buffer.lock:
            alpha = None if priority is None else self.alpha
            items = _nested(_words(leaves) if self._plain_items else leaves)
            self._sync()
            self.buffer.extend(items, priority=priority, alpha=alpha, **_ends(data, lead))
            self._dtypes = self._dtypes or {key: leaf.dtype for key, leaf in leaves.items()}
            self._item_dims = data.batch_size[len(lead) :]
            # One step of all environments lies side by side.
            places = torch.arange(count).reshape(lead[::-1]).movedim(0, -1)
            slots = (self._cursor + places) % self._capacity
            self._cursor = (self._cursor + count) % self._capacity
            self._seen = self.buffer.state
            self._write_count += count
        return slots.reshape(given[: len(lead)])

    def update_priority(self, index: Any, priority: Any) -> None:
        """Give rows new priorities, by slot.

        A slot does not say which row was in it when it was drawn. `update_tensordict_priority`
        knows, and ignores rows that were replaced since.

        Args:
            index: Slots: integers `[B]`, or one. Negative ones are ignored.
            priority: Numbers of at least 0: one for each slot, or one for all.

        Raises:
            InteropError: If JAX cannot take a tensor.
            ValueError: If the sampler keeps no priorities.
            RuntimeError: If nothing has been added yet, or the buffer is closed.
        """
        slots = torch.as_tensor(index, dtype=torch.int64).reshape(-1).cpu()
        slots = torch.where((slots >= 0) & (slots < self._capacity), slots, -1).int()
        with self.buffer.lock:
            ids = fbuf.ids_at(self.buffer.state, slots.numpy())
            self._update(ids, torch.as_tensor(priority).detach().float().reshape(-1), len(slots))

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Give drawn rows the priorities that `data` holds under the priority key.

        Rows that were replaced since are ignored. If the sampler keeps no priorities, nothing
        happens, as in TorchRL.

        Args:
            data: A batch from `sample`, or part of one. If a row has several numbers, the largest
                counts.

        Raises:
            InteropError: If it lacks the priority key, or the keys that `sample` added.
            RuntimeError: As `update_priority`.
        """
        if not self._prioritized:
            return
        found = {key: data.get(key, None) for key in (self._priority_key, *_OURS[:2])}
        for key, value in found.items():
            if value is None:
                raise InteropError(
                    f"{_NAME}.update_tensordict_priority: data has no {key!r}; "
                    + (
                        "write the priorities there, or name their key with priority_key"
                        if key == self._priority_key
                        else "give it what sample() returned"
                    )
                )
        priority, slots, generations = found.values()
        count = slots.shape[0] if slots.ndim else 1
        slots, generations = (x.reshape(count, -1)[:, 0] for x in (slots, generations))
        ids: Any = fbuf.Ids(slots, generations)
        self._update(ids, priority.detach().float().reshape(count, -1).amax(1), count)

    def empty(self) -> None:
        """Remove all rows."""
        with self.buffer.lock:
            self.buffer.empty()
            self._write_count, self._ready = 0, False

    # Reading.

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch.

        Args:
            batch_size: `B`; None is that of the buffer.
            return_info: Whether to return `"index"` and the weights once more, in a dict.

        Returns:
            A TensorDict of batch size `[B]`: what you stored, under the same keys and in the same
            dtypes, `"index"` (int64 slots), `"index_generation"`, and with priorities `"_weight"`
            and `"priority_weight"` (the same float32 tensor `[B]` under the two names that
            TorchRL's losses use). With `return_info`, that and a dict of the added keys.

        Raises:
            ValueError: As `fbuf_adapters.pytorch.ReplayBuffer.sample`.
            RuntimeError: As there. Also if there is nothing to draw yet.
        """
        self._check_ready()
        batch: Any = self.buffer.sample(batch_size, beta=self.beta if self._prioritized else None)
        if not return_info:
            return batch
        return batch, {key: batch[key] for key in _OURS if key in batch.keys()}  # noqa: SIM118

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Return batches without end; with `fbuf.Shuffled`, those of one epoch."""
        self._check_ready()
        return cast("Iterator[TensorDictBase]", iter(self.buffer))

    def next(self) -> TensorDictBase | None:
        """Return the next batch of one iteration; None when it has ended."""
        if self._iterator is None:
            self._iterator = iter(self)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    def __len__(self) -> int:
        """Count the rows, without removed ones."""
        return len(self.buffer)

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether there is a row to draw; `batch_size` does not matter."""
        return self.buffer.can_sample()

    def stats(self) -> dict[str, float]:
        """Return figures for a log; see `fbuf.stats`."""
        return {**self.buffer.stats(), "write_count": self._write_count}

    @property
    def batch_size(self) -> int | None:
        """The batch size given to the constructor."""
        return self._batch_size

    @property
    def write_count(self) -> int:
        """How many items have been added, replaced ones included."""
        return self._write_count

    # Transforms.

    def append_transform(self, transform: Any) -> TensorDictReplayBuffer:
        """Call one more transform with every batch, after the others."""
        return self.insert_transform(len(self._transforms), transform)

    def insert_transform(self, index: int, transform: Any) -> TensorDictReplayBuffer:
        """Call one more transform with every batch, at this place among the others."""
        if hasattr(transform, "eval"):
            transform.eval()
        self._transforms.insert(index, transform)
        return self

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Return all that future calls depend on; see `ReplayBuffer.state_dict`.

        It includes the `state_dict` of every transform that has one.
        """
        with self.buffer.lock:
            buffer = self.buffer.state_dict()
            # torch.load knows dicts, and no TensorDicts.
            buffer["ahead"] = [(list(b.batch_size), b.to_dict()) for b in buffer["ahead"]]
            return {
                "buffer": buffer,
                "dtypes": dict(self._dtypes or {}),
                "item_dims": list(self._item_dims),
                "alpha": self.alpha,
                "beta": self.beta,
                "write_count": self._write_count,
                "transforms": [
                    copy.deepcopy(t.state_dict()) if hasattr(t, "state_dict") else None
                    for t in self._transforms
                ],
            }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was called; see `ReplayBuffer.load_state_dict`."""
        with self.buffer.lock:
            saved = state_dict["transforms"]
            if len(saved) != len(self._transforms):
                raise ValueError(
                    f"{_NAME}.load_state_dict: state_dict has {len(saved)} transforms, but this "
                    f"buffer has {len(self._transforms)}; append the same transforms first"
                )
            buffer = dict(state_dict["buffer"])
            buffer["ahead"] = [
                TensorDict(batch, batch_size=size, device=self._device)
                for size, batch in buffer["ahead"]
            ]
            self.buffer.load_state_dict(buffer)
            for transform, state in zip(self._transforms, saved, strict=True):
                if state is not None:
                    transform.load_state_dict(state)
            self._dtypes = dict(state_dict["dtypes"]) or None
            self._item_dims = torch.Size(state_dict["item_dims"])
            self.alpha, self.beta = state_dict["alpha"], state_dict["beta"]
            self._write_count, self._ready = state_dict["write_count"], False

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the buffer in a folder, and make the folder if need be; whole, or not at all."""
        folder = pathlib.Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "buffer.part"
        try:
            with open(part, "wb") as file:
                torch.save(self.state_dict(), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, folder / "buffer.pt")
        finally:
            part.unlink(missing_ok=True)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Go on where `dumps` was called."""
        self.load_state_dict(torch.load(pathlib.Path(path) / "buffer.pt"))

    def close(self) -> None:
        """Free the memory; see `ReplayBuffer.close`."""
        self.buffer.close()

    # The rest is not for users.

    def _leaves(self, data: TensorDictBase) -> dict[tuple[str, ...], torch.Tensor]:
        """What is to be stored, by key, in a form that JAX has."""
        leaves: dict[tuple[str, ...], torch.Tensor] = {}
        for key, leaf in data.contiguous().items(True, True, is_leaf=is_leaf_nontensor):
            path = key if isinstance(key, tuple) else (key,)
            if path[0] in _OURS:
                continue
            known = (self._dtypes or {}).get(path)
            wrong = None
            if not isinstance(leaf, torch.Tensor):
                wrong = "is no tensor; leave it out"
            elif leaf.requires_grad:
                wrong = "requires grad, which JAX does not track; use .detach()"
            elif known not in (None, leaf.dtype):
                wrong = f"is {leaf.dtype}, but was {known} in the first call; use .to({known})"
            if wrong is not None:
                raise InteropError(f"{_NAME}.extend: data[{key!r}] {wrong}")
            leaves[path] = leaf
        return leaves

    def _update(self, ids: Any, priority: torch.Tensor, count: int) -> None:
        with self.buffer.lock:
            known = self._dtypes is not None and self.buffer.state is self._seen
            self.buffer.update_priority(ids, priority.expand(count), alpha=self.alpha)
            if known:
                self._seen = self.buffer.state

    def _sync(self) -> None:
        """Read where the next row goes, if it was not written here what was written last."""
        if self._dtypes is not None and self.buffer.state is not self._seen:
            self._cursor = int(self.buffer.state.ring.head[0])

    def _check_ready(self) -> None:
        """Raise as long as there is nothing to draw: without a window, later there always is."""
        if not self._ready:
            self._ready = self.buffer.can_sample()
        if not self._ready:
            raise RuntimeError(_NOTHING)

    def _assemble(self, sample: Any) -> TensorDictBase:
        """A batch as TorchRL has it."""
        assert self._dtypes is not None
        data, dims = _plain(sample.data), self._item_dims
        if dataclasses.is_dataclass(sample.data):  # of a view that returns more than the item
            data["item"], dims = _restored(data["item"], self._dtypes), torch.Size()
        else:
            data = _restored(data, self._dtypes)
            dims = dims if self._plain_items else torch.Size()
        size = torch.Size([*sample.mask.shape, *dims])
        batch: Any = TensorDict(data, batch_size=size, device=self._device)
        told = [sample.ids.slot.long(), sample.ids.generation.long(), sample.weight]
        if self._in_part and not bool(sample.mask.all()):  # a short batch, as in TorchRL
            batch, told = batch[sample.mask], [x[sample.mask] for x in told]
            if not len(batch):
                raise RuntimeError(_NOTHING)
        for transform in self._transforms:
            batch = transform(batch)
        told = [x.reshape(-1, *[1] * len(dims)).expand(-1, *dims) for x in told]
        batch.set("index", told[0])
        batch.set("index_generation", told[1])
        if self._prioritized:
            for key in _OURS[2:]:
                batch.set(key, told[2])
        return batch


def _check_tensordict(function: str, data: Any) -> None:
    if not isinstance(data, TensorDictBase):
        raise InteropError(f"{_NAME}.{function}: data must be a TensorDict, got {type(data)}")


def _words(leaves: dict[tuple[str, ...], torch.Tensor]) -> dict[tuple[str, ...], torch.Tensor]:
    """Floats of 64 bits as pairs of 32, so that they come back as they were."""
    return {
        key: leaf.contiguous().unsqueeze(-1).view(torch.int32) if leaf.dtype in _WIDE else leaf
        for key, leaf in leaves.items()
    }


def _nested(leaves: dict[tuple[str, ...], torch.Tensor]) -> dict[str, Any]:
    """Dicts in dicts, of what has keys of several parts."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = leaf
    return tree


def _ends(data: TensorDictBase, lead: torch.Size) -> dict[str, Any]:
    """What is told of where episodes end, as far as it is one flag a row."""
    keys = {"terminated": ("next", "terminated"), "truncated": ("next", "truncated")}
    found = {name: data.get(key, None) for name, key in keys.items()}
    if all(flag is None for flag in found.values()):
        found = {"terminated": data.get(("next", "done"), None)}
    return {
        name: flag.reshape(lead)
        for name, flag in found.items()
        if flag is not None and flag.numel() == lead.numel()
    }


def _plain(node: Any) -> Any:
    """What a view returned as dicts in dicts: of its dataclasses, the fields that are there."""
    if dataclasses.is_dataclass(node):
        node = {f.name: getattr(node, f.name) for f in dataclasses.fields(node)}
    if isinstance(node, dict):
        parts = cast("dict[str, Any]", node).items()
        return {key: _plain(value) for key, value in parts if value is not None}
    return node


def _restored(node: Any, dtypes: dict[tuple[str, ...], torch.dtype], path: Any = ()) -> Any:
    """The leaves of an item in the dtypes they were given in."""
    if isinstance(node, dict):
        parts = cast("dict[str, Any]", node).items()
        return {key: _restored(value, dtypes, (*path, key)) for key, value in parts}
    dtype = dtypes.get(path, node.dtype)  # a view may have been told to leave others out
    if dtype == node.dtype:
        return node
    return node.view(dtype).squeeze(-1) if dtype in _WIDE else node.to(dtype)
