"""A replay buffer for PyTorch: an object that owns a state, tensors in and tensors out."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import torch

import fbuf
from fbuf.checkpoint import paths
from fbuf.checks import values as check
from fbuf.host import HostStore
from fbuf.ops import resume
from fbuf.ops.resume import Episodes
from fbuf.runtime import fixed_arguments, processes
from fbuf.runtime.thread import Cancelled
from fbuf.samplers import Sampler
from fbuf.storage.episodes import Autoreset
from fbuf.views import View
from fbuf_adapters.pytorch import (
    _checkpoint,
    _containers,
    _delivery,
    _dtypes,
    _inputs,
    _listed,
    _reading,
    _sizes,
    _taken,
    _tensors,
    _time_major,
    _words,
)
from fbuf_adapters.pytorch._batch_stream import Draws
from fbuf_adapters.pytorch._calls import Calls
from fbuf_adapters.pytorch._error import InteropError, convert
from fbuf_adapters.pytorch._host_owner import HostOwner
from fbuf_adapters.pytorch._item import Learned, learn
from fbuf_adapters.pytorch._owner import Owner
from fbuf_adapters.pytorch._tree import map_tensors
from fbuf_adapters.pytorch._unpack import free

_NAME = "ReplayBuffer"


@dataclasses.dataclass(frozen=True)
class _Rows:
    """What a buffer has once its item is known.

    Attributes:
        learned: The item.
        owner: The state.
        blank: The fault of a state to which nothing has been added yet. It names the state, and
            keeps no rows.
    """

    learned: Learned
    owner: Owner
    blank: jax.Array | None


@fixed_arguments.arguments(beta="sample", alpha="update_priority")
class ReplayBuffer:
    """Replay memory for PyTorch: an object that owns a `fbuf.State` and a random key.

    Arguments and methods mean what the functions of `fbuf` with the same names say; below is only
    what is different. The tensors of a batch belong to you, and each by itself: none is a view of
    another, and nobody else uses their memory. On a GPU a small one keeps that of its whole batch.

    Any number of threads may add and draw. A lock lets one thread at a time hand its work to JAX,
    and JAX does the work in that order. So a batch never holds half a row, and holds every row of a
    call that has returned. Hold `lock` to make several calls one.

    Two runs that make the same calls in the same order, with the same seed, draw the same batches,
    also with `prefetch`. After the buffer is made, it neither reads nor changes a global random
    generator; what your `transform` draws from one depends on the order of threads.

    Batches may have any length. JAX compiles a program for each size that it sees. Each method has
    programs of at most four exact sizes: the first size, and sizes that come twice in a row. Other
    sizes are rounded up to 16, 64, 256, 1024, 4096, 8192, and so on by two. Rows to add are then
    padded and masked. A drawn batch has the size that you asked for.

    An exception may come at any moment, from Ctrl-C or another signal. The buffer then holds the
    state from before the call or from after it, and the next call of `sample` returns the batch
    that the broken one would have returned.

    A buffer stays in the process that made it. It cannot be pickled or copied: give another buffer
    its `state_dict()`. In a process that was forked off, such as a worker of a DataLoader, every
    method raises.

    Args:
        capacity: How many rows to keep. The first `add` allocates the memory.
        item: One unbatched item: a tree of tensors, arrays or `jax.ShapeDtypeStruct`. Only shapes
            and dtypes count. None takes them from the first `add` or `extend`.
        sampler: Which rows may be drawn, and how likely each is.
        view: What a drawn row turns into.
        batch_size: `B`, for iteration and for `sample()` without a `batch_size`.
        num_envs: As for `fbuf.init`.
        autoreset: As for `fbuf.init`.
        lockstep: As for `fbuf.init`.
        next_of: As for `fbuf.init`.
        max_ends: As for `fbuf.init`.
        device: Where rows lie and batches are drawn: `"cpu"`, or `"cuda"` with JAX for CUDA.
        seed: From 0 to 2**32 - 1. The same seed and the same calls draw the same batches. None
            draws one from PyTorch's default generator, on CPU: after `torch.manual_seed` it is the
            same in every run, and another one for every buffer.
        int64: Return all 32-bit integers of a batch, its ids too, as int64, which torch wants for
            many kinds of index. This copies them.
        transform: A function of a batch, a `fbuf.Sample` of tensors. `sample` returns what it
            returns, which may be anything but None. It must not call the buffer.
        pin_memory: Return batches in pinned memory, every tensor of them, so that copies to a GPU
            need not wait. It comes after `transform`. For `device="cpu"`, on a machine with a GPU.
        to: The device to move every tensor of a batch to, for a learner on another device than the
            rows. The buffer accepts ids and priorities from there.
        prefetch: How many batches to keep ready. `sample` then draws a new batch, and returns the
            one that it drew that many calls before, from the buffer as it was then. Another thread
            makes tensors of the new batch, and transforms, pins and moves them; the transform is
            called under the grad mode, inference mode, autocast and default device of the call of
            `sample`. Updates for rows that were overwritten since are ignored. `remove`, `empty`,
            a new `state`, a `sample` of another size, and one under other modes if there is a
            transform, drop the batches drawn ahead; they are drawn again.
        drop_last: For `fbuf.Shuffled`: leave out the last batch of an epoch if it is short.
        host: Whether the rows lie on the host, if they do not fit the device. True: in host memory.
            A directory: in files on its disk, see `fbuf.host.HostStore`. A `HostStore`
            made with the same arguments: those that it has, such as a data set; it is the buffer's
            from then on. What lies on `device` is 1 to 6 bytes a row, and up to 5 more with
            `next_of`. All methods are as without, but for `state`.

    Raises:
        ValueError: As `fbuf.init`. Also if you give `prefetch` without `batch_size`, or if an
            argument is out of range.
        InteropError: If JAX or PyTorch cannot reach the device, or if there is no GPU to pin memory
            for.

    Cost: that of the function of `fbuf`, and a few microseconds for each tensor in or out.

    Examples:
        >>> import fbuf, torch
        >>> from fbuf_adapters.pytorch import ReplayBuffer
        >>> buffer = ReplayBuffer(1000, sampler=fbuf.Prioritized(), batch_size=4, int64=True)
        >>> item = {"obs": torch.ones(3), "action": torch.tensor(1)}
        >>> for _ in range(10):
        ...     buffer.add(item, terminated=False)
        >>> batch = buffer.sample()
        >>> batch.data["obs"].shape, batch.data["action"]
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
        device: torch.device | str = "cpu",
        seed: int | None = None,
        int64: bool = False,
        transform: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        to: torch.device | str | None = None,
        prefetch: int = 0,
        drop_last: bool = False,
        host: bool | str | os.PathLike[str] | HostStore[Any] = False,
    ) -> None:
        check.instance(_NAME, "sampler", sampler, Sampler, "fbuf.Uniform()")
        if sampler.is_queue:
            raise ValueError(
                f"{_where('__init__')} this object draws batches, and {type(sampler).__name__} is "
                "for rows that are read once; use state, batch = fbuf.pop(state, count) and "
                "to_torch(batch.data)"
            )
        given: Any = host  # users may have no type checker
        if not isinstance(given, bool | str | os.PathLike | HostStore):
            raise TypeError(
                f"{_where('__init__')} host must be True, False, a directory or a HostStore, got "
                f"{host!r}"
            )
        check.instance(_NAME, "view", view, View, "fbuf.Item()")
        check.integer(_NAME, "prefetch", prefetch, smallest=0)
        if seed is not None:
            check.integer(_NAME, "seed", seed, largest=2**32 - 1, smallest=0)
        if batch_size is not None:
            check.integer(_NAME, "batch_size", batch_size)
        if prefetch and batch_size is None:
            raise ValueError(
                f"{_where('__init__')} prefetch needs a batch_size; give one to the buffer"
            )
        self._device = torch.device(device)
        self._jax_device = _tensors.jax_device(self._device, _where("__init__"))
        if pin_memory and not (self._device.type == "cpu" and torch.cuda.is_available()):
            raise InteropError(
                f"{_where('__init__')} pin_memory needs rows on the CPU (they are on "
                f"{self._device}) and a GPU that PyTorch can use; leave it out"
            )
        self._to = None if to is None else torch.device(to)
        self._init = functools.partial(
            fbuf.init,
            capacity=capacity,
            num_envs=num_envs,
            sampler=sampler,
            autoreset=autoreset,
            lockstep=lockstep,
            next_of=next_of,
            max_ends=max_ends,
        )
        self._view = view
        self._seed = drawn_seed() if seed is None else int(seed)
        self._batch_size = batch_size
        self._num_envs = num_envs
        self._leading = 0 if num_envs is None else 1
        self._whole_steps = lockstep and num_envs is not None
        self._in_order = sampler.without_replacement
        self._drop_last = drop_last
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = False
        self._calls = Calls()
        self._sizes = _sizes.Sizes()
        self._rows: _Rows | None = None
        self._rebuild: list[_containers.Rebuild] = []
        """What makes items what they were, if they were no trees of JAX's."""
        self._host = host is not False
        at_path = isinstance(host, str | os.PathLike)
        self._files = paths.local(_where("__init__").rstrip(":"), host) if at_path else None
        if isinstance(host, HostStore):
            self._files = host.files
        self._opens = isinstance(host, HostStore) and host.folder is not None
        takes_modes = transform is not None
        if transform is not None:
            transform = functools.partial(_returned, transform)
        if view == fbuf.Item():
            transform = functools.partial(_as_given, self._rebuild, transform)
        self._handover = _delivery.Handover(int64, transform, pin_memory, self._to)
        self._draws = Draws(
            key=jax.device_put(jax.random.key(self._seed), self._jax_device),
            in_order=sampler.without_replacement,
            drop_last=drop_last,
            view=view,
            batch_size=batch_size,
            prefetch=prefetch,
            handover=self._handover,
            stream=_delivery.stream_for(self._device, self._to) if prefetch else None,
            takes_modes=takes_modes,
        )
        if isinstance(host, HostStore):
            self._rows = self._of_store(host, item)
        elif item is not None:
            item, rebuild = _containers.plain(item)
            self._rebuild += [] if rebuild is None else [rebuild]
            self._rows = self._make(learn(_where("__init__"), item))
        else:  # what is wrong with the other arguments should be said now
            jax.eval_shape(lambda: self._init(0.0, next_of=None, max_ends=None))

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

        The first call says what an item is. What has an axis more than that is refused: `extend`
        takes batches.

        Args:
            item: A tree of tensors, a TensorDict or a tensorclass; `sample` returns the same.
                Arrays of NumPy and Python numbers are taken for tensors. On CPU you may reuse the
                tensors when the call returns; on a GPU, work that you give to the current stream
                afterwards waits for the call. 64-bit integers are stored in 32 bits, if every value
                fits. Tensors on a GPU need a buffer on that GPU.
            terminated: As for `fbuf.add`: a tensor or a Python value. The same holds for the
                arguments below.
            truncated: As for `fbuf.add`.
            next_observation: As for `fbuf.add`, of tensors.
            priority: As for `fbuf.add`.
            mask: As for `fbuf.add`.
            alpha: As for `fbuf.add`.

        Raises:
            InteropError: If a leaf is not a tensor, an array or a number, or is one that JAX cannot
                take (it requires grad, lies on another device, holds 64-bit floats, or an integer
                that does not fit), or if the tree differs from that of the item, or if it looks
                like a batch. The buffer is then unchanged.
            ValueError: As `fbuf.add`.
            TypeError: As `fbuf.add`.
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        flags = {"terminated": terminated, "truncated": truncated, "priority": priority}
        self._add("add", 0, item, next_observation, flags | {"mask": mask, "alpha": alpha}, False)

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
        flags = {"terminated": terminated, "truncated": truncated, "priority": priority}
        flags |= {"mask": mask, "alpha": alpha}
        self._add("extend", 1, items, next_observation, flags, time_major)

    def update_priority(
        self, ids: fbuf.Ids[Any], priority: Any, *, mask: Any = None, alpha: float | None = None
    ) -> None:
        """Give rows new priorities.

        Args:
            ids: `batch.ids`, or part of them.
            priority: As for `fbuf.update_priority`.
            mask: As for `fbuf.update_priority`.
            alpha: As for `fbuf.update_priority`.

        Raises:
            InteropError: As `add`.
            ValueError: As `fbuf.update_priority`.
            TypeError: As `fbuf.update_priority`.
            RuntimeError: As `add`. Also if nothing has been added yet.
        """
        given = {"ids": ids, "priority": priority, "mask": mask, "alpha": alpha}
        self._change("update_priority", fbuf.update_priority, given)

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
        self._change("write", fbuf.write, {"ids": ids, "fields": dict(fields), "mask": mask})

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
            self._draws.drop()
            self._change("remove", fbuf.remove, {"ids": ids, "mask": mask})

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
            self._check_open("end_episode")
            if self._rows is None:
                return  # the first reset of a run comes before its first row
            self._change("end_episode", fbuf.end_episode, {"mask": mask})

    def empty(self) -> None:
        """Remove all rows and the batches drawn ahead. The memory stays allocated.

        Raises:
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        with self.lock:
            self._check_open("empty")
            self._draws.drop()
            if self._rows is not None:
                owner = self._made("empty").owner
                owner.change(fbuf.clear, *jax.tree.flatten({}), wait=False)
                self._rows = dataclasses.replace(self._rows, blank=owner.fault)

    def drop_ahead(self) -> None:
        """Forget the batches drawn ahead; `sample` draws them again, from the buffer as it is."""
        with self.lock:
            self._draws.drop()

    # Reading.

    def sample(
        self, batch_size: int | None = None, *, beta: float | None = None
    ) -> fbuf.Sample[Any, torch.Tensor]:
        """Draw a batch.

        Args:
            batch_size: `B`, at least 1; None is that of the buffer. Batches of other sizes are not
                drawn ahead.
            beta: As for `fbuf.sample`. With `prefetch` it holds for the batch that this call draws.

        Returns:
            The batch, as tensors, or what `transform` makes of it. Its `mask` is False where there
            was nothing to draw (see `can_sample`).

        Raises:
            ValueError: If there is no batch size, or if it is below 1.
            TypeError: If it is not an int.
            RuntimeError: If nothing has been added yet, if the buffer is closed, or if a function
                has consumed its `state`.
        """
        with self.lock:
            rows = self._filled("sample")
            size = self._batch_size if batch_size is None else batch_size
            if size is None:
                raise ValueError(
                    f"{_where('sample')} batch_size is None, and the buffer has none; give one "
                    "here or to the buffer"
                )
            check.integer("sample", "batch_size", size)
            power = check.scalar("sample", "beta", beta)
            draws = self._draws
            drawn = draws.next(rows.owner, size, power)
        try:
            batch = drawn.take()
        except Cancelled:
            raise RuntimeError(
                f"{_where('sample')} the buffer was closed, or its batches were dropped, while "
                "this call waited"
            ) from None
        except Exception:
            with self.lock:
                draws.failed(drawn)
            raise
        draws.returned(drawn)
        return batch

    def __iter__(self) -> Iterator[fbuf.Sample[Any, torch.Tensor]]:
        """Return batches without end. With `fbuf.Shuffled`, return those of the next epoch.

        Raises:
            RuntimeError: As `sample`.
            ValueError: As `sample`.
        """
        if not self._in_order:
            while True:
                yield self.sample()
        with self.lock:
            if self._batch_size is None:
                raise ValueError(f"{_where('__iter__')} batch_size is not given to the buffer")
            rows = int(self._filled("__iter__").owner.stats(False)["epoch_size"])
            size = self._batch_size
            batches = rows // size if self._drop_last else -(-rows // size)
            self._draws.begin_epoch()
        for _ in range(batches):
            yield self.sample()

    def __len__(self) -> int:
        """Count the rows, without removed ones. It waits for calls that are under way."""
        with self.lock:
            self._check_open("__len__")
            size = 0 if self._rows is None else self._made("__len__").owner.look(fbuf.size)
        return int(size)

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
            return _reading.field(_where("__getitem__"), self[:], names)
        slots, data = self.read_at(_where("__getitem__"), index)
        return self._given(data, slots.shape)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        """Refuse: rows are added, and fields of them written."""
        raise TypeError(
            f"{_where('__setitem__')} rows cannot be written by position; add rows with extend(), "
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
        return self._episodes()  # what yields, torch.compile would look into

    def _episodes(self) -> Iterator[Any]:
        for slots, data in self.read_episodes():
            yield self._given(data, slots.shape)

    def __repr__(self) -> str:
        """One line: what is in it, and what it returns."""
        capacity = self._init.keywords["capacity"]
        try:
            held = f"{len(self)} of {capacity} rows"
        except RuntimeError:
            held = "closed or consumed"
        envs = self._init.keywords["num_envs"]
        return (
            f"ReplayBuffer({held}{'' if envs is None else f', {envs} environments'}, sampler="
            f"{self._init.keywords['sampler']}, view={self._view}, batch_size={self._batch_size}, "
            f"seed={self._seed})"
        )

    def can_sample(self) -> bool:
        """Whether there is a row to draw; see `fbuf.can_sample`.

        Raises:
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        with self.lock:
            self._check_open("can_sample")
            if self._rows is None:
                return False
            ready = self._made("can_sample").owner.look(fbuf.can_sample)
        return bool(ready)

    def stats(self, *, detailed: bool = False) -> dict[str, float]:
        """Return the figures of `fbuf.stats` as Python numbers.

        Args:
            detailed: Also return what takes a look at every row.

        As long as nothing has been added to a buffer without an `item`, they are those of a buffer
        of one number.

        Raises:
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        with self.lock:
            self._check_open("stats")
            if self._rows is None:
                empty = lambda: self._init(np.float32(0), next_of=None, max_ends=None)
                figures = self._calls.apart(lambda: fbuf.stats(empty(), detailed=detailed))
            else:
                figures = self._made("stats").owner.stats(detailed)
        return {name: np.asarray(figure).item() for name, figure in figures.items()}

    def raise_on_fault(self) -> None:
        """Raise if a bad value was skipped; see `fbuf.raise_on_fault`.

        Raises:
            RuntimeError: If a fault bit is set. Also as `update_priority`.
        """
        with self.lock:
            fbuf.raise_on_fault(self._made("raise_on_fault").owner.state)

    # The state.

    @property
    # To pyright RLock is a function, but the class it makes objects of has no public name.
    def lock(self) -> threading.RLock:  # pyright: ignore[reportGeneralTypeIssues]
        """The lock that every method holds to give JAX work; hold it to make several calls one.

        Raises:
            RuntimeError: In a process that was forked off.
        """
        if os.getpid() != self._process:  # there JAX hangs, and so may the lock
            raise RuntimeError(
                f"{_where('lock')} this buffer was made in another process, and JAX does not run "
                "in one that was forked off. Draw in the process that made the buffer; in a "
                "DataLoader, num_workers=0. Or start the process with 'spawn', and make a buffer "
                "there"
            )
        return self._lock

    @property
    def seed(self) -> int:
        """The seed of the draws: given, drawn, or loaded with a saved run."""
        return self._seed

    @property
    def state(self) -> fbuf.State[Any]:
        """The `fbuf.State`, for compiled code of your own. Assign the state that this code returns.

        A function that donates the state consumes it: every method then raises until you assign
        another state. In a program with threads, hold `lock` meanwhile.

        Raises:
            RuntimeError: As `update_priority`. Also if the rows lie on the host.
        """
        with self.lock:
            self._check_device("state")
            return self._made("state").owner.state

    @state.setter
    def state(self, state: fbuf.State[Any]) -> None:
        with self.lock:
            self._check_open("state")
            self._check_device("state")
            if self._rows is None:
                raise RuntimeError(
                    f"{_where('state')} nothing has been added yet, so the item is not known; "
                    "give the buffer its item when you make it"
                )
            if _form(state) != _form(self._rows.owner.state):
                raise InteropError(
                    f"{_where('state')} must be a state of this buffer, as fbuf's functions return "
                    "it for buffer.state: with the same item, capacity, sampler and environments"
                )
            self._draws.drop()
            state = jax.device_put(state, self._jax_device)
            if state.fault is self._rows.owner.fault:  # by which this state is told from that
                state = dataclasses.replace(state, fault=jnp.copy(state.fault))
            self._rows.owner.state = state

    def state_dict(self) -> dict[str, Any]:
        """Return all that future calls depend on: tensors on CPU, with memory of their own.

        `torch.save` and `torch.load` take it as it is. One exception: with `prefetch` it holds the
        batches drawn ahead as `transform` has made them, and `torch.load` may not know these
        objects.

        Raises:
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
        """
        with self.lock:
            self._check_open("state_dict")
            rows = None if self._rows is None else self._made("state_dict")
            return self._calls.apart(lambda: self._saved(rows))

    def load_state_dict(self, state_dict: dict[str, Any], *, episodes: Episodes = "end") -> None:
        """Go on where `state_dict` was called. The buffer copies what you give.

        Make the buffer with the same arguments. With `episodes="keep"` it then draws the same
        batches as the other would have drawn. A buffer without an `item` takes it from
        `state_dict`.

        Args:
            state_dict: What `state_dict()` returned, in this process or another.
            episodes: `"end"` ends the open episodes, as `end_episode` does: the next row of each
                environment begins one. `"keep"` goes on within them, bit for bit: give it if you
                restore your environments, too.

        Raises:
            ValueError: If it is from a buffer made with other arguments, or if parts are missing;
                or if `episodes` is something else. The buffer is then unchanged.
            RuntimeError: If the buffer is closed.
        """
        self.load_state_checked(state_dict, episodes, lambda: None)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        extra: Any = None,
        keep: int = 2,
        background: bool = False,
    ) -> None:
        """Save all that future calls depend on to a directory, as `fbuf.save` does.

        A save that is stopped leaves the checkpoint before it, and of a directory that holds an
        earlier one only what is new since is written.

        Args:
            path: The directory.
            extra: What else to save: tensors, arrays, numbers, bools, strings and None, in dicts,
                lists and tuples. The `state_dict()` of a network or an optimiser is such a tree.
            keep: How many checkpoints to keep in the directory.
            background: Return as soon as all is copied that has to be; see `fbuf.wait`.

        Raises:
            TypeError: If `extra`, or with `prefetch` what `transform` has made, is something else.
            RuntimeError: If the buffer is closed, or if a function has consumed its `state`.
            OSError: As `fbuf.save`.
        """
        with self.lock:
            self._check_open("save")
            where = _where("save")
            rows = None if self._rows is None else self._made("save")

            def write() -> None:
                run = self._snapshot(rows)
                options: dict[str, Any] = {"keep": keep, "background": background}
                options["extra"] = _checkpoint.beside(where, run, self._init, extra)
                if rows is None:  # a directory has the rows of some buffer
                    item = jax.ShapeDtypeStruct((), jnp.int32)
                    fbuf.save(path, self._init(item, next_of=None, max_ends=None), **options)
                    return
                rows.owner.save(path, **options)
                if not run.written:
                    self._rows = dataclasses.replace(rows, blank=rows.owner.fault)

            self._calls.apart(write)

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
            What was given to `save` as `extra`; its tensors lie on CPU.

        Raises:
            fbuf.CheckpointError: As `fbuf.load`. The buffer is then unchanged.
            ValueError: If it is from a buffer made with other arguments, or if `episodes` is
                something else; likewise.
            RuntimeError: If the buffer is closed.
        """
        return self.load_checked(path, fallback, episodes, lambda extra: None)

    def close(self) -> None:
        """Stop the prefetch thread, and free the memory. Batches stay valid.

        A thread that waits for a batch still gets it. Every later call gets a `RuntimeError`.
        """
        with self.lock:
            self._closed = True
            self._rows = None
            self._draws.drop()
        self._draws.close()

    def __enter__(self) -> ReplayBuffer:
        """Return the buffer; leaving the `with` block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        processes.stays(cls)

    def __getstate__(self) -> Any:
        """Refuse to be pickled or copied."""
        raise TypeError(
            f"{_where('__getstate__')} a buffer cannot be pickled or copied, for it owns memory "
            "and threads; make another with the same arguments, and give it this one's "
            "state_dict()"
        )

    # The rest is not for users.

    @property
    def owner(self) -> Owner:
        """What holds the rows. Hold `lock`."""
        return self._made("state").owner

    @property
    def stamp(self) -> jax.Array:
        """A small array of the state: another one as soon as it has changed."""
        with self.lock:
            return self.owner.fault

    def load_state_checked(
        self, state_dict: dict[str, Any], episodes: Episodes, check: Callable[[], object]
    ) -> None:
        """As `load_state_dict`; `check` may raise before anything has changed."""
        resume.check(f"{_NAME}.load_state_dict", episodes)
        with self.lock:
            self._check_open("load_state_dict")
            where = _where("load_state_dict")
            load = lambda: self._loaded(where, state_dict, episodes)
            rows, draws, rebuild, seed = self._calls.apart(load)
            check()
            before = self._draws
            # One instruction: an exception comes before all of it, or after.
            self.__dict__.update(_rows=rows, _draws=draws, _seed=seed)
            self._rebuild += rebuild
            before.drop()

    def load_checked(
        self,
        path: str | os.PathLike[str],
        fallback: bool,
        episodes: Episodes,
        check: Callable[[Any], None],
    ) -> Any:
        """As `load`; `check` may raise at what was saved beside, before anything has changed."""
        resume.check(f"{_NAME}.load", episodes)
        with self.lock:
            self._check_open("load")
            where, known = _where("load"), self._rows

            def read() -> tuple[_Rows | None, Draws, list[_containers.Rebuild], int, Any]:
                learned = None if known is None else known.learned
                load: Any = fbuf.load
                if self._host:
                    of_files = functools.partial(HostStore.load, files=self._files)
                    load = _opened if self._opens else of_files
                with jax.default_device(self._jax_device):
                    run, extra = _checkpoint.read(
                        where,
                        path,
                        functools.partial(load, episodes=episodes),
                        self._init,
                        self._batch_size,
                        learned,
                        fallback,
                    )
                check(extra)
                return *self._resumed(where, run), extra

            rows, draws, rebuild, seed, extra = self._calls.apart(read)
            before = self._draws
            self.__dict__.update(_rows=rows, _draws=draws, _seed=seed)  # one instruction, as above
            self._rebuild += rebuild
            before.drop()
            return extra

    def read_at(self, where: str, index: Any) -> tuple[torch.Tensor, Any]:
        """The slots that an index means, and the rows there, flat; see `__getitem__`."""
        with self.lock:
            owner = self._made("__getitem__").owner
            slots = self._calls.apart(lambda: _reading.positions(owner.state, index))
            read = functools.partial(_reading.read, owner, slots.reshape(-1))
            data, there = _reading.as_tensors(self._calls.apart(read))
        if not bool(there.all()):
            if not isinstance(index, slice) or self._leading:
                slot = int(slots.reshape(-1)[~there.cpu()][0])
                raise IndexError(
                    f"{where} the row in slot {slot} was removed; read [:] or episodes()"
                )
            slots, data = slots[there.cpu()], jax.tree.map(lambda leaf: leaf[there], data)
        return slots, data

    def read_episodes(self) -> Iterator[tuple[torch.Tensor, Any]]:
        """The slots of each stored episode, and its rows."""
        with self.lock:
            state = self._made("episodes").owner.state
            found = self._calls.apart(lambda: list(_reading.episodes(state)))
        for slots, generations in found:
            with self.lock:
                owner = self._made("episodes").owner
                read = functools.partial(_reading.read, owner, slots, generations)
                data, there = _reading.as_tensors(self._calls.apart(read))
            if bool(there.all()):
                yield torch.from_numpy(slots).long(), data

    def _given(self, data: Any, lead: torch.Size) -> Any:
        """Rows as the user gave them, where he wants them."""
        leaves, tree = jax.tree.flatten(data)
        leaves = [free(leaf.reshape((*lead, *leaf.shape[1:]))) for leaf in leaves]
        data = tree.unflatten(self._handover.widened(leaves))
        if self._rebuild:
            data = self._rebuild[0](data, lead)
        return self._handover.place(data)

    def _saved(self, rows: _Rows | None) -> dict[str, Any]:
        """All that future calls depend on."""
        return _checkpoint.save(self._snapshot(rows), self._init.keywords)

    def _snapshot(self, rows: _Rows | None) -> _checkpoint.Run:
        """The same as it is here."""
        waiting, turn = self._draws.waiting()
        return _checkpoint.Run(
            state=None if rows is None else rows.owner.whole(),
            learned=None if rows is None else rows.learned,
            tensordict=self._rebuild == [_containers.TENSORDICT],
            written=rows is not None and rows.owner.fault is not rows.blank,
            seed=self._seed,
            key=jax.random.key_data(self._draws.key),
            turns=jnp.stack([*(batch.before for batch in waiting), turn]),
            ahead=[batch.take() for batch in waiting],
            batch_size=self._batch_size,
            sizes=self._draws.sizes.own.get("sample", []),
        )

    def _loaded(
        self, where: str, saved: dict[str, Any], episodes: Episodes
    ) -> tuple[_Rows | None, Draws, list[_containers.Rebuild], int]:
        """What was saved, as this buffer has it."""
        run = _checkpoint.load(where, saved, self._init, self._batch_size)
        if run.state is not None:
            run = dataclasses.replace(run, state=resume.resumed(run.state, episodes))
        return self._resumed(where, run)

    def _resumed(
        self, where: str, run: _checkpoint.Run
    ) -> tuple[_Rows | None, Draws, list[_containers.Rebuild], int]:
        """A run, as this buffer has it; what is to be added to `_rebuild`; and the seed."""
        if self._rows is not None and run.learned is not None:
            own, found = self._rows.learned.item, run.learned.item
            if jax.tree.structure(own) != jax.tree.structure(found) or own != found:
                raise ValueError(
                    f"{where} what was saved has the item {found}, but this buffer has "
                    f"{own}; use the same item, or give none"
                )
        rows = None
        if run.state is not None and run.learned is not None:
            owner = self._owner(run.learned.item, run.state)
            rows = _Rows(run.learned, owner, None if run.written else owner.fault)
        elif self._rows is not None:  # the other has learned no item yet
            rows = self._make(self._rows.learned)
        ahead = [
            map_tensors(batch, lambda x: x.to(self._device), moved_to=self._device)
            for batch in run.ahead
        ]
        key = jax.random.wrap_key_data(run.key)
        rebuild = [_containers.TENSORDICT] if run.tensordict and not self._rebuild else []
        draws = self._draws.elsewhere(key, run.turns, ahead, run.sizes)
        return rows, draws, rebuild, run.seed

    def _make(self, learned: Learned) -> _Rows:
        """Take the memory."""
        owner = self._owner(learned.item)
        return _Rows(learned, owner, owner.fault)

    def _owner(self, item: Any, state: Any = None) -> Owner:
        """What holds the rows: those of a state or a store, or none yet."""
        if not self._host:
            if state is None:
                with jax.default_device(self._jax_device):
                    state = self._init(item)
            # Committed, so that what is computed from it stays there, and nothing compiles twice.
            return Owner(jax.device_put(state, self._jax_device), self._calls)
        store = state
        if not isinstance(store, HostStore):
            with jax.default_device(self._jax_device):
                store = HostStore(item, **self._init.keywords, files=self._files)
            if state is not None:
                store.fill(state)
        store.place(self._jax_device)
        return HostOwner(store, self._calls)

    def _of_store(self, store: HostStore[Any], item: Any) -> _Rows:
        """The rows of a store that was given."""
        learned = learn(_where("__init__"), store.item if item is None else item)
        wanted = jax.eval_shape(lambda: self._init(learned.item))
        if _form(wanted) != _form(store.whole()):
            raise ValueError(
                f"{_where('__init__')} host is {store!r}, which was made with other arguments than "
                "this buffer; give both the same item, capacity, sampler, num_envs, autoreset, "
                "lockstep, next_of and max_ends"
            )
        owner = self._owner(learned.item, store)
        return _Rows(learned, owner, None if store.size() else owner.fault)

    def _add(
        self,
        function: str,
        axes: int,
        items: Any,
        next_observation: Any,
        options: dict[str, Any],
        time_major: bool,
    ) -> None:
        where = f"{_NAME}.{function}"
        name = "items" if axes else "item"
        item = None if self._rows is None else self._rows.learned.item
        observed = None if item is None else _taken.field(item, self._init.keywords["next_of"])
        if axes and type(items) is list:
            items, next_observation = (
                [_taken.as_tensors(one, spec) for one in rows] if type(rows) is list else rows
                for rows, spec in ((items, item), (next_observation, observed))
            )
            items, next_observation = self._stacked(items, next_observation, time_major)
        items, rebuild = _containers.plain(items)
        items = _taken.as_tensors(items, item)
        next_observation = _taken.as_tensors(next_observation, observed)
        given = {"items": items, "next_observation": next_observation, **options}

        def feed_all(given: dict[str, Any]) -> dict[str, Any]:
            rows = {name: given["items"], "next_observation": given["next_observation"]}
            others = {argument: given[argument] for argument in options}
            fed = convert(where, rows, self._feed_row) | convert(where, others, self._feed)
            return {"items": fed.pop(name), **fed}

        _tensors.check_torch(where)
        with self.lock:
            self._check_open(function)
            if self._rows is None:  # and it stays so, should this fail
                if axes:
                    _listed.refuse_inner_lists(where, items)
                fed = convert(where, {name: items}, self._feed_row)[name]
                learned = learn(_where(function), fed, axes + self._leading, items)
                rows = self._calls.apart(lambda: self._make(learned))
            else:
                rows = self._made(function)
                lead = axes + self._leading
                if not rows.learned.has_axes(items, lead):
                    rows.learned.check_axes(_where(function), name, items, lead, bool(axes))
            instead: dict[str, Any] = {}
            as_given = functools.partial(fbuf.add, time_major=time_major)
            if axes:
                ndim = rows.learned.first_ndim
                if self._num_envs is not None and not time_major:
                    instead = _time_major.steps_first(given, self._num_envs, ndim) or {}
                    time_major = bool(instead)
                axis, lead = 0 if time_major else self._leading, 1 + self._leading
                turned = given | instead
                instead |= self._sizes.fit_rows(turned, axis, lead, ndim, self._whole_steps)
            try:
                with _words.of_torch(where):
                    self._run(
                        *(rows.owner, fbuf.add, given, instead, feed_all, as_given),
                        time_major=time_major,
                    )
            except (ValueError, TypeError):
                rows.learned.check_tree(_where(function), name, items)
                if not axes:
                    _check_one(_where(function), options, self._leading)
                raise
            self._rows = rows
            if rebuild is not None and not self._rebuild:
                self._rebuild.append(rebuild)

    def _stacked(self, items: list[Any], following: Any, time_major: bool) -> tuple[Any, Any]:
        """A list of items as a batch, and what follows them."""
        where, axis = _where("extend"), 0 if time_major else self._leading
        item = None if self._rows is None else self._rows.learned.item
        batch = _listed.stacked(where, items, item, 1 + self._leading, axis)
        if batch is not items and type(following) is list:
            following = _listed.side_by_side(where, "next_observation", following, axis)
        return batch, following

    def _change(self, function: str, operation: Callable[..., Any], given: dict[str, Any]) -> None:
        """Call a function of a state, and take what it returns for the state."""
        where = f"{_NAME}.{function}"

        def feed_all(given: dict[str, Any]) -> dict[str, Any]:
            return convert(where, given, self._feed)

        _tensors.check_torch(where)
        with self.lock:
            owner = self._made(function).owner
            if isinstance(given.get("ids"), fbuf.Ids):
                if _dtypes.x64():
                    given["ids"] = jax.tree.map(_short, given["ids"])
                padded = self._sizes.fit_ids(function, given)
            else:
                padded = {}
            with _words.of_torch(where):
                self._run(owner, operation, given, padded, feed_all, operation)

    def _run(
        self,
        owner: Owner,
        operation: Callable[..., fbuf.State[Any]],
        given: dict[str, Any],
        instead: dict[str, Any],
        feed_all: _inputs.FeedAll,
        as_given: Callable[..., fbuf.State[Any]],
        **static: Any,
    ) -> None:
        """Change the state; the tensors are their owner's again when this returns.

        `instead` stands for some of the arguments, turned or padded. `as_given` is called if these
        are as they were given.
        """

        def ready(given: dict[str, Any]) -> tuple[list[Any], Any]:
            return _inputs.ready(operation, lambda: owner.state, given, feed_all, narrow=True)

        try:
            self._make_change(owner, operation, given, *ready(given | instead), **static)
        except (ValueError, TypeError):
            if instead:  # tell of the shapes as they were given
                leaves, structure = ready(given)
                whole = structure.unflatten(leaves)
                trace = functools.partial(jax.eval_shape, lambda s, g: as_given(s, **g))
                self._calls.apart(lambda: trace(owner.state, whole))
            raise

    def _make_change(
        self,
        owner: Owner,
        operation: Callable[..., fbuf.State[Any]],
        given: dict[str, Any],
        leaves: list[Any],
        structure: Any,
        **static: Any,
    ) -> None:
        of_host = any(isinstance(leaf, np.ndarray) for leaf in leaves)
        by_streams = not of_host and _inputs.on_gpu(given)
        owner.change(operation, leaves, structure, wait=not by_streams, **static)
        if by_streams:
            _inputs.let_torch_wait(owner.fault)

    def _feed_row(self, leaf: Any) -> Any:
        """A leaf of an item: a tensor, and nothing else."""
        if not isinstance(leaf, torch.Tensor):
            raise InteropError("is not a tensor; use torch.as_tensor")
        return self._feed(leaf)

    def _feed(self, leaf: Any) -> Any:
        """A tensor, back from where batches are moved to, with integers as JAX keeps them."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if self._to is not None and leaf.device != self._device and _same(leaf.device, self._to):
            leaf = leaf.to(self._device)
        return _inputs.feed_narrow(leaf, {self._jax_device})

    def _check_open(self, function: str) -> None:
        if self._closed:
            raise RuntimeError(f"{_where(function)} this buffer is closed")

    def _check_device(self, function: str) -> None:
        if self._host:
            raise RuntimeError(
                f"{_where(function)} the rows of this buffer lie on the host, and no State has "
                "them; use the methods of the buffer, or save() it and fbuf.load() that"
            )

    def _made(self, function: str) -> _Rows:
        """The rows of a buffer that is open and knows its item."""
        self._check_open(function)
        if self._rows is None:
            raise RuntimeError(
                f"{_where(function)} nothing has been added yet, so the item is not known; add "
                "something first, or give the buffer its item when you make it"
            )
        if self._rows.owner.fault.is_deleted():
            if self._host:
                raise RuntimeError(
                    f"{_where(function)} the HostStore of this buffer was changed by its own "
                    "methods; use those of the buffer alone"
                )
            raise RuntimeError(
                f"{_where(function)} a function consumed buffer.state; assign the state that it "
                "returned: buffer.state = ..."
            )
        return self._rows

    def _filled(self, function: str) -> _Rows:
        """The same, if anything has been added."""
        rows = self._made(function)
        if rows.owner.fault is rows.blank:
            raise RuntimeError(f"{_where(function)} the buffer is empty; add something first")
        return rows


