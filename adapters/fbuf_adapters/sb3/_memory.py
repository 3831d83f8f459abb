"""The buffer behind Stable-Baselines3's: a state of fbuf, and the steps on their way into it.

Compiled programs write and draw, but transitions on the CPU that are drawn uniformly; see
`_uniform_draws`.
"""

from __future__ import annotations

import collections
import copy
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import fbuf
from fbuf.adapter_api import (
    BufferSpec,
    Calls,
    HostTransitions,
    View,
    fold_in,
    uninterrupted,
    warn,
)
from fbuf_adapters.pytorch.buffer._backend import Backend
from fbuf_adapters.pytorch.crossing import _packed
from fbuf_adapters.pytorch.crossing._unpack import Unpack
from fbuf_adapters.sb3 import _loaded as loaded
from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._columns import Array, map_columns
from fbuf_adapters.sb3._drawing import Drawing, Fields
from fbuf_adapters.sb3._staging import Staging
from fbuf_adapters.sb3._turns import Turns, alone
from fbuf_adapters.sb3._uniform_draws import UniformDraws
from fbuf_adapters.sb3._write_sizes import WriteSizes


class Memory:
    """Rows of all environments. A step is staged first, and written when the state is needed.

    Attributes:
        staging: The newest steps.
        drawn: How many batches were drawn by compiled programs.
        turns: Which call is under way.
        offset: The steps by which the count has jumped at states that were assigned. A state with
            another newest step leaves a gap of two.
        refuses_states: The reason why no state may be assigned; "" if one may.
    """

    offset = 0
    refuses_states = ""

    def __init__(
        self, spec: BufferSpec, item: Fields, drawing: Drawing, seed: int, device: Any
    ) -> None:
        """Make an empty buffer of columns."""
        self.spec, self.drawing, self.seed, self.device = spec, drawing, seed, device
        assert spec.num_envs is not None
        self.length = spec.capacity // spec.num_envs
        self.staging = Staging(item, spec.num_envs)
        self.drawn = 0
        self.turns = Turns()
        self._uniform: UniformDraws | None = None
        self.draw_by(drawing)
        self._ends: collections.deque[tuple[int, int]] = collections.deque()
        self._kept = 0  # the number of ends in the deque
        specs = map_columns(lambda column: column.spec, item)
        with jax.default_device(device):
            self._own(spec.init(specs), 0)

    def draw_by(self, drawing: Drawing) -> None:
        """Draw in this way from now on."""
        self.drawing = drawing
        if not drawing.by_numpy(self.spec, self.device):
            self._uniform = None
            return
        if self._uniform is None:
            self._uniform = UniformDraws(self.spec, self.staging, self.seed)
        self._uniform.view = drawing.view

    def _own(self, state: fbuf.State[Any], written: int) -> None:
        """Take a state that holds `written` steps."""
        if self._uniform is not None:
            self._uniform.forget()
        self._calls = Calls()
        self._backend = Backend(state, self._calls)
        self._sizes = WriteSizes()
        self._program: tuple[Drawing, Any] | None = None
        self._unpackers: dict[Any, tuple[Unpack, Any]] = {}
        self._before, self._after = (self._backend.leaves, written), written
        self._seen: tuple[tuple[jax.Array, ...], HostTransitions] | None = None
        assert state.next_obs is not None
        self._room = state.next_obs.owner.shape[0] - self.staging.n_envs

    @property
    def steps(self) -> int:
        """The number of steps that were ever added."""
        return self.staging.steps

    @property
    def nbytes(self) -> int:
        """The bytes of the state."""
        return sum(leaf.nbytes for leaf in self._backend.leaves)

    @property
    def _written(self) -> int:
        """The number of steps that the state has. Right also after an interrupted write."""
        leaves, written = self._before
        return written if self._backend.leaves is leaves else self._after

    @property
    @alone("memory.state")
    def state(self) -> fbuf.State[Any]:
        """The state, with all steps in it. Assign another one to go on from there."""
        return self._whole()

    def _whole(self) -> fbuf.State[Any]:
        self._write()
        return self._backend.state

    @state.setter
    @alone("assigning memory.state", amid_steps=False)
    def state(self, state: Any) -> None:
        """Take a state, such as `fbuf.load` returns, in the place of all rows.

        Steps go on from its newest one. With `copy_info_dict` it is refused.
        """
        if not isinstance(state, fbuf.State):
            raise TypeError(
                f"{WHERE}: memory.state must be a fbuf.State, such as fbuf.load(path).state, got "
                f"{type(state).__name__}"
            )
        if jax.tree.structure(state) != self._form_like(state) or (
            state.capacity != self.spec.capacity
        ):
            raise ValueError(
                f"{WHERE}: memory.state must be like that of this buffer, with {self.spec}, got "
                f"capacity={state.capacity} and {jax.tree.structure(state)}; make the buffer with "
                "the arguments that the state was saved with"
            )
        if self.refuses_states:
            raise ValueError(f"{WHERE}: memory.state cannot be assigned {self.refuses_states}")
        loaded.check_all_there(state)
        found = loaded.of(state, self.staging.n_envs)
        counted, goes_on = self.steps - self.offset, self.staging.stands_at(found.newest)
        self._let_go()
        with uninterrupted():
            self.staging.go_on(found.newest)
            self.offset = self.steps - counted - (0 if goes_on else 2)
            self._own(jax.device_put(state, self.device), self.steps)
            self._ends, self._kept = found.ends, sum(count for _, count in found.ends)

    def _form_like(self, state: fbuf.State[Any]) -> Any:
        """Return the form that a state must have: rows may be removable, as they once were."""
        item = map_columns(lambda column: column.spec, self.staging.item)
        make = functools.partial(self.spec.init, item, removable=state.ring.removable)
        return jax.tree.structure(jax.eval_shape(make))

    def _leaves(self) -> tuple[jax.Array, ...]:
        """Return the arrays of the state; refuse those that somebody has consumed."""
        leaves = self._backend.leaves
        if leaves[0].is_deleted():
            raise RuntimeError(
                f"{WHERE}: a function of fbuf has consumed memory.state; call it with "
                "donate=False, or assign its result to memory.state"
            )
        return leaves

    def _let_go(self) -> None:
        """Have NumPy look at the state no more, so that the state is changed in place."""
        self._seen = None
        if self._uniform is not None:
            self._uniform.release()

    # Writing.

    def add(
        self,
        row: Fields,
        following: Any,
        terminated: Array,
        truncated: Array,
        follows: Array | None = None,
    ) -> None:
        """Stage one step; `follows` marks the environments in which it continues the last one."""
        staging = self.staging
        if staging.steps and staging.steps % staging.room == 0:
            self.write()
            staging.go_round()
        staging.write(row, following, terminated, truncated)
        if follows is not None and (cut_off := self.open() & ~follows).any():
            self.end(cut_off)
        staging.steps += 1

    @alone("ending episodes")
    def end(self, which: Array) -> None:
        """Truncate the newest step of some environments."""
        if self._written == self.steps:
            self._make_room(which, self.steps)
            self._change(fbuf.end_episode, {"mask": which})
        self.staging.truncate(self.steps - 1, which)

    def open(self) -> Array:
        """Return which environments are within an episode: bool `[n_envs]`."""
        ended = self.staging.ended()
        return np.zeros(self.staging.n_envs, bool) if ended is None else ~ended

    @alone("writing rows")
    def write(self) -> None:
        """Write the staged steps into the state."""
        self._write()

    def _write(self) -> None:
        written = self._written
        if written == self.steps:
            return
        self._cut_off(written)
        while written < self.steps:
            size = self._sizes.fitting(self.steps - written, self.staging.room)
            arguments, count = self.staging.part(written, size)
            ends = arguments["terminated"][:count] | arguments["truncated"][:count]
            self._make_room(ends, written + count)
            self._before, self._after = (self._backend.leaves, written), written + count
            self._change(fbuf.add, arguments, time_major=True)
            written += count

    def _cut_off(self, written: int) -> None:
        """Truncate the episodes that the staged steps do not continue."""
        found = self.staging.cut_off(written)
        if found[0].any():  # the newest step of the state
            self._make_room(found[0], written)
            self._change(fbuf.end_episode, {"mask": found[0]})
            self.staging.truncate(written - 1, found[0])
        for number in np.flatnonzero(found[1:].any(axis=1)).tolist():
            self.staging.truncate(written + number, found[1 + number])

    def _make_room(self, ends: Array, steps: int) -> None:
        """Make room for the last observations of episodes, where the buffer has too little.

        Args:
            ends: Where episodes end.
            steps: The number of steps that the state will have.
        """
        while self._ends and self._ends[0][0] <= steps - self.length:
            self._kept -= self._ends.popleft()[1]
        if ends.any():
            count = int(ends.sum())
            self._kept += count  # first: after an interrupt here it is too large, which is harmless
            self._ends.append((steps, count))
        most = self.spec.capacity
        if self._kept <= self._room or self._room == most:
            return
        more = min(max(self._kept, 4 * self._room), most)
        self._let_go()
        try:
            with uninterrupted(), jax.default_device(self.device):
                state = fbuf.resize(self._backend.state, most, max_ends=more)
        except MemoryError as error:
            warn(
                f"{WHERE}: there is no memory for the last observations of more than {self._room} "
                f"episodes; the oldest of these rows will not be drawn ({error})"
            )
            self._room = most  # or each further end would try again
            return
        self._own(state, self._written)

    @alone("update_priority")
    def update_priority(self, ids: fbuf.Ids[Any], priority: Array) -> None:
        """Give rows new priorities."""
        ids = jax.tree.map(on_host, ids)
        self._change(fbuf.update_priority, {"ids": ids, "priority": priority})

    @alone("reset", amid_steps=False)
    def clear(self) -> None:
        """Forget all rows."""
        with uninterrupted(), jax.default_device(self.device):
            state, counted = self._whole(), self.steps - self.offset
            self._let_go()
            self._own(fbuf.clear(state), 0)
            self.staging.go_on(None)
            self.offset = -(counted + 2)
            self._kept = 0
            self._ends.clear()

    def _change(self, operation: Any, arguments: Fields, **static: Any) -> None:
        self._leaves()
        self._let_go()
        leaves, structure = jax.tree.flatten(arguments)
        self._backend.change(operation, leaves, structure, True, **static)

    # Reading.

    def draw(self, batch_size: int, beta: float | None = None) -> Fields:
        """Draw a batch: a dict of tensors, or of arrays, in the stored form."""
        if self._uniform is not None:
            return self._by_numpy(self._uniform, lambda uniform: uniform.draw(batch_size))
        return self._draw(batch_size, beta)

    def _by_numpy(self, uniform: UniformDraws, read: Callable[[UniformDraws], Fields]) -> Fields:
        """Read rows with NumPy, also amid another call; nothing may change them meanwhile."""
        turns, before = self.turns, self.turns.busy
        turns.busy = before or "sample"
        try:
            leaves = self._leaves()
            if not uniform.sees(leaves):
                uniform.look(leaves, self._looked_at(leaves), self._written)
            return read(uniform)
        finally:
            turns.busy = before
            if turns.later:
                turns.go_on()

    @alone("sample")
    def _draw(self, batch_size: int, beta: float | None) -> Fields:
        """Draw a batch with a compiled program."""
        self._write()
        words = np.array([self.seed, self.drawn >> 32, self.drawn & 0xFFFFFFFF], np.uint32)
        if self._program is None or self._program[0] is not self.drawing:
            program = self._backend.program(("draw", self.drawing), self._draws)
            self._program = self.drawing, program
        drawing, program = self._program
        power = None if beta is None else np.float32(beta)
        call = functools.partial(program, self._backend.leaves, words, power, batch_size)
        packed = self._calls((program, batch_size, beta is None), call)
        unpack, tree = self._unpackers[drawing, batch_size]
        self.drawn += 1
        return tree.unflatten(unpack(packed))

    def _draws(self, form: Any) -> Any:
        drawing, unpackers = self.drawing, self._unpackers

        @functools.partial(jax.jit, static_argnums=3)
        def draw(leaves: Any, words: Any, beta: Any, batch_size: int) -> tuple[jax.Array, ...]:
            key = fold_in(jax.random.key(words[0]), words[1], words[2])
            state = jax.tree.unflatten(form, leaves)
            batch = fbuf.sample(state, key, batch_size, view=drawing.view, beta=beta)
            found, tree = jax.tree.flatten(drawing.fields(batch))
            layout = _packed.layout(found)
            unpackers[drawing, batch_size] = Unpack(layout), tree
            return _packed.pack(layout, found)

        return draw

    def take(self, steps: Array, envs: Array) -> Fields:
        """Return the fields that a draw of these rows has."""
        if self._uniform is None:
            return self.read(self.slots(steps, envs))
        take = lambda uniform: uniform.take(self.ages(steps, envs)[0])
        return self._by_numpy(self._uniform, take)

    def places(self, batch_size: int) -> tuple[Array, Array]:
        """Draw rows uniformly: their steps, modulo the length, and their environments."""
        steps, n_envs = self.staging.steps, self.staging.n_envs
        if self._uniform is not None:
            back, envs = np.divmod(self._uniform.ages(batch_size), n_envs)
            return (steps - 1 - back) % self.length, n_envs - 1 - envs
        random = np.random.default_rng((self.seed, self.drawn))
        self.drawn += 1
        return (
            random.integers(0, min(steps, self.length), batch_size),
            random.integers(0, n_envs, batch_size),
        )

    def ages(self, steps: Array, envs: Array) -> tuple[Array, Array]:
        """Return the age of each row, 0 for the newest one, and whether there is such a row."""
        back = (self.steps - 1 - steps) % self.length
        n_envs = self.staging.n_envs
        return back * n_envs + (n_envs - 1 - envs), back < self.steps

    @alone("reading rows")
    def rows(self) -> HostTransitions:
        """Return all rows on the CPU, as NumPy sees them; let them go before the next call."""
        self._write()
        return self._looked_at(self._leaves())

    def _looked_at(self, leaves: tuple[jax.Array, ...]) -> HostTransitions:
        """Return the rows of the state, which has these arrays, as NumPy sees them."""
        if self._seen is None or self._seen[0] is not leaves:
            self._seen = leaves, HostTransitions(self._backend.state)
        return self._seen[1]

    @alone("reading rows")
    def read(self, slots: Array, view: View | None = None) -> Any:
        """Read rows at slots: a `fbuf.Batch` through a view, or the fields that a draw has."""
        state = self._whole()
        with jax.default_device(self.device):
            ids = fbuf.ids_at(state, jnp.asarray(slots, jnp.int32))
            if view is not None:
                return fbuf.read(state, ids, view=view)
            key = None
            if self.drawing.view.is_random:
                key = jax.random.fold_in(jax.random.key(self.seed), self.drawn)
                self.drawn += 1
            batch = fbuf.read(state, ids, view=self.drawing.view, key=key)
        return jax.tree.map(lambda x: torch.from_numpy(np.array(x)), self.drawing.fields(batch))

    @alone("reading rewards")
    def rewards(self, ids: fbuf.Ids[Any], n_steps: int) -> tuple[Array, Array]:
        """Return the rewards of rows and of those that follow in the episode: float32 `[B, n]`.

        Besides bool `[B, n]`: which there are.
        """
        view = fbuf.Sequence(n_steps, boundary="pad", fields=("reward",))
        with jax.default_device(self.device):
            ids = jax.tree.map(jnp.asarray, jax.tree.map(on_host, ids))
            data = fbuf.read(self._whole(), ids, view=view).data
        return np.asarray(data.item["reward"]), np.asarray(data.valid)

    def slots(self, steps: Array, envs: Array) -> Array:
        """Return the slots of rows. Steps are those of the run, modulo the length of a lane."""
        return (steps + self._shift()) % self.length * self.staging.n_envs + envs

    def positions(self, slots: Array) -> tuple[Array, Array]:
        """Return the step, modulo the length of a lane, and the environment of each slot."""
        steps, envs = np.divmod(slots, self.staging.n_envs)
        return (steps - self._shift()) % self.length, envs

    @alone("reading rows")
    def _shift(self) -> int:
        """Return how far from its step each row lies: rows move when room is made for ends."""
        if not self.steps:
            return 0
        newest = int(fbuf.newest_ids(self._whole(), 1).slot[0, 0]) // self.staging.n_envs
        return newest - (self.steps - 1)

    # Pickling.

    @alone("pickling")
    def __getstate__(self) -> dict[str, Any]:
        """Return all but what is compiled: NumPy arrays alone."""
        state = jax.tree.map(np.asarray, self._whole())
        kept = {name: value for name, value in vars(self).items() if name in _PICKLED}
        # Copies: a signal handler may add steps before they are written.
        kept["staging"], kept["_ends"] = copy.copy(self.staging), self._ends.copy()
        if self._uniform is not None:
            kept["_uniform"] = self._uniform.copied(kept["staging"])
        return kept | {"state": state, "platform": self.device.platform, "format": _FORMAT}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        """Go on from there, on the same kind of device if there is one."""
        if (found := kept.pop("format", None)) != _FORMAT:
            raise ValueError(
                f"{WHERE}: the pickle is of format {found}, and this version of fbuf reads format "
                f"{_FORMAT}; load it with the version that wrote it, and keep what is to outlive a "
                "version with fbuf.save(path, model.replay_buffer.memory.state)"
            )
        platform, state = kept.pop("platform"), kept.pop("state")
        loaded.check_all_there(state)
        vars(self).update(kept)
        self.turns = Turns()
        self.device = device_of(platform)
        self._own(jax.device_put(state, self.device), self.staging.steps)


_FORMAT = 1
"""The format of pickles; another number as soon as what is in them has another meaning."""

_PICKLED = {
    "spec",
    "drawing",
    "seed",
    "length",
    "staging",
    "drawn",
    "_uniform",
    "_ends",
    "_kept",
    "offset",
    "refuses_states",
}


def on_host(array: Any) -> Array:
    """Return a tensor on any device, or an array, as NumPy's."""
    return array.cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


def device_of(platform: str) -> Any:
    """Return JAX's first device of a platform."""
    try:
        return jax.local_devices(backend=platform)[0]
    except RuntimeError as error:
        raise RuntimeError(
            f"fbuf_adapters.sb3.ReplayBuffer: rows_on is {platform!r}, and JAX has no such device "
            f"({error}); install JAX for it, or give rows_on='cpu'"
        ) from error
