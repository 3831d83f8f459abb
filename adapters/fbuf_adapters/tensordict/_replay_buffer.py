"""The replay buffer of TensorDicts."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal, NoReturn, cast

import torch
from tensordict import TensorDict, TensorDictBase

import fbuf
from fbuf.checks import values as check
from fbuf.host import HostStore
from fbuf.ops.resume import Episodes
from fbuf.runtime import fixed_arguments, processes
from fbuf.samplers import Sampler
from fbuf.storage.episodes import Autoreset
from fbuf.views import View
from fbuf_adapters.pytorch import InteropError, ReplayBuffer, _listed
from fbuf_adapters.pytorch._sizes import next_step
from fbuf_adapters.pytorch._unpack import free
from fbuf_adapters.tensordict import _leaves, _slices, _transforms
from fbuf_adapters.tensordict._ends import Ends
from fbuf_adapters.tensordict._leaves import Form

_NAME = "fbuf_adapters.tensordict.TensorDictReplayBuffer"

_NOTHING = (
    f"{_NAME}.sample: there is nothing to draw: the buffer is empty, or no episode is as long as "
    "the sampler's window, or all priorities are 0; add rows, or ask can_sample() first"
)

_PLAIN = torch.contiguous_format

Key = str | tuple[str, ...]


class _NothingToDraw(RuntimeError):
    """To tell it from other errors; users see a RuntimeError."""


@fixed_arguments.arguments()
class TensorDictReplayBuffer:
    """A replay buffer for TorchRL programs: change the constructor, and nothing else.

    It has the methods of `torchrl.data.TensorDictReplayBuffer`, and takes and returns the same
    keys; `from_torchrl` makes one of a buffer of TorchRL's. What is better: draws are exact at any
    size, slices cost the same however much is stored, updates of priorities take O(B log N), an
    update for a row that was overwritten is ignored, and the same seed gives the same batches. What
    is different:

    - All rows have the same keys, shapes and dtypes. A row that differs is an error.
    - `int64` is stored in 32 bits and comes back as int64. A number that needs more bits is an
      error. `float64` keeps all its bits.
    - Weights are divided by the largest in the batch, where TorchRL divides by the largest in the
      buffer. For that, use `fbuf.Prioritized(normalize="buffer")`.
    - A sampler cannot be changed. Set `alpha` and `beta` of the buffer instead.
    - Rows are read by `rb[3]`, and cannot be written so.
    - It stays in one process. `multiprocessing` refuses to send it, for the other process would
      have a copy. `pickle`, `torch.save` and `copy.deepcopy` make a copy, as they say.

    **Where episodes end** matters to samplers with a window and to all views but `fbuf.Item`. An
    episode ends where a flag of `end_keys` says so, where the id of `traj_key` changes, and before
    a row that `init_key` marks as the first of an episode; the latter two also from one call to the
    next. `end_episode` ends what nothing in the rows does. What cannot be read is an error, and so
    are rows of several environments in turn: for these use `num_envs`. `done` where `terminated` is
    False is a truncation; where there is no `terminated`, it terminates.

    **Slices.** A sampler with a window and `view=fbuf.Sequence(L)` draw slices of `L` steps of one
    episode, and a batch is laid out as that of TorchRL's `SliceSampler`: its rows are the steps,
    slice by slice, with your keys. The last step of each slice is marked in `truncated_key`, and in
    `done` beside it; `terminated` stays as stored. With `fbuf.Sequence(L, boundary="pad")` slices
    may be shorter.

    Args:
        capacity: As for `fbuf.init`.
        num_envs: As for `fbuf.init`. TensorDicts are then `[num_envs]` for one step, or `[num_envs,
            T]`, as collectors return them.
        autoreset: As for `fbuf.init`. With `"next_step"`, ids and beginnings are not read.
        sampler: As for `fbuf.init`.
        view: What a drawn row turns into. The fields of the view's result become keys, but for
            slices, see above. Views other than `fbuf.Item` and `fbuf.Sequence` refuse 64-bit
            floats.
        slices: How a batch of slices is laid out. `"flat"`: `[rows]`, and fewer rows than asked
            for if a slice is shorter. `"padded"`: `[rows]`; short slices are padded with their last
            step, and `("collector", "mask")`, bool `[rows]`, is False there. `"nested"`: `[slices,
            L]`, the steps under `"item"`, beside the other fields of `fbuf.SequenceSteps`;
            `batch_size` then counts slices.
        traj_key: The key of the number that tells episodes apart, `[B]` or `[B, 1]`. None looks
            for `("collector", "traj_ids")` and `"episode"`, and does without; False does without.
        end_keys: The keys of the flags that end episodes, such as `("next", "done")`. None are
            those of `("next", "terminated")`, `("next", "truncated")` and `("next", "done")` that
            are there. `()` are none.
        truncated_key: Where the last steps of slices are marked; None marks nothing.
        init_key: The key of the flags that mark first steps of episodes, `[B]` or `[B, 1]`, as
            TorchRL's `InitTracker` stores them: the row before such a one ends its episode. There
            the first steps of slices are marked, too, if you store this key. None does neither.
        batch_size: For iteration, and for `sample()` without a `batch_size`. Of slices it counts
            the rows, and `L` must divide it.
        priority_key: The key where `extend` and `update_tensordict_priority` look for priorities.
        transform: A TorchRL transform, or a function of a TensorDict. The buffer calls it with
            every batch, and calls its `inv`, if it has one, with everything that you write.
        device: As for `fbuf_adapters.pytorch.ReplayBuffer`. The same holds for the arguments below.
        seed: See there.
        pin_memory: See there.
        to: See there.
        prefetch: See there.
        drop_last: See there.
        host: See there. In files it is what `LazyMemmapStorage` is in TorchRL.

    Raises:
        ValueError: As `ReplayBuffer`. Also if `slices` or `batch_size` does not fit the view, or
            if `traj_key` is given with `autoreset="next_step"`.

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
        >>> rb[2]["obs"]
        tensor([1., 1., 1.])
    """

    def __init__(
        self,
        capacity: int,
        *,
        num_envs: int | None = None,
        autoreset: Autoreset = "same_step",
        sampler: Sampler = fbuf.Uniform(),
        view: View = fbuf.Item(),
        slices: Literal["flat", "padded", "nested"] = "flat",
        traj_key: Key | Literal[False] | None = None,
        end_keys: Sequence[Key] | None = None,
        truncated_key: Key | None = ("next", "truncated"),
        init_key: Key | None = "is_init",
        batch_size: int | None = None,
        priority_key: Key = "td_error",
        transform: Callable[[Any], Any] | None = None,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        pin_memory: bool = False,
        to: torch.device | str | None = None,
        prefetch: int = 0,
        drop_last: bool = False,
        host: bool | str | os.PathLike[str] | HostStore[Any] = False,
    ) -> None:
        self._made_with = {k: v for k, v in locals().items() if k not in ("self", "transform")}
        self._layout = _slices.layout_of(
            f"{_NAME}.__init__",
            view,
            slices,
            num_envs or 1,
            capacity,
            None if truncated_key is None else _leaves.path_of(truncated_key),
            None if init_key is None else _leaves.path_of(init_key),
        )
        self._batch_size = batch_size
        # What may raise comes before the buffer, which a HostStore is given to for good.
        check.instance("TensorDictReplayBuffer", "sampler", sampler, Sampler, "fbuf.Uniform()")
        self._ends = _ends_of(traj_key, end_keys, init_key, num_envs, autoreset, sampler, view)
        self._form = _leaves.form_of(host.item) if isinstance(host, HostStore) else None
        self.buffer = ReplayBuffer(
            capacity,
            num_envs=num_envs,
            autoreset=autoreset,
            sampler=sampler,
            view=view,
            batch_size=self._draws("__init__", batch_size),
            device=device,
            seed=seed,
            transform=self._assemble,
            pin_memory=pin_memory,
            to=to,
            prefetch=prefetch,
            drop_last=drop_last,
            host=host,
        )
        self._made_with["seed"] = self.buffer.seed  # a copy draws none from the generator
        # What runs JAX here, in which an exception would do harm, is run as there: the two
        # classes are one package, and users have no need of it.
        self._calls = self.buffer._calls  # pyright: ignore[reportPrivateUsage]
        self.alpha: float | None = None
        self.beta: float | None = None
        self._capacity = capacity
        self._num_envs = num_envs
        self._view, self._sampler = view, sampler
        # With the number of the GPU, as its tensors have it.
        self._device = torch.empty(0, device=device).device
        self._priority_key = priority_key
        self._prioritized = sampler.keeps_priorities
        self._looks = self._device.type == "cpu" or _may_lack_rows(sampler, view)
        """Whether to look at each batch for rows that were not drawn; on a GPU it has to wait."""
        self._cursor = 0
        self._seen: Any = None
        """The stamp of the state that the cursor is of: another may have been written elsewhere."""
        self._write_count = 0
        self._ready = False
        self._iterator: Iterator[TensorDictBase] | None = None
        self._next_lock = threading.Lock()
        self._transforms: tuple[Any, ...] = ()
        """Never changed in place: another thread may be going through them."""
        if transform is not None:
            self.append_transform(transform)

    # Writing.

    def add(self, data: Any) -> int:
        """Add one item, a TensorDict or dict without a batch dimension.

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
        data = _tensordict("add", data, 0)
        if self._form is not None and data.batch_dims > len(self._form.dims):
            raise InteropError(
                f"{_NAME}.add: data has the batch size {list(data.batch_size)}, and items have "
                f"{list(self._form.dims)}: this looks like a batch; use extend()"
            )
        slots = self.extend(data.unsqueeze(0))
        return int(slots[0]) if len(slots) else -1

    def extend(self, data: Any, *, update_priority: bool | None = None) -> torch.Tensor:
        """Add a batch of items.

        Args:
            data: A TensorDict whose first batch dimension counts the items, `B`; with environments
                see `num_envs`. A dict will do, of tensors that begin with these dimensions; and so
                will a list of items, or of steps `[num_envs]`, which are stacked. The
                priority key, if it is there, holds the priorities of the items, `[B]` or `[B, 1]`,
                and is stored like all other keys. Without it the items get the sampler's default.
            update_priority: False gives the items the sampler's default all the same.

        Returns:
            int64 of those dimensions: the slots of the items.

        Raises:
            InteropError: If `data` is not a TensorDict, has no batch dimension, or has a leaf that
                cannot be stored: it requires grad, is not a tensor, or differs from the first call.
                Also if the sampler or the view follows episodes, and where they end cannot be read
                (see above). The rows are then as before.
            RuntimeError: If the buffer is closed.
        """
        dims = 1 if self._num_envs is None else 2
        if type(data) is list:
            data = _stacked(data, dims)
        data = _tensordict("extend", data, dims)
        for transform in reversed(self._transforms):
            data = _transforms.inverse(transform, data)
            if data is None:  # it keeps them back
                return torch.zeros(0, dtype=torch.int64)
        return self._extend(data, update_priority is not False)

    def update_priority(self, index: Any, priority: Any) -> None:
        """Give rows new priorities, by slot.

        A slot does not say which row was in it when it was drawn. `update_tensordict_priority`
        knows, and ignores rows that were replaced since. If the sampler keeps no priorities,
        nothing happens, as in TorchRL.

        Args:
            index: Slots: integers `[B]`, or one. Negative ones are ignored, and none do nothing.
            priority: Numbers of at least 0: one for each slot, or one for all.

        Raises:
            InteropError: If JAX cannot take a tensor.
            TypeError: If `index` are no integers.
            RuntimeError: If nothing has been added yet, or the buffer is closed.
        """
        if not self._prioritized:
            return
        slots = torch.as_tensor(index)
        if slots.numel() and (slots.is_floating_point() or slots.dtype == torch.bool):
            raise TypeError(
                f"{_NAME}.update_priority: index must be integers, got {slots.dtype}; for a mask "
                "give mask.nonzero()[:, 0]"
            )
        slots = slots.long().reshape(-1).cpu()
        slots = torch.where((slots >= 0) & (slots < self._capacity), slots, -1).int()
        count = len(slots)
        if count == 0:
            return
        # A program is compiled for each number of slots: a few numbers serve all.
        more = (0, next_step(count) - count)
        slots = torch.nn.functional.pad(slots, more, value=-1)
        given = torch.as_tensor(priority).detach().float().reshape(-1).expand(count)
        with self.buffer.lock:
            state = self.buffer.owner.state
            ids = self._calls((fbuf.ids_at, len(slots)), lambda: fbuf.ids_at(state, slots.numpy()))
            self._update(ids, torch.nn.functional.pad(given, more))

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Give drawn rows the priorities that `data` holds under the priority key.

        Rows that were replaced since are ignored. If the sampler keeps no priorities, nothing
        happens, as in TorchRL.

        Of slices laid out in rows, each row gets its own priority. A slice is drawn by the priority
        of the row that it begins with, so a row's priority says how likely slices are that begin
        there. Rows that only pad are passed over. If you reshape the batch to `[slices, L]`, the
        first row of each slice gets the largest priority of the slice.

        Args:
            data: A batch from `sample`, or part of one. If a row has several numbers, the largest
                counts.

        Raises:
            InteropError: If it lacks the priority key, or the keys that `sample` added.
            RuntimeError: As `update_priority`.
        """
        if not self._prioritized:
            return
        found: dict[Any, Any] = {
            key: data.get(key, None) for key in (self._priority_key, *_leaves.ADDED[:2])
        }
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
        if self._layout is not None and self._layout.padded:
            there: Any = data.get(_slices.MASK, None)
            if there is not None:  # what pads names the last step again, and must not change it
                slots = torch.where(there, slots, -1)
        count = slots.shape[0] if slots.ndim else 1
        if count == 0:
            return
        named: list[Any] = [slots, generations]
        if slots.ndim != 1:
            named = [x.reshape(count, -1)[:, 0] for x in named]
        # A call of PyTorch that changes nothing takes a microsecond all the same.
        if priority.requires_grad:
            priority = priority.detach()
        if priority.dtype != torch.float32:
            priority = priority.float()
        if priority.ndim != 1 or len(priority) != count:
            priority = priority.reshape(count, -1).amax(1)
        self._update(fbuf.Ids(*named), priority)

    def end_episode(self, mask: Any = None) -> None:
        """End the open episodes: call it when you reset your environments and no row says so.

        Before the first row there is no episode to end, and the call does nothing.

        Args:
            mask: Which environments, bool `[num_envs]`, or one bool; None is all.

        Raises:
            InteropError: If JAX cannot take `mask`.
            ValueError: If `mask` has another shape.
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        self.buffer.end_episode(mask)

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all rows.

        Args:
            empty_write_count: Whether `write_count` begins anew.
        """
        with self.buffer.lock:
            self.buffer.empty()
            self._ends.forget()
            self._ready = False
            if empty_write_count:
                self._write_count = 0

    # Drawing.

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch.

        Args:
            batch_size: `B`; None is that of the buffer. Of slices it counts the rows.
            return_info: Whether to return what `sample` adds once more, in a dict.

        Returns:
            A TensorDict of batch size `[B]`: what you stored, under the same keys and in the same
            dtypes, `"index"` (int64 slots), `"index_generation"` (int32), and with priorities
            `"_weight"` and `"priority_weight"` (the same float32 tensor `[B]` under the two names
            that TorchRL's losses use; of slices, all rows of one have its weight). With slices,
            also the keys that mark them. With `return_info`, that and a dict of the added keys.

        Raises:
            ValueError: As `fbuf_adapters.pytorch.ReplayBuffer.sample`. Also if slices of this
                length do not make up `batch_size` rows.
            RuntimeError: As there. Also if there is nothing to draw, or no more; and if a transform
                changed the number of rows.
        """
        size = self._draws("sample", batch_size)
        self._check_ready()
        try:
            batch: Any = self.buffer.sample(size, beta=self.beta if self._prioritized else None)
        except _NothingToDraw:
            with self.buffer.lock:  # what was drawn ahead since then is as empty
                self._ready = False
                self.buffer.drop_ahead()
            raise
        if not return_info:
            return batch
        told = {key: batch.get(key, None) for key in self._added()}
        return batch, {key: value for key, value in told.items() if value is not None}

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Return batches without end; with `fbuf.Shuffled`, those of one epoch."""
        self._check_ready()
        if self._sampler.without_replacement:
            yield from cast("Iterator[TensorDictBase]", iter(self.buffer))
            return
        while True:
            yield self.sample()

    def next(self) -> TensorDictBase | None:
        """Return the next batch of one iteration; None when it has ended. Any thread may call."""
        with self._next_lock:
            if self._iterator is None:
                self._iterator = iter(self)
            try:
                batch = next(self._iterator, None)
            except BaseException:  # it has ended by that, but the batches have not
                self._iterator = None
                raise
            if batch is None:
                self._iterator = None
            return batch

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether there is a row to draw; `batch_size` does not matter."""
        return self.buffer.can_sample()

    # Reading.

    def __len__(self) -> int:
        """Count the rows, without removed ones."""
        return len(self.buffer)

    def __getitem__(self, index: Any) -> Any:
        """Read rows by where they lie, as from TorchRL's: position 0 is slot 0, not the oldest row.

        Args:
            index: A position, a slice, or a list or tensor of positions or of bools, of the slots
                that hold rows, `[N]`; with environments, of `[num_envs, N]`. Or a key: `rb["obs"]`
                is `rb[:]["obs"]`.

        Returns:
            A TensorDict of the shape that the index gives, with `"index"`, the slots. Transforms
            are applied. Slices leave out removed rows if there are no environments.

        Raises:
            IndexError: If there is no such position, or the row there was removed.
            RuntimeError: If nothing has been added yet, or the buffer is closed.

        Cost: O(B), and O(N) if `index` is a tensor or there are environments.
        """
        if isinstance(index, str) or (
            isinstance(index, tuple) and index and all(isinstance(part, str) for part in index)
        ):
            return self[:][index]
        slots, data = self.buffer.read_at(f"{_NAME}.__getitem__:", index)
        return self._rows(data, slots)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        """Refuse: rows are added, and fields of them written."""
        raise TypeError(
            f"{_NAME}.__setitem__: rows cannot be written by position; add rows with extend(), or "
            "change fields with rb.buffer.write(ids, fields), where the ids of a batch are "
            "fbuf.Ids(batch['index'], batch['index_generation'])"
        )

    def episodes(self) -> Iterator[TensorDictBase]:
        """Go through the stored episodes, oldest first, and environment by environment.

        Yields:
            TensorDicts `[T]`: the stored steps of an episode, in order, transformed, with
            `"index"`. The oldest may lack its beginning, and the newest of each environment its
            end. A removed row splits an episode in two. An episode that is overwritten before its
            turn is left out.

        Raises:
            RuntimeError: If nothing has been added yet, or the buffer is closed.

        Cost: O(N) at first, and then O(T) each.
        """
        return self._episodes()  # what yields, torch.compile would look into

    def _episodes(self) -> Iterator[TensorDictBase]:
        for slots, data in self.buffer.read_episodes():
            yield self._rows(data, slots)

    def stats(self, *, detailed: bool = False) -> dict[str, float]:
        """Return figures for a log: those of `fbuf.stats`, `write_count` and `utilization`.

        Args:
            detailed: Also return what takes a look at every row.
        """
        figures = self.buffer.stats(detailed=detailed)
        share = figures["size"] / self._capacity
        return {**figures, "write_count": self._write_count, "utilization": share}

    @property
    def capacity(self) -> int:
        """How many rows the buffer can hold."""
        return self._capacity

    @property
    def batch_size(self) -> int | None:
        """The batch size given to the constructor."""
        return self._batch_size

    @property
    def write_count(self) -> int:
        """How many items have been added, replaced ones included."""
        return self._write_count

    def __repr__(self) -> str:
        """One line: what is in it, and what it returns."""
        try:
            held = f"{len(self.buffer)} of {self._capacity} rows"
        except RuntimeError:
            held = "closed or consumed"
        envs = "" if self._num_envs is None else f", {self._num_envs} environments"
        return (
            f"TensorDictReplayBuffer({held}{envs}, sampler={self._sampler}, view={self._view}, "
            f"batch_size={self._batch_size}, seed={self.buffer.seed})"
        )

    # Transforms.

    def append_transform(self, transform: Any, *, invert: bool = False) -> TensorDictReplayBuffer:
        """Call one more transform with every batch, after the others.

        It holds for all that `sample` returns from now on: batches drawn ahead are made anew.

        Args:
            transform: As for the constructor.
            invert: Call it with what you write, and its inverse with batches.

        Returns:
            The buffer.
        """
        return self.insert_transform(len(self._transforms), transform, invert=invert)

    def insert_transform(
        self, index: int, transform: Any, *, invert: bool = False
    ) -> TensorDictReplayBuffer:
        """Call one more transform with every batch, at this place among the others.

        Args:
            index: From 0 to the number of transforms; negative ones count from the end.
            transform: As for `append_transform`.
            invert: As for `append_transform`.

        Returns:
            The buffer.

        Raises:
            ValueError: If there is no such place.
        """
        transform = _transforms.prepared(transform, invert)
        with self.buffer.lock:
            count = len(self._transforms)
            if not -count <= index <= count:
                raise ValueError(
                    f"{_NAME}.insert_transform: index must be from {-count} to {count}, because "
                    f"there are {count} transforms, got {index}; use append_transform for the end"
                )
            here, behind = self._transforms[:index], self._transforms[index:]
            self._transforms = (*here, transform, *behind)
            self.buffer.drop_ahead()
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
            return {"buffer": buffer, **self._beside()}

    def _beside(self) -> dict[str, Any]:
        """What future calls depend on beside the buffer behind this one."""
        return {
            "dtypes": dict(self._form.dtypes) if self._form else {},
            "item_dims": list(self._form.dims) if self._form else [],
            "alpha": self.alpha,
            "beta": self.beta,
            "write_count": self._write_count,
            "transforms": [
                copy.deepcopy(t.state_dict()) if hasattr(t, "state_dict") else None
                for t in self._transforms
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any], *, episodes: Episodes = "end") -> None:
        """Go on where `state_dict` was called; see `ReplayBuffer.load_state_dict`.

        Args:
            state_dict: What `state_dict()` returned.
            episodes: See there: `"end"` ends the open episodes, also where ids tell them apart.

        Raises:
            ValueError: See there. Also if the buffer has another number of transforms.
        """
        with self.buffer.lock, contextlib.ExitStack() as stack:
            self._check_transforms("load_state_dict", state_dict)
            buffer = dict(state_dict["buffer"])
            buffer["ahead"] = [
                TensorDict(batch, batch_size=size, device=self._device)
                for size, batch in buffer["ahead"]
            ]
            resume = lambda: stack.enter_context(self._resumed(state_dict))
            self.buffer.load_state_checked(buffer, episodes, resume)

    def _check_transforms(self, function: str, saved: dict[str, Any]) -> None:
        """Raise if there are others than there were."""
        count = len(saved["transforms"])
        if count != len(self._transforms):
            raise ValueError(
                f"{_NAME}.{function}: state_dict has {count} transforms, but this "
                f"buffer has {len(self._transforms)}; append the same transforms first"
            )

    @contextlib.contextmanager
    def _resumed(self, saved: dict[str, Any]) -> Generator[None]:
        """Take over what `_beside` has said, if the block loads the rows; else nothing."""
        before = self._beside()["transforms"]
        try:
            _load_transforms(self._transforms, saved["transforms"])
            yield
        except BaseException:
            _load_transforms(self._transforms, before)
            raise
        dtypes = dict(saved["dtypes"])
        self.__dict__.update(  # one instruction: an exception comes before all of it, or after
            _form=Form(dtypes, torch.Size(saved["item_dims"])) if dtypes else None,
            alpha=saved["alpha"],
            beta=saved["beta"],
            _write_count=saved["write_count"],
            _ready=False,
            _seen=None,  # and so the episodes are looked up when rows are added
        )

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the buffer to a directory, as `fbuf.save` does; see `ReplayBuffer.save`."""
        with self.buffer.lock:
            self.buffer.save(path, extra={"tensordict": self._beside()})

    def loads(self, path: str | os.PathLike[str], *, episodes: Episodes = "end") -> None:
        """Go on where `dumps` was called; see `ReplayBuffer.load`.

        Args:
            path: The directory.
            episodes: As for `load_state_dict`.

        Raises:
            fbuf.CheckpointError: See there. Also if another kind of buffer was saved there.
            ValueError: As `load_state_dict`.
        """
        with self.buffer.lock, contextlib.ExitStack() as stack:

            def check(extra: Any) -> None:
                if not isinstance(extra, dict) or "tensordict" not in extra:
                    raise fbuf.CheckpointError(
                        f"{_NAME}.loads: {os.fspath(path)!r} was saved by another kind of buffer"
                    )
                self._check_transforms("loads", extra["tensordict"])
                stack.enter_context(self._resumed(extra["tensordict"]))

            self.buffer.load_checked(path, False, episodes, check)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Another name of `dumps`, as in TorchRL."""
        self.dumps(path)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Another name of `dumps`, as in TorchRL."""
        self.dumps(path)

    def load(self, path: str | os.PathLike[str], *, episodes: Episodes = "end") -> None:
        """Another name of `loads`, as in TorchRL."""
        self.loads(path, episodes=episodes)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        processes.stays(cls)

    def __getstate__(self) -> dict[str, Any]:
        """Return what `pickle` and `copy.deepcopy` need: the arguments, transforms and contents.

        Raises:
            TypeError: If it is to be sent to another process by `multiprocessing`.
        """
        processes.check_stays(self)
        saved = io.BytesIO()  # pickle itself cannot read tensors of unsigned integers back
        with self.buffer.lock:
            torch.save(self.state_dict(), saved)
            transforms = self._transforms
        return {
            "made_with": self._made_with,
            "transforms": transforms,
            "state": saved.getvalue(),
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        """Make the same buffer, with memory of its own; as one that is loaded, it ends episodes."""
        self._become(saved, "end")

    def __copy__(self) -> TensorDictReplayBuffer:
        """The same buffer once more, in the midst of the same episodes."""
        other = type(self).__new__(type(self))
        other._become(self.__getstate__(), "keep")
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorDictReplayBuffer:
        """The same, with transforms of its own."""
        other = memo[id(self)] = type(self).__new__(type(self))
        other._become(copy.deepcopy(self.__getstate__(), memo), "keep")
        return other

    def _become(self, saved: dict[str, Any], episodes: Episodes) -> None:
        self.__init__(**saved["made_with"])
        self._transforms = saved["transforms"]
        self.load_state_dict(torch.load(io.BytesIO(saved["state"])), episodes=episodes)

    def __getattr__(self, name: str) -> NoReturn:
        """Say what to do instead of what TorchRL's collectors of several processes ask for."""
        if name in ("_storage", "share"):
            raise AttributeError(
                f"{_NAME} has no {name!r}: its rows lie in one process, and cannot be shared with "
                "the workers of a collector of several processes, such as MultiSyncCollector. Make "
                "the collector without replay_buffer, and add what it yields: `for data in "
                "collector: rb.extend(data)`. A Collector of one process takes replay_buffer=rb"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def close(self) -> None:
        """Free the memory; see `ReplayBuffer.close`."""
        self.buffer.close()

    # The rest is not for users.

    def _extend(
        self, data: TensorDictBase, take_priority: bool, check_order: bool = True
    ) -> torch.Tensor:
        """Add rows as the transforms have left them."""
        where = f"{_NAME}.extend"
        if not data.batch_dims:
            raise InteropError(
                f"{where}: data has no batch dimension; give extend() a batch, or add() one item"
            )
        given = data.batch_size
        if self._num_envs is not None and data.batch_dims == 1:
            data = data.unsqueeze(1)
        lead = data.batch_size[: 1 if self._num_envs is None else 2]
        count = lead.numel()
        if count == 0:
            return torch.zeros(given[: len(lead)], dtype=torch.int64)
        leaves = _leaves.leaves_of(where, data, self._form)
        priority = None
        if self._prioritized and take_priority:
            found: Any = data.get(self._priority_key, None)
            if found is not None:
                priority = found.detach().reshape(*lead, -1).amax(-1).float()
        with self.buffer.lock:
            self._sync()
            ends = self._ends.read(where, leaves, lead, check_order)
            items = _leaves.words(leaves) if _leaves.moves_bits(self._view) else leaves
            if ends.before is not None:
                # If the rows cannot be added after all, an episode has been cut, and no more.
                self.buffer.end_episode(ends.before)
            form = self._form or Form(
                {key: leaf.dtype for key, leaf in leaves.items()}, data.batch_size[len(lead) :]
            )
            self._form, known = form, self._form
            try:
                self.buffer.extend(
                    _leaves.nested(items),
                    priority=priority,
                    alpha=None if priority is None else self.alpha,
                    terminated=ends.terminated,
                    truncated=ends.truncated,
                )
            except BaseException:  # an interrupt may come when the rows are there
                if known is None and len(self.buffer) == 0:
                    self._form = None
                raise
            self._ends.keep(ends)
            slots = torch.arange(self._cursor, self._cursor + count)
            if self._num_envs is not None:  # one step of all environments lies side by side
                slots = slots.reshape(lead[::-1]).movedim(0, -1)
            if self._cursor + count > self._capacity:
                slots %= self._capacity
            self._cursor = (self._cursor + count) % self._capacity
            self._seen = self.buffer.stamp
            self._write_count += count
        return slots.reshape(given[: len(lead)])

    def _draws(self, function: str, batch_size: int | None) -> int | None:
        """How many draws a batch takes."""
        if self._layout is None or batch_size is None:
            return batch_size
        return self._layout.number(f"{_NAME}.{function}", batch_size)

    def _added(self) -> list[Any]:
        """All keys that `sample` may add."""
        marks = () if self._layout is None else self._layout.keys
        return [*_leaves.ADDED, *marks]

    def _update(self, ids: Any, priority: torch.Tensor) -> None:
        with self.buffer.lock:
            known = self._form is not None and self.buffer.stamp is self._seen
            self.buffer.update_priority(ids, priority, alpha=self.alpha)
            if known:
                self._seen = self.buffer.stamp

    def _sync(self) -> None:
        """Read where the next row goes, if it was not written here what was written last."""
        if self._form is not None and self.buffer.stamp is not self._seen:
            owner, form = self.buffer.owner, self._form
            self._cursor = self._calls.apart(lambda: int(owner.state.ring.head[0]))
            self._calls.apart(lambda: self._ends.look(owner, form))

    def _check_ready(self) -> None:
        """Raise as long as there is nothing to draw; whether there still is, each batch shows."""
        if not self._looks and self._ready and self.buffer.stamp is not self._seen:
            self._ready = False
        if not self._ready:
            self._ready = self.buffer.can_sample()
        if not self._ready:
            raise _NothingToDraw(_NOTHING)

    def _assemble(self, sample: Any) -> TensorDictBase:
        """A batch as TorchRL has it."""
        assert self._form is not None
        marks: dict[Any, torch.Tensor] = {}
        if self._layout is not None:
            rows = self._layout.lay(sample, self._form)
            if not rows.count:
                raise _NothingToDraw(_NOTHING)
            added = self._named(rows.slot, rows.generation, rows.weight)
            batch = _of_rows(rows.data | added, torch.Size([rows.count]), self._device)
            marks = self._layout.marks(rows, batch)
        else:
            data, dims = _leaves.plain(sample.data), torch.Size()
            if dataclasses.is_dataclass(sample.data):  # of a view that returns more than the item
                data["item"] = _leaves.restored(data["item"], self._form)
            else:
                data = _leaves.restored(data, self._form)
                dims = self._form.dims if isinstance(self._view, fbuf.Item) else dims
            added = self._named(sample.ids.slot.long(), sample.ids.generation, sample.weight)
            if dims:
                one = [1] * len(dims)
                wide = {k: x.reshape(-1, *one).expand(-1, *dims) for k, x in added.items()}
                added = {k: x.clone(memory_format=_PLAIN) for k, x in wide.items()}
            batch = _of_rows(data | added, sample.mask.shape + dims, self._device)
            if self._looks and not bool(sample.mask.all()):  # a short batch, as in TorchRL
                batch = batch[sample.mask]
                if not len(batch):
                    raise _NothingToDraw(_NOTHING)
        if not (self._transforms or marks):
            return batch
        told, size = {key: batch[key] for key in added}, batch.batch_size
        for transform in self._transforms:
            batch = _transforms.applied(transform, batch)
        # A transform may leave rows out, or move them: what it was given then goes along.
        there = batch.keys()
        marks.update((key, value) for key, value in told.items() if key not in there)
        for key, value in marks.items():
            _set(batch, key, value, size)
        return batch

    def _named(
        self, slot: torch.Tensor, generation: torch.Tensor, weight: torch.Tensor
    ) -> dict[Any, torch.Tensor]:
        """What is added to a batch, by key."""
        weights = (weight, weight.clone()) if self._prioritized else ()
        return dict(zip(_leaves.ADDED, (slot, generation, *weights), strict=False))

    def _rows(self, data: Any, slots: torch.Tensor) -> Any:
        """Rows that were read, `[B]`, in the shape of their slots."""
        assert self._form is not None
        words = _leaves.moves_bits(self._view)
        data = _leaves.restored(data, self._form) if words else data
        size = torch.Size([slots.numel(), *self._form.dims])
        rows: Any = TensorDict(data, batch_size=size, device=self._device)
        rows = rows.reshape(torch.Size([*slots.shape, *self._form.dims])).apply(free)
        index = slots.reshape(torch.Size([*slots.shape, *[1] * len(self._form.dims)]))
        index = index.expand(rows.batch_size).clone(memory_format=_PLAIN)
        rows.set("index", index.to(self._device))
        for transform in self._transforms:
            rows = _transforms.applied(transform, rows)
        return rows


processes.stays(TensorDictReplayBuffer)


def _of_rows(data: dict[Any, Any], size: torch.Size, device: torch.device) -> Any:
    """A TensorDict of leaves that are known to fit; to look at each takes ten microseconds."""
    return TensorDict._new_unsafe(data, size, device)  # pyright: ignore[reportPrivateUsage]


def _tensordict(function: str, data: Any, dims: int) -> TensorDictBase:
    """Data as a TensorDict; a dict becomes one with so many batch dimensions."""
    if isinstance(data, dict):
        leaf: Any = next(iter(data.values()), None)
        while isinstance(leaf, dict):
            leaf = next(iter(leaf.values()), None)
        return TensorDict(data, batch_size=getattr(leaf, "shape", ())[:dims])
    if not isinstance(data, TensorDictBase):
        raise InteropError(
            f"{_NAME}.{function}: data must be a TensorDict or a dict, got {type(data)}; make it "
            "one, or use fbuf_adapters.pytorch.ReplayBuffer for other trees of tensors"
        )
    return data


def _stacked(items: list[Any], dims: int) -> Any:
    """A list of items, or of steps of all environments, as a batch."""
    if not items:
        raise InteropError(f"{_NAME}.extend: data is an empty list; give at least one item")
    rows: list[Any] = [_tensordict("extend", one, dims - 1) for one in items]
    return _listed.side_by_side(f"{_NAME}.extend:", "data", rows, dims - 1)


def _load_transforms(transforms: Sequence[Any], states: Sequence[Any]) -> None:
    """Put each transform that has a state into it."""
    for transform, state in zip(transforms, states, strict=True):
        if state is not None:
            transform.load_state_dict(state)


def _may_lack_rows(sampler: Any, view: Any) -> bool:
    """Whether there may be rows, and a batch all the same have fewer than are asked for."""
    whole = isinstance(view, fbuf.Item) and not sampler.follows_episodes
    if isinstance(sampler, fbuf.Prioritized):
        return not whole or sampler.eps == 0
    return not whole or type(sampler) is not fbuf.Uniform


def _ends_of(
    traj_key: Any,
    end_keys: Any,
    init_key: Any,
    num_envs: int | None,
    autoreset: str,
    sampler: Any,
    view: Any,
) -> Ends:
    """How a buffer with these arguments learns where episodes end."""
    if autoreset == "next_step":
        if traj_key not in (None, False):
            raise ValueError(
                f"{_NAME}.__init__: traj_key is {traj_key!r}, but with autoreset='next_step' only "
                "flags tell the step that resets from others; leave traj_key out"
            )
        traj_key, init_key = False, None
    follower = None
    if sampler.follows_episodes:
        follower = f"the sampler fbuf.{type(sampler).__name__}"
    elif not isinstance(view, fbuf.Item):
        follower = f"the view fbuf.{type(view).__name__}"
    elif autoreset == "next_step":
        follower = "autoreset='next_step'"
    return Ends(traj_key, end_keys, init_key, num_envs, follower, sampler.follows_episodes)


def _set(batch: Any, key: Any, value: torch.Tensor, size: torch.Size) -> None:
    """Tell something of the rows of a batch; it had this size, and transforms may reshape it."""
    if batch.numel() != size.numel():
        raise RuntimeError(
            f"{_NAME}.sample: a transform made {batch.numel()} rows of {size.numel()}, so that "
            f"{key!r} says nothing about them; call it with the batch that sample() returns instead"
        )
    if batch.batch_size != size:
        value = value.reshape(*batch.batch_size, *value.shape[len(size) :])
    batch.set(key, value)
