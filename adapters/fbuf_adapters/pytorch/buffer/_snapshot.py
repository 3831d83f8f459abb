"""A run of a buffer as tensors that `torch.save` can write, or as a directory, and back.

Both hold the same figures of the run, made by `_figures` and read by `_resume`. They differ in the
arrays, which are tensors or `.npy` files, and in the item: a directory knows the items of its rows.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import fbuf
from fbuf.adapter_api import (
    Episodes,
    check_episodes,
    encode_tree,
    resumed,
    tag_of,
    tree_classes,
    with_new_tag,
)
from fbuf.host import HostStore
from fbuf_adapters.pytorch._spec import NAME, Spec, where
from fbuf_adapters.pytorch.buffer._contents import Contents
from fbuf_adapters.pytorch.crossing import _containers, _dtypes, _tensor_json
from fbuf_adapters.pytorch.crossing._error import describe
from fbuf_adapters.pytorch.crossing._from_torch import from_torch
from fbuf_adapters.pytorch.crossing._item import Learned, example, learn
from fbuf_adapters.pytorch.crossing._to_torch import to_torch
from fbuf_adapters.pytorch.crossing._tree import map_tensors

VERSION = 2

_OF_DISK = "ReplayBuffer"
"""The name of the figures in a directory."""

_FIGURES = frozenset(("made_with", "key", "turns", "written", "ahead", "sizes"))
"""Figures without which no run goes on; older ones lack `tensordict` and `seed`."""

_CURSOR = "ring.cursor"

_GENERATION = "index_generation"
"""The generations of a TensorDict."""

_CPU = torch.device("cpu")

# The classes of batches: only tensors, which torch.load cannot know.
torch.serialization.add_safe_globals([*_tensor_json.CLASSES.values(), fbuf.PaceCounter])


@dataclasses.dataclass(frozen=True)
class _Saved:
    """A saved run.

    Attributes:
        figures: See `_figures`.
        state: The state, or a store with its rows on the host; None before the first row.
        learned: The item; None if it is not known yet.
    """

    figures: Mapping[str, Any]
    state: fbuf.State[Any] | HostStore[Any] | None
    learned: Learned | None


def state_dict(contents: Contents) -> dict[str, Any]:
    """Return all that future calls depend on: tensors on CPU, in memory of their own."""
    stored = None if contents.stored is None else contents.made("state_dict")
    _make_waiting(contents)

    def copied() -> dict[str, Any]:
        # Rows on the host are read as they are indexed, and may be more than a GPU holds.
        cpu = jax.devices("cpu")[0]
        whole = None if stored is None else stored.backend.whole()
        arrays = {
            _name(path): leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf[:], cpu)
            for path, leaf in jax.tree.leaves_with_path(whole)
        }
        figures = _figures(contents)
        ahead = map_tensors(figures["ahead"], lambda x: x.cpu().clone(), moved_to=_CPU)
        return figures | {
            "item": None if stored is None else example(stored.learned),
            "state": _on_cpu(arrays),
            **_on_cpu({name: figures[name] for name in ("key", "turns")}),
            "ahead": ahead,
        }

    return contents.calls.apart(copied)


def load_state_dict(
    contents: Contents, saved: dict[str, Any], episodes: Episodes, check: Callable[[], object]
) -> None:
    """Go on where `state_dict` was called; `check` may raise before anything has changed."""
    check_episodes(f"{NAME}.load_state_dict", episodes)
    with contents.lock:
        contents.check_open("load_state_dict")

        def loaded() -> tuple[Any, ...]:
            run = _of_tensors(contents.spec, saved)
            if run.state is not None:
                state = resumed(run.state, episodes, f"{NAME}.load_state_dict")
                run = dataclasses.replace(run, state=state)
            return _resumed(contents, "load_state_dict", run)

        run = contents.calls.apart(loaded)
        check()
        contents.become(*run)


def save(contents: Contents, path: Any, extra: Any, keep: int, background: bool) -> None:
    """Save all that future calls depend on to a directory, and what the user saves with it."""
    contents.check_open("save")
    stored = None if contents.stored is None else contents.made("save")
    _make_waiting(contents)

    def write() -> None:
        figures = _figures(contents)
        given = None if stored is None else jax.tree.leaves(stored.learned.given)
        own = figures | {name: np.asarray(figures[name]) for name in ("key", "turns")}
        beside = {
            _OF_DISK: _tensor_json.encode(
                f"{where('save')} (batches drawn ahead)", own | {"given": given}
            ),
            "extra": _tensor_json.encode(f"{where('save')} extra", extra),
        }
        options: dict[str, Any] = {"keep": keep, "background": background, "extra": beside}
        if stored is None:  # a directory has the rows of some buffer
            fbuf.save(path, contents.empty_state(), **options)
            return
        stored.backend.save(path, **options)
        if not figures["written"]:
            contents.stored = dataclasses.replace(stored, blank=stored.backend.fault)

    contents.calls.apart(write)


def load(
    contents: Contents,
    path: str | os.PathLike[str],
    fallback: bool,
    episodes: Episodes,
    check: Callable[[Any], None],
) -> Any:
    """Go on where `save` was called, and return the extra.

    `check` may raise at the extra, before anything has changed.
    """
    check_episodes(f"{NAME}.load", episodes)
    with contents.lock:
        contents.check_open("load")

        def read() -> tuple[Any, ...]:
            with jax.default_device(contents.spec.jax_device):
                run, extra = _of_directory(contents, path, fallback, episodes)
            check(extra)
            return *_resumed(contents, "load", run), extra

        *run, extra = contents.calls.apart(read)
        contents.become(*run)
        return extra


def _make_waiting(contents: Contents) -> None:
    """Have the batches drawn ahead made, under torch's modes of this thread."""
    for batch in contents.stream.waiting()[0]:
        batch.take()


