"""Put fbuf and its peers behind one small interface, so that all of them do the same work.

Each class is one library. A buffer is functional here even where the library's is not: `state` is
then the library's own object, changed and handed back. `sample` returns all that the library
returns, and `data`, `ids` and `weights` find their way in it.
"""

# ruff: noqa: D102 (what the methods are for is said once, in Peer)

from __future__ import annotations

import base64
import functools
import hashlib
import importlib
import importlib.metadata
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any

ALPHA, BETA = 0.6, 0.4

ROW = {
    "observation": jax.ShapeDtypeStruct((17,), jnp.float32),
    "action": jax.ShapeDtypeStruct((6,), jnp.float32),
    "reward": jax.ShapeDtypeStruct((), jnp.float32),
    "done": jax.ShapeDtypeStruct((), jnp.bool_),
}
"""The standard row: a small robot's transition."""

FRAME = {
    "observation": jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8),
    "action": jax.ShapeDtypeStruct((), jnp.int32),
    "reward": jax.ShapeDtypeStruct((), jnp.float32),
    "done": jax.ShapeDtypeStruct((), jnp.bool_),
}
"""Four stacked frames of an Atari game."""

ITEMS = {"row": ROW, "frame": FRAME}


def row_bytes(item: Tree) -> int:
    """Return the least bytes of a row."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(item))


def random_rows(item: Tree, count: int, seed: int) -> Tree:
    """Rows of numpy arrays to add."""
    rng = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        shape = (count, *leaf.shape)
        if leaf.dtype == np.float32:
            return rng.random(shape, np.float32)
        most = 2 if leaf.dtype == bool else 128
        return rng.integers(0, most, shape, leaf.dtype)

    return jax.tree.map(draw, item)


class Unable(Exception):
    """The library cannot do this; the text says why."""


class Peer:
    """A replay memory of one library; subclasses say how it is used.

    Attributes:
        name: The library.
        traceable: Whether its functions can be part of a JAX program.
        writes_all: An add touches the whole store (so that fewer steps are measured).
        notes: Facts about the library that a reader of the figures has to know.
    """

    name = ""
    traceable = True
    writes_all = False

    def __init__(self, item: Tree, capacity: int, batch_size: int, prioritized: bool) -> None:
        """Raises `Unable` if there is no such memory in the library."""
        self.item, self.capacity, self.batch_size = item, capacity, batch_size
        self.prioritized = prioritized
        self.notes: list[str] = []

    def init(self) -> Any:
        """An empty buffer."""
        raise NotImplementedError

    def fill(self, state: Any, rows: Tree, slots: Any, priority: Any) -> Any:
        """Add rows, which go to these slots, and give them their priorities."""
        raise NotImplementedError

    def add(self, state: Any, rows: Tree) -> Any:
        """Add rows, of default priority."""
        raise NotImplementedError

    def sample(self, state: Any, key: Any) -> tuple[Any, Tree]:
        """Draw a batch: the state, which some libraries change by it, and all that was returned."""
        raise NotImplementedError

    def data(self, drawn: Tree) -> Tree:
        """The rows of a batch, by field."""
        return drawn

    def ids(self, drawn: Tree) -> Any:
        """Return the ids of the rows of a batch."""
        raise NotImplementedError

    def weights(self, drawn: Tree) -> Any:
        """Importance weights, or the probabilities to compute them from."""
        raise NotImplementedError

    def reward(self, drawn: Tree) -> Any:
        """The rewards of a batch."""
        return self.data(drawn)["reward"]

    def update(self, state: Any, ids: Any, priority: Any) -> Any:
        """Give rows new priorities."""
        raise NotImplementedError

    def update_if(self, state: Any, drawn: Tree, priority: Any, wanted: Any) -> Any:
        """Give a batch new priorities if `wanted`, a traced bool, says so, without a branch."""
        raise NotImplementedError

    def importance(self, state: Any, drawn: Tree) -> Any:
        """Importance weights of a batch, at most 1."""
        return self.weights(drawn)

    def array(self, array: Any) -> Any:
        """An array of the library's own kind."""
        return jnp.asarray(array)

    @functools.cached_property
    def eager(self) -> Any:
        """The same functions, to be called from Python one by one."""
        return self

    def wait(self, *trees: Any) -> None:
        """Wait for results."""
        jax.block_until_ready(trees)

    def prepare(self, state: Any) -> None:
        """Choose what the library leaves to its user; called with a full buffer."""

    def check_memory(self, available: int) -> None:
        """Raises `Unable` if so many bytes will not do."""


