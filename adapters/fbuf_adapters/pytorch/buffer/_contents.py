"""The contents of a `ReplayBuffer`: its rows, its batches drawn ahead, and the lock of both."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Generator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import fbuf
from fbuf.adapter_api import Calls, made_with, uninterrupted, unknown_item
from fbuf.host import HostStore
from fbuf_adapters.pytorch._spec import Spec, drawn_seed, where
from fbuf_adapters.pytorch.batches._batch_stream import TensorStream
from fbuf_adapters.pytorch.batches._delivery import Delivery
from fbuf_adapters.pytorch.buffer._backend import Backend
from fbuf_adapters.pytorch.buffer._end_room import EndRoom
from fbuf_adapters.pytorch.buffer._host_backend import HostBackend
from fbuf_adapters.pytorch.crossing import _containers
from fbuf_adapters.pytorch.crossing._error import InteropError
from fbuf_adapters.pytorch.crossing._item import Learned, learn
from fbuf_adapters.pytorch.crossing._tensors import check_no_capture


@dataclasses.dataclass(frozen=True)
class Backing:
    """The part of a buffer that exists once its item is known.

    Attributes:
        learned: The item.
        backend: The state.
        blank: The fault array of the empty state. As long as the state has this very array, no row
            was added.
    """

    learned: Learned
    backend: Backend
    blank: jax.Array | None


class NoState(AttributeError, RuntimeError):
    """There is no state to return, or none yet."""


class Contents:
    """Holds all that the calls of a buffer depend on. Another adapter may build on it.

    Change it with `lock` held. `stored`, `stream` and `seed` are replaced together, in one
    instruction, because an exception may come between two: `contents.become(...)`.

    Attributes:
        spec: The arguments of the buffer.
        calls: Makes calls of JAX that no exception breaks off.
        stored: The rows; None as long as the item is not known.
        stream: The batches.
        end_room: The room for the last observations of episodes.
        delivery: Makes of arrays what the user gets.
        seed: The seed of the draws.
        rebuild: Makes items of dicts that were no trees of JAX's when they were added.
    """

    def __init__(self, spec: Spec, item: Any, store: HostStore[Any] | None) -> None:
        """Take the memory if the item is known."""
        self.spec = spec
        self.calls = Calls()
        self.delivery = Delivery(spec)
        self.rebuild = self.delivery.rebuild
        self.seed = drawn_seed() if spec.seed is None else int(spec.seed)
        self.stored: Backing | None = None
        self.end_room = EndRoom(spec)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = False
        key = jax.device_put(jax.random.key(self.seed), spec.jax_device)
        self.stream = TensorStream(spec, key, self.delivery)
        if store is not None:
            self.stored = self._of_store(store, item)
        elif item is not None:
            self.rebuild += _containers.container_of(item, 0)
            self.stored = self.make(learn(where("__init__"), _containers.plain(item)))
        else:  # a fault of the other arguments should be told now
            jax.eval_shape(self.empty_state)

    @property
    # To pyright RLock is a function, but the class it makes objects of has no public name.
    def lock(self) -> threading.RLock:  # pyright: ignore[reportGeneralTypeIssues]
        """The lock.

        Raises:
            RuntimeError: In a process that was forked off.
        """
        if os.getpid() != self._process:  # there JAX hangs, and so may the lock
            raise RuntimeError(
                f"{where('lock')} this buffer was made in another process, and JAX does not run "
                "in one that was forked off. Draw in the process that made the buffer; in a "
                "DataLoader, num_workers=0. Or start the process with 'spawn', and make a buffer "
                "there"
            )
        return self._lock

    def become(
        self,
        stored: Backing | None,
        stream: TensorStream,
        seed: int,
        rebuild: list[_containers.Container],
    ) -> None:
        """Replace all of it; batches drawn ahead before are dropped."""
        before = self.stream
        # One instruction: an exception comes before all of it, or after.
        self.__dict__.update(stored=stored, stream=stream, seed=seed)
        self.rebuild += rebuild
        self.end_room.forget()
        before.drop()

    def close(self) -> None:
        """End the thread, and free the memory."""
        with self.lock:
            self._closed = True
            self.stored = None
            self.stream.drop()
        self.stream.close()

    def in_words(self, name: str, batch_size: int | None) -> str:
        """Return one line for `repr`: the rows, and what is drawn of them."""
        options, rows = self.spec.buffer, "closed or consumed"
        with contextlib.suppress(RuntimeError, InteropError):
            rows = f"{self.count()} of {options.capacity} rows"
        envs = "" if options.num_envs is None else f", {options.num_envs} environments"
        return (
            f"{name}({rows}{envs}, sampler={options.sampler}, view={self.spec.view}, "
            f"batch_size={batch_size}, seed={self.seed})"
        )

    def count(self) -> int:
        """Count the rows, without removed ones."""
        with self.lock:
            self.check_open("__len__")
            if self.stored is None:
                return 0
            size = self.made("__len__").backend.look(fbuf.size)
        return int(size)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the object, for a copy: with its seed, and in places of its own.

        Rows that an opened store reads where they lie become rows in memory.
        """
        spec = self.spec
        names = ("view", "batch_size", "int64", "transform", "pin_memory", "prefetch")
        names += ("batches_per_draw", "drop_last")
        host = spec.on_host if spec.files is None else str(spec.files)
        return {
            **spec.buffer.options,
            **{name: getattr(spec, name) for name in names},
            "device": str(spec.device),
            "to": None if spec.to is None else str(spec.to),
            "seed": self.seed,
            "host": host,
        }

    # The rows, or an error.

    @contextlib.contextmanager
    def attribute(self) -> Generator[None]:
        """Raise errors that `hasattr` and `getattr` know, in place of a `RuntimeError`."""
        try:
            yield
        except RuntimeError as error:
            raise NoState(*error.args) from None

    def check_open(self, function: str) -> None:
        """Raise if the buffer is closed, or called where JAX cannot run."""
        if self._closed:
            raise RuntimeError(f"{where(function)} this buffer is closed")
        if self.spec.uses_gpu:
            check_no_capture(where(function))

    def check_on_device(self, function: str) -> None:
        """Raise if the rows lie on the host."""
        if self.spec.on_host:
            raise RuntimeError(
                f"{where(function)} the rows of this buffer lie on the host, and no State has "
                "them; use the methods of the buffer, or save() it and fbuf.load() that"
            )

    def made(self, function: str) -> Backing:
        """Return the rows of a buffer that is open and knows its item."""
        self.check_open(function)
        if self.stored is None:
            raise RuntimeError(
                f"{where(function)} nothing has been added yet, so the item is not known; add "
                "something first, or give the buffer its item when you make it"
            )
        if self.stored.backend.is_consumed:
            if self.spec.on_host:
                raise RuntimeError(
                    f"{where(function)} the HostStore of this buffer was changed by its own "
                    "methods; use those of the buffer alone"
                )
            raise RuntimeError(
                f"{where(function)} a function consumed buffer.state; assign the state that it "
                "returned: buffer.state = ..."
            )
        return self.stored

    def filled(self, function: str) -> Backing:
        """Return the rows as `made` does, if there has been one."""
        stored = self.made(function)
        if stored.backend.stamp is stored.blank:
            raise RuntimeError(f"{where(function)} the buffer is empty; add something first")
        return stored

    @property
    def stamp(self) -> object:
        """A small object that names the state: another one as soon as the state has changed."""
        with self.lock:
            return self.made("state").backend.stamp

    def set_state(self, state: Any) -> None:
        """Go on with a state of this buffer that other code has made."""
        self.check_open("state")
        self.check_on_device("state")
        if self.stored is None:
            raise RuntimeError(
                f"{where('state')} nothing has been added yet, so the item is not known; "
                "give the buffer its item when you make it"
            )
        backend = self.stored.backend
        if not isinstance(state, fbuf.State) or _form(state) != _form(backend.state):
            raise InteropError(
                f"{where('state')} must be a state of this buffer, as fbuf's functions return "
                f"it for buffer.state{_differing(state, backend.state)}"
            )
        self.stream.drop()
        state = jax.device_put(state, self.spec.jax_device)
        if state.fault is backend.fault:  # the array that tells one state from another
            state = dataclasses.replace(state, fault=jnp.copy(state.fault))
        backend.state = state
        self.end_room.forget()

    def with_end_room(self, stored: Backing, flags: Mapping[str, Any], time_major: bool) -> Backing:
        """Return rows with room for the ends in some flags; the lock is held."""
        room = self.end_room
        if not room.counts or room.fits(flags):
            return stored
        state = self.calls.apart(lambda: room.grown(stored.backend, flags, time_major))
        if state is None:
            return stored
        backend = Backend(state, self.calls, self.spec.defers)
        grown = dataclasses.replace(stored, backend=backend)
        if self.stored is stored:  # at once: the next change consumes what both share
            self.stored = grown
        return grown

    def empty(self) -> None:
        """Remove all rows and the batches drawn ahead."""
        self.stream.drop()
        self.end_room.forget()
        if self.stored is not None:
            backend = self.made("empty").backend
            with uninterrupted():  # rows of a signal handler would count as none
                backend.change(fbuf.clear, *jax.tree.flatten({}), wait=False)
                self.stored = dataclasses.replace(self.stored, blank=backend.fault)

    # Memory.

    def inner(self, function: str) -> fbuf.State[Any]:
        """Return the state with its rows, for a report; one without an item if none is known."""
        if self.stored is None:
            self.check_open(function)
            return self.empty_state()
        return self.made(function).backend.whole()

    def empty_state(self) -> fbuf.State[Any]:
        """Return a state without the item, for what does not depend on it."""
        buffer = self.spec.buffer
        return buffer.init(unknown_item(buffer.sampler), next_of=None, max_ends=None)

    def make(self, learned: Learned, state: Any = None, written: bool = False) -> Backing:
        """Return the rows of an item, in a loaded state or store, or in memory taken for them.

        `written` tells whether there has been a row.
        """
        backend = self.backend(learned.item, state)
        return Backing(learned, backend, None if written else backend.fault)

    def backend(self, item: Any, state: Any = None) -> Backend:
        """Return the backend of a state or a store; None is an empty one."""
        spec = self.spec
        if not spec.on_host:
            if state is None:
                with jax.default_device(spec.jax_device):
                    state = spec.buffer.init(item)
            # Committed, so that what is computed from it stays there, and nothing compiles twice.
            return Backend(jax.device_put(state, spec.jax_device), self.calls, spec.defers)
        store = state
        if not isinstance(store, HostStore):
            with jax.default_device(spec.jax_device):
                store = HostStore(item, **spec.buffer.options, files=spec.files)
            if state is not None:
                store.contents.fill(state)
        store.contents.place(spec.jax_device)
        return HostBackend(store, self.calls)

    def _of_store(self, store: HostStore[Any], item: Any) -> Backing:
        """Take over the rows of a store."""
        learned = learn(where("__init__"), store.item if item is None else item)
        wanted = jax.eval_shape(lambda: self.spec.buffer.init(learned.item))
        if _form(wanted) != _form(store.contents.whole()):
            raise ValueError(
                f"{where('__init__')} host is {store!r}, which was made with other arguments than "
                "this buffer; give both the same item, capacity, sampler, num_envs, autoreset, "
                "lockstep, next_of, max_ends and removable"
            )
        return self.make(learned, store, written=bool(store.size()))


def _form(state: Any) -> Any:
    """Return what two states of the same buffer have in common."""
    leaves, structure = jax.tree.flatten(state)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _differing(given: Any, own: fbuf.State[Any]) -> str:
    """Say which arguments two states were made with differ."""
    if not isinstance(given, fbuf.State):
        return f"; got {type(given).__name__}"
    theirs, ours = _arguments(given), _arguments(own)
    names = ", ".join(name for name in ours if theirs[name] != ours[name]) or "axes"
    return f"; this one differs in {names}: make it with the arguments of this buffer"


def _arguments(state: fbuf.State[Any]) -> dict[str, Any]:
    """Return the arguments that made a state."""
    leaves, structure = jax.tree.flatten(state.storage.item)
    item = structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
    return {"item": item} | made_with(state)