def _figures(contents: Contents) -> dict[str, Any]:
    """Return the figures of a run: all but its rows and its item."""
    waiting, turn = contents.stream.waiting()
    drawer, before = contents.stream.drawer, [batch.before for batch in waiting]
    stored, container = contents.stored, next(iter(contents.rebuild), None)
    return {
        "version": VERSION,
        "made_with": _made_with(contents.spec),
        "tensordict": container is not None and container.kind is None,
        "nodes": [] if container is None else _containers.said(container.nodes),
        "seed": contents.seed,
        "key": jax.random.key_data(drawer.key),
        "turns": jnp.stack([drawer.array(one) for one in (*before, turn)]),
        "written": stored is not None and stored.backend.fault is not stored.blank,
        "batch_size": contents.spec.batch_size,
        "sizes": drawer.sizes.own.get("sample", []),
        "ahead": [batch.take() for batch in waiting],
        "tag": 0 if stored is None else tag_of(stored.backend.state.ring.cursor),
    }


def _of_tensors(spec: Spec, saved: dict[str, Any]) -> _Saved:
    """Read a `state_dict`, or raise `ValueError`."""
    function = where("load_state_dict")
    parts = {"version", "item", "state"} | _FIGURES
    missing = ({"version"} if saved.get("version", VERSION) != VERSION else parts) - set(saved)
    if missing:
        raise ValueError(f"{function} state_dict is incomplete: it lacks {sorted(missing)}")
    _check(f"{function} state_dict", saved, spec, ValueError)
    learned = None if saved["item"] is None else learn(function, saved["item"])
    state = None if learned is None else _state(function, saved["state"], spec, learned)
    arrays = {name: jnp.copy(from_torch(saved[name])) for name in ("key", "turns")}
    figures = saved | arrays | {"ahead": map_tensors(saved["ahead"], torch.clone)}
    return _Saved(figures, state, learned)


