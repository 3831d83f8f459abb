"""The replay buffer of TensorDicts."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NoReturn, Self, cast

import torch
from tensordict import TensorDict, TensorDictBase

import fbuf
from fbuf.adapter_api import (
    Autoreset,
    BufferSpec,
    Episodes,
    Holder,
    Sampler,
    View,
    check,
    fixed_arguments,
    stays_in_process,
)
from fbuf.host import HostStore
from fbuf_adapters.pytorch import InteropError, ReplayBuffer
from fbuf_adapters.pytorch.buffer import _from_state, _reading
from fbuf_adapters.pytorch.buffer._copies import Copied
from fbuf_adapters.pytorch.crossing import _listed
from fbuf_adapters.tensordict import _leaves, _slices, _snapshot, _torchrl_names
from fbuf_adapters.tensordict._codec import NAME, NOTHING, Codec, NothingToDraw
from fbuf_adapters.tensordict._ends import Ends
from fbuf_adapters.tensordict._run import Run
from fbuf_adapters.tensordict._words import OF_TENSORDICTS
from fbuf_adapters.tensordict._writer import Writer

Key = str | tuple[str, ...]

_SHARED = inspect.signature(ReplayBuffer).parameters
"""Arguments that go on to the buffer of tensors, if both buffers have them."""


@OF_TENSORDICTS
@fixed_arguments()
class TensorDictReplayBuffer(Copied):
    """A replay buffer for TorchRL programs: change the constructor, and nothing else.

    The class has the methods of `torchrl.data.TensorDictReplayBuffer`, and takes and returns the
    same keys. `from_torchrl` makes such a buffer from a buffer of TorchRL. These things are better
    here:

    - Draws are exact at any size.
    - Slices cost the same however much is stored.
    - Updates of priorities take O(B log N).
    - An update for a row that was overwritten is ignored.
    - The same seed gives the same batches.

    These things differ:

    - All rows have the same keys, shapes and dtypes. A row that differs is an error.
    - `int64` is stored in 32 bits and comes back as int64. A number that needs more bits is an
      error. `float64` keeps all its bits.
    - Weights are divided by the largest in the batch. TorchRL divides by the largest in the buffer;
      so does `fbuf.Prioritized(normalize="buffer")`.
    - A sampler cannot be changed. Set `alpha` and `beta` of the buffer instead.
    - `rb[3]` reads a row, but cannot write one.
    - The buffer stays in one process. `multiprocessing` refuses to send it, because the other
      process would have a copy. `pickle`, `torch.save` and `copy.deepcopy` do make copies.

    **Ends of episodes** matter to samplers with a window and to all views but `fbuf.Item`. An
    episode ends

    - where a flag of `end_keys` is set. `done` where `terminated` is False is a truncation. Without
      a `terminated`, `done` is a termination;
    - where the id of `traj_key` changes, also from one call to the next;
    - before a row that `init_key` marks as the first of an episode, also from one call to the next;
    - at the newest row, if you call `end_episode`.

    For these samplers and views, data that cannot be read is an error. So are rows of several
    environments in turn: use `num_envs` for them.

    **Slices.** A sampler with a window and `view=fbuf.Sequence(L)` draw slices of `L` steps of one
    episode. A batch has the layout of TorchRL's `SliceSampler`: its rows are the steps, slice by
    slice, with your keys. The last step of each slice is marked in `truncated_key`, and in
    the `done` beside it; `terminated` stays as stored. With `fbuf.Sequence(L, boundary="pad")`
    slices may be shorter.

    Args:
        capacity: As for `fbuf.init`.
        num_envs: As for `fbuf.init`. TensorDicts are then `[num_envs]` for one step, or `[num_envs,
            T]`, as collectors return them.
        autoreset: As for `fbuf.init`. With `"next_step"`, ids and beginnings are not read.
        removable: As for `fbuf.init`.
        sampler: As for `fbuf.init`.
        view: As for `fbuf.sample`. The fields of the view's result become keys, except with slices
            (see above). Views other than `fbuf.Item` and `fbuf.Sequence` refuse 64-bit floats.
        slices: The layout of a batch of slices. `"flat"`: `[rows]`, with fewer rows than requested
            if a slice is shorter. `"padded"`: `[rows]`; short slices are padded with their last
            step, and `("collector", "mask")`, bool `[rows]`, is False in the padding. `"nested"`:
            `[slices, L]`, the steps under `"item"`, beside the other fields of
            `fbuf.SequenceSteps`; `batch_size` then counts slices.
        traj_key: The key of the id of each row's episode, `[B]` or `[B, 1]`. None looks for
            `("collector", "traj_ids")` and `"episode"`, and allows data without ids. False reads
            no ids.
        end_keys: The keys of the flags that end episodes, such as `("next", "done")`. None looks
            for `("next", "terminated")`, `("next", "truncated")` and `("next", "done")`. `()` reads
            no flags.
        truncated_key: The key that marks the last steps of slices; None marks none.
        init_key: The key of the flags that mark first steps of episodes, `[B]` or `[B, 1]`, as
            TorchRL's `InitTracker` stores them. The row before a marked row ends its episode. If
            you store this key, a batch marks the first steps of slices in it, too. None does
            neither.
        batch_size: The default of `sample()`, and the size of the batches of an iteration. With
            slices it counts rows, and `L` must divide it.
        priority_key: The key where `extend` and `update_tensordict_priority` look for priorities.
        transform: A TorchRL transform, or a function of a TensorDict. The buffer calls it with
            every batch, and calls its `inv`, if it has one, with everything that you write.
        device: As for `fbuf_adapters.pytorch.ReplayBuffer`. The same holds for the arguments below.
        seed: See there.
        pin_memory: See there.
        to: See there.
        prefetch: See there.
        batches_per_draw: See there.
        drop_last: See there.
        host: See there. With files it replaces TorchRL's `LazyMemmapStorage`.

    Raises:
        ValueError: As `ReplayBuffer`. Also if `slices` or `batch_size` does not fit the view, or
            if `traj_key` is given with `autoreset="next_step"`.

    Attributes:
        buffer: The `fbuf_adapters.pytorch.ReplayBuffer` that holds the rows.
        alpha: The exponent for priorities that you give from now on; None means the sampler's.
        beta: The exponent for weights of batches drawn from now on; None means the sampler's.

    Examples:
        >>> import fbuf, torch
        >>> from fbuf_adapters.tensordict import TensorDictReplayBuffer
        >>> from tensordict import TensorDict
        >>> rb = TensorDictReplayBuffer(100, sampler=fbuf.Prioritized(), batch_size=4)
        >>> _ = rb.extend(TensorDict({"observation": torch.ones(8, 3)}, batch_size=[8]))
        >>> batch = rb.sample()
        >>> sorted(batch.keys())
        ['_weight', 'index', 'index_generation', 'observation', 'priority_weight']
        >>> batch["td_error"] = torch.rand(4)
        >>> rb.update_tensordict_priority(batch)
        >>> rb[2]["observation"]
        tensor([1., 1., 1.])
    """

    @_torchrl_names.refuses_torchrl
    def __init__(
        self,
        capacity: int,
        *,
        num_envs: int | None = None,
        autoreset: Autoreset = "same_step",
        removable: bool = True,
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
        batches_per_draw: int = 1,
        drop_last: bool = False,
        host: bool | str | os.PathLike[str] | HostStore[Any] = False,
    ) -> None:
        self._made_with = {k: v for k, v in locals().items() if k not in ("self", "transform")}
        lanes, where = num_envs or 1, f"{NAME}.__init__"
        layout = _slices.layout_of(where, view, slices, lanes, capacity, truncated_key, init_key)
        self._batch_size = batch_size
        # Raise before the buffer is made, because it keeps the HostStore for good.
        check.instance("TensorDictReplayBuffer", "sampler", sampler, Sampler, "fbuf.Uniform()")
        ends = Ends(traj_key, end_keys, init_key, num_envs, autoreset, sampler, view)
        self._run = Run(
            form=_leaves.form_of(host.item, f"{where}: host")
            if isinstance(host, HostStore)
            else None
        )
        self._codec = Codec(self._run, sampler, view, layout, device)
        shared = {name: value for name, value in self._made_with.items() if name in _SHARED}
        shared |= {"batch_size": self._draws("__init__", batch_size)}
        self.buffer = ReplayBuffer(**shared, transform=self._codec.batch)
        # A copy draws no seed from the generator, and its rows lie in places of its own.
        of_buffer = self.buffer.contents.arguments()
        self._made_with |= {name: of_buffer[name] for name in ("seed", "host")}
        self._writer = Writer(self.buffer, self._codec, ends, priority_key)
        self._iterator: Iterator[TensorDictBase] | None = None
        self._next_lock = threading.Lock()
        if transform is not None:
            self.append_transform(transform)

    @classmethod
    def from_state(cls, state: fbuf.State[Any] | HostStore[Any], **options: Any) -> Self:
        """Make a buffer of a state: of `fbuf.load(path).state`, `fbuf.split`, `fbuf.init`.

        The items must be dicts, whose leaves come back in the dtypes that the state stores. The
        buffer takes the state over; see `fbuf_adapters.pytorch.ReplayBuffer.from_state`.

        Args:
            state: The state, or a `fbuf.host.HostStore`.
            options: Arguments of the class. Those that the state was made with can be left out.

        Returns:
            The buffer.

        Raises:
            ValueError: As there. Also if the state has `next_of` or `lockstep=False`, which this
                class lacks.
            InteropError: As there. Also if the items are no dicts.
            RuntimeError: If `state` has been consumed.
        """
        begins = f"{NAME}.from_state:"
        arguments = _from_state.arguments_of(begins, state, options)
        for name, value in (("next_of", None), ("lockstep", True)):
            if (own := arguments.pop(name)) != value:
                raise ValueError(
                    f"{begins} the state has {name}={own!r}, which this class lacks; use "
                    "fbuf_adapters.pytorch.ReplayBuffer.from_state"
                )
        arguments.pop("max_ends", None)
        if isinstance(state, HostStore):
            return cls(**arguments)
        form = _leaves.form_of(state.storage.item, f"{begins} state")
        made = cls(**arguments)
        _from_state.take_over(made.buffer.contents, state)
        made._run.form, made._run.write_count = form, len(made)
        return made

    # Writing.

    def add(self, data: Any) -> int:
        """Add one item, a TensorDict or dict without a batch dimension.

        Args:
            data: The item.

        Returns:
            The slot of the item; -1 if a transform drops the item.

        Raises:
            InteropError: As `extend`.
        """
        if (envs := self._spec.num_envs) is not None:
            raise InteropError(
                f"{NAME}.add: one item is a step of one environment, but this buffer has {envs} "
                f"environments; give extend() one step of all, [{envs}]"
            )
        data, form = _tensordict("add", data, 0), self._run.form
        if form is not None and data.batch_dims > len(form.dims):
            raise InteropError(
                f"{NAME}.add: data has the batch size {list(data.batch_size)}, and items have "
                f"{list(form.dims)}: this looks like a batch; use extend()"
            )
        slots = self.extend(data.unsqueeze(0))
        return int(slots[0]) if len(slots) else -1

    def extend(self, data: Any, *, update_priority: bool | None = None) -> torch.Tensor:
        """Add a batch of items.

        Args:
            data: A TensorDict whose first batch dimension counts the items, `B`; with environments
                see `num_envs`. Also a dict of tensors that begin with these dimensions. Also a list
                of items, or of steps `[num_envs]`: they are stacked. The priority key, if present,
                holds the priorities of the items, `[B]` or `[B, 1]`, and is stored like all other
                keys. Without it the items get the sampler's default.
            update_priority: False gives the items the sampler's default in any case.

        Returns:
            The slots of the items, int64 in the dimensions that count the items.

        Raises:
            InteropError: If `data` is not a TensorDict, or has no batch dimension. If a leaf
                requires grad, is not a tensor, or differs from the first call. If the sampler or
                the view follows episodes, and `data` does not show their ends (see above). The rows
                are then as before.
            RuntimeError: If the buffer is closed.
        """
        dims = 1 if self._spec.num_envs is None else 2
        if type(data) is list:
            data = _stacked(data, dims)
        data = self._codec.transforms.inverse(_tensordict("extend", data, dims))
        if data is None:  # a transform drops the rows
            return torch.zeros(0, dtype=torch.int64)
        take_priority = update_priority is not False
        return self._writer.extend(data, take_priority=take_priority, check_order=True)

    def update_priority(self, index: Any, priority: Any) -> None:
        """Give rows new priorities, by slot.

        A slot does not identify the drawn row: another row may have replaced it.
        `update_tensordict_priority` ignores such rows. If the sampler keeps no priorities, nothing
        happens, as in TorchRL.

        Args:
            index: Slots: integers `[B]`, or one integer. Negative slots are ignored; `B` may be 0.
            priority: Numbers of at least 0: one for each slot, or one for all slots.

        Raises:
            InteropError: If JAX cannot take a tensor.
            TypeError: If `index` does not consist of integers.
            RuntimeError: If nothing has been added yet, or the buffer is closed.
        """
        self._writer.update_slots(index, priority)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of drawn rows to the numbers in `data` under the priority key.

        Rows that were replaced since are ignored. If the sampler keeps no priorities, nothing
        happens, as in TorchRL.

        With slices laid out in rows, each row gets its own priority. A slice is drawn by the
        priority of its first row. Rows of padding are ignored. If you reshape the batch to
        `[slices, L]`, the first row of each slice gets the largest priority of the slice.

        Args:
            data: A batch from `sample`, or part of one. If a row has several numbers, the largest
                counts.

        Raises:
            InteropError: If `data` lacks the priority key, or the keys that `sample` added.
            RuntimeError: As `update_priority`.
        """
        self._writer.update_rows(data)

    def end_episode(self, mask: Any = None) -> None:
        """End the open episodes: call this when you reset environments and no row shows the end.

        Before the first row there is no episode to end, and the call does nothing.

        Args:
            mask: The environments, bool `[num_envs]`, or one bool; None means all.

        Raises:
            InteropError: If JAX cannot take `mask`.
            ValueError: If `mask` has another shape.
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        self.buffer.end_episode(mask)

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all rows.

        Args:
            empty_write_count: Whether `write_count` is reset to 0.
        """
        with self.buffer.lock:
            self._writer.refuse_in_extend("empty")
            self.buffer.empty()
            self._writer.ends.forget()
            self._run.ready, self._run.seen = False, None
            if empty_write_count:
                self._run.write_count = 0

    # Sampling.

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        out: Any = None,
        **others: Any,
    ) -> Any:
        """Draw a batch.

        Args:
            batch_size: `B`; None means the buffer's batch size. With slices it counts rows.
            return_info: Whether to return the added keys once more, in a dict.
            out: A batch that an earlier call has returned; the new one is written into its tensors.
                See `fbuf_adapters.pytorch.ReplayBuffer.sample`.
            **others: Refused; of `beta` the error says that `rb.beta` sets it.

        Returns:
            A TensorDict of batch size `[B]` with the stored rows, under the same keys and in the
            same dtypes. `sample` adds `"index"` (int64 slots) and `"index_generation"` (int32).
            With priorities it adds `"_weight"` and `"priority_weight"`: the same float32 weights
            `[B]` under the two names that TorchRL's losses use. With slices, all rows of a slice
            have its weight, and `sample` also adds the keys that mark slices. With `return_info`,
            a tuple of the TensorDict and a dict of the added keys. With `out`, the TensorDict is
            `out` itself.

        Raises:
            ValueError: As `fbuf_adapters.pytorch.ReplayBuffer.sample`. Also if `batch_size` is no
                multiple of the slice length.
            RuntimeError: As there. Also if there is nothing to draw, or if a transform changed the
                number of rows.
            TypeError: If there is an argument of another name.
            InteropError: As `fbuf_adapters.pytorch.ReplayBuffer.sample`.
        """
        if others:
            raise TypeError(_torchrl_names.misplaced(*others))
        try:
            size = self._draws("sample", batch_size)
            self._check_ready()
            batch: Any = self.buffer.sample(
                size, beta=self.beta if self._spec.sampler.keeps_priorities else None, out=out
            )
        except NothingToDraw:
            with self.buffer.lock:  # the batches drawn ahead are empty, too
                self._run.ready = False
                self.buffer.drop_ahead()
            raise
        except Exception as error:
            OF_TENSORDICTS.retell("sample", error)
            raise
        if not return_info:
            return batch
        told = {key: batch.get(key, None) for key in self._codec.added}
        return batch, {key: value for key, value in told.items() if value is not None}

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Yield batches without end; with `fbuf.Shuffled`, the batches of one epoch."""
        self._check_ready()
        if self._spec.sampler.without_replacement:
            yield from cast("Iterator[TensorDictBase]", iter(self.buffer))
            return
        while True:
            yield self.sample()

    def next(self) -> TensorDictBase | None:
        """Return the next batch of one iteration, or None at its end. Any thread may call this."""
        with self._next_lock:
            if self._iterator is None:
                self._iterator = iter(self)
            try:
                batch = next(self._iterator, None)
            except BaseException as error:  # which ends a generator, but not the batches
                self._iterator = None
                OF_TENSORDICTS.retell("next", error)
                raise
            if batch is None:
                self._iterator = None
            return batch

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Return whether there is a row to draw; `batch_size` does not matter."""
        return self.buffer.can_sample()

    # Reading.

    def __len__(self) -> int:
        """Count the rows, without removed rows."""
        return len(self.buffer)

    def __getitem__(self, index: Any) -> Any:
        """Read rows by position, as in TorchRL: position 0 is slot 0, not the oldest row.

        Args:
            index: A position, a slice, or a list or tensor of positions or of bools. It indexes the
                slots that hold rows, `[N]`; with environments, `[num_envs, N]`. Or a key:
                `rb["observation"]` is `rb[:]["observation"]`.

        Returns:
            A TensorDict of the shape that the index gives, with the slots under `"index"`.
            Transforms are applied. Slices leave out removed rows if there are no environments.

        Raises:
            IndexError: If there is no such position, or the row there was removed.
            RuntimeError: If nothing has been added yet, or the buffer is closed.

        Cost: O(B), and O(N) if `index` is a tensor or there are environments.
        """
        if isinstance(index, str) or (
            isinstance(index, tuple) and index and all(isinstance(part, str) for part in index)
        ):
            return self[:][index]
        slots, data = _reading.read_at(self.buffer.contents, f"{NAME}.__getitem__:", index)
        return self._codec.rows(data, slots)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        """Refuse to write rows by position."""
        raise TypeError(
            f"{NAME}.__setitem__: rows cannot be written by position; add rows with extend(), or "
            "change fields with rb.buffer.write(ids, fields), where the ids of a batch are "
            "fbuf.Ids(batch['index'], batch['index_generation'])"
        )

    def episodes(self) -> Iterator[TensorDictBase]:
        """Yield the stored episodes, oldest first, and environment by environment.

        Yields:
            TensorDicts `[T]`: the stored steps of an episode, in order, transformed, with
            `"index"`. The oldest episode may lack its beginning, and the newest of each environment
            its end. A removed row splits an episode in two. An episode that is overwritten before
            its turn is left out.

        Raises:
            RuntimeError: If nothing has been added yet, or the buffer is closed.

        Cost: O(N) for the first episode, and O(T) for each later one.
        """
        return self._episodes()  # torch.compile would trace a generator

    def _episodes(self) -> Iterator[TensorDictBase]:
        for slots, data in _reading.read_episodes(self.buffer.contents):
            yield self._codec.rows(data, slots)

    def stats(self, *, detailed: bool = False) -> dict[str, float]:
        """Return figures for a log: the figures of `fbuf.stats`, `write_count` and `utilization`.

        Args:
            detailed: Whether to add the figures that take a look at every row.
        """
        figures = self.buffer.stats(detailed=detailed)
        share = figures["size"] / self.capacity
        return {**figures, "write_count": self.write_count, "utilization": share}

    def raise_on_fault(self) -> None:
        """Raise if a bad value was skipped; see `fbuf.raise_on_fault`.

        Raises:
            RuntimeError: If a fault bit is set. Also if nothing has been added yet, or the buffer
                is closed.
        """
        self.buffer.raise_on_fault()

    @property
    def capacity(self) -> int:
        """The number of rows that the buffer can hold."""
        return self._spec.capacity

    @property
    def batch_size(self) -> int | None:
        """The batch size given to the constructor."""
        return self._batch_size

    @property
    def write_count(self) -> int:
        """The number of items added so far, replaced items included."""
        return self._run.write_count

    def __repr__(self) -> str:
        """Describe the contents and the batches in one line."""
        return self.buffer.contents.in_words("TensorDictReplayBuffer", self._batch_size)

    # Transforms.

    def append_transform(self, transform: Any, *, invert: bool = False) -> TensorDictReplayBuffer:
        """Call one more transform with every batch, after the others.

        All later results of `sample` are transformed: batches drawn ahead are made anew.

        Args:
            transform: As for the constructor.
            invert: Whether to call the transform with written data, and its inverse with batches.

        Returns:
            The buffer.
        """
        end = len(self._codec.transforms.all)
        return self.insert_transform(end, transform, invert=invert)

    def insert_transform(
        self, index: int, transform: Any, *, invert: bool = False
    ) -> TensorDictReplayBuffer:
        """Call one more transform with every batch, at this place in the order of transforms.

        Args:
            index: From 0 to the number of transforms; a negative index counts from the end.
            transform: As for `append_transform`.
            invert: As for `append_transform`.

        Returns:
            The buffer.

        Raises:
            ValueError: If `index` is out of range.
        """
        with self.buffer.lock:
            self._codec.transforms.insert(f"{NAME}.insert_transform", index, transform, invert)
            self.buffer.drop_ahead()
        return self

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state of the buffer; see `ReplayBuffer.state_dict`.

        The result includes the `state_dict` of every transform that has one, and the rows that a
        `MultiStepTransform` holds back.
        """
        return _snapshot.state_dict(self.buffer, self._codec)

    def load_state_dict(self, state_dict: dict[str, Any], *, episodes: Episodes = "end") -> None:
        """Load the result of `state_dict`; see `ReplayBuffer.load_state_dict`.

        Args:
            state_dict: The result of `state_dict()`.
            episodes: See there: `"end"` ends the open episodes, also where ids tell them apart. It
                drops their rows that a `MultiStepTransform` holds back.

        Raises:
            ValueError: See there. Also if the buffer has another number of transforms, or of
                `MultiStepTransform`.
        """
        _snapshot.load_state_dict(self.buffer, self._codec, state_dict, episodes)

    def dumps(self, path: str | os.PathLike[str], *, extra: Any = None) -> None:
        """Save the buffer to a directory, as `fbuf.save` does; see `ReplayBuffer.save`.

        Args:
            path: The directory.
            extra: More to save, such as the `state_dict()` of a network; see there. The buffer and
                `extra` become one checkpoint: both are there, or neither is.

        Raises:
            TypeError: If `extra` holds something that cannot be saved; see there.
        """
        _snapshot.save(self.buffer, self._codec, path, extra)

    def loads(self, path: str | os.PathLike[str], *, episodes: Episodes = "end") -> Any:
        """Load a directory that `dumps` wrote; see `ReplayBuffer.load`.

        Args:
            path: The directory.
            episodes: As for `load_state_dict`.

        Returns:
            The `extra` that was given to `dumps`, its tensors on CPU; None if there was none.

        Raises:
            fbuf.CheckpointError: See there. Also if another kind of buffer was saved there.
            ValueError: As `load_state_dict`.
        """
        return _snapshot.load(self.buffer, self._codec, path, episodes)

    def save(self, path: str | os.PathLike[str], *, extra: Any = None) -> None:
        """Call `dumps`, as in TorchRL."""
        self.dumps(path, extra=extra)

    def dump(self, path: str | os.PathLike[str], *, extra: Any = None) -> None:
        """Call `dumps`, as in TorchRL."""
        self.dumps(path, extra=extra)

    def load(self, path: str | os.PathLike[str], *, episodes: Episodes = "end") -> Any:
        """Call `loads`, as in TorchRL."""
        return self.loads(path, episodes=episodes)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        stays_in_process(cls)

    # Copies.

    _own_attributes = frozenset(
        ("_made_with", "_batch_size", "_run", "_codec", "buffer", "_writer", "_iterator")
    ) | {"_next_lock"}

    def _lock_of_copies(self) -> threading.RLock:  # pyright: ignore[reportGeneralTypeIssues]
        return self.buffer.lock

    def _for_copies(self) -> dict[str, Any]:
        return {"arguments": self._made_with, "transforms": self._codec.transforms.all}

    def _remake(self, made_with: dict[str, Any]) -> None:
        # A derived class may have other arguments.
        TensorDictReplayBuffer.__init__(self, **made_with["arguments"])
        self._codec.transforms.all = made_with["transforms"]

    def __getattr__(self, name: str) -> NoReturn:
        """Explain what replaces an attribute that only TorchRL's buffers have."""
        bare = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(_torchrl_names.explained(name) or bare)

    def close(self) -> None:
        """Free the memory; see `ReplayBuffer.close`."""
        self.buffer.close()

    # Exponents.

    @property
    def alpha(self) -> float | None:
        """The exponent for priorities that you give from now on; None means the sampler's."""
        return self._run.alpha

    @alpha.setter
    def alpha(self, alpha: float | None) -> None:
        self._run.alpha = alpha

    @property
    def beta(self) -> float | None:
        """The exponent for weights of batches drawn from now on; None means the sampler's."""
        return self._run.beta

    @beta.setter
    def beta(self, beta: float | None) -> None:
        self._run.beta = beta

    @property
    def _spec(self) -> BufferSpec:
        return self.buffer.contents.spec.buffer

    def _draws(self, function: str, batch_size: int | None) -> int | None:
        """Return the number of draws of a batch; of slices, if they are laid out in rows."""
        layout = self._codec.layout
        if layout is None or batch_size is None:
            return batch_size
        return layout.number(f"{NAME}.{function}", batch_size)

    def _check_ready(self) -> None:
        """Raise until there is a row to draw; after that, an empty batch shows if none is left."""
        run = self._run
        if not (run.ready and (self._codec.looks or self._writer.is_current)):
            run.ready = self.buffer.can_sample()
        if not run.ready:
            raise NothingToDraw(NOTHING)


stays_in_process(TensorDictReplayBuffer)
Holder.register(TensorDictReplayBuffer, lambda buffer, _: buffer.buffer)


def _tensordict(function: str, data: Any, dims: int) -> TensorDictBase:
    """Return data as a TensorDict; a dict becomes one with `dims` batch dimensions."""
    if isinstance(data, dict):
        leaf: Any = next(iter(data.values()), None)
        while isinstance(leaf, dict):
            leaf = next(iter(leaf.values()), None)
        return TensorDict(data, batch_size=getattr(leaf, "shape", ())[:dims])
    if not isinstance(data, TensorDictBase):
        raise InteropError(
            f"{NAME}.{function}: data must be a TensorDict or a dict, got {type(data)}; make it "
            "one, or use fbuf_adapters.pytorch.ReplayBuffer for other trees of tensors"
        )
    return data


def _stacked(items: list[Any], dims: int) -> Any:
    """Return a list of items, or of steps of all environments, as a batch."""
    if not items:
        raise InteropError(f"{NAME}.extend: data is an empty list; give at least one item")
    rows: list[Any] = [_tensordict("extend", one, dims - 1) for one in items]
    return _listed.side_by_side(f"{NAME}.extend:", "data", rows, dims - 1)
