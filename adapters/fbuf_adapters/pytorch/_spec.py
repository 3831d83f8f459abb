"""The arguments of a `ReplayBuffer`, checked once."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch

from fbuf.adapter_api import BufferSpec, Sampler, View, check, local_path, warn
from fbuf.host import HostStore
from fbuf_adapters.pytorch.crossing import _tensors
from fbuf_adapters.pytorch.crossing._error import InteropError

NAME = "ReplayBuffer"


def where(function: str) -> str:
    """Return the beginning of messages of a method."""
    return f"fbuf_adapters.pytorch.{NAME}.{function}:"


@dataclasses.dataclass(frozen=True, eq=False)
class Spec:
    """The arguments of a `ReplayBuffer`, as the class documents them.

    Attributes:
        on_host: Whether the rows lie on the host.
        files: The directory for the files of rows on the host.
        opens: Whether checkpoints are opened where they lie, and not read.
    """

    buffer: BufferSpec
    view: View
    batch_size: int | None
    device: torch.device
    seed: int | None
    int64: bool
    transform: Callable[[Any], Any] | None
    pin_memory: bool
    to: torch.device | None
    prefetch: int
    batches_per_draw: int
    drop_last: bool
    on_host: bool
    files: pathlib.Path | None
    opens: bool

    def __post_init__(self) -> None:
        """Check the arguments."""
        sampler: Any = self.buffer.sampler
        check.instance(NAME, "sampler", sampler, Sampler, "fbuf.Uniform()")
        if sampler.is_queue:
            raise ValueError(
                f"{where('__init__')} this object draws batches, and {type(sampler).__name__} is "
                "for rows that are read once; use state, batch = fbuf.pop(state, count) and "
                "to_torch(batch.data)"
            )
        if sampler.notes_draws:
            raise ValueError(
                f"{where('__init__')} this object may draw batches that you never take, and "
                f"{type(sampler).__name__} remembers what was drawn; use state, batch = "
                "fbuf.draw(state, key, batch_size) and to_torch(batch)"
            )
        check.instance(NAME, "view", self.view, View, "fbuf.Item()")
        check.integer(NAME, "prefetch", self.prefetch, smallest=0)
        check.integer(NAME, "batches_per_draw", self.batches_per_draw)
        if self.seed is not None:
            check.integer(NAME, "seed", self.seed, largest=2**32 - 1, smallest=0)
        if self.batch_size is not None:
            check.integer(NAME, "batch_size", self.batch_size)
        if self.prefetch and self.batch_size is None:
            raise ValueError(
                f"{where('__init__')} prefetch needs a batch_size; give one to the buffer"
            )
        if self.batches_per_draw > 1:
            self._check_several()
        _ = self.jax_device  # a device that JAX cannot reach raises
        if self.pin_memory and self.device.type != "cpu":
            raise InteropError(
                f"{where('__init__')} pin_memory needs rows on the CPU, and they are on "
                f"{self.device}; leave it out"
            )
        if self.pin_memory and not self.pins:
            warn(
                "fbuf_adapters: pin_memory=True does nothing, because PyTorch finds no GPU here; "
                "batches lie in ordinary memory"
            )

    def _check_several(self) -> None:
        """Raise if several batches cannot be drawn at once."""
        if self.batch_size is None:
            raise ValueError(
                f"{where('__init__')} batches_per_draw needs a batch_size; give one to the buffer"
            )
        if self.prefetch:
            raise ValueError(
                f"{where('__init__')} batches_per_draw={self.batches_per_draw} draws without a "
                f"thread, and prefetch={self.prefetch} with one; leave one of them out"
            )
        if self.on_host:
            raise ValueError(
                f"{where('__init__')} batches_per_draw={self.batches_per_draw} needs rows on the "
                "device, and host has them elsewhere; use prefetch"
            )

    @functools.cached_property
    def jax_device(self) -> Any:
        """The device of JAX's that the rows lie on, or the index of rows on the host."""
        return _tensors.jax_device(self.device, where("__init__"))

    @functools.cached_property
    def pins(self) -> bool:
        """Whether batches are returned in pinned memory; without a GPU there is none."""
        return self.pin_memory and torch.cuda.is_available()

    @functools.cached_property
    def uses_gpu(self) -> bool:
        """Whether rows or batches lie on a GPU."""
        return "cuda" in (self.device.type, self.to.type if self.to else None)

    @functools.cached_property
    def takes_modes(self) -> bool:
        """Whether another thread calls the transform, under the modes of the caller."""
        return self.transform is not None and bool(self.prefetch)

    @property
    def defers(self) -> bool:
        """Whether changes of priorities wait for the next draw.

        On CPU they go on while the learner works, and the draw would wait for them.
        """
        return self.device.type == "cuda" and not self.on_host

    @property
    def lead(self) -> int:
        """The number of axes that one step has before those of an item."""
        return 0 if self.buffer.num_envs is None else 1

    @property
    def whole_steps(self) -> bool:
        """Whether a mask leaves out steps of all environments, and not rows."""
        return self.buffer.lockstep and self.buffer.num_envs is not None


def of_host(host: Any) -> tuple[HostStore[Any] | None, dict[str, Any]]:
    """Return the store that was given as `host`, and the arguments of a `Spec` about it."""
    if not isinstance(host, bool | str | os.PathLike | HostStore):
        raise TypeError(
            f"{where('__init__')} host must be True, False, a directory or a HostStore, got "
            f"{host!r}"
        )
    store, files = None, None
    if isinstance(host, HostStore):  # its owner must be able to free it: no spec holds it
        store, files = host, host.files
    elif not isinstance(host, bool):
        files = local_path(where("__init__").rstrip(":"), host)
    opens = store is not None and store.folder is not None
    return store, {"on_host": host is not False, "files": files, "opens": opens}


def drawn_seed(generator: torch.Generator | None = None) -> int:
    """Draw a seed from a generator of PyTorch's; None is the default one, on CPU."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**32, (), generator=generator, device=device, dtype=torch.int64))
