"""A buffer as a tree of tensors that `torch.save` can write, or as a directory, and back."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import fbuf
from fbuf.checkpoint import tree_json
from fbuf.host import HostStore
from fbuf_adapters.pytorch import _dtypes, _tensor_json
from fbuf_adapters.pytorch._error import describe
from fbuf_adapters.pytorch._from_torch import from_torch
from fbuf_adapters.pytorch._item import Learned, example, learn
from fbuf_adapters.pytorch._to_torch import to_torch
from fbuf_adapters.pytorch._tree import map_tensors

VERSION = 2

_OF_DISK = "ReplayBuffer"
"""What is beside the rows in a directory is called so, with `VERSION`."""

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
        *(fbuf.HindsightStep, fbuf.ReturnToGoStep, fbuf.PaceCounter),
    ]
)


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that what comes next depends on.

    Attributes:
        state: The state, or what has its rows on the host; None if nothing has been added yet.
        learned: The item; None if it is not known yet.
        tensordict: Whether items were given as TensorDicts.
        seed: What the key was made of.
        key: The words of the key that chooses batches.
        turns: The turns of the batches drawn ahead, and that of the next one: uint32 `[ahead, 2]`.
        written: Whether there has been a row since the buffer was made or emptied.
        ahead: The batches drawn ahead.
        batch_size: Their size.
        sizes: What is known of the sizes of batches, see `Sizes.own`.
    """

    state: fbuf.State[Any] | HostStore[Any] | None
    learned: Learned | None
    tensordict: bool
    seed: int
    key: jax.Array
    turns: jax.Array
    written: bool
    ahead: list[Any]
    batch_size: int | None
    sizes: list[int]


def save(run: Run, options: Mapping[str, Any]) -> dict[str, Any]:
    """All of it in memory of its own, on CPU; `options` are those of `fbuf.init`."""
    # Rows on the host are read as they are indexed, and may be more than a GPU holds.
    cpu = jax.devices("cpu")[0]
    arrays = {
        _name(path): leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf[:], cpu)
        for path, leaf in jax.tree.leaves_with_path(run.state)
    }
    return {
        "version": VERSION,
        "made_with": _made_with(options),
        "item": None if run.learned is None else example(run.learned),
        "tensordict": run.tensordict,
        "state": {name: tensor.cpu() for name, tensor in to_torch(arrays, copy=True).items()},
        "seed": run.seed,
        "key": to_torch(run.key, copy=True).cpu(),
        "turns": to_torch(run.turns, copy=True).cpu(),
        "written": run.written,
        "batch_size": run.batch_size,
        "sizes": run.sizes,
        "ahead": map_tensors(run.ahead, lambda tensor: tensor.cpu().clone(), moved_to=_CPU),
    }


def load(
    where: str,
    saved: dict[str, Any],
    init: functools.partial[fbuf.State[Any]],
    batch_size: int | None,
) -> Run:
    """Put it together again, or raise `ValueError` before anything has changed."""
    parts = {"version", "made_with", "item", "state", "key", "turns", "written", "ahead"}
    parts |= {"sizes"}
    missing = ({"version"} if saved.get("version", VERSION) != VERSION else parts) - set(saved)
    if missing:
        raise ValueError(f"{where} state_dict is incomplete: it lacks {sorted(missing)}")
    if saved["version"] != VERSION:
        raise ValueError(
            f"{where} state_dict has version {saved['version']}, but this release reads version "
            f"{VERSION}; load it with the release that wrote it"
        )
    _check(f"{where} state_dict", saved, init, batch_size)
    learned = None if saved["item"] is None else learn(where, saved["item"])
    return Run(
        state=None if learned is None else _state(where, saved, init, learned),
        learned=learned,
        tensordict=bool(saved.get("tensordict")),  # which older ones lack
        seed=_seed(saved),
        key=jnp.copy(from_torch(saved["key"])),
        turns=jnp.copy(from_torch(saved["turns"])),
        written=bool(saved["written"]),
        ahead=map_tensors(saved["ahead"], torch.clone),
        batch_size=batch_size,
        sizes=list(saved["sizes"]),
    )


def beside(where: str, run: Run, init: functools.partial[fbuf.State[Any]], extra: Any) -> Any:
    """All but the state, as what is saved beside it to a directory."""
    given = None if run.learned is None else jax.tree.leaves(run.learned.given)
    own = {
        "version": VERSION,
        "made_with": _made_with(init.keywords),
        "given": given,
        "tensordict": run.tensordict,
        "seed": run.seed,
        "key": np.asarray(run.key),
        "turns": np.asarray(run.turns),
        "written": run.written,
        "batch_size": run.batch_size,
        "sizes": run.sizes,
        "ahead": run.ahead,
    }
    return {
        _OF_DISK: _tensor_json.encode(f"{where} (batches drawn ahead)", own),
        "extra": _tensor_json.encode(f"{where} extra", extra),
    }