class Jitted:
    """The functions of a peer, each compiled by itself and writing in place."""

    def __init__(self, peer: Peer) -> None:
        draw = jax.jit(lambda state, key: peer.sample(state, key)[1])
        self.add = jax.jit(peer.add, donate_argnums=0)
        self.sample = lambda state, key: (state, draw(state, key))
        self.update = jax.jit(peer.update, donate_argnums=0)


class Fbuf(Peer):
    """This library."""

    name = "fbuf"

    def __init__(
        self, item: Tree, capacity: int, batch_size: int, prioritized: bool, module: Any = None
    ) -> None:
        super().__init__(item, capacity, batch_size, prioritized)
        self.fbuf = fbuf = module or importlib.import_module("fbuf")
        self.sampler = fbuf.Prioritized(alpha=ALPHA, beta=BETA) if prioritized else fbuf.Uniform()

    def init(self) -> Any:
        return self.fbuf.init(self.item, self.capacity, sampler=self.sampler)

    def fill(self, state: Any, rows: Tree, slots: Any, priority: Any) -> Any:
        return self.fbuf.add(state, rows, priority=priority if self.prioritized else None)

    def add(self, state: Any, rows: Tree) -> Any:
        return self.fbuf.add(state, rows)

    def sample(self, state: Any, key: Any) -> tuple[Any, Tree]:
        return state, self.fbuf.sample(state, key, self.batch_size)

    def data(self, drawn: Tree) -> Tree:
        return drawn.data

    def ids(self, drawn: Tree) -> Any:
        return drawn.ids

    def weights(self, drawn: Tree) -> Any:
        return drawn.weight

    def update(self, state: Any, ids: Any, priority: Any) -> Any:
        return self.fbuf.update_priority(state, ids, priority)

    def update_if(self, state: Any, drawn: Tree, priority: Any, wanted: Any) -> Any:
        mask = jnp.broadcast_to(wanted, priority.shape)
        return self.fbuf.update_priority(state, drawn.ids, priority, mask=mask)


class Stays(Fbuf):
    """This library, in a buffer whose rows cannot be removed."""

    name = "fbuf, removable=False"

    def init(self) -> Any:
        return self.fbuf.init(self.item, self.capacity, sampler=self.sampler, removable=False)


class CallAlone(Fbuf):
    """JAX's own calls: compiled functions of fbuf's arguments and results, without work.

    They give the state back as it is, and a batch of zeros.
    """

    name = "call alone"
    traceable = False

    @functools.cached_property
    def eager(self) -> Any:
        batch = jax.eval_shape(lambda: self.sample(self.init(), jax.random.key(0))[1])
        zeros = lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), batch)
        draw = jax.jit(lambda state, key: zeros(), keep_unused=True)
        return types.SimpleNamespace(
            add=jax.jit(lambda state, rows: state, donate_argnums=0, keep_unused=True),
            sample=lambda state, key: (state, draw(state, key)),
            update=jax.jit(lambda state, ids, priority: state, donate_argnums=0, keep_unused=True),
        )


class Flashbax(Peer):
    """flashbax's item buffers, whose rows are independent as fbuf's are."""

    name = "flashbax"

    def __init__(self, item: Tree, capacity: int, batch_size: int, prioritized: bool) -> None:
        import flashbax

        super().__init__(item, capacity, batch_size, prioritized)
        options: dict[str, Any] = {
            "max_length": capacity,
            "min_length": batch_size,
            "sample_batch_size": batch_size,
            "add_batches": True,
        }
        if prioritized:
            platform = jax.default_backend()
            self.buffer = flashbax.make_prioritised_item_buffer(
                **options, priority_exponent=ALPHA, device=platform
            )
        else:
            self.buffer = flashbax.make_item_buffer(**options)

    def init(self) -> Any:
        return self.buffer.init(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.item))

    def fill(self, state: Any, rows: Tree, slots: Any, priority: Any) -> Any:
        state = self.buffer.add(state, rows)
        return self.buffer.set_priorities(state, slots, priority) if self.prioritized else state

    def add(self, state: Any, rows: Tree) -> Any:
        return self.buffer.add(state, rows)

    def sample(self, state: Any, key: Any) -> tuple[Any, Tree]:
        return state, self.buffer.sample(state, key)

    def data(self, drawn: Tree) -> Tree:
        return drawn.experience

    def ids(self, drawn: Tree) -> Any:
        return drawn.indices

    def weights(self, drawn: Tree) -> Any:
        return drawn.probabilities  # its users make weights of them; here that is left out

    def update(self, state: Any, ids: Any, priority: Any) -> Any:
        return self.buffer.set_priorities(state, ids, priority)

    def update_if(self, state: Any, drawn: Tree, priority: Any, wanted: Any) -> Any:
        # It has no mask: rows that are not meant are given the priority that they have.
        total = state.sum_tree_state.nodes[0]
        old = (drawn.probabilities * total) ** (1 / ALPHA)
        priority = jnp.where(wanted, priority, old)
        return self.buffer.set_priorities(state, drawn.indices, priority)

    def importance(self, state: Any, drawn: Tree) -> Any:
        weights = drawn.probabilities**-BETA
        return weights / weights.max()

    @functools.cached_property
    def eager(self) -> Any:
        return Jitted(self)


