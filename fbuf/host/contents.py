"""The contents of a `HostStore`: the index on the device, and the rows on the host."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.checkpoint import row_ranges
from fbuf.checks import sizes
from fbuf.dispatch import parse
from fbuf.host import programs
from fbuf.host.checkpoint_rows import SavedRows
from fbuf.host.fetch import Fetch
from fbuf.host.next_obs_check import differs
from fbuf.host.row_arrays import Leaves, Rows
from fbuf.ops import lost_next
from fbuf.ops.spec import BufferSpec
from fbuf.runtime.interrupts import uninterrupted
from fbuf.samplers.protocol import row_fields
from fbuf.storage import deferred, store
from fbuf.storage.deferred import PendingWrite
from fbuf.storage.layout import Layout
from fbuf.views.gather import Requested


class Contents:
    """Changes an index and its rows together. Another adapter may build on it.

    Call its methods with `lock` held; only `ask`, `still` and `changing` take the lock.

    Attributes:
        lock: Held while the contents are read or changed.
        rows: The rows.
        kept: The next observations that `next_of` keeps; None without `next_of`.
        owned: Whether another object owns the store; then only that object may change the store.
        tells_of_lost: Whether to warn of lost next observations; the warning comes once.
    """

    def __init__(self, index: Any, rows: Rows | SavedRows, folder: pathlib.Path | None) -> None:
        """Begin with an index without rows, and the rows.

        Args:
            index: The index.
            rows: The rows.
            folder: The directory whose disk holds the next observations; None is memory.
        """
        self.lock = threading.RLock()
        self.rows = rows
        self.kept: Rows | None = None
        if index.next_obs is not None:
            ends = index.next_obs.owner.shape[0]
            self.kept = Rows(index.next_obs.rows.layout, ends, folder)
        self.owned = False
        self._reads = 0
        self.tells_of_lost = self.kept is not None
        self._fetches: weakref.WeakSet[Fetch] = weakref.WeakSet()
        """The drawn batches whose rows may not be fetched yet."""
        self._process = os.getpid()
        self._failed: BaseException | None = None
        self._index = index

    @property
    def index(self) -> fbuf.State[Any]:
        """The flags, the ring and the sampler's index: a buffer without rows.

        Raises:
            RuntimeError: If a change has failed half way, or in a forked process.
        """
        if self._failed is not None:
            raise RuntimeError(
                "HostStore: a change has failed when some of its rows were written, so they are "
                "not to be trusted; load the last checkpoint"
            ) from self._failed
        if os.getpid() != self._process:  # JAX hangs there
            raise RuntimeError(
                "HostStore: this store was made in another process, and JAX does not run in one "
                "that was forked off; start the process with 'spawn', and make a store there"
            )
        return self._index

    @index.setter
    def index(self, index: fbuf.State[Any]) -> None:
        self._index = index

    @property
    def nbytes(self) -> int:
        """The bytes of the rows in host memory, or in their own files."""
        return self.rows.nbytes + (self.kept.nbytes if self.kept else 0)

    @property
    def layouts(self) -> tuple[Layout, Layout | None]:
        """The leaves of the rows, and of the next observations."""
        return programs.layouts_of(self.index)

    def whole(self) -> fbuf.State[Any]:
        """Return a buffer with the index and the rows, as arrays of NumPy."""
        index: Any = self.index
        if self.kept is not None:
            kept = dataclasses.replace(index.next_obs, rows=self.kept.storage)
            index = dataclasses.replace(index, next_obs=kept)
        return dataclasses.replace(index, storage=self.rows.storage)

    def fill(self, state: fbuf.State[Any]) -> None:
        """Take over a whole buffer of the same form."""
        own, given = row_ranges.of_state(self.whole()), row_ranges.of_state(state)
        for mine, other in zip(own, given, strict=True):
            for array, rows in zip(mine.arrays, other.arrays, strict=True):
                array[:] = np.asarray(rows)
        self.index = deferred.without_rows(state)

    def place(self, device: Any) -> None:
        """Move the index to a device for good."""
        self.index = jax.device_put(self.index, device)

    def taking(self, look: Callable[[], Requested]) -> Fetch:
        """Return a `Fetch` of the rows that a view requests, of the store as it is now.

        Args:
            look: Returns the request. A change of the store first waits for this call.
        """
        rows, kept, ring = self.rows, self.kept, self.index.ring
        fetch = Fetch(lambda: programs.take(look(), ring, rows, kept))
        self._fetches.add(fetch)
        return fetch

    def ask(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return the result of a function of fbuf that reads the index alone."""
        with self.still():
            return operation(self.index, *args, **options)

    def add(self, given: dict[str, Any], time_major: bool) -> None:
        """Add rows; `given` are the checked arguments of `fbuf.add` by name."""
        ring = self.index.ring
        item, num_envs = self.index.storage.item, ring.num_envs
        rows, of_rows, given_rows = _flat(item, given.pop("items"), num_envs, time_major, "items")
        following: Leaves = []
        of_following = None
        if "next_observation" in given and self.kept is not None:
            name = "next_observation"
            kept = self.kept.storage.item
            following, of_following, _ = _flat(kept, given.pop(name), num_envs, time_major, name)
        sampler, layout = self.index.sampler, self.index.storage.layout
        looked_at = {n: given_rows[n] for n in row_fields.numbers(sampler, layout).values()}
        with self.changing():
            self.rows.reserve(len(rows[0]))  # before anything changes
            index, pending, of_next = programs.add(
                self.index,
                given,
                looked_at,
                rows=of_rows,
                following=of_following,
                time_major=time_major,
            )
            if of_following is not None:
                index, of_next = self._compared(index, of_next, rows, following)
            self._become(index, pending, of_next, rows, following)

    def change(self, operation: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Compute the next index with a function of fbuf, and apply its pending writes."""
        options = {name: value for name, value in options.items() if value is not None}
        with self.changing():
            self._become(*deferred.drained(operation(self.index, *args, **options)), [], [])

    def tell_of_lost(self, where: str) -> None:
        """Warn, once, if rows have lost their next observation."""
        # With `next_of` each add has waited for the index.
        if not self.tells_of_lost:
            return
        if int(jax.device_get(self.index.fault)) & fbuf.Fault.LOST_NEXT:
            self.tells_of_lost = False
            room = f"make the store with a larger max_ends: {lost_next.ROOM}"
            lost_next.of_states(where, [self.index], room)

    def settle(self) -> None:
        """Fetch the rows of all drawn batches."""
        for fetch in list(self._fetches):
            fetch.settle()
        self._fetches.clear()

    @contextlib.contextmanager
    def still(self) -> Generator[None]:
        """Hold the lock for reads, so that no thread or signal handler changes the store."""
        with self.lock:
            self._reads += 1
            try:
                yield
            finally:
                self._reads -= 1

    @contextlib.contextmanager
    def changing(self) -> Generator[None]:
        """Make a whole change in one thread, also if a signal such as Ctrl-C arrives.

        Raises:
            RuntimeError: During a read, in which only a signal handler can call it.
        """
        with self.lock:
            if self._reads:
                raise RuntimeError(
                    "HostStore: a signal handler changes the store in the midst of a read; have "
                    "the handler set a flag, and look at it between two calls"
                )
            self.settle()
            with uninterrupted():
                yield

    def reading(self) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any] | None]:
        """Return functions that read leaves of the rows and of the next observations."""
        return _reading(self.rows), None if self.kept is None else _reading(self.kept)

    def _become(
        self, index: Any, of_rows: Any, of_next: Any, rows: Leaves, following: Leaves
    ) -> None:
        """Take over the next index, and apply pending writes; the old index is consumed."""
        self.index = index
        try:
            self.rows.apply(of_rows, rows)
            if self.kept is not None:
                self.kept.apply(of_next, following)
        except BaseException as error:
            self._failed = error
            raise

    def _compared(
        self, index: Any, of_next: Any, rows: Leaves, following: Leaves
    ) -> tuple[Any, Any]:
        """Return the index, with a fault for discontinuous rows, and the pending writes."""
        assert self.kept is not None
        layout, field = index.storage.layout, index.next_obs.field
        numbers = jax.tree.leaves(layout.find("add", "next_of", field))
        observation = [rows[number] for number in numbers]
        if differs(of_next, self.kept, index.ring.lanes, observation, following):
            fault = index.fault | jnp.uint32(fbuf.Fault.BROKEN_EPISODE)
            index = dataclasses.replace(index, fault=fault)
        return index, [note for note in of_next if isinstance(note, PendingWrite)]


def _flat(
    item: Any, items: Any, num_envs: int | None, time_major: bool, argument: str
) -> tuple[Leaves, Any, Leaves]:
    """Return rows as leaves `[B, ...]` in the order of `fbuf.add`; their specs; and as given."""
    given, lead = parse.checked_rows("add", item, items, num_envs, time_major, argument)
    stored, tree = jax.tree.flatten(item)
    arrays = [np.asarray(leaf, spec.dtype) for leaf, spec in zip(given, stored, strict=True)]
    specs = tuple((array.shape, array.dtype) for array in arrays), tree
    return [lead.flat(array) for array in arrays], specs, arrays


def _reading(rows: Rows | SavedRows) -> Callable[[Any, Any], Any]:
    """Return a function that reads some leaves of rows."""
    layout = rows.storage.layout

    def read(slots: Any, leaves: Any) -> Any:
        words, *wide = map(jnp.asarray, rows.take(slots, leaves))
        return store.unpacked(layout, leaves, words, wide, slots.shape)

    return read


def check_free_memory(spec: BufferSpec, item: Any, files: bool) -> None:
    """Refuse a buffer that does not fit into memory, before any is allocated.

    Args:
        spec: The arguments of the buffer.
        item: One row.
        files: Whether the rows lie in files.
    """
    (device,) = jnp.zeros(()).devices()
    asked = functools.partial(_asked, spec, item, device, files)
    capacity = spec.capacity
    for at, (count, free, where) in enumerate(asked(capacity)):
        if free is None or count <= free:
            continue
        step = (spec.num_envs or 1) * spec.sampler.stride
        fits = lambda rows: all(c <= f for c, f, _ in asked(rows) if f is not None)
        smaller = range(step, capacity, step)
        fitting = bisect.bisect_left(smaller, True, key=lambda rows: not fits(rows))
        remedy = "not one row would fit"
        if fitting and asked(fitting * step):
            remedy = f"capacity={fitting * step} would fit"
        if not files:
            remedy += ", or give files, a directory for the rows"
        elif at:
            remedy += ", or raise the limit"
        raise MemoryError(
            f"HostStore: {capacity} rows take {sizes.in_words(count)} of {where}, which has "
            f"{sizes.in_words(free)} free; {remedy}"
        )


def _asked(
    spec: BufferSpec, item: Any, device: Any, files: bool, capacity: int
) -> list[tuple[int, int | None, str]]:
    """Return the needed and free bytes of each place; nothing for an impossible buffer."""
    try:
        like = jax.eval_shape(lambda: spec.init(item, capacity=capacity))
    except ValueError:  # `init` refuses it, for too few rows for the sampler, say
        return []
    kept = like.next_obs
    rows = sizes.nbytes(like.storage) + (0 if kept is None else sizes.nbytes(kept.rows))
    index, on_cpu = sizes.nbytes(like) - rows, device.platform == "cpu"
    if files:
        mapped = rows + index * on_cpu
        addresses = "the address space of this process (ulimit -v)"
        return [
            (index, sizes.free(device), str(device)),
            (mapped, sizes.free_addresses(), addresses),
        ]
    if on_cpu:
        return [(index + rows, sizes.free(device), str(device))]
    return [
        (index, sizes.free(device), str(device)),
        (rows, sizes.free_of_host(), "the host"),
    ]