def _of_directory(
    contents: Contents, path: str | os.PathLike[str], fallback: bool, episodes: Episodes
) -> tuple[_Saved, Any]:
    """Read a directory, with the extra.

    Raises:
        fbuf.CheckpointError: As `fbuf.load`. Also if it was saved by something else.
        ValueError: If it is from a buffer made with other arguments.
    """
    spec = contents.spec
    item = None if contents.stored is None else contents.stored.learned.item
    if not tree_classes(encode_tree(item, lambda leaf: None)):  # a directory names its nodes
        item = None
    sampler = spec.buffer.sampler
    options: dict[str, Any] = {"item": item, "sampler": sampler, "episodes": episodes}
    state: Any
    if spec.opens:
        if fallback:
            raise ValueError(
                f"{where('load')} fallback is True, but an opened store reads the newest "
                "checkpoint; use host=True"
            )
        state, whole = HostStore.open(path, **options)
    elif spec.on_host:
        state, whole = HostStore.load(path, files=spec.files, fallback=fallback, **options)
    else:
        state, whole = fbuf.load(path, fallback=fallback, **options)
    if not isinstance(whole, dict) or _OF_DISK not in whole:
        raise fbuf.CheckpointError(
            f"{where('load')} fbuf.save has written {os.fspath(path)!r}, and no ReplayBuffer; use "
            "buffer.state = fbuf.load(path).state"
        )
    what = f"{where('load')} {os.fspath(path)!r}"
    try:
        figures = _tensor_json.decode(whole[_OF_DISK], _CPU)
        extra = _tensor_json.decode(whole["extra"], _CPU)
        _check(what, figures, spec, fbuf.CheckpointError)
        missing = ({"given"} | _FIGURES) - figures.keys()
        if missing:
            raise KeyError(*sorted(missing))
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise fbuf.CheckpointError(f"{what} is not what this release writes: {error!r}") from error
    if figures["given"] is None:
        return _Saved(figures, None, None), extra
    item = state.item if isinstance(state, HostStore) else state.storage.item
    learned = Learned(item, jax.tree.unflatten(jax.tree.structure(item), figures["given"]))
    return _Saved(figures, state, learned), extra


def _resumed(contents: Contents, function: str, run: _Saved) -> tuple[Any, ...]:
    """Return the arguments of `Contents.become` for a saved run."""
    figures, stored, spec = run.figures, contents.stored, contents.spec
    if stored is not None and run.learned is not None:
        own, found = stored.learned.item, run.learned.item
        if jax.tree.structure(own) != jax.tree.structure(found) or own != found:
            raise ValueError(
                f"{where(function)} what was saved has the item {found}, but this buffer has "
                f"{own}; use the same item, or give none"
            )
    if run.state is not None and run.learned is not None:
        stored = contents.make(run.learned, run.state, bool(figures["written"]))
    elif stored is not None:  # the other has learned no item yet
        stored = contents.make(stored.learned)
    ahead = map_tensors(figures["ahead"], lambda x: x.to(spec.device), moved_to=spec.device)
    if stored is not None:  # these batches are of the loaded rows, whose ids have another tag
        tag = tag_of(stored.backend.state.ring.cursor)
        ahead = [_renamed(batch, tag - figures.get("tag", 0)) for batch in ahead]
    key = jax.random.wrap_key_data(jnp.asarray(figures["key"]))
    stream = contents.stream.elsewhere(key, figures["turns"], ahead, list(figures["sizes"]))
    # Older figures have the seed in the last word of their key alone.
    seed = figures.get("seed", np.asarray(figures["key"]).reshape(-1)[-1])
    rebuild: list[_containers.Container] = []
    if figures.get("tensordict") and not contents.rebuild:
        nodes = _containers.heard(figures.get("nodes", []))  # older figures lack them
        rebuild = [_containers.Container(None, nodes)]
    return stored, stream, int(seed), rebuild


