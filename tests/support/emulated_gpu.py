"""The way to and from a GPU, taken by memory of the host: all of it but streams that run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import torch
from fbuf_adapters.pytorch.batches import _delivery
from fbuf_adapters.pytorch.crossing import _dlpack, _inputs, _lifetime, _to_torch, _unpack


class Stream:
    """Stands in for a CUDA stream, whose work takes until it is said to be done.

    Attributes:
        done: Whether it is.
        recorded: How many events were recorded.
    """

    device = torch.device("cuda:0")
    cuda_stream = 7

    def __init__(self, done: bool = False) -> None:
        self.done = done
        self.recorded = 0

    def record_event(self) -> Stream:
        self.recorded += 1
        return self

    def query(self) -> bool:
        return self.done


class HandOver(_lifetime.HandOver):
    """Asks torch for no stream when a tensor goes, which may be after the emulation."""

    def _go(self, array: jax.Array) -> None:
        self._gone.append((array, self._stream))
        if len(self._gone) == self._given:
            self.finish()
        else:
            _lifetime._partly_gone.append(self)


@contextlib.contextmanager
def emulated_gpu() -> Iterator[list[str]]:
    """Have tensors of the host cross as those of a GPU do.

    Yields:
        A list that gets an entry for each array and tensor that crosses: "out" or "in"; and "wait"
        where a stream of JAX's would wait.
    """
    crossed: list[str] = []
    stream = Stream(done=True)
    to_tensor, place, to_array = _dlpack.to_tensor, _dlpack._place, _dlpack._to_array

    def out(array: Any, stream: int | None = None) -> torch.Tensor:
        crossed.append("out")
        return to_tensor(array)

    def waiting(device: torch.device) -> Any:
        crossed.append("wait")
        return place(device)

    def into(*args: Any) -> jax.Array:
        array = to_array(*args)
        crossed.append("in")
        return array

    with (
        mock.patch.object(torch.cuda, "current_stream", return_value=stream),
        mock.patch.object(_lifetime, "HandOver", HandOver),
        mock.patch.object(_delivery, "torch_device", return_value=Stream.device),
        mock.patch.object(_unpack, "torch_device", return_value=Stream.device),
        mock.patch.object(_to_torch, "torch_device", return_value=Stream.device),
        mock.patch.multiple(_dlpack, to_tensor=out, _place=waiting, _to_array=into),
        mock.patch.multiple(
            _inputs,
            torch_device=lambda _: Stream.device,
            _quickly_as_numpy=lambda *_: None,
            is_on_gpu=lambda leaf: isinstance(leaf, torch.Tensor),
        ),
    ):
        yield crossed
