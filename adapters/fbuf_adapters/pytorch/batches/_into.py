"""A new batch, written into the tensors of an earlier one, which stay where they are.

A CUDA graph reads the same memory at every replay. All is checked before anything is written, or
some tensors would be of one batch and some of another.
"""

from __future__ import annotations

import collections
import dataclasses
import operator
from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple

import jax
import torch

from fbuf_adapters.pytorch.crossing._containers import is_tensordict
from fbuf_adapters.pytorch.crossing._error import InteropError
from fbuf_adapters.pytorch.crossing._tensors import has_memory

_COPIED_AS_THEY_ARE = frozenset(
    (
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
)
"""Dtypes that torch copies several tensors of in one kernel, bit by bit."""

_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The dtype that others are copied as, by the bytes of a number."""

_kind = operator.attrgetter("requires_grad", "layout", "is_nested", "is_quantized")
_looks = operator.attrgetter("shape", "dtype", "device")
_USUAL = {(False, torch.strided, False, False)}
"""The kind of tensors that can be written to."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.device)
"""Types of values that are no tensors, and can be compared with those of the new batch."""

_REMEDY = "give a batch that the same call has returned, and to which nothing was added"

_Tensors = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Tensors that are written to, and those that hold what is to be in them."""


class _Pair(NamedTuple):
    """A tensor that is written to, and the new one.

    Attributes:
        target: The tensor of `out`.
        source: The tensor of the new batch.
        tree: The tree of the target.
        path: The way to that tree.
        number: The number of the leaf.
    """

    target: torch.Tensor
    source: torch.Tensor
    tree: Any
    path: str
    number: int

    def refuse(self, why: str) -> InteropError:
        """Return a refusal that names the target."""
        return InteropError(f"{_name(self.tree, self.path, self.number)} {why}")


def write(begins: str, out: Any, batch: Any) -> None:
    """Write the tensors of a batch into those of `out`, on the current stream.

    Args:
        begins: Errors begin like this.
        out: An earlier batch, or any tree of tensors like it.
        batch: The new batch.

    Raises:
        InteropError: If a tensor of `out` is unlike that of the batch, or cannot be written to
            without a change of another one. Nothing is written then.
    """
    found = _at_a_glance(out, batch)
    if found is None:
        found = _closely(begins, out, batch)
    targets, sources = _by_dtype(*found)
    # Nothing but the host itself can wait for what a GPU still reads of the host's memory.
    if torch.cuda.is_initialized() and any(one.is_cpu and one.is_pinned() for one in found[0]):
        torch.cuda.synchronize()
    # One instruction: an exception of a signal comes before all of it, or after.
    # Torch has no public name for the call.
    copy: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
    collections.deque(map(copy, targets, sources), maxlen=0)


def _at_a_glance(out: Any, batch: Any) -> _Tensors | None:
    """Return the tensors of both trees, if all is as usual; None if it takes a closer look.

    The loops are those of C, for a closer look takes as long as the draw.
    """
    targets, sources = pair = list[torch.Tensor](), list[torch.Tensor]()
    if not _collect(out, batch, targets, sources):
        return None
    both, of = targets + sources, torch.Tensor
    if (
        set(map(_kind, both)) != _USUAL
        or list(map(_looks, targets)) != list(map(_looks, sources))
        or not all(map(of.is_contiguous, both))
        or any(map(of.is_neg, both))
        or any(map(of.is_conj, both))
        or (any(map(of.is_inference, targets)) and not torch.is_inference_mode_enabled())
    ):
        return None
    try:
        begins = list(map(of.data_ptr, both))
    except RuntimeError:  # a stand-in for another tensor
        return None
    ends = sorted(map(operator.add, begins, (one.nbytes for one in both)))
    # None begins before the one before it has ended, so they are apart.
    apart = all(map(operator.le, ends, sorted(begins)[1:]))
    return pair if apart and all(begins) else None


def _collect(
    out: Any, batch: Any, targets: list[torch.Tensor], sources: list[torch.Tensor]
) -> bool:
    """Append the tensors of two trees of usual kinds; False if there is anything else."""
    try:
        mine, form = jax.tree.flatten(out)
        theirs, wanted = jax.tree.flatten(batch)
    except ValueError:  # keys that JAX cannot put in order
        return False
    if form != wanted:
        return False
    if set(map(type, mine + theirs)) <= {torch.Tensor}:
        targets += mine
        sources += theirs
        return True
    for one, other in zip(mine, theirs, strict=True):
        if type(one) is not type(other):
            return False
        if type(one) is torch.Tensor:
            targets.append(one)
            sources.append(other)
        elif is_tensordict(one) and one.batch_size == other.batch_size:
            parts, others, again = (dict(node.items()) for node in (one, other, one))
            if parts.keys() != others.keys() or any(
                again[name] is not parts[name] for name in parts
            ):
                return False
            if not all(_collect(parts[name], others[name], targets, sources) for name in parts):
                return False
        else:
            return False
    return True


def _closely(begins: str, out: Any, batch: Any) -> _Tensors:
    """Return the tensors of both trees, or say which of them does not fit."""
    found: list[_Pair] = []
    try:
        _match(out, batch, "out", found)
        # A tensor may be there under several names.
        pairs = {(id(pair.target), id(pair.source)): pair for pair in found}.values()
        _check_apart(list(pairs))
    except InteropError as refusal:
        raise InteropError(f"{begins} {refusal}") from None
    # A transform may have written to tensors of its own already.
    written = [pair for pair in pairs if pair.target is not pair.source]
    return [pair.target for pair in written], [pair.source for pair in written]


def _match(out: Any, batch: Any, path: str, pairs: list[_Pair]) -> None:
    """Append each tensor of a tree with the one that is to be written into it."""
    targets, form = jax.tree.flatten(out, _is_mapping)
    sources, wanted = jax.tree.flatten(batch, _is_mapping)
    if form != wanted:
        raise InteropError(_other_form(out, batch, path))
    for number, (target, source) in enumerate(zip(targets, sources, strict=True)):
        if isinstance(target, torch.Tensor) and isinstance(source, torch.Tensor):
            pairs.append(pair := _Pair(target, source, out, path, number))
            _check(pair)
            continue
        parts = _parts(target) if type(target) is type(source) else None
        if parts is not None:
            _match_parts(target, source, parts, _name(out, path, number), pairs)
        elif target is not source and not (
            isinstance(target, _PLAIN) and type(target) is type(source) and target == source
        ):
            raise InteropError(
                f"{_name(out, path, number)} is {_said(target)}, and that of the new batch is "
                f"{_said(source)}; only tensors can be written to: have the transform return "
                "tensors alone, in tuples, dicts, dataclasses or TensorDicts"
            )


def _match_parts(
    target: Any, source: Any, parts: Mapping[Any, Any], path: str, pairs: list[_Pair]
) -> None:
    """Do the same for a TensorDict, a mapping or a dataclass that is no tree of JAX's."""
    others, again = _parts(source) or {}, _parts(target) or {}
    if set(parts) != set(others):
        raise InteropError(_other_names(path, set(parts), set(others), "[{!r}]"))
    if any(again[name] is not part for name, part in parts.items()):
        raise InteropError(
            f"{path} is a {type(target).__name__} that makes its tensors anew whenever they are "
            "read; give one that holds them, such as .contiguous()"
        )
    if is_tensordict(target) and target.batch_size != source.batch_size:
        raise InteropError(
            f"{path} has the batch size {list(target.batch_size)}, and that of the new batch is "
            f"{list(source.batch_size)}; {_REMEDY}"
        )
    for name, part in parts.items():
        _match(part, others[name], f"{path}[{name!r}]", pairs)


def _check(pair: _Pair) -> None:
    """Raise if a tensor cannot hold the new one."""
    target, source = pair.target, pair.source
    for one in (target, source):
        if one.layout is not torch.strided or one.is_nested or one.is_quantized:
            raise pair.refuse(
                "is sparse, nested or quantised; have the transform return dense tensors"
            )
    if (
        target.shape != source.shape
        or target.dtype != source.dtype
        or target.device != source.device
    ):
        raise pair.refuse(
            f"is {_said(target)}, and that of the new batch is {_said(source)}; {_REMEDY}"
        )
    if target.requires_grad or source.requires_grad:
        raise pair.refuse(
            "requires grad, here or in the new batch, and a write would be part of a gradient; "
            "use .detach(), also in a transform"
        )
    for one in (target, source):
        if one.is_conj() or one.is_neg():
            raise pair.refuse(
                "is lazily conjugated or negated; use .resolve_conj().resolve_neg(), also in a "
                "transform"
            )
    if target.is_inference() and not torch.is_inference_mode_enabled():
        raise pair.refuse(
            "was made in torch.inference_mode(), and torch allows no writes to it outside; call "
            "this there, or make the first batch outside"
        )
    if not target.is_contiguous() and _overlaps_itself(target):
        raise pair.refuse("has several places on the same memory; use .clone()")


def _check_apart(pairs: list[_Pair]) -> None:
    """Raise if a write would change another tensor, of `out` or of the new batch."""
    spans: list[tuple[int, int, bool, int]] = []
    for number, pair in enumerate(pairs):
        spans.append((*_span(pair, pair.target), True, number))
        if pair.source is not pair.target:
            spans.append((*_span(pair, pair.source), False, number))
    ends = written_to = 0
    for start, end, written, number in sorted(spans):
        if start < end and start < (ends if written else written_to):
            raise pairs[number].refuse(
                "shares its memory with another tensor of out or of the new batch, and a write "
                "would change both; use .clone(), also in a transform"
            )
        ends = max(ends, end)
        written_to = max(written_to, end) if written else written_to


def _span(pair: _Pair, tensor: torch.Tensor) -> tuple[int, int]:
    """Return where the memory of a tensor begins and ends."""
    if not has_memory(tensor):
        raise pair.refuse("has no memory: it stands in for another tensor")
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return start, start + (last + 1) * tensor.element_size()


def _by_dtype(
    targets: list[torch.Tensor], sources: list[torch.Tensor]
) -> tuple[list[Any], list[Any]]:
    """Return both by dtype: on a GPU torch copies those of one in one kernel."""
    groups: dict[torch.dtype, _Tensors] = {}
    for target, source in zip(targets, sources, strict=True):
        dtype = target.dtype
        if dtype not in _COPIED_AS_THEY_ARE and dtype.itemsize in _OF_SIZE:
            # Torch may lack the kernel, or go by another dtype and change NaNs.
            dtype = _OF_SIZE[dtype.itemsize]
            target, source = target.view(dtype), source.view(dtype)
        group = groups.get(dtype)
        if group is None:
            group = groups[dtype] = [], []
        group[0].append(target)
        group[1].append(source)
    return [each[0] for each in groups.values()], [each[1] for each in groups.values()]


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Tell whether two places of a tensor may be the same memory."""
    end = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < end:
                return True
            end += stride * (size - 1)
    return False


def _is_mapping(node: Any) -> bool:
    """Tell whether to go through a node by its keys: JAX wants those of a dict to have an order."""
    return type(node) is dict or isinstance(node, MutableMapping)


def _parts(node: Any) -> Mapping[Any, Any] | None:
    """Return what is in a node that is no tree of JAX's; None if it is a leaf."""
    if is_tensordict(node):
        return dict(node.items())
    if isinstance(node, MutableMapping):
        return node
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return {field.name: getattr(node, field.name, None) for field in dataclasses.fields(node)}
    return None


def _name(tree: Any, path: str, number: int) -> str:
    """Return the way to a leaf of a tree."""
    inside = jax.tree.leaves_with_path(tree, _is_mapping)[number][0]
    return f"{path}{jax.tree_util.keystr(inside)}"


def _said(thing: Any) -> str:
    """Return a few words on what may be anything."""
    if isinstance(thing, torch.Tensor):
        return f"{thing.dtype} of shape {tuple(thing.shape)} on {thing.device}"
    return f"{thing!r}" if isinstance(thing, _PLAIN) else type(thing).__name__


def _other_form(out: Any, batch: Any, path: str) -> str:
    """Say where two trees differ."""
    mine, theirs = (
        {jax.tree_util.keystr(way) for way, _ in jax.tree.leaves_with_path(tree, _is_mapping)}
        for tree in (out, batch)
    )
    if mine != theirs and "" not in mine | theirs:
        return _other_names(path, mine, theirs, "{}")
    return (
        f"{path} is a {type(out).__name__} of another form than that of the new batch, a "
        f"{type(batch).__name__}; {_REMEDY}"
    )


def _other_names(path: str, mine: set[Any], theirs: set[Any], form: str) -> str:
    """Say which name is there on one side only."""
    lacks = sorted(map(form.format, theirs - mine))
    if lacks:
        return f"{path}{lacks[0]} is not there, and the new batch has it; {_REMEDY}"
    more = sorted(map(form.format, mine - theirs))
    return (
        f"{path}{more[0]} is there, and the new batch does not have it; {_REMEDY}. Write what you "
        "make of a batch elsewhere, such as into a copy of the container"
    )
