"""Write TensorDicts to a buffer: rows, ends of episodes and priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

import fbuf
from fbuf_adapters.pytorch import InteropError, ReplayBuffer
from fbuf_adapters.pytorch.batches._sizes import next_step
from fbuf_adapters.pytorch.crossing._containers import nodes_of
from fbuf_adapters.tensordict import _leaves, _slices
from fbuf_adapters.tensordict._codec import NAME, Codec
from fbuf_adapters.tensordict._ends import Ends
from fbuf_adapters.tensordict._leaves import Form


class Writer:
    """Write TensorDicts, and keep the slot of the next row.

    Attributes:
        ends: The reader of the ends of episodes.
    """

    def __init__(self, buffer: ReplayBuffer, codec: Codec, ends: Ends, priority_key: Any) -> None:
        self._buffer, self._codec, self._run = buffer, codec, codec.run
        self._priority_key = priority_key
        spec = buffer.contents.spec.buffer
        self._capacity, self._num_envs = spec.capacity, spec.num_envs
        self._prioritized = spec.sampler.keeps_priorities
        self.ends = ends
        self._extending = False

    @property
    def is_current(self) -> bool:
        """Return whether the last change of the buffer was made here, and not by other code."""
        return self._buffer.contents.stamp is self._run.seen

    def extend(
        self, data: TensorDictBase, *, take_priority: bool, check_order: bool
    ) -> torch.Tensor:
        """Add transformed rows, and return their slots.

        Args:
            data: The rows.
            take_priority: Whether to read priorities from `data`.
            check_order: Whether to raise if ids show the rows of several environments in turn.
        """
        where = f"{NAME}.extend"
        if not data.batch_dims:
            raise InteropError(
                f"{where}: data has no batch dimension; give extend() a batch, or add() one item"
            )
        batch_size = data.batch_size
        if self._num_envs is not None and data.batch_dims == 1:
            data = data.unsqueeze(1)
        lead = data.batch_size[: 1 if self._num_envs is None else 2]
        if lead.numel() == 0:
            return torch.zeros(batch_size[: len(lead)], dtype=torch.int64)
        run = self._run
        leaves = _leaves.leaves_of(where, data, run.form)
        priority = None
        if self._prioritized and take_priority:
            found: Any = data.get(self._priority_key, None)
            if found is not None:
                priority = found.detach().reshape(*lead, -1).amax(-1).float()
        with self._buffer.lock:
            self.refuse_in_extend("extend")
            self._extending = True
            try:
                slots = self._extended(where, data, leaves, lead, priority, check_order)
                return slots if lead == batch_size else slots.reshape(batch_size[: len(lead)])
            finally:
                self._extending = False

    def refuse_in_extend(self, name: str) -> None:
        """Refuse a call of a signal handler in the midst of `extend`. Hold the lock."""
        if self._extending:  # by this thread, which holds the lock
            raise RuntimeError(
                f"{NAME}.{name}: extend is under way, and a signal handler calls in the midst of "
                "it; have the handler set a flag, and look at it between two calls"
            )

    def _extended(
        self,
        where: str,
        data: TensorDictBase,
        leaves: Any,
        lead: torch.Size,
        priority: Any,
        check_order: bool,
    ) -> torch.Tensor:
        """Add leaves of rows, and return their slots; see `extend`."""
        run = self._run
        others = self._look_up()
        ends = self.ends.read(where, leaves, lead, check_order)
        if others and not self.ends.knows_ids:
            self._buffer.end_episode()
        elif ends.before is not None:
            # If the rows cannot be added after this, an episode has been cut, and nothing else.
            self._buffer.end_episode(ends.before)
        known = run.form
        if known is None or known.nodes is None:
            run.form = _form_of(leaves, data, len(lead), known)
        try:
            self._buffer.extend(
                self._codec.items(leaves),
                priority=priority,
                alpha=None if priority is None else run.alpha,
                terminated=ends.terminated,
                truncated=ends.truncated,
            )
        except BaseException:  # an interrupt may come after the rows were added
            if known is None and len(self._buffer) == 0:
                run.form = None
            raise
        self.ends.keep(ends)
        return self._advance(lead)

    def _advance(self, lead: torch.Size) -> torch.Tensor:
        """Move the cursor past the added rows, and return their slots."""
        count = lead.numel()
        slots = torch.from_numpy(np.arange(self._run.cursor, self._run.cursor + count))
        if self._num_envs is not None:  # the rows of one step lie side by side
            slots = slots.reshape(lead[::-1]).movedim(0, -1)
        if self._run.cursor + count > self._capacity:
            slots %= self._capacity
        laps, self._run.cursor = divmod(self._run.cursor + count, self._capacity)
        self._run.lap = (self._run.lap + laps) % 2**32
        self._run.seen = self._buffer.contents.stamp
        self._run.write_count += count
        return slots

    def _look_up(self) -> bool:
        """Read the cursor and the newest episodes, if other code has changed the buffer.

        Returns:
            Whether it has added or removed rows since the last ones from here.
        """
        run, form = self._run, self._run.form
        if form is None or self.is_current:
            return False
        contents = self._buffer.contents
        backend = contents.made("state").backend
        ring = backend.state.ring
        found = contents.calls.apart(lambda: (int(ring.head[0]), int(ring.lap[0]) % 2**32))
        others = run.seen is not None and found != (run.cursor, run.lap)
        run.cursor, run.lap = found
        contents.calls.apart(lambda: self.ends.look(backend, form))
        return others

    def update_slots(self, index: Any, priority: Any) -> None:
        """Set the priorities of the rows in these slots now, if the sampler keeps priorities."""
        if not self._prioritized:
            return
        slots = torch.as_tensor(index)
        if slots.numel() and (slots.is_floating_point() or slots.dtype == torch.bool):
            raise TypeError(
                f"{NAME}.update_priority: index must be integers, got {slots.dtype}; for a mask "
                "give mask.nonzero()[:, 0]"
            )
        slots = slots.long().reshape(-1).cpu()
        slots = torch.where((slots >= 0) & (slots < self._capacity), slots, -1).int()
        count = len(slots)
        if count == 0:
            return
        # Each number of slots compiles a program, so numbers are rounded up to a few.
        more = (0, next_step(count) - count)
        slots = torch.nn.functional.pad(slots, more, value=-1)
        given = torch.as_tensor(priority).detach().float().reshape(-1).expand(count)
        contents = self._buffer.contents
        with self._buffer.lock:
            state = contents.made("state").backend.state
            look_up = lambda: fbuf.ids_at(state, slots.numpy())
            ids = contents.calls((fbuf.ids_at, len(slots)), look_up)
            self._update(ids, torch.nn.functional.pad(given, more))

    def update_rows(self, data: TensorDictBase) -> None:
        """Set the priorities of drawn rows to those in `data`, if the sampler keeps priorities."""
        if not self._prioritized:
            return
        keys = (self._priority_key, *_leaves.ADDED[:2])
        columns: dict[Any, Any] = {key: data.get(key, None) for key in keys}
        for key, value in columns.items():
            if value is None:
                raise InteropError(
                    f"{NAME}.update_tensordict_priority: data has no {key!r}; "
                    + (
                        "write the priorities there, or name their key with priority_key"
                        if key == self._priority_key
                        else "give it what sample() returned"
                    )
                )
        priority, slots, generations = columns.values()
        layout = self._codec.layout
        if layout is not None and layout.padded:
            there: Any = data.get(_slices.MASK, None)
            if there is not None:  # padding repeats the last step, whose priority it must not set
                slots = torch.where(there, slots, -1)
        count = slots.shape[0] if slots.ndim else 1
        if count == 0:
            return
        named: list[Any] = [slots, generations]
        if slots.ndim != 1:
            named = [x.reshape(count, -1)[:, 0] for x in named]
        # Each check saves a call of PyTorch that changes nothing and takes a microsecond.
        if priority.requires_grad:
            priority = priority.detach()
        if priority.dtype != torch.float32:
            priority = priority.float()
        if priority.ndim != 1 or len(priority) != count:
            priority = priority.reshape(count, -1).amax(1)
        self._update(fbuf.Ids(*named), priority)

    def _update(self, ids: Any, priority: torch.Tensor) -> None:
        with self._buffer.lock:
            current = self._run.form is not None and self.is_current
            self._buffer.update_priority(ids, priority, alpha=self._run.alpha)
            if current:
                self._run.seen = self._buffer.contents.stamp


def _form_of(leaves: _leaves.Leaves, data: TensorDictBase, lead: int, known: Form | None) -> Form:
    """Return the form of items, of the first ones; some of it may be known from elsewhere."""
    nodes = nodes_of(data, lead)
    if known is None:
        dtypes = {key: leaf.dtype for key, leaf in leaves.items()}
        return Form(dtypes, data.batch_size[lead:], nodes)
    dtypes = {key: leaf.dtype for key, leaf in leaves.items()} if known.is_stored else known.dtypes
    # Rows that were read without their dimensions go on like that.
    return Form(dtypes, known.dims, nodes | {(): (tuple(known.dims), ())})