class Brax(Peer):
    """brax's queue; it keeps its random key itself, and moves all rows when it is full."""

    name = "brax"
    writes_all = True

    def __init__(self, item: Tree, capacity: int, batch_size: int, prioritized: bool) -> None:
        if prioritized:
            raise Unable("brax: has no prioritised buffer")
        from brax.training import replay_buffers

        super().__init__(item, capacity, batch_size, prioritized)
        dummy = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), item)
        self.buffer = replay_buffers.UniformSamplingQueue(capacity, dummy, batch_size)

    def init(self) -> Any:
        return self.buffer.init(jax.random.key(0))

    def fill(self, state: Any, rows: Tree, slots: Any, priority: Any) -> Any:
        return self.add(state, rows)

    def check_memory(self, available: int) -> None:
        # All fields become one float32 matrix, and to move its rows a second one is needed.
        numbers = self.capacity * sum(leaf.size for leaf in self.item.values())
        if 3 * 4 * numbers > available:
            raise Unable(
                f"brax: {self.capacity:,} rows of {row_bytes(self.item):,} bytes need about "
                f"{3 * 4 * numbers / 1e9:.0f} GB: everything is stored as float32, and moved "
                f"through copies at every insert; {available / 1e9:.0f} GB were free"
            )

    def add(self, state: Any, rows: Tree) -> Any:
        return self.buffer.insert_internal(state, rows)

    def sample(self, state: Any, key: Any) -> tuple[Any, Tree]:
        return self.buffer.sample_internal(state)

    @functools.cached_property
    def eager(self) -> Any:
        functions = Jitted(self)
        # Its sample changes the state, and has to write in place too.
        functions.sample = jax.jit(self.sample, donate_argnums=0)
        return functions


class Cpprb(Peer):
    """cpprb: C++ behind numpy."""

    name = "cpprb"
    traceable = False

    def __init__(self, item: Tree, capacity: int, batch_size: int, prioritized: bool) -> None:
        import cpprb

        super().__init__(item, capacity, batch_size, prioritized)
        self.cpprb = cpprb

    def init(self) -> Any:
        fields = {k: {"shape": v.shape or 1, "dtype": v.dtype} for k, v in self.item.items()}
        if self.prioritized:
            return self.cpprb.PrioritizedReplayBuffer(self.capacity, fields, alpha=ALPHA)
        return self.cpprb.ReplayBuffer(self.capacity, fields)

    def fill(self, state: Any, rows: Tree, slots: Any, priority: Any) -> Any:
        state.add(**rows, **({"priorities": priority} if self.prioritized else {}))
        return state

    def add(self, state: Any, rows: Tree) -> Any:
        state.add(**rows)
        return state

    def sample(self, state: Any, key: Any) -> tuple[Any, Tree]:
        options = {"beta": BETA} if self.prioritized else {}
        return state, state.sample(self.batch_size, **options)

    def ids(self, drawn: Tree) -> Any:
        return drawn["indexes"]

    def weights(self, drawn: Tree) -> Any:
        return drawn["weights"]

    def reward(self, drawn: Tree) -> Any:
        return drawn["reward"][:, 0]

    def update(self, state: Any, ids: Any, priority: Any) -> Any:
        state.update_priorities(ids, priority)
        return state

    def array(self, array: Any) -> Any:
        return np.asarray(array)

    def wait(self, *trees: Any) -> None:
        pass


