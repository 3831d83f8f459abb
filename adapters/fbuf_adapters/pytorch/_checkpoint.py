"""A buffer as a tree of tensors that `torch.save` can write, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

import fbuf
from fbuf_adapters.pytorch import _dtypes
from fbuf_adapters.pytorch._error import describe
from fbuf_adapters.pytorch._from_torch import from_torch
from fbuf_adapters.pytorch._item import Learned, example, learn
from fbuf_adapters.pytorch._to_torch import to_torch
from fbuf_adapters.pytorch._tree import map_tensors

VERSION = 1
_PARTS = (
    *("version", "made_with", "item", "state", "key", "drawn", "written", "ahead", "batch_size"),
)

_CPU = torch.device("cpu")

# What batches are made of: only tensors, which torch.load cannot know.
torch.serialization.add_safe_globals(
    [
        *(
            fbuf.Batch,
            fbuf.Sample,
            fbuf.Ids,
            fbuf.MixedSample,
            fbuf.TransitionStep,
            fbuf.NStepTransition,
            fbuf.SequenceSteps,
        ),
        *(fbuf.HindsightStep, fbuf.ReturnToGoStep),
    ]
)


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that what comes next depends on."""

    state: fbuf.State[Any]
    learned: Learned
    key: jax.Array
    drawn: int
    written: bool
    ahead: list[Any]
    batch_size: int | None


def save(run: Run) -> dict[str, Any]:
    """All of it in memory of its own, on CPU."""
    arrays = {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(run.state)}
    return {
        "version": VERSION,
        "made_with": _made_with(run.state),
        "item": example(run.learned),
        "state": {name: tensor.cpu() for name, tensor in to_torch(arrays, copy=True).items()},
        "key": to_torch(run.key, copy=True).cpu(),
        "drawn": run.drawn,
        "written": run.written,
        "batch_size": run.batch_size,
        "ahead": map_tensors(run.ahead, lambda tensor: tensor.cpu().clone(), moved_to=_CPU),
    }


def load(
    where: str,
    saved: dict[str, Any],
    init: Callable[[Any], fbuf.State[Any]],
    batch_size: int | None,
) -> Run:
    """Put it together again, or raise `ValueError` before anything has changed."""
    missing = {"version", "made_with", "item", "state", "key", "drawn", "written", "ahead"} - set(
        saved
    )
    if missing:
        raise ValueError(f"{where} state_dict is incomplete: it lacks {sorted(missing)}")
    if saved["version"] != VERSION:
        raise ValueError(
            f"{where} state_dict has version {saved['version']}, but this release reads version "
            f"{VERSION}; load it with the release that wrote it"
        )
    learned = learn(where, saved["item"])
    wanted = jax.eval_shape(lambda: init(learned.item))
    if saved["made_with"] != _made_with(wanted):
        raise ValueError(
            f"{where} state_dict is from a buffer made with {saved['made_with']}, but this buffer "
            f"was made with {_made_with(wanted)}; use the same arguments"
        )
    if saved["ahead"] and saved["batch_size"] != batch_size:
        raise ValueError(
            f"{where} state_dict holds batches of {saved['batch_size']} drawn ahead, but this "
            f"buffer has batch_size {batch_size}; use the same batch_size"
        )
    leaves: list[jax.Array] = []
    for path, spec in jax.tree.leaves_with_path(wanted):
        tensor = saved["state"].get(_name(path))
        if (
            tensor is None
            or tuple(tensor.shape) != spec.shape
            or tensor.dtype != _dtypes.to_torch(spec.dtype)
        ):
            found = "nothing" if tensor is None else describe(tensor)
            raise ValueError(
                f"{where} state_dict['state'] must have {_name(path)!r}, {spec.dtype} of shape "
                f"{spec.shape}, found {found}"
            )
        # JAX's own memory: what is taken over from torch cannot be written in place
        leaves.append(jnp.copy(from_torch(tensor)))
    return Run(
        state=jax.tree.unflatten(jax.tree.structure(wanted), leaves),
        learned=learned,
        key=jnp.copy(from_torch(saved["key"])),
        drawn=int(saved["drawn"]),
        written=bool(saved["written"]),
        ahead=map_tensors(saved["ahead"], torch.clone),
        batch_size=batch_size,
    )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def _made_with(state: fbuf.State[Any]) -> dict[str, Any]:
    """The arguments that two buffers must share, as what can be written down."""
    ring = state.ring
    return {
        "capacity": state.capacity,
        "sampler": repr(state.sampler),
        "num_envs": ring.num_envs,
        "autoreset": ring.autoreset,
        "lockstep": ring.lockstep,
        "next_of": None if state.next_obs is None else state.next_obs.field,
    }
