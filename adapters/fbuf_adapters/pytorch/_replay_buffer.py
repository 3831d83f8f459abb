"""A replay buffer for PyTorch: an object that owns a state, tensors in and tensors out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Self

import numpy as np
import torch

import fbuf
from fbuf.adapter_api import (
    Autoreset,
    BufferSpec,
    Cancelled,
    Episodes,
    Holder,
    Sampler,
    View,
    check,
    fixed_arguments,
    stays_in_process,
)
from fbuf.host import HostStore
from fbuf_adapters.pytorch._spec import Spec, of_host, where
from fbuf_adapters.pytorch.batches import _into, _modes
from fbuf_adapters.pytorch.buffer import _from_state, _reading, _snapshot
from fbuf_adapters.pytorch.buffer._contents import Contents
from fbuf_adapters.pytorch.buffer._copies import Copied
from fbuf_adapters.pytorch.buffer._writer import Writer
from fbuf_adapters.pytorch.crossing import _tensors
from fbuf_adapters.pytorch.crossing._words import OF_TENSORS


@OF_TENSORS
@fixed_arguments(beta="sample", alpha="update_priority")
class ReplayBuffer(Copied):
    """Replay memory for PyTorch: an object that owns a `fbuf.State` and a random key.

    Arguments and methods mean what the functions of `fbuf` with the same names say; below is only
    what is different. The tensors of a batch belong to you, and each by itself: none is a view of
    another, and nobody else uses their memory. On a GPU a small one keeps that of its whole batch.

    Any number of threads may add and draw. A lock lets one thread at a time hand its work to JAX,
    and JAX does the work in that order. So a batch never holds half a row, and holds every row of a
    call that has returned. Hold `lock` to make several calls one.

    Two runs that make the same calls in the same order, with the same seed, draw the same batches,
    also with `prefetch`. After the buffer is made, it neither reads nor changes a global random
    generator. If your `transform` draws from one, its draws depend on the order of threads.

    Batches may have any length. JAX compiles a program for each size that it sees. Each method has
    programs of at most four exact sizes: the first size, and sizes that come twice in a row. Other
    sizes are rounded up to 16, 64, 256, 1024, 4096, 8192, and so on by two. Rows to add are then
    padded and masked. A drawn batch has the size that you asked for.

    An exception may come at any moment, from Ctrl-C or another signal. The buffer then holds the
    state from before the call or from after it. The next call of `sample` returns the batch that
    the broken one would have returned.

    A buffer stays in the process that made it, and `multiprocessing` refuses to send it. `pickle`,
    `torch.save` and `copy.deepcopy` make copies, also within an agent: all but batches under way
    that another thread is to be given. A pickle ends the open episodes, as `load_state_dict` does.
    In a process that was forked off, such as a worker of a DataLoader, every method raises.

    Args:
        capacity: How many rows to keep. The first `add` allocates the memory.
        item: One unbatched item: a tree of tensors, arrays or `jax.ShapeDtypeStruct`. Only shapes
            and dtypes count. None takes them from the first `add` or `extend`.
        sampler: Which rows may be drawn, and how likely each is.
        view: The view of a drawn row.
        batch_size: `B`, for iteration and for `sample()` without a `batch_size`.
        num_envs: As for `fbuf.init`.
        autoreset: As for `fbuf.init`.
        lockstep: As for `fbuf.init`.
        next_of: As for `fbuf.init`.
        max_ends: As for `fbuf.init`.
        removable: As for `fbuf.init`.
        device: Where rows lie and batches are drawn: `"cpu"`, or `"cuda"` with JAX for CUDA.
        seed: From 0 to 2**32 - 1. The same seed and the same calls draw the same batches. None
            draws one from PyTorch's default generator, on CPU: after `torch.manual_seed` it is the
            same in every run, and another one for every buffer.
        int64: Return all 32-bit integers of a batch, its ids too, as int64, which torch wants for
            many kinds of index. This copies them.
        transform: A function of a batch, a `fbuf.Sample` of tensors. `sample` returns what it
            returns, which may be anything but None. It must not call the buffer.
        pin_memory: Return batches in pinned memory, every tensor of them, so that copies to a GPU
            need not wait. It comes after `transform`. For `device="cpu"`. On a machine without a
            GPU it does nothing, and warns once, as a `DataLoader` of torch does.
        to: The device of the tensors of a batch, for a learner on another device than the rows. The
            buffer accepts ids and priorities from there.
        prefetch: How many batches to keep ready. `sample` then draws a new batch, and returns the
            one that it drew that many calls before, from the buffer as it was then. Another thread
            makes tensors of the new batch, and transforms, pins and moves them. It calls the
            transform under the grad mode, inference mode, autocast and default device of the call
            of `sample`. Updates for rows that were overwritten since are ignored. Some calls drop
            the batches drawn ahead, which are then drawn again. These are `remove`, `empty`, a new
            `state`, and a `sample` of another size or, with a transform, under other modes.
        batches_per_draw: How many batches one program draws. `sample` hands them out one by one,
            and draws again when none is left. They are the batches that as many calls would have
            drawn at the first of them, with its `beta`. So rows and priorities that change are seen
            up to `batches_per_draw - 1` batches later. The same calls as for `prefetch` drop those
            that are left. It saves the time of calls on a GPU. It needs no thread, and goes neither
            with `prefetch` nor with `host`.
        drop_last: For `fbuf.Shuffled`: leave out the last batch of an epoch if it is short.
        host: Whether the rows lie on the host, if they do not fit the device. True: in host memory.
            A directory: in files on its disk, see `fbuf.host.HostStore`. A `HostStore` made with
            the same arguments: those that it has, such as a data set; it is the buffer's from then
            on. On `device` lie 1 to 6 bytes a row, and up to 5 more with `next_of`. All methods are
            as without, but for `state`.

    Raises:
        ValueError: As `fbuf.init`. Also if you give `prefetch` or `batches_per_draw` without
            `batch_size`, the second with the first or with `host`, or if an argument is out of
            range.
        InteropError: If JAX or PyTorch cannot reach the device, or if `pin_memory` is given for
            rows on a GPU.

    Cost: that of the function of `fbuf`, and a few microseconds for each tensor in or out.

    Examples:
        >>> import fbuf, torch
        >>> from fbuf_adapters.pytorch import ReplayBuffer
        >>> buffer = ReplayBuffer(1000, sampler=fbuf.Prioritized(), batch_size=4, int64=True)
        >>> item = {"observation": torch.ones(3), "action": torch.tensor(1)}
        >>> for _ in range(10):
        ...     buffer.add(item, terminated=False)
        >>> batch = buffer.sample()
        >>> batch.data["observation"].shape, batch.data["action"]
        (torch.Size([4, 3]), tensor([1, 1, 1, 1]))
        >>> buffer.update_priority(batch.ids, torch.rand(4))
        >>> len(buffer)
        10
    """

    def __init__(
        self,
        capacity: int,
        *,
        item: Any = None,
        sampler: Sampler = fbuf.Uniform(),
        view: View = fbuf.Item(),
        batch_size: int | None = None,
        num_envs: int | None = None,
        autoreset: Autoreset = "same_step",
        lockstep: bool = True,
        next_of: str | None = None,
        max_ends: int | None = None,
        removable: bool = True,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        int64: bool = False,
        transform: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        to: torch.device | str | None = None,
        prefetch: int = 0,
        batches_per_draw: int = 1,
        drop_last: bool = False,
        host: bool | str | os.PathLike[str] | HostStore[Any] = False,
    ) -> None:
        store, about_host = of_host(host)
        self.contents = Contents(
            Spec(
                buffer=BufferSpec(
                    *(capacity, sampler, num_envs, autoreset, lockstep, next_of, max_ends),
                    removable=removable,
                ),
                view=view,
                batch_size=batch_size,
                device=torch.device(device),
                seed=seed,
                int64=int64,
                transform=transform,
                pin_memory=pin_memory,
                to=None if to is None else _tensors.torch_device(to, "to", where("__init__")),
                prefetch=prefetch,
                batches_per_draw=batches_per_draw,
                drop_last=drop_last,
                **about_host,
            ),
            item,
            store,
        )
        """The protocol for other adapters that build on this buffer."""
        self._writer = Writer(self.contents)

    @classmethod
    def from_state(cls, state: fbuf.State[Any] | HostStore[Any], **options: Any) -> Self:
        """Make a buffer of a state: of `fbuf.load(path).state`, `fbuf.split`, `fbuf.init`.

        It goes on in the midst of the open episodes. The buffer takes the state over, without a
        copy: its first change consumes it, as a function of `fbuf` does. Copy it to keep it.

        Args:
            state: The state, or a `fbuf.host.HostStore`.
            options: Arguments of the class. Those that the state was made with can be left out,
                such as `capacity` and `sampler`. So can `device`: it is that of the state.

        Returns:
            The buffer.

        Raises:
            ValueError: If an option differs from that of the state; the message has both values.
                Also as the class.
            InteropError: If `state` is something else. Also as the class.
            RuntimeError: If `state` has been consumed.

        Examples:
            >>> import fbuf, jax.numpy as jnp
            >>> from fbuf_adapters.pytorch import ReplayBuffer
            >>> state = fbuf.add(fbuf.init({"x": jnp.zeros(2)}, 100), {"x": jnp.ones((10, 2))})
            >>> buffer = ReplayBuffer.from_state(state, batch_size=4)
            >>> len(buffer), buffer.sample().data["x"].shape
            (10, torch.Size([4, 2]))
        """
        made = cls(**_from_state.arguments_of(where("from_state"), state, options))
        if isinstance(state, fbuf.State):
            _from_state.take_over(made.contents, state)
        return made

    # Writing.

    def add(
        self,
        item: Any,
        *,
        terminated: Any = None,
        truncated: Any = None,
        next_observation: Any = None,
        priority: Any = None,
        mask: Any = None,
        alpha: float | None = None,
    ) -> None:
        """Add one item, or one step of all environments, `[num_envs, ...]`; never several.

        The first call tells the form of an item. An item with one axis more is refused: `extend`
        takes batches.

        Args:
            item: A tree of tensors, a TensorDict or a tensorclass; `sample` returns the same.
                Arrays of NumPy and Python numbers are taken for tensors. On CPU you may reuse the
                tensors when the call returns. On a GPU, later work on the current stream waits for
                the call. 64-bit integers are stored in 32 bits, if every value
                fits. Tensors on a GPU need a buffer on that GPU.
            terminated: As for `fbuf.add`: a tensor or a Python value. The same holds for the
                arguments below.
            truncated: As for `fbuf.add`.
            next_observation: As for `fbuf.add`, of tensors; it may be a TensorDict, too.
            priority: As for `fbuf.add`.
            mask: As for `fbuf.add`.
            alpha: As for `fbuf.add`.

        Raises:
            InteropError: If a leaf is not a tensor, an array or a number. If the tree is not that
                of the item, or looks like a batch. If JAX cannot take a leaf: it requires grad,
                lies on another device, holds 64-bit floats, or an integer that does not fit. The
                buffer is then unchanged.
            ValueError: As `fbuf.add`.
            TypeError: As `fbuf.add`.
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        options = {"terminated": terminated, "truncated": truncated, "priority": priority}
        options |= {"mask": mask, "alpha": alpha}
        self._writer.add(item, next_observation, options, batch=False)

    def extend(
        self,
        items: Any,
        *,
        terminated: Any = None,
        truncated: Any = None,
        next_observation: Any = None,
        priority: Any = None,
        mask: Any = None,
        time_major: bool = False,
        alpha: float | None = None,
    ) -> None:
        """Add a batch of items, `[B, ...]`, or `T` steps of all environments.

        Args:
            items: A tree of tensors, as for `add`: `[B, ...]`, or `[num_envs, T, ...]`. Or a list
                of items, or of steps `[num_envs, ...]`, which are stacked; `next_observation` may
                then be a list, too. A list that may as well be one tree, as in a first call with
                tensors that all begin with the same length, is refused.
            terminated: As for `add`.
            truncated: As for `add`.
            next_observation: As for `add`.
            priority: As for `add`.
            mask: As for `add`.
            time_major: Take the steps as `[T, num_envs, ...]`.
            alpha: As for `add`.

        Raises:
            InteropError: As `add`.
            ValueError: As `add`.
            TypeError: As `add`.
            RuntimeError: As `add`.
        """
        options = {"terminated": terminated, "truncated": truncated, "priority": priority}
        options |= {"mask": mask, "alpha": alpha}
        self._writer.add(items, next_observation, options, batch=True, time_major=time_major)

    def update_priority(
        self, ids: fbuf.Ids[Any], priority: Any, *, mask: Any = None, alpha: float | None = None
    ) -> None:
        """Give rows new priorities.

        On a GPU the next `sample` does it, in one program with its draw, or any method before that
        looks at the rows. You may write to the tensors when this call returns.

        Args:
            ids: `batch.ids`, or part of them. On a GPU the ids of the newest batches are not read
                again, unless torch has counted a write to them. It does not count writes to
                `ids.slot.data`, or those of a kernel of your own: give a clone then. With
                `batches_per_draw` they are always read.
            priority: As for `fbuf.update_priority`.
            mask: As for `fbuf.update_priority`.
            alpha: As for `fbuf.update_priority`.

        Raises:
            InteropError: As `add`.
            ValueError: As `fbuf.update_priority`.
            TypeError: As `fbuf.update_priority`.
            RuntimeError: As `add`. Also if nothing has been added yet.
        """
        self._writer.change(
            fbuf.update_priority, ids=ids, priority=priority, mask=mask, alpha=alpha
        )

    def write(self, ids: fbuf.Ids[Any], fields: Mapping[str, Any], *, mask: Any = None) -> None:
        """Change fields of stored rows.

        Args:
            ids: `batch.ids`, or part of them.
            fields: As for `fbuf.write`, tensors.
            mask: As for `fbuf.write`.

        Raises:
            InteropError: As `add`.
            ValueError: As `fbuf.write`.
            TypeError: As `fbuf.write`.
            RuntimeError: As `update_priority`.
        """
        self._writer.change(fbuf.write, ids=ids, fields=dict(fields), mask=mask)

    def remove(self, ids: fbuf.Ids[Any], *, mask: Any = None) -> None:
        """Remove rows, also from the batches drawn ahead.

        Args:
            ids: `batch.ids`, or part of them.
            mask: As for `fbuf.remove`.

        Raises:
            InteropError: As `add`.
            ValueError: As `fbuf.remove`.
            TypeError: As `fbuf.remove`.
            RuntimeError: As `update_priority`.
        """
        with self.lock:
            # Beforehand, for between the two an exception may come; they are drawn again.
            self.contents.stream.drop()
            self._writer.change(fbuf.remove, ids=ids, mask=mask)

    def end_episode(self, mask: Any = None) -> None:
        """End the open episodes: call it when you reset your environments.

        Before the first row there is no episode to end, and the call does nothing.

        Args:
            mask: As for `fbuf.end_episode`.

        Raises:
            InteropError: As `add`.
            ValueError: As `fbuf.end_episode`.
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        with self.lock:
            self.contents.check_open("end_episode")
            if self.contents.stored is None:
                return  # the first reset of a run comes before its first row
            self._writer.change(fbuf.end_episode, mask=mask)

    def empty(self) -> None:
        """Remove all rows and the batches drawn ahead. The memory stays allocated.

        Raises:
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        with self.lock:
            self.contents.check_open("empty")
            self.contents.empty()

    def drop_ahead(self) -> None:
        """Forget the batches drawn ahead; `sample` draws them again, from the buffer as it is."""
        with self.lock:
            self.contents.stream.drop()

    # Reading.

    def sample(
        self, batch_size: int | None = None, *, beta: float | None = None, out: Any = None
    ) -> fbuf.Sample[Any, torch.Tensor]:
        """Draw a batch.

        Args:
            batch_size: `B`, at least 1; None is that of the buffer. Batches of other sizes are not
                drawn ahead.
            beta: As for `fbuf.sample`. With `prefetch` it holds for the batch that this call draws.
            out: A batch that an earlier call has returned. The new one is written into its tensors,
                which stay where they are, as CUDA graphs need it. The copies are work of the
                current stream. `out` must have what the new batch has, in the same shapes and
                dtypes and on the same device. Each of its tensors has memory of its own.

        Returns:
            The batch, as tensors, or what `transform` makes of it; `out` itself, if given. Its
            `mask` is False where there was nothing to draw (see `can_sample`).

        Raises:
            ValueError: If there is no batch size, or if it is below 1.
            TypeError: If it is not an int.
            InteropError: If the new batch cannot be written into `out`, which is then as before.
                The batch is left out, as one whose `transform` raises. Also if a CUDA graph is
                captured.
            RuntimeError: If nothing has been added yet, if the buffer is closed, or if a function
                has consumed its `state`.
        """
        contents, drawn = self.contents, None
        stream = contents.stream
        try:
            if out is not None:
                _tensors.check_torch("ReplayBuffer.sample")
            with self.lock:
                stored = contents.filled("sample")
                size = contents.spec.batch_size if batch_size is None else batch_size
                if size is None:
                    raise ValueError(
                        f"{where('sample')} batch_size is None, and the buffer has none; give one "
                        "here or to the buffer"
                    )
                check.integer("sample", "batch_size", size)
                power = check.scalar("sample", "beta", beta)
                modes = _modes.current() if contents.spec.takes_modes else None
                stream = contents.stream
                drawn = stream.next(stored.backend, size, power, modes)
            batch = drawn.take()
            if out is not None:
                _into.write(where("sample"), out, batch)
                batch = out
            stream.returned(drawn)
            return batch
        except Cancelled as error:
            stream.ended_by(error, None, self.lock)
            raise RuntimeError(
                f"{where('sample')} the buffer was closed, or its batches were dropped, while "
                "this call waited"
            ) from None
        except BaseException as error:
            stream.ended_by(error, drawn, self.lock)
            OF_TENSORS.retell("sample", error)
            raise

    def __iter__(self) -> Iterator[fbuf.Sample[Any, torch.Tensor]]:
        """Return batches without end. With `fbuf.Shuffled`, return those of the next epoch.

        Raises:
            RuntimeError: As `sample`.
            ValueError: As `sample`.
        """
        spec = self.contents.spec
        if not spec.buffer.sampler.without_replacement:
            while True:
                yield self.sample()
        with self.lock:
            size = spec.batch_size
            if size is None:
                raise ValueError(f"{where('__iter__')} batch_size is not given to the buffer")
            rows = int(self.contents.filled("__iter__").backend.stats(False)["epoch_size"])
            batches = rows // size if spec.drop_last else -(-rows // size)
            self.contents.stream.begin_epoch()
        for _ in range(batches):
            yield self.sample()

    def __len__(self) -> int:
        """Count the rows, without removed ones. It waits for calls that are under way."""
        return self.contents.count()

    def __getitem__(self, index: Any) -> Any:
        """Read rows by where they lie: position 0 is slot 0, not the oldest row.

        Args:
            index: A position, a slice, or a list or tensor of positions or of bools, of the slots
                that hold rows, `[N]`; with environments, of `[num_envs, N]`. Or the name of a
                field, for that of all rows, as `buffer[:][name]`; of a field in a field a tuple of
                names.

        Returns:
            The items, leaves of the shape that the index gives and then that of the item, in memory
            of their own. Slices leave out removed rows if there are no environments.

        Raises:
            IndexError: If there is no such position, or the row there was removed.
            KeyError: If there is no such field.
            RuntimeError: As `update_priority`.

        Cost: O(B), and O(N) if `index` is a tensor or there are environments.
        """
        names = index if isinstance(index, tuple) else (index,)
        if names and all(isinstance(name, str) for name in names):
            return _reading.field(where("__getitem__"), self[:], names)
        slots, data = _reading.read_at(self.contents, where("__getitem__"), index)
        return self.contents.delivery.rows(data, slots.shape)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        """Refuse: rows are added, and fields of them written."""
        raise TypeError(
            f"{where('__setitem__')} rows cannot be written by position; add rows with extend(), "
            "or change fields with write(ids, fields), where the ids of a batch are batch.ids"
        )

    def episodes(self) -> Iterator[Any]:
        """Go through the stored episodes, oldest first, and environment by environment.

        Yields:
            Items, leaves `[T, ...]`: the stored steps of an episode, in order. The oldest may lack
            its beginning, and the newest of each environment its end. A removed row splits an
            episode in two. An episode that is overwritten before its turn is left out.

        Raises:
            RuntimeError: As `update_priority`.

        Cost: O(N) at first, and then O(T) each.
        """
        return self._episodes()  # torch.compile would trace a generator

    def _episodes(self) -> Iterator[Any]:
        for slots, data in _reading.read_episodes(self.contents):
            yield self.contents.delivery.rows(data, slots.shape)

    def __repr__(self) -> str:
        """One line: what is in it, and what it returns."""
        return self.contents.in_words("ReplayBuffer", self.contents.spec.batch_size)

    def can_sample(self) -> bool:
        """Whether there is a row to draw; see `fbuf.can_sample`.

        Raises:
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        with self.lock:
            self.contents.check_open("can_sample")
            if self.contents.stored is None:
                return False
            ready = self.contents.made("can_sample").backend.look(fbuf.can_sample)
        return bool(ready)

    def stats(self, *, detailed: bool = False) -> dict[str, float]:
        """Return the figures of `fbuf.stats` as Python numbers.

        Args:
            detailed: Also return what takes a look at every row.

        A buffer without an `item` learns it from the first add. Before that, the figures are those
        of rows of one number, beside the fields of the sampler.

        Raises:
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        contents = self.contents
        with self.lock:
            contents.check_open("stats")
            if contents.stored is None:
                empty = lambda: fbuf.stats(contents.empty_state(), detailed=detailed)
                figures = contents.calls.apart(empty)
            else:
                figures = contents.made("stats").backend.stats(detailed)
        return {name: np.asarray(figure).item() for name, figure in figures.items()}

    def raise_on_fault(self) -> None:
        """Raise if a bad value was skipped; see `fbuf.raise_on_fault`.

        Raises:
            RuntimeError: If a fault bit is set. Also as `update_priority`.
        """
        with self.lock:
            fbuf.raise_on_fault(self.contents.made("raise_on_fault").backend.state)

    # The state.

    @property
    # To pyright RLock is a function, but the class it makes objects of has no public name.
    def lock(self) -> threading.RLock:  # pyright: ignore[reportGeneralTypeIssues]
        """The lock that every method holds to give JAX work; hold it to make several calls one.

        Raises:
            RuntimeError: In a process that was forked off.
        """
        return self.contents.lock

    @property
    def seed(self) -> int:
        """The seed of the draws: given, drawn, or loaded with a saved run."""
        return self.contents.seed

    @property
    def state(self) -> fbuf.State[Any]:
        """The `fbuf.State`, for compiled code of your own. Assign the state that this code returns.

        A function that donates the state consumes it: every method then raises until you assign
        another state. In a program with threads, hold `lock` meanwhile.

        Raises:
            RuntimeError: As `update_priority`. Also if the rows lie on the host. It is an
                `AttributeError` as well, so that `hasattr(buffer, "state")` is False.
        """
        with self.contents.attribute(), self.lock:
            self.contents.check_on_device("state")
            return self.contents.made("state").backend.shown()

    @state.setter
    def state(self, state: fbuf.State[Any]) -> None:
        with self.lock:
            self.contents.set_state(state)

    def state_dict(self) -> dict[str, Any]:
        """Return all that future calls depend on: tensors on CPU, with memory of their own.

        `torch.save` and `torch.load` take it as it is. One exception: with `prefetch` it holds the
        batches drawn ahead as `transform` has made them, and `torch.load` may not know these
        objects.

        Raises:
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        with self.lock:
            self.contents.check_open("state_dict")
            return _snapshot.state_dict(self.contents)

    def load_state_dict(self, state_dict: dict[str, Any], *, episodes: Episodes = "end") -> None:
        """Go on where `state_dict` was called. The buffer copies what you give.

        Make the buffer with the same arguments. With `episodes="keep"` it then draws the same
        batches as the other would have drawn. A buffer without an `item` takes it from
        `state_dict`.

        Args:
            state_dict: The result of `state_dict()`, in this process or another.
            episodes: `"end"` ends the open episodes, as `end_episode` does: the next row of each
                environment begins one. `"keep"` goes on within them, bit for bit: give it if you
                restore your environments, too.

        Raises:
            ValueError: If it is from a buffer made with other arguments, or if parts are missing;
                or if `episodes` is something else. The buffer is then unchanged.
            RuntimeError: If the buffer is closed.
        """
        _snapshot.load_state_dict(self.contents, state_dict, episodes, lambda: None)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        extra: Any = None,
        keep: int = 2,
        background: bool = False,
    ) -> None:
        """Save all that future calls depend on to a directory, as `fbuf.save` does.

        A save that is stopped leaves the checkpoint before it. A directory that holds an earlier
        checkpoint of the buffer gets only the rows that are new since.

        Args:
            path: The directory.
            extra: More to save: tensors, arrays, numbers, bools, strings, bytes and None, in dicts,
                lists and tuples. The `state_dict()` of a network or an optimiser is such a tree.
            keep: How many checkpoints to keep in the directory.
            background: Return as soon as all is copied that has to be, `extra` too, so live
                parameters are safe; see `fbuf.wait`.

        Raises:
            TypeError: If `extra`, or with `prefetch` what `transform` has made, is something else.
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
            OSError: As `fbuf.save`.
        """
        with self.lock:
            _snapshot.save(self.contents, path, extra, keep, background)

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        fallback: bool = False,
        episodes: Episodes = "end",
    ) -> Any:
        """Go on where `save` was called.

        Make the buffer with the same arguments. With `episodes="keep"` it then draws the same
        batches as the other would have drawn. A buffer without an `item` takes it from the
        directory.

        Args:
            path: The directory.
            fallback: As for `fbuf.load`.
            episodes: As for `load_state_dict`.

        Returns:
            The `extra` that was given to `save`; its tensors lie on CPU.

        Raises:
            fbuf.CheckpointError: As `fbuf.load`. The buffer is then unchanged.
            ValueError: If it is from a buffer made with other arguments, or if `episodes` is
                something else; likewise.
            RuntimeError: If the buffer is closed.
        """
        return _snapshot.load(self.contents, path, fallback, episodes, lambda extra: None)

    def close(self) -> None:
        """Stop the prefetch thread, and free the memory. Batches stay valid.

        A thread that waits for a batch still gets it. Every later call gets a `RuntimeError`.
        """
        self.contents.close()

    def __enter__(self) -> ReplayBuffer:
        """Return the buffer; leaving the `with` block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        stays_in_process(cls)

    # Copies.

    _own_attributes = frozenset(("contents", "_writer"))

    def _lock_of_copies(self) -> threading.RLock:  # pyright: ignore[reportGeneralTypeIssues]
        return self.lock

    def _for_copies(self) -> dict[str, Any]:
        contents = self.contents
        return {"arguments": contents.arguments(), "containers": list(contents.rebuild)}

    def _remake(self, made_with: dict[str, Any]) -> None:
        # A derived class may have other arguments.
        ReplayBuffer.__init__(self, **made_with["arguments"])
        self.contents.rebuild += made_with["containers"]


stays_in_process(ReplayBuffer)
Holder.register(ReplayBuffer, lambda buffer, function: buffer.contents.inner(function))