def read(
    where: str,
    path: str | os.PathLike[str],
    load: Callable[..., tuple[Any, Any]],
    init: functools.partial[fbuf.State[Any]],
    batch_size: int | None,
    learned: Learned | None,
    fallback: bool,
) -> tuple[Run, Any]:
    """Read it from a directory, with what was saved beside it.

    Args:
        where: Who asks, for messages.
        path: The directory.
        load: As `fbuf.load`, or for rows on the host `HostStore.load`; it sees to open episodes.
        init: Makes a buffer of an item.
        batch_size: That of the buffer that it is for.
        learned: The item of that, which tells of what classes it is made; None if not known.
        fallback: As for `fbuf.load`.

    Raises:
        fbuf.CheckpointError: As `fbuf.load`. Also if it was saved by something else.
        ValueError: If it is from a buffer made with other arguments.
    """
    item = None if learned is None or _is_plain(learned.item) else learned.item
    sampler = init.keywords["sampler"]
    state, whole = load(path, item=item, sampler=sampler, fallback=fallback)
    if not isinstance(whole, dict) or _OF_DISK not in whole:
        raise fbuf.CheckpointError(
            f"{where} fbuf.save has written {os.fspath(path)!r}, and no ReplayBuffer; use "
            "buffer.state = fbuf.load(path).state"
        )
    what = f"{where} {os.fspath(path)!r}"
    try:
        saved = _tensor_json.decode(whole[_OF_DISK], _CPU)
        extra = _tensor_json.decode(whole["extra"], _CPU)
        if saved["version"] != VERSION:
            raise fbuf.CheckpointError(
                f"{what} has version {saved['version']}, but this release reads version {VERSION}; "
                "load it with the release that wrote it"
            )
        _check(what, saved, init, batch_size)
        missing = {"given", "key", "turns", "written", "ahead", "sizes"} - saved.keys()
        if missing:
            raise KeyError(*sorted(missing))
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise fbuf.CheckpointError(f"{what} is not what this release writes: {error!r}") from error
    known = None
    if saved["given"] is not None:
        item = state.item if isinstance(state, HostStore) else state.storage.item
        known = Learned(item, jax.tree.unflatten(jax.tree.structure(item), saved["given"]))
    return Run(
        state=None if known is None else state,
        learned=known,
        tensordict=bool(saved.get("tensordict")),  # as above
        seed=_seed(saved),
        key=jnp.asarray(saved["key"]),
        turns=jnp.asarray(saved["turns"]),
        written=saved["written"],
        ahead=saved["ahead"],
        batch_size=batch_size,
        sizes=saved["sizes"],
    ), extra


def _seed(saved: Mapping[str, Any]) -> int:
    """The seed, which older ones have in the last word of their key alone."""
    return int(saved["seed"] if "seed" in saved else np.asarray(saved["key"]).reshape(-1)[-1])


def _is_plain(tree: Any) -> bool:
    """Whether a tree can be made again without an example."""
    return not tree_json.classes(tree_json.encode(tree, lambda leaf: None))


def _check(
    what: str,
    saved: Mapping[str, Any],
    init: functools.partial[fbuf.State[Any]],
    batch_size: int | None,
) -> None:
    """Raise `ValueError` if it is from a buffer made with other arguments."""
    if saved["made_with"] != _made_with(init.keywords):
        raise ValueError(
            f"{what} is from a buffer made with {saved['made_with']}, but this buffer "
            f"was made with {_made_with(init.keywords)}; use the same arguments"
        )
    if saved["ahead"] and saved["batch_size"] != batch_size:
        raise ValueError(
            f"{what} holds batches of {saved['batch_size']} drawn ahead, but this "
            f"buffer has batch_size {batch_size}; use the same batch_size"
        )


def _state(
    where: str, saved: dict[str, Any], init: Callable[[Any], Any], learned: Learned
) -> fbuf.State[Any]:
    wanted = jax.eval_shape(lambda: init(learned.item))
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
    return jax.tree.unflatten(jax.tree.structure(wanted), leaves)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def _made_with(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that two buffers must share, as what can be written down."""
    names = ("capacity", "num_envs", "autoreset", "lockstep", "next_of", "max_ends")
    return {**{name: options[name] for name in names}, "sampler": repr(options["sampler"])}