processes.stays(ReplayBuffer)


def _as_given(
    rebuild: list[_containers.Rebuild], transform: Callable[[Any], Any] | None, batch: Any
) -> Any:
    """A batch whose items are what they were when they were added, transformed."""
    if rebuild:
        data = rebuild[0](batch.data, batch.mask.shape)
        batch = dataclasses.replace(batch, data=data)
    return batch if transform is None else transform(batch)


def _returned(transform: Callable[[Any], Any], batch: Any) -> Any:
    """Transform a batch; a transform that returns nothing raises."""
    made = transform(batch)
    if made is None:
        raise TypeError(
            f"{_where('sample')} the transform returned None; have it return the batch, or what "
            "sample() is to return"
        )
    return made


def _check_one(where: str, options: Mapping[str, Any], lead: int) -> None:
    """Raise if what is said of one item is said of several."""
    for name, value in options.items():
        if name != "alpha" and getattr(value, "ndim", 0) > lead:
            raise ValueError(
                f"{where} {name} is of shape {tuple(value.shape)}: this looks like a batch; use "
                "extend()"
            )


def _opened(
    path: Any, *, item: Any, sampler: Any, fallback: bool, episodes: Episodes
) -> tuple[Any, Any]:
    """A checkpoint that is read where it lies."""
    if fallback:
        raise ValueError(
            f"{_where('load')} fallback is True, but an opened store reads the newest checkpoint; "
            "use host=True"
        )
    return HostStore.open(path, item=item, sampler=sampler, episodes=episodes)


def drawn_seed(generator: torch.Generator | None = None) -> int:
    """A seed for who gives none, from a generator of PyTorch's; None is the default one, on CPU."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**32, (), generator=generator, device=device, dtype=torch.int64))


def _short(leaf: Any) -> Any:
    """Ids are of 32 bits, whatever the batch made of them, and also where JAX has 64."""
    if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.int64:
        return leaf.clamp(-1, 2**31 - 1).int()
    return leaf


def _where(function: str) -> str:
    """How messages begin."""
    return f"fbuf_adapters.pytorch.{_NAME}.{function}:"


def _form(state: Any) -> Any:
    """What two states of the same buffer have in common."""
    leaves, structure = jax.tree.flatten(state)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _same(device: torch.device, wanted: torch.device) -> bool:
    """Whether a device is the one that is meant; `"cuda"` is any of them."""
    return device.type == wanted.type and wanted.index in (None, device.index)
