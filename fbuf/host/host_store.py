"""A buffer with rows on the host, and with flags and indices on the device."""

from __future__ import annotations

import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Generic

import jax
import numpy as np

import fbuf
from fbuf.checkpoint import extra as extras
from fbuf.checkpoint import paths
from fbuf.checks import values as check
from fbuf.dispatch import call, parse
from fbuf.host import programs, saving
from fbuf.host.checkpoint_rows import SavedRows
from fbuf.host.contents import Contents, check_free_memory
from fbuf.host.owner import HostOwner
from fbuf.host.prefetch import Batches, numbered
from fbuf.host.row_arrays import Rows
from fbuf.ops.check_finite import check_rows
from fbuf.ops.draw import require_noting
from fbuf.ops.load import Episodes, newest
from fbuf.ops.read import require_key
from fbuf.ops.sample import require_step
from fbuf.ops.spec import BufferSpec
from fbuf.owner import resume
from fbuf.owner.owner import owner_of
from fbuf.runtime import fixed_arguments, processes, wait
from fbuf.samplers import Sampler
from fbuf.samplers.protocol.placing import refuse
from fbuf.storage import deferred
from fbuf.storage.episodes import Autoreset
from fbuf.storage.store import Item
from fbuf.views import View
from fbuf.views.protocol import Data


