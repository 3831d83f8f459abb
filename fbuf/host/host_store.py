"""A buffer whose rows lie on the host, and whose flags and indices lie on the device."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.checkpoint import config, lineage, manifest, paths, reader, row_ranges, seen
from fbuf.checkpoint import extra as extras
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checks import sizes
from fbuf.checks import values as check
from fbuf.dispatch import call, parse
from fbuf.host import memory_maps, programs
from fbuf.host.checkpoint_rows import SavedRows
from fbuf.host.next_obs_check import differs
from fbuf.host.prefetch import Batches
from fbuf.host.row_arrays import Leaves, Rows
from fbuf.host.taking import Taking
from fbuf.ops import resume
from fbuf.ops.check_finite import check_rows
from fbuf.ops.load import as_damage, newest
from fbuf.ops.read import Found, require_key
from fbuf.ops.resume import Episodes
from fbuf.ops.sample import require_step
from fbuf.runtime import fixed_arguments, processes, wait
from fbuf.runtime.interrupts import uninterrupted
from fbuf.samplers import Sampler
from fbuf.storage import deferred, store
from fbuf.storage.deferred import Note
from fbuf.storage.episodes import Autoreset
from fbuf.storage.layout import Layout
from fbuf.storage.store import Item
from fbuf.views import View
from fbuf.views.protocol import Data


@fixed_arguments.arguments("files", beta="sample", step="sample", alpha="update_priority")
class HostStore(Generic[Item]):
    """A replay buffer whose rows do not fit the device.

    The rows lie in host memory, or in files. Their flags, the sampler's index and the write
    position lie on the device: 1 to 6 bytes a row, and up to 5 more with `next_of`. A batch is
    drawn on the device, its rows are taken on the host, and they go to the device together. What is
    drawn is bit for bit what `fbuf.sample` draws from a buffer with the same rows.

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
        files: A directory on a disk that the rows are to lie on, for a buffer larger than host
            memory. The disk has to have room for all of them. They are working memory, gone when
            the process ends: to keep the rows, `save`. None is host memory.

    Raises:
        ValueError: As `fbuf.init`.
        TypeError: As `fbuf.init`.
        MemoryError: If there is no room for the rows in host memory, or none on the device for
            what lies there. Nothing has been allocated then.
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
        files: str | os.PathLike[str] | None = None,
    ) -> None:
        """See the class."""
        leaves, tree = jax.tree.flatten(parse.item_specs("init", item))
        options: dict[str, Any] = {
            "num_envs": num_envs,
            "sampler": sampler,
            "autoreset": autoreset,
            "lockstep": lockstep,
            "next_of": next_of,
            "max_ends": max_ends,
        }
        _check_room(jax.eval_shape(lambda: fbuf.init(item, capacity, **options)), files is None)
        given = tuple((leaf.shape, leaf.dtype) for leaf in leaves), tree, capacity
        index: Any = programs.init((*given, tuple(options.items())))
        folder = None if files is None else paths.local("HostStore", files)
        self._begin(index, Rows(index.storage.layout, capacity, folder), folder)

    def _begin(self, index: Any, rows: Rows | SavedRows, folder: pathlib.Path | None) -> None:
        """With this index and these rows."""
        self.lock = threading.RLock()
        """Held while the store is looked at or changed."""
        self._ahead: weakref.WeakSet[Batches] = weakref.WeakSet()
        self._takings: weakref.WeakSet[Taking] = weakref.WeakSet()
        """Of batches that were drawn, and whose rows may not have been taken yet."""
        self._process = os.getpid()
        self._failed: BaseException | None = None
        self.owned = False
        """Whether a buffer for PyTorch has it."""
        self.files = folder
        """The directory whose disk has the files of its rows; None if they lie elsewhere."""
        self._rows = rows
        self._index = index
        self._kept: Rows | None = None
        if (kept := index.next_obs) is not None:
            ends = kept.owner.shape[0]
            self._kept = Rows(kept.rows.layout, ends, folder)

    @property
    def _index(self) -> Any:
        """The flags, the ring and the sampler's index."""
        if self._failed is not None:
            raise RuntimeError(
                "HostStore: a change has failed when some of its rows were written, so they are "
                "not to be trusted; load the last checkpoint"
            ) from self._failed
        if os.getpid() != self._process:  # there JAX hangs
            raise RuntimeError(
                "HostStore: this store was made in another process, and JAX does not run in one "
                "that was forked off; start the process with 'spawn', and make a store there"
            )
        return self._current

    @_index.setter
    def _index(self, index: Any) -> None:
        self._current = index

    # What it is.

    @property
    def item(self) -> Item:
        """One item, of `jax.ShapeDtypeStruct`."""
        return self._index.storage.item

    @property
    def capacity(self) -> int:
        """How many rows the buffer can hold."""
        return self._index.capacity

    @property
    def folder(self) -> pathlib.Path | None:
        """The directory whose files it reads, if it was opened; else None."""
        return self._rows.folder if isinstance(self._rows, SavedRows) else None

    @property
    def next_of(self) -> str | None:
        """The field whose next value is kept; None if none is."""
        kept = self._index.next_obs
        return None if kept is None else kept.field

    def __repr__(self) -> str:
        """One line: the sampler, rows of capacity, environments."""
        return repr(self._index).replace("State(", "HostStore(", 1)

    # What changes it.

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

        Cost: O(B) on the host, O(B log N) on the device; the rows are not sent there.
        """
        given = {
            "items": items,
            "terminated": terminated,
            "truncated": truncated,
            "next_observation": next_observation,
            "priority": priority,
            "mask": mask,
            "alpha": alpha,
        }
        given = {name: value for name, value in given.items() if value is not None}
        given = call.checked(fbuf.add, self._index, given | {"time_major": time_major})
        item, num_envs = self.item, self._index.ring.num_envs
        time_major = given.pop("time_major")
        rows = self._flat(item, given.pop("items"), num_envs, time_major, "items")
        following = None
        if "next_observation" in given and self._kept is not None:
            following = self._flat(
                self._kept.storage.item,
                given.pop("next_observation"),
                num_envs,
                time_major,
                "next_observation",
            )
        with self._changing():
            self._rows.reserve(len(rows[0][0]))  # as long as nothing has changed
            index, of_rows, of_next = programs.add(
                self._index,
                given,
                rows=rows[1],
                following=None if following is None else following[1],
                time_major=time_major,
            )
            if following is not None:
                index, of_next = self._compared(index, of_next, rows[0], following[0])
            self._become(index, of_rows, of_next, rows[0], following[0] if following else [])

    def _compared(
        self, index: Any, of_next: Any, rows: Leaves, following: Leaves
    ) -> tuple[Any, Any]:
        """The index, with a fault where a new row does not follow the one before; and the notes."""
        assert self._kept is not None
        layout, field = index.storage.layout, index.next_obs.field
        numbers = jax.tree.leaves(layout.find("add", "next_of", field))
        observation = [rows[number] for number in numbers]
        if differs(of_next, self._kept, index.ring.lanes, observation, following):
            fault = index.fault | jnp.uint32(fbuf.Fault.BROKEN_EPISODE)
            index = dataclasses.replace(index, fault=fault)
        return index, [note for note in of_next if isinstance(note, Note)]

    def update_priority(
        self, ids: fbuf.Ids, priority: Any, *, mask: Any = None, alpha: Any = None
    ) -> None:
        """Set priorities of rows, as `fbuf.update_priority` does."""
        self._change(fbuf.update_priority, ids, priority, mask=mask, alpha=alpha)

    def write(self, ids: fbuf.Ids, fields: Mapping[str, Any], *, mask: Any = None) -> None:
        """Change fields of stored rows, as `fbuf.write` does."""
        self._change(fbuf.write, ids, fields, mask=mask)

    def remove(self, ids: fbuf.Ids, *, mask: Any = None, episodes: bool = False) -> None:
        """Never draw rows again, as `fbuf.remove` does."""
        self._change(fbuf.remove, ids, mask=mask, episodes=episodes)

    def end_episode(self, *, mask: Any = None) -> None:
        """End the open episodes, as `fbuf.end_episode` does."""
        self._change(fbuf.end_episode, mask=mask)

    def check_finite(self) -> None:
        """Raise if a stored row holds NaN or an infinity, as `fbuf.check_finite` does."""
        with self.lock:
            aside = None if self._kept is None else _reading(self._kept)
            check_rows("HostStore.check_finite", self._index, _reading(self._rows), aside)

    def clear(self) -> None:
        """Remove all rows and all faults, as `fbuf.clear` does."""
        self._change(fbuf.clear)

    # What reads it.

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

        `batches` draws and takes batches ahead.

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
        with self.lock:
            given = self._asked(key, batch_size, view, beta, step, count)
            names = "key", "beta", "step", "count"
            asked, size = [given.get(name) for name in names], given["batch_size"]
            draw, found = programs.draw(self._index, *asked, batch_size=size, view=view)
            wait.wait(draw.mask)  # of a program all results are ready at once
            taken = self.taking(lambda: found)()
            return programs.drawn(draw, found, taken, view=view, layouts=self.layouts)

    def batches(
        self,
        key: Any,
        batch_size: int,
        *,
        view: View = fbuf.Item(),
        beta: Any = None,
        prefetch: int = 2,
    ) -> Batches:
        """Batches without end, of which some are drawn and taken ahead.

        Batch `i` is `sample(jax.random.fold_in(key, i), batch_size)` of the buffer at the moment at
        which batch `i - prefetch` is handed out, so it has not seen what is done to the buffer
        afterwards. A thread draws it and takes its rows. Its timing has no effect: a call that
        changes the buffer first waits until the batches asked for before have their rows.

        Args:
            key: A key of `jax.random`. Use a key once only.
            batch_size: As for `fbuf.sample`.
            view: As for `fbuf.sample`.
            beta: As for `fbuf.sample`.
            prefetch: How many batches to have ready, at least 1.

        Returns:
            An iterator, which is a context manager, too: `close` ends its thread. With
            `fbuf.Shuffled` batch `i` is `sample(key, batch_size, step=i)`.

        Raises:
            ValueError: If `prefetch` or `batch_size` is below 1.
            TypeError: If `key` is no key of `jax.random`.
        """
        check.key("HostStore.batches", key)
        with self.lock:
            first = 0 if self._index.sampler.in_order else None
            given = self._asked(key, batch_size, view, beta, first, None)
        key, beta, size = given["key"], given.get("beta"), given["batch_size"]
        # JAX makes the names of its options at run time.
        x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]

        def draw(number: int) -> Callable[[], Any]:
            index, plan = self._index, []

            def look() -> Found:
                with jax.enable_x64(x64):  # which may be set for a thread alone
                    plan[:] = programs.draw_number(
                        index, key, beta, np.int32(number), batch_size=size, view=view
                    )
                return plan[1]

            taking = self.taking(look)

            def make() -> Any:
                taken = taking()
                with jax.enable_x64(x64):
                    return programs.drawn(*plan, taken, view=view, layouts=self.layouts)

            return make

        ahead = Batches(self.lock, draw, prefetch)
        self._ahead.add(ahead)
        return ahead

    def read(
        self, ids: fbuf.Ids, *, view: View[Data] = fbuf.Item(), key: Any = None
    ) -> fbuf.Batch[Data]:
        """Read rows by their ids, as `fbuf.read` does."""
        with self.lock:
            given = {"ids": ids, "view": view, "key": key}
            given = call.checked(fbuf.read, self._index, given)
            require_key(view, key)
            found = programs.look(self._index, given["ids"], given["key"], view=view)
            taken, shape, layouts = self.taking(lambda: found)(), np.shape(ids.slot), self.layouts
            return programs.looked_at(found, taken, view=view, layouts=layouts, shape=shape)

    def rows(self, *, view: View[Data] = fbuf.Item()) -> fbuf.Batch[Data]:
        """Read all rows, the newest last, as `fbuf.rows` does; on the device they must fit."""
        with self.lock:
            return self.read(self.newest_ids(self._index.ring.lane_length), view=view)

    def rollout(self, *, view: View[Data] = fbuf.Item()) -> fbuf.Batch[Data]:
        """Read all rows, the oldest first, as `fbuf.rollout` does; on the device they must fit."""
        with self.lock:
            return self.read(programs.in_order(self._index), view=view)

    def pop(
        self, count: int, *, keep: int = 0, mask: Any = None, view: View[Data] = fbuf.Item()
    ) -> fbuf.Batch[Data]:
        """Read the oldest unread rows, which then count as read, as `fbuf.pop` does."""
        given = {"count": count, "keep": keep, "view": view}
        given |= {} if mask is None else {"mask": mask}
        with self.lock:
            given = call.checked(fbuf.pop, self._index, given)
            mask = given.pop("mask", None)
            # A signal that comes while they are read raises before they count as read.
            batch = self.read(programs.next_ids(self._index, mask, **given), view=view)
            with self._changing():
                self._index = programs.pop(self._index, mask, **given)
            return batch

    def newest_ids(self, count: int) -> fbuf.Ids:
        """The ids of the newest rows, as `fbuf.newest_ids`."""
        return self._ask(fbuf.newest_ids, count)

    def ids_at(self, slots: Any) -> fbuf.Ids:
        """The ids of the rows in slots, as `fbuf.ids_at`."""
        return self._ask(fbuf.ids_at, slots)

    def probability(self, ids: fbuf.Ids) -> jax.Array:
        """How likely one draw is to be each row, as `fbuf.probability`."""
        return self._ask(fbuf.probability, ids)

    def size(self) -> int:
        """How many rows there are, as `fbuf.size`."""
        return int(self._ask(fbuf.size))

    def can_sample(self, min_size: int = 1) -> bool:
        """Whether there is enough to draw, as `fbuf.can_sample`."""
        return bool(self._ask(fbuf.can_sample, min_size))

    def space(self) -> jax.Array:
        """How many rows fit without one being lost, as `fbuf.space`."""
        return self._ask(fbuf.space)

    def unread(self) -> jax.Array:
        """How many rows are unread, as `fbuf.unread`."""
        return self._ask(fbuf.unread)

    def stats(self, *, detailed: bool = False) -> dict[str, Any]:
        """Figures for a log, as `fbuf.stats`: `bytes` lie on the device, `host_bytes` do not.

        The latter are those of the rows: in memory, or in files of their own. The files of an
        opened checkpoint are not counted.
        """
        return {**self._ask(fbuf.stats, detailed=detailed), "host_bytes": self.host_bytes}

    def raise_on_fault(self, *, ignore: fbuf.Fault | None = None) -> None:
        """Raise if something was wrong, as `fbuf.raise_on_fault`."""
        self._ask(fbuf.raise_on_fault, **({} if ignore is None else {"ignore": ignore}))

    # On disk.

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        extra: Any = None,
        keep: int = 2,
        background: bool = False,
    ) -> None:
        """Save it, and what you give beside it, as `fbuf.save` does; later saves write what is new.

        `fbuf.load` reads the checkpoint into a buffer on the device, if it fits there, and `load`
        reads one of `fbuf.save` into a store.

        Args:
            path: As for `fbuf.save`.
            extra: As for `fbuf.save`.
            keep: As for `fbuf.save`.
            background: As for `fbuf.save`: what is new is copied, and written in a thread. An
                opened store keeps it in memory, too, until the next save.

        Raises:
            OSError: As `fbuf.save`.
            CheckpointError: As `fbuf.save`.
        """
        with self._changing():
            rows, folder = self._rows, paths.local("HostStore.save", path)
            if not (isinstance(rows, SavedRows) and rows.folder == folder):
                self._save(path, extra, keep, background)
                return
            fbuf.wait(folder)
            self._follow(rows)
            before = manifest.numbers(folder)
            self._save(path, extra, keep, background)
            rows.saving(before[-1] if before else 0)
            if not background:
                self._follow(rows)

    def _save(self, path: Any, extra: Any, keep: int, background: bool) -> None:
        with memory_maps.in_order(self._rows.maps):
            saved = fbuf.save(path, self.whole(), extra=extra, keep=keep, background=background)
        self._index = deferred.without_rows(saved)

    def _follow(self, rows: SavedRows) -> None:
        """Read rows that were being saved from their files, once these are written."""
        numbers, before = manifest.numbers(rows.folder), rows.saved_before
        if before is None or not numbers or numbers[-1] <= before:
            return
        with contextlib.suppress(CheckpointError):  # damaged: the rows stay in memory
            written = manifest.read(rows.folder, numbers[-1])
            if written.save_id in lineage.ancestors(lineage.of_state(self._index)):
                rows.saved(written)  # else another store has saved there

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
            path: The directory that was given to `save`, or to `fbuf.save`.
            item: As for `fbuf.load`.
            sampler: As for `fbuf.load`.
            extra: As for `fbuf.load`.
            with_extra: As for `fbuf.load`.
            fallback: As for `fbuf.load`.
            episodes: `"end"` ends the open episodes, as `end_episode` does: the next row of each
                environment begins one. `"keep"` goes on within them, bit for bit: give it if you
                restore your environments, too.
            files: As for `HostStore`.

        Returns:
            The store, and what was saved beside it.

        Raises:
            CheckpointError: As `fbuf.load`.
            ValueError: If `episodes` is something else.
        """
        made: list[HostStore[Any]] = []

        def make(**given: Any) -> fbuf.State[Any]:
            made.clear()  # with `fallback` another one is asked for
            made.append(cls(**given, files=files))
            return made[0].whole()

        check.boolean("HostStore.load", "with_extra", with_extra)
        resume.check("HostStore.load", episodes)
        extra = extra if with_extra else extras.LEFT_OUT
        found = newest(path, item, sampler, extra, fallback, make)
        made[0]._index = deferred.without_rows(found.state)
        return resume.resumed(made[0], episodes), found.extra

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

        They are read from the files when they are drawn: a data set may be larger than memory, and
        so may a buffer. What you add or change lies in memory until you `save` to the directory,
        and from then on in its files, too. So a run that was stopped goes on where it has saved.

        Only the lengths of the files of rows are checked; `fbuf verify` reads every byte. Leave the
        saving to this store: another program that saves to the directory deletes files of it.

        Args:
            path: The directory that was given to `save`, or to `fbuf.save`.
            item: As for `fbuf.load`.
            sampler: As for `fbuf.load`.
            extra: As for `fbuf.load`.
            with_extra: As for `fbuf.load`.
            episodes: As for `HostStore.load`; the files stay as they are.

        Returns:
            The store, and what was saved beside it.

        Raises:
            CheckpointError: As `fbuf.load`; and if a file has another length than it must have.
            ValueError: If `episodes` is something else.

        Cost: it reads the flags and the sampler's index. In host memory: 4 bytes a row, the next
        observations that `next_of` keeps, and what has changed since the last save.
        """
        check.boolean("HostStore.open", "with_extra", with_extra)
        resume.check("HostStore.open", episodes)
        if sampler is not None:
            check.instance("HostStore.open", "sampler", sampler, Sampler, "fbuf.Uniform()")
        if item is not None:
            parse.item_specs("HostStore.open", item)
        folder = paths.local("HostStore.open", path)
        fbuf.wait(folder)
        heads = manifest.heads(folder)
        known = list(heads)
        if not known:
            raise CheckpointError(f"HostStore.open: there is no checkpoint in {folder}")
        found = manifest.read(folder, known[-1])
        with as_damage(folder, known[-1]):
            given = config.arguments(found.config, item, sampler)
            like = jax.eval_shape(lambda: fbuf.init(**given))
            reader.check_shapes(found, like)
            store: HostStore[Any] = cls.__new__(cls)
            specs, capacity = given.pop("item"), given.pop("capacity")
            leaves, tree = jax.tree.flatten(specs)
            forms = tuple((leaf.shape, leaf.dtype) for leaf in leaves), tree, capacity
            rows = SavedRows(folder, found, like.storage.layout, capacity)
            store._begin(programs.init((*forms, tuple(given.items()))), rows, None)
            whole = dataclasses.replace(store.whole(), storage=like.storage)
            whole, arrays = reader.fill(folder, found, whole, rows=False)
            beside = extras.joined(found.extra, arrays, extra if with_extra else extras.LEFT_OUT)
        store._index = deferred.without_rows(whole)
        seen.note(folder, heads.values())
        return resume.resumed(store, episodes), beside

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
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    # The rest is not for users.

    @property
    def index(self) -> fbuf.State[Any]:
        """The flags, the ring and the sampler's index: a buffer whose rows lie elsewhere."""
        return self._index

    @property
    def host_bytes(self) -> int:
        """How many bytes of the host's memory, or of files of its own, the rows take."""
        return self._rows.nbytes + (self._kept.nbytes if self._kept else 0)

    @property
    def layouts(self) -> tuple[Layout, Layout | None]:
        """What the leaves of the rows are, and those of the next observations."""
        kept = self._index.next_obs
        return self._index.storage.layout, None if kept is None else kept.rows.layout

    def whole(self) -> fbuf.State[Any]:
        """A buffer with the index and with the rows, which are arrays of NumPy."""
        index = self._index
        if self._kept is not None:
            kept = dataclasses.replace(index.next_obs, rows=self._kept.storage)
            index = dataclasses.replace(index, next_obs=kept)
        return dataclasses.replace(index, storage=self._rows.storage)

    def change_index(self, change: Callable[[Any], Any]) -> None:
        """Have a function make the next index of this one, without the rows. Hold `lock`."""
        self._index = change(self._index)

    def fill(self, state: fbuf.State[Any]) -> None:
        """Take over a whole buffer of the same form. Hold `lock`."""
        own, given = row_ranges.of_state(self.whole()), row_ranges.of_state(state)
        for mine, other in zip(own, given, strict=True):
            for array, rows in zip(mine.arrays, other.arrays, strict=True):
                array[:] = np.asarray(rows)
        self._index = deferred.without_rows(state)

    def place(self, device: Any) -> None:
        """Put the index on a device, where it stays. Hold `lock`."""
        self._index = jax.device_put(self._index, device)

    def taking(self, look: Callable[[], Found]) -> Taking:
        """What takes the rows that a view wants, of the store as it is now. Hold `lock`.

        Args:
            look: Says which rows these are. What changes the store waits until it has been called.
        """
        rows, kept, ring = self._rows, self._kept, self._index.ring
        taking = Taking(lambda: programs.take(look(), ring, rows, kept))
        self._takings.add(taking)
        return taking

    def take_what_was_drawn(self) -> None:
        """Take the rows of all batches that were drawn. Hold `lock`."""
        for taking in list(self._takings):
            taking.settle()
        self._takings.clear()

    def _ask(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What a function of fbuf finds in the index."""
        with self.lock:
            return operation(self._index, *args, **options)

    def _change(self, operation: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Have a function of fbuf make the next index of this one, and write what it notes."""
        options = {name: value for name, value in options.items() if value is not None}
        with self._changing():
            self._become(*deferred.taken(operation(self._index, *args, **options)), [], [])

    def _become(
        self, index: Any, of_rows: Any, of_next: Any, rows: Leaves, following: Leaves
    ) -> None:
        """Take over the next index, and write what was noted; the one before has been consumed."""
        self._index = index
        try:
            self._rows.apply(of_rows, rows)
            if self._kept is not None:
                self._kept.apply(of_next, following)
        except BaseException as error:
            self._failed = error
            raise

    @contextlib.contextmanager
    def _changing(self) -> Generator[None]:
        """A change: one thread at a time, and whole, also if a Ctrl-C or another signal comes."""
        with self.lock:
            self.take_what_was_drawn()
            with uninterrupted():
                yield

    def _asked(
        self, key: Any, batch_size: int, view: View, beta: Any, step: Any, count: Any
    ) -> dict[str, Any]:
        """The arguments of a draw that are given, checked."""
        given = {"key": key, "batch_size": batch_size, "view": view}
        given |= {"beta": beta, "step": step, "count": count}
        given = {name: value for name, value in given.items() if value is not None}
        given = call.checked(fbuf.sample, self._index, given)
        require_step("sample", self._index.sampler, step)
        return given

    @staticmethod
    def _flat(
        item: Any, items: Any, num_envs: int | None, time_major: bool, argument: str
    ) -> tuple[Leaves, Any]:
        """Rows as leaves `[B, ...]`, in the order of `fbuf.add`; and what they came as."""
        given, lead = parse.checked_rows("add", item, items, num_envs, time_major, argument)
        stored, tree = jax.tree.flatten(item)
        arrays = [np.asarray(leaf, spec.dtype) for leaf, spec in zip(given, stored, strict=True)]
        specs = tuple((array.shape, array.dtype) for array in arrays), tree
        return [lead.flat(array) for array in arrays], specs


processes.stays(HostStore)


def _reading(rows: Rows | SavedRows) -> Callable[[Any, Any], Any]:
    """What reads some leaves of rows, as arrays of NumPy have them."""
    layout = rows.storage.layout

    def read(slots: Any, leaves: Any) -> Any:
        words, *wide = map(jnp.asarray, rows.take(slots, leaves))
        return store.unpacked(layout, leaves, words, wide, slots.shape)

    return read


def _check_room(like: fbuf.State[Any], in_memory: bool) -> None:
    """Refuse what there is no room for, before any of it is taken."""
    kept = like.next_obs
    rows = sizes.nbytes(like.storage) + (0 if kept is None else sizes.nbytes(kept.rows))
    index = sizes.nbytes(like) - rows
    (device,) = jnp.zeros(()).devices()
    shared = in_memory and device.platform == "cpu"
    asked = [(index + rows * shared, sizes.free(device), str(device))]
    if in_memory and not shared:
        asked.append((rows, sizes.free_of_host(), "the host"))
    for count, free, where in asked:
        if free is not None and count > free:
            raise MemoryError(
                f"HostStore: {like.capacity} rows take {sizes.in_words(count)} of {where}, which "
                f"has {sizes.in_words(free)} free; take a smaller capacity"
                + (", or give files, a directory for the rows" if in_memory else "")
            )