class TorchRL(Peer):
    """TorchRL's buffer over one preallocated tensor a field, with the faster number of threads."""

    name = "torchrl"
    traceable = False

    def __init__(self, item: Tree, capacity: int, batch_size: int, prioritized: bool) -> None:
        import tensordict
        import torch
        from torchrl.data import LazyTensorStorage, ReplayBuffer, replay_buffers

        super().__init__(item, capacity, batch_size, prioritized)
        if prioritized:
            try:  # its tree is a C++ extension, which some pairs of wheels cannot load
                self.sampler: Any = replay_buffers.PrioritizedSampler(capacity, ALPHA, BETA)
            except Exception as error:
                raise Unable(
                    f"torchrl: no PrioritizedSampler with torch {torch.__version__}: {error} "
                    f"({why_no_extension()})"
                ) from error
        else:
            self.sampler = replay_buffers.RandomSampler()
            self.notes += built_extension()
        self.torch, self.tensordict = torch, tensordict
        self.make = lambda: ReplayBuffer(storage=LazyTensorStorage(capacity), sampler=self.sampler)

    def init(self) -> Any:
        return self.make()

    def fill(self, state: Any, rows: Tree, slots: Any, priority: Any) -> Any:
        index = state.extend(self._rows(rows))
        if self.prioritized:
            state.update_priority(index, self.torch.as_tensor(priority))
        return state

    def add(self, state: Any, rows: Tree) -> Any:
        state.extend(self._rows(rows))
        return state

    def sample(self, state: Any, key: Any) -> tuple[Any, Tree]:
        return state, state.sample(self.batch_size, return_info=self.prioritized)

    def data(self, drawn: Tree) -> Tree:
        return drawn[0] if self.prioritized else drawn

    def ids(self, drawn: Tree) -> Any:
        return drawn[1]["index"]

    def weights(self, drawn: Tree) -> Any:
        return drawn[1]["priority_weight"]

    def update(self, state: Any, ids: Any, priority: Any) -> Any:
        state.update_priority(ids, priority)
        return state

    def array(self, array: Any) -> Any:
        return self.torch.from_numpy(np.array(array))

    def wait(self, *trees: Any) -> None:
        pass

    def prepare(self, state: Any) -> None:
        # Its gathers are up to 100 times slower with all threads than with one if a core is busy.
        self.torch.set_num_threads(faster_threads(lambda: self.sample(state, None)))

    def _rows(self, rows: Tree) -> Any:
        return self.tensordict.TensorDict(rows, batch_size=[len(rows["reward"])])


def faster_threads(step: Callable[[], Any], times: int = 5) -> int:
    """Return the number of PyTorch's threads, one or all, with which a step takes less time."""
    import torch

    most = torch.get_num_threads()

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        step()
        start = time.perf_counter()
        for _ in range(times):
            step()
        return time.perf_counter() - start

    faster = min((1, most), key=seconds)
    torch.set_num_threads(most)
    return faster


def why_no_extension() -> str:
    """Return the reason why TorchRL's C++ extension does not load, or nothing."""
    try:
        importlib.import_module("torchrl._torchrl")
    except ImportError as error:
        where, *what = str(error).splitlines()[0].split(": ")
        return ": ".join([where.rsplit("/", 1)[-1], *what[:1]])  # then comes a mangled name
    return ""


def built_extension() -> list[str]:
    """A note, if TorchRL's C++ extension is another file than the one that came in the wheel."""
    for file in importlib.metadata.files("torchrl") or ():
        if file.name.startswith("_torchrl") and file.hash:
            found = hashlib.new(file.hash.mode, file.read_binary()).digest()
            if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != file.hash.value:
                return [
                    "torchrl: its C++ extension, which holds the trees, was built from its source: "
                    "the one in the wheel does not load with this torch"
                ]
    return []


PEERS: tuple[type[Peer], ...] = (Fbuf, CallAlone, Flashbax, Brax, Cpprb, TorchRL)


def filler(peer: Peer) -> Callable[..., Any]:
    """Return the function that fills a buffer; compiled if it can be."""
    return jax.jit(peer.fill, donate_argnums=0) if peer.traceable else peer.fill


def rows_to_fill(peer: Peer, chunk: int) -> Tree:
    """Random rows, as the library takes them."""
    rows = random_rows(peer.item, chunk, seed=0)
    return {name: peer.array(leaf) for name, leaf in rows.items()}


def filled(
    peer: Peer, chunk: int, fill: Callable[..., Any] | None = None, rows: Tree | None = None
) -> Any:
    """A full buffer, past the end of its ring, with random rows and random priorities."""
    state = peer.init()
    rows = rows or rows_to_fill(peer, chunk)
    fill = fill or filler(peer)
    rng = np.random.default_rng(1)
    for start in range(0, peer.capacity + chunk, chunk):
        slots = peer.array((start + np.arange(chunk)) % peer.capacity)
        state = fill(state, rows, slots, peer.array(rng.random(chunk, np.float32)))
        peer.wait(state)
    return state