@fixed_arguments.arguments("files", beta="sample", step="sample", alpha="update_priority")
class HostStore(Generic[Item]):
    """A replay buffer whose rows do not fit the device.

    The rows lie in host memory, or in files. Their flags, the sampler's index and the write
    position lie on the device. They take 1 to 6 bytes a row, and up to 5 more with `next_of`. A
    batch is drawn on the device. Its rows are fetched on the host, and go to the device together. A
    batch is bit for bit the one that `fbuf.sample` draws from a buffer with the same rows.

    It is an object: its methods are the functions of `fbuf` without the state, and change it in
    place. They work from Python, not inside `jit`. Several threads may call them.

    Args:
        item: As for `fbuf.init`.
        capacity: As for `fbuf.init`.
        num_envs: As for `fbuf.init`.
        sampler: As for `fbuf.init`.
        autoreset: As for `fbuf.init`.
        lockstep: As for `fbuf.init`.
        next_of: As for `fbuf.init`. These next observations lie on the host, too.
        max_ends: As for `fbuf.init`.
        removable: As for `fbuf.init`.
        files: A directory on the disk for the rows, for a buffer larger than host memory. The disk
            has to have room for all of them. The files are working memory, and end with the
            process: to keep the rows, `save`. None is host memory.

    Raises:
        ValueError: As `fbuf.init`.
        TypeError: As `fbuf.init`.
        MemoryError: If there is no room for the rows in host memory, or none on the device for
            what lies there. With `files`, if a limit of the process (`ulimit -v`) leaves no room to
            map them. Nothing has been allocated then. The message has a capacity that would fit.
        OSError: If the disk has no room for the files, or they cannot be made.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> from fbuf.host import HostStore
        >>> store = HostStore({"x": jnp.zeros(2)}, capacity=100)
        >>> store.add({"x": jnp.ones((10, 2))})
        >>> batch = store.sample(jax.random.key(0), 32)
        >>> batch.data["x"].shape, store.size()
        ((32, 2), 10)
    """

    def __init__(
        self,
        item: Item,
        capacity: int,
        *,
        num_envs: int | None = None,
        sampler: Sampler = fbuf.Uniform(),
        autoreset: Autoreset = "same_step",
        lockstep: bool = True,
        next_of: str | None = None,
        max_ends: int | None = None,
        removable: bool = True,
        files: str | os.PathLike[str] | None = None,
    ) -> None:
        """Make the buffer; see the class."""
        given = capacity, sampler, num_envs, autoreset, lockstep, next_of, max_ends, removable
        spec = BufferSpec(*given)
        parse.item_specs("init", item)
        check_free_memory(spec, item, files=files is not None)
        index = programs.init(item, spec)
        folder = None if files is None else paths.local("HostStore", files)
        rows = Rows(index.storage.layout, capacity, folder)
        self._begin(Contents(index, rows, folder), folder)

    def _begin(self, contents: Contents, folder: pathlib.Path | None) -> None:
        self.contents = contents
        """The protocol for other adapters that build on this store."""
        self.files = folder
        """The directory whose disk has the files of the rows; None in memory or after `open`."""
        self._ahead: weakref.WeakSet[Batches] = weakref.WeakSet()

    # The arguments.

    @property
    # To pyright RLock is a function, but the class it makes objects of has no public name.
    def lock(self) -> threading.RLock:  # pyright: ignore[reportGeneralTypeIssues]
        """The lock of every method; hold it to make several calls atomic."""
        return self.contents.lock

    @property
    def item(self) -> Item:
        """One item, of `jax.ShapeDtypeStruct`."""
        return self.contents.index.storage.item

    @property
    def capacity(self) -> int:
        """The most rows that the buffer can hold."""
        return self.contents.index.capacity

    @property
    def folder(self) -> pathlib.Path | None:
        """The directory whose files an opened store reads; None for any other store."""
        return self.contents.rows.folder if isinstance(self.contents.rows, SavedRows) else None

    @property
    def next_of(self) -> str | None:
        """The field whose next value is kept; None without `next_of`."""
        kept = self.contents.index.next_obs
        return None if kept is None else kept.field

    def __repr__(self) -> str:
        """One line: the sampler, rows of capacity, environments."""
        return repr(self.contents.index).replace("State(", "HostStore(", 1)

    # Changes.

    def add(
        self,
        items: Item,
        *,
        terminated: Any = None,
        truncated: Any = None,
        next_observation: Any = None,
        priority: Any = None,
        mask: Any = None,
        time_major: bool = False,
        alpha: Any = None,
    ) -> None:
        """Write rows after the newest one, as `fbuf.add` does.

        Args:
            items: As for `fbuf.add`: arrays of NumPy or of JAX. They are yours again when this
                returns.
            terminated: As for `fbuf.add`.
            truncated: As for `fbuf.add`.
            next_observation: As for `fbuf.add`.
            priority: As for `fbuf.add`.
            mask: As for `fbuf.add`.
            time_major: As for `fbuf.add`.
            alpha: As for `fbuf.add`.

        Raises:
            ValueError: As `fbuf.add`.
            TypeError: As `fbuf.add`.
            MemoryError: If an opened store has no memory for the new rows.
            RuntimeError: If an earlier change has failed half way, or in a forked process.

        With `next_of` a warning comes, once, if more ends of episodes are stored than `max_ends`.

        Cost: O(B) on the host, O(B log N) on the device; the rows are not sent there.
        """
        given = {"items": items, "time_major": time_major} | _given(
            terminated=terminated,
            truncated=truncated,
            next_observation=next_observation,
            priority=priority,
            mask=mask,
            alpha=alpha,
        )
        given = call.checked(fbuf.add, self.contents.index, given)
        self.contents.add(given, given.pop("time_major"))
        self.contents.tell_of_lost("HostStore.add")

    def update_priority(
        self, ids: fbuf.Ids, priority: Any, *, mask: Any = None, alpha: Any = None
    ) -> None:
        """Set priorities of rows, as `fbuf.update_priority` does."""
        self.contents.change(fbuf.update_priority, ids, priority, mask=mask, alpha=alpha)

    def write(self, ids: fbuf.Ids, fields: Mapping[str, Any], *, mask: Any = None) -> None:
        """Change fields of stored rows, as `fbuf.write` does."""
        self.contents.change(fbuf.write, ids, fields, mask=mask)

    def remove(self, ids: fbuf.Ids, *, mask: Any = None, episodes: bool = False) -> None:
        """Never draw rows again, as `fbuf.remove` does."""
        self.contents.change(fbuf.remove, ids, mask=mask, episodes=episodes)

    def end_episode(self, *, mask: Any = None) -> None:
        """End the open episodes, as `fbuf.end_episode` does."""
        self.contents.change(fbuf.end_episode, mask=mask)

    def expire(self, version: Any) -> None:
        """Retire rows of lower versions, as `fbuf.expire` does."""
        self.contents.change(fbuf.expire, version)

    def check_finite(self) -> None:
        """Raise if a stored row holds NaN or an infinity, as `fbuf.check_finite` does."""
        with self.contents.still():
            check_rows("HostStore.check_finite", self.contents.index, *self.contents.reading())

    def clear(self) -> None:
        """Remove all rows and all faults, as `fbuf.clear` does."""
        self.contents.change(fbuf.clear)

    # Reads.

    def sample(
        self,
        key: Any,
        batch_size: int,
        *,
        view: View[Data] = fbuf.Item(),
        beta: Any = None,
        step: Any = None,
        count: Any = None,
    ) -> fbuf.Sample[Data]:
        """Draw a batch, as `fbuf.sample` does: the same draws for the same rows and key.

        `batches` draws batches ahead.

        Args:
            key: As for `fbuf.sample`.
            batch_size: As for `fbuf.sample`.
            view: As for `fbuf.sample`.
            beta: As for `fbuf.sample`.
            step: As for `fbuf.sample`.
            count: As for `fbuf.sample`.

        Returns:
            The batch, on the device.

        Raises:
            ValueError: As `fbuf.sample`.
            TypeError: As `fbuf.sample`.
        """
        with self.contents.still():
            _refuse_noting(self.contents.index.sampler)
            return self._draw(self._asked(key, batch_size, view, beta, step, count), view)[0]

    def draw(
        self,
        key: Any,
        batch_size: int,
        *,
        view: View[Data] = fbuf.Item(),
        beta: Any = None,
        count: Any = None,
    ) -> fbuf.Sample[Data]:
        """Draw a batch, and remember what was drawn, as `fbuf.draw` does.

        Args:
            key: As for `fbuf.draw`.
            batch_size: As for `fbuf.draw`.
            view: As for `fbuf.draw`.
            beta: As for `fbuf.draw`.
            count: As for `fbuf.draw`.

        Returns:
            The batch, on the device.

        Raises:
            ValueError: As `fbuf.draw`.
            TypeError: As `fbuf.draw`.
        """
        with self.lock:
            require_noting("draw", self.contents.index.sampler)
            # A signal before the batch exists raises before its rows count as drawn.
            with self.contents.still():
                given = self._asked(key, batch_size, view, beta, None, count)
                batch, recorded = self._draw(given, view)
            with self.contents.changing():
                self.contents.index = recorded(self.contents.index)
            return batch

    def batches(
        self,
        key: Any,
        batch_size: int,
        *,
        view: View = fbuf.Item(),
        beta: Any = None,
        prefetch: int = 2,
    ) -> Batches:
        """Return an iterator over batches without end, some of them drawn ahead by a thread.

        Batch `i` is `sample(jax.random.fold_in(key, i), batch_size)`. It is drawn when batch `i -
        prefetch` is handed out, and does not see later changes of the buffer. A thread draws it and
        fetches its rows. Its timing has no effect: a call that changes the buffer first waits for
        the rows of earlier batches.

        Args:
            key: A key of `jax.random`. Use a key once only.
            batch_size: As for `fbuf.sample`.
            view: As for `fbuf.sample`.
            beta: As for `fbuf.sample`.
            prefetch: The number of batches to keep ready, at least 1.

        Returns:
            An iterator, which is a context manager, too: `close` ends its thread. With
            `fbuf.Shuffled` batch `i` is `sample(key, batch_size, step=i)`.

        Raises:
            ValueError: If `prefetch` or `batch_size` is below 1.
            TypeError: If `key` is no key of `jax.random`.
        """
        check.key("HostStore.batches", key)
        with self.contents.still():
            _refuse_noting(self.contents.index.sampler)
            first = 0 if self.contents.index.sampler.without_replacement else None
            given = self._asked(key, batch_size, view, beta, first, None)
        draw = numbered(self.contents, given["key"], given["batch_size"], view, given.get("beta"))
        ahead = Batches(self.contents, draw, prefetch)
        self._ahead.add(ahead)
        return ahead

    def read(
        self, ids: fbuf.Ids, *, view: View[Data] = fbuf.Item(), key: Any = None
    ) -> fbuf.Batch[Data]:
        """Read rows by their ids, as `fbuf.read` does."""
        with self.contents.still():
            given = {"ids": ids, "view": view, "key": key}
            given = call.checked(fbuf.read, self.contents.index, given)
            require_key(view, key)
            found = programs.look(self.contents.index, given["ids"], given["key"], view=view)
            taken, shape, layouts = (
                self.contents.taking(lambda: found)(),
                np.shape(ids.slot),
                self.contents.layouts,
            )
            return programs.looked_at(found, taken, view=view, layouts=layouts, shape=shape)

    def rows(self, *, view: View[Data] = fbuf.Item()) -> fbuf.Batch[Data]:
        """Read all rows, the newest last, as `fbuf.rows` does; on the device they must fit."""
        with self.contents.still():
            return self.read(programs.all_rows(self.contents.index), view=view)

    def rollout(self, *, view: View[Data] = fbuf.Item()) -> fbuf.Rollout[Data]:
        """Read all rows, the oldest first, as `fbuf.rollout` does; on the device they must fit."""
        with self.contents.still():
            refuse("rollout", self.contents.index.sampler)
            batch = self.read(programs.in_order(self.contents.index), view=view)
            return fbuf.Rollout.of(batch)

    def pop(
        self, count: int, *, keep: int = 0, mask: Any = None, view: View[Data] = fbuf.Item()
    ) -> fbuf.Rollout[Data]:
        """Read the oldest unread rows, which then count as read, as `fbuf.pop` does."""
        with self.lock:
            given = _given(mask=mask) | {"count": count, "keep": keep, "view": view}
            # A signal during the read raises before the rows count as read.
            with self.contents.still():
                given = call.checked(fbuf.pop, self.contents.index, given)
                mask = given.pop("mask", None)
                batch = self.read(programs.next_ids(self.contents.index, mask, **given), view=view)
            with self.contents.changing():
                self.contents.index = programs.pop(self.contents.index, mask, **given)
            return fbuf.Rollout.of(batch)

    def newest_ids(self, count: int) -> fbuf.Ids:
        """The ids of the newest rows, as `fbuf.newest_ids`."""
        return self.contents.ask(fbuf.newest_ids, count)

    def ids_at(self, slots: Any) -> fbuf.Ids:
        """The ids of the rows in slots, as `fbuf.ids_at`."""
        return self.contents.ask(fbuf.ids_at, slots)

    def group_ids(self, group: Any, count: int, *, first: Any = 0) -> fbuf.Ids:
        """The ids of rows of one group, as `fbuf.group_ids`."""
        return self.contents.ask(fbuf.group_ids, group, count, first=first)

    def group_sizes(self) -> jax.Array:
        """The number of rows of each group, as `fbuf.group_sizes`."""
        return self.contents.ask(fbuf.group_sizes)

    def uses(self, ids: fbuf.Ids) -> jax.Array:
        """The number of times that rows were drawn, as `fbuf.uses`."""
        return self.contents.ask(fbuf.uses, ids)

    def neighbours(self, ids: fbuf.Ids, steps: Any) -> fbuf.Ids:
        """The ids of the rows around each row, as `fbuf.neighbours`."""
        return self.contents.ask(fbuf.neighbours, ids, steps)

    def probability(self, ids: fbuf.Ids) -> jax.Array:
        """Return the probability that one draw is each row, as `fbuf.probability`."""
        return self.contents.ask(fbuf.probability, ids)

    def size(self) -> int:
        """Count the rows, as `fbuf.size`."""
        return int(self.contents.ask(fbuf.size))

    def can_sample(self, min_size: int = 1) -> bool:
        """Tell whether there is enough to draw, as `fbuf.can_sample`."""
        return bool(self.contents.ask(fbuf.can_sample, min_size))

    def space(self) -> jax.Array:
        """Count the rows that fit without a loss, as `fbuf.space`."""
        return self.contents.ask(fbuf.space)

    def unread(self) -> jax.Array:
        """Count the unread rows, as `fbuf.unread`."""
        return self.contents.ask(fbuf.unread)

    def stats(self, *, detailed: bool = False) -> dict[str, Any]:
        """Return metrics for a log, as `fbuf.stats`, with `host_bytes` beside the device's `bytes`.

        `host_bytes` are those of the rows in memory, or in working files. The files of an
        opened checkpoint are not counted.
        """
        return {
            **self.contents.ask(fbuf.stats, detailed=detailed),
            "host_bytes": self.contents.nbytes,
        }

    def raise_on_fault(self, *, ignore: fbuf.Fault | None = None) -> None:
        """Raise if a fault bit is set, as `fbuf.raise_on_fault`."""
        self.contents.ask(fbuf.raise_on_fault, **({} if ignore is None else {"ignore": ignore}))

    # On disk.

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        extra: Any = None,
        keep: int = 2,
        background: bool = False,
    ) -> None:
        """Save the store and an extra tree, as `fbuf.save` does; later saves write new data only.

        `fbuf.load` reads the checkpoint into a buffer on the device, if it fits there, and `load`
        reads one of `fbuf.save` into a store.

        Args:
            path: As for `fbuf.save`.
            extra: As for `fbuf.save`.
            keep: As for `fbuf.save`.
            background: As for `fbuf.save`: new data is copied, and written in a thread. An opened
                store also keeps the data in memory until the next save.

        Raises:
            OSError: As `fbuf.save`.
            CheckpointError: As `fbuf.save`.
        """
        saving.save(self.contents, path, extra=extra, keep=keep, background=background)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        item: Any = None,
        sampler: Sampler | None = None,
        extra: Any = None,
        with_extra: bool = True,
        fallback: bool = False,
        episodes: Episodes = "end",
        files: str | os.PathLike[str] | None = None,
    ) -> tuple[HostStore[Any], Any]:
        """Read the newest checkpoint of a directory, as `fbuf.load` does.

        Args:
            path: The directory of `save` or of `fbuf.save`.
            item: As for `fbuf.load`.
            sampler: As for `fbuf.load`.
            extra: As for `fbuf.load`.
            with_extra: As for `fbuf.load`.
            fallback: As for `fbuf.load`.
            episodes: `"end"` ends the open episodes, as `end_episode` does: the next row of each
                environment begins one. `"keep"` continues them, bit for bit: give it if you also
                restore your environments.
            files: As for `HostStore`.

        Returns:
            The store, and the extra tree.

        Raises:
            CheckpointError: As `fbuf.load`.
            ValueError: If `episodes` is another value.
        """
        saving.check_options("load", episodes, with_extra)
        made: list[HostStore[Any]] = []

        def make(**given: Any) -> fbuf.State[Any]:
            made.clear()  # `fallback` asks for another one
            made.append(cls(**given, files=files))
            return made[0].contents.whole()

        extra = extra if with_extra else extras.LEFT_OUT
        found = newest(path, item, sampler, extra, fallback, make)
        made[0].contents.index = deferred.without_rows(found.state)
        store = resume.resumed(made[0], episodes, "HostStore.load")
        store.contents.tells_of_lost = False  # this load has
        return store, found.extra

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        item: Any = None,
        sampler: Sampler | None = None,
        extra: Any = None,
        with_extra: bool = True,
        episodes: Episodes = "end",
    ) -> tuple[HostStore[Any], Any]:
        """Open the newest checkpoint of a directory, without reading its rows.

        Draws read them from the files, so a data set or a buffer may be larger than memory. New and
        changed rows lie in memory until you `save` to the directory. So a stopped run continues
        from its last save.

        Only the lengths of the files of rows are checked; `fbuf verify` reads every byte. Leave the
        saving to this store: another program that saves to the directory deletes files of it.

        Args:
            path: The directory of `save` or of `fbuf.save`.
            item: As for `fbuf.load`.
            sampler: As for `fbuf.load`.
            extra: As for `fbuf.load`.
            with_extra: As for `fbuf.load`.
            episodes: As for `HostStore.load`; the files stay as they are.

        Returns:
            The store, and the extra tree.

        Raises:
            CheckpointError: As `fbuf.load`; and if a file has another length than it must have.
            ValueError: If `episodes` is another value.

        Cost: it reads the flags and the sampler's index. In host memory it takes 4 bytes a row, the
        kept next observations, and the rows changed since the last save.
        """
        saving.check_options("open", episodes, with_extra, sampler, item)
        extra = extra if with_extra else extras.LEFT_OUT
        contents, beside = saving.opened(path, item, sampler, extra)
        store: HostStore[Any] = cls.__new__(cls)
        store._begin(contents, None)
        resume.resumed(store, episodes, "HostStore.open")
        contents.tells_of_lost = False  # this call has
        return store, beside

    def _asked(
        self, key: Any, batch_size: int, view: View, beta: Any, step: Any, count: Any
    ) -> dict[str, Any]:
        """Return the checked arguments of a draw."""
        given = _given(key=key, batch_size=batch_size, view=view, beta=beta, step=step, count=count)
        given = call.checked(fbuf.sample, self.contents.index, given)
        require_step("sample", self.contents.index.sampler, step)
        return given

    def _draw(self, given: dict[str, Any], view: View) -> tuple[Any, Callable[[Any], Any]]:
        """Return a batch for checked arguments, and a function that records it in an index."""
        index = self.contents.index
        of_batch = programs.of_batches(index, view, given["batch_size"])
        asked = (given.get(name) for name in ("key", "beta", "step", "count"))
        drawn, found = of_batch.draw(index, *asked)
        wait.wait(drawn[0])  # all results of a program are ready at once
        batch = of_batch.build(drawn, self.contents.taking(lambda: found)())
        return batch, lambda index: of_batch.recorded(index, drawn)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        processes.stays(cls)

    def __getstate__(self) -> Any:
        """Refuse to be pickled or copied."""
        raise TypeError(
            "HostStore: a store cannot be pickled or copied, for it owns memory and threads; save "
            "it, and load that"
        )

    def close(self) -> None:
        """End the threads of `batches`."""
        with self.lock:
            for ahead in list(self._ahead):
                ahead.close()

    def __enter__(self) -> HostStore[Item]:
        """Return the store."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()


processes.stays(HostStore)
owner_of.register(HostStore, HostOwner)


def _refuse_noting(sampler: Sampler) -> None:
    """Refuse a sampler that remembers draws, in a method that records no batch."""
    if sampler.notes_draws:
        raise ValueError(
            f"HostStore: {type(sampler).__name__} remembers what was drawn; draw with "
            "store.draw(key, batch_size), which notes it, one batch at a time"
        )


def _given(**options: Any) -> dict[str, Any]:
    """Return the options without the values that are None."""
    return {name: value for name, value in options.items() if value is not None}