def _renamed(batch: Any, by: int) -> Any:
    """Return a batch whose generations are larger by a number, which wraps around in int32."""
    added = torch.tensor(by, dtype=torch.int64).int()  # keeps the lower half

    def visit(node: Any) -> Any:
        if isinstance(node, fbuf.Ids):
            return dataclasses.replace(node, generation=node.generation + added)
        if not isinstance(node, MutableMapping):
            return node
        renamed = copy.copy(node)
        if isinstance(node, dict):
            renamed.update({name: _renamed(part, by) for name, part in node.items()})
        if isinstance(node.get(_GENERATION, None), torch.Tensor):
            renamed[_GENERATION] = node[_GENERATION] + added
        return renamed

    is_leaf = lambda node: isinstance(node, fbuf.Ids | MutableMapping)
    return jax.tree.map(visit, batch, is_leaf=is_leaf)


def _check(what: str, figures: Mapping[str, Any], spec: Spec, other: type[Exception]) -> None:
    """Raise `other` at a version of another release, `ValueError` at other arguments."""
    if figures["version"] != VERSION:
        raise other(
            f"{what} has version {figures['version']}, but this release reads version {VERSION}; "
            "load it with the release that wrote it"
        )
    theirs, own = {"removable": True, **figures["made_with"]}, _made_with(spec)
    if differ := [name for name in {**own, **theirs} if theirs.get(name) != own.get(name)]:
        raise ValueError(
            f"{what} is from a buffer made with {_in_words(theirs, differ)}, but this buffer "
            f"was made with {_in_words(own, differ)}; use the same arguments"
        )
    if figures["ahead"] and figures["batch_size"] != spec.batch_size:
        raise ValueError(
            f"{what} holds batches of {figures['batch_size']} drawn ahead, but this "
            f"buffer has batch_size {spec.batch_size}; use the same batch_size"
        )


def _state(
    function: str, tensors: Mapping[str, Any], spec: Spec, learned: Learned
) -> fbuf.State[Any]:
    """Return the state that tensors hold."""
    changes: dict[str, Any] = {}
    if spec.buffer.next_of is not None and spec.buffer.max_ends is None:  # the room may have grown
        owner = tensors.get("next_obs.owner")
        lanes = spec.buffer.num_envs or 1
        if owner is not None and lanes < len(owner) <= lanes + spec.buffer.capacity:
            changes = {"max_ends": len(owner) - lanes}
    expected = jax.eval_shape(lambda: spec.buffer.init(learned.item, **changes))
    leaves: list[jax.Array] = []
    for path, like in jax.tree.leaves_with_path(expected):
        tensor = tensors.get(_name(path))
        if _name(path) == _CURSOR and isinstance(tensor, torch.Tensor) and tensor.ndim == 2:
            tensor = torch.from_numpy(with_new_tag(tensor.numpy()))
        if (
            tensor is None
            or tuple(tensor.shape) != like.shape
            or tensor.dtype != _dtypes.to_torch(like.dtype)
        ):
            found = "nothing" if tensor is None else describe(tensor)
            raise ValueError(
                f"{function} state_dict['state'] must have {_name(path)!r}, {like.dtype} of shape "
                f"{like.shape}, found {found}"
            )
        # JAX's own memory: what is taken over from torch cannot be written in place
        leaves.append(jnp.copy(from_torch(tensor)))
    return jax.tree.unflatten(jax.tree.structure(expected), leaves)


def _on_cpu(arrays: dict[str, jax.Array]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in to_torch(arrays, copy=True).items()}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def _made_with(spec: Spec) -> dict[str, Any]:
    """Return the arguments that two buffers must share, as data."""
    options = spec.buffer.options
    return options | {"sampler": repr(options["sampler"])}


def _in_words(made_with: Mapping[str, Any], names: list[str]) -> str:
    """Return arguments as they are written in a call; samplers are saved as such words."""
    return ", ".join(
        f"{name}={value if name == 'sampler' else repr(value)}"
        for name in names
        for value in (made_with.get(name),)
    )
