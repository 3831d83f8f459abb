"""A `TensorDictReplayBuffer` made from a buffer of TorchRL."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from tensordict import TensorDictBase

import fbuf
from fbuf_adapters.pytorch import InteropError
from fbuf_adapters.pytorch._spec import drawn_seed
from fbuf_adapters.tensordict._replay_buffer import TensorDictReplayBuffer

_NAME = "fbuf_adapters.tensordict.from_torchrl"

_BUFFERS = (
    *("ReplayBuffer", "TensorDictReplayBuffer"),
    *("PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer"),
)
_STORAGES = ("ListStorage", "TensorStorage", "LazyTensorStorage", "LazyMemmapStorage")
_WRITERS = ("RoundRobinWriter", "TensorDictRoundRobinWriter")
_COLLATES = ("_collate_id", "_stack_anything")


def from_torchrl(
    rb: Any, *, num_envs: int | None = None, seed: int | None = None
) -> TensorDictReplayBuffer:
    """Make a `TensorDictReplayBuffer` that replaces a buffer of TorchRL.

    Build the buffer as before, and add one line: `rb = from_torchrl(rb)`. The new buffer has the
    same capacity, sampler, transforms, batch size, prefetch, pinning, priority key and device. It
    holds the same rows in the same places, with their priorities. A feature of `rb` that the new
    buffer lacks is an error.

    | TorchRL's sampler | becomes |
    | --- | --- |
    | `RandomSampler` | `fbuf.Uniform()` |
    | `SamplerWithoutReplacement` | `fbuf.Shuffled()` |
    | `PrioritizedSampler` | `fbuf.Prioritized(normalize="buffer")` |
    | `SliceSampler` | `fbuf.Uniform(window=L, by="episode")` and `view=fbuf.Sequence(L)` |
    | `SliceSamplerWithoutReplacement` | `fbuf.Shuffled(window=L, by="episode")`, the same view |
    | `PrioritizedSliceSampler` | `fbuf.Prioritized(window=L)`, the same view |

    With `strict_length=False`, the samplers have `strict=False`, and the view pads.

    Some behaviour is better than in TorchRL, and so differs. Episodes end where an id changes and
    where a flag says so. If the sampler names an `end_key`, they end only at that flag. Rows of a
    `LazyMemmapStorage` lie in files on the same disk, which are gone when the process ends. The
    disk must have room for as many rows as the buffer can hold. `rb.alpha` and `rb.beta` of the new
    buffer replace the attributes of the sampler. Batches have the keys of `TensorDictReplayBuffer`,
    also if `rb` is a plain `ReplayBuffer`. The epoch of a sampler without replacement begins anew.

    Args:
        rb: A `ReplayBuffer`, `TensorDictReplayBuffer`, `PrioritizedReplayBuffer` or
            `TensorDictPrioritizedReplayBuffer` of TorchRL, for TensorDicts; full, empty, or in
            between. `rb` is not changed. The two buffers share its transforms and its `generator`.
        num_envs: The number of environments of a storage of two dimensions, `[num_envs, T]`. A
            storage that holds rows knows the number.
        seed: The seed of the new buffer. None draws a seed from the `generator` of `rb`, or else
            from PyTorch's default generator. So two buffers draw different batches, and after
            `torch.manual_seed` each run draws the same batches.

    Returns:
        The new buffer.

    Raises:
        InteropError: If `rb` is of another class, or has a feature that the new buffer lacks. Such
            are a writer that keeps the best rows, a sampler with `span`, and a `collate_fn` of
            yours. The message names the feature.
        ValueError: If `num_envs` is needed, or does not fit.

    Cost: as much as to add all rows.

    Examples:
        >>> import torch
        >>> from fbuf_adapters.tensordict import from_torchrl
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, SliceSampler
        >>> from torchrl.data import TensorDictReplayBuffer as Theirs
        >>> rb = Theirs(
        ...     storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=2), batch_size=6
        ... )
        >>> rb = from_torchrl(rb)
        >>> steps = {"episode": torch.arange(9) // 3, "t": torch.arange(9) % 3}
        >>> _ = rb.extend(TensorDict(steps, batch_size=[9]))
        >>> batch = rb.sample()
        >>> batch["t"].reshape(3, 2).diff()
        tensor([[1],
                [1],
                [1]])
    """
    if not _named(rb, _BUFFERS):
        raise _refused(
            f"rb is a {type(rb).__name__}", f"give one of {', '.join(_BUFFERS)}, or build ours"
        )
    storage, sampler = rb.storage, rb.sampler
    _check(rb, storage, sampler)
    num_envs = _environments(storage, num_envs)
    lanes = num_envs or 1
    options = _sampler(sampler, rb.batch_size)
    device = torch.device("cpu" if storage.device in (None, "auto") else storage.device)
    new = TensorDictReplayBuffer(
        -(-storage.max_size // lanes) * lanes,
        num_envs=num_envs,
        batch_size=rb.batch_size,
        priority_key=getattr(rb, "priority_key", "td_error"),
        device=device,
        seed=drawn_seed(getattr(rb, "_rng", None)) if seed is None else seed,
        pin_memory=rb._pin_memory,
        prefetch=rb._prefetch_cap,
        host=_files_of(storage),
        **options,
    )
    if len(storage):
        _fill(new, rb)
    for transform in rb.transform:
        new.append_transform(transform)
    return new


def _files_of(storage: Any) -> str | bool:
    """Return the directory for files of rows; False if the rows lie in memory."""
    if not _named(storage, ("LazyMemmapStorage",)):
        return False
    return str(storage.scratch_dir or tempfile.gettempdir())


def _named(thing: Any, names: tuple[str, ...]) -> bool:
    """Return whether an object is of one of these classes of TorchRL, and of no subclass."""
    kind = type(thing)
    return kind.__name__ in names and kind.__module__.partition(".")[0] == "torchrl"


def _refused(what: str, advice: str) -> InteropError:
    return InteropError(f"{_NAME}: {what}, which cannot be carried over; {advice}")


def _check(rb: Any, storage: Any, sampler: Any) -> None:
    """Refuse all features that the new buffer lacks, but for those of samplers."""
    build = "make a fbuf_adapters.tensordict.TensorDictReplayBuffer yourself"
    if not _named(storage, _STORAGES):
        raise _refused(f"the storage is a {type(storage).__name__}", "use LazyTensorStorage")
    if storage.max_size >= 2**31 - 16:
        raise _refused(f"the storage has max_size={storage.max_size}", "give it a smaller max_size")
    if getattr(storage, "scratch_dir", None) is not None and getattr(storage, "existsok", False):
        raise _refused("the storage keeps its files (existsok=True)", "use LazyTensorStorage")
    if not _named(rb.writer, _WRITERS):
        raise _refused(f"the writer is a {type(rb.writer).__name__}", "leave writer out")
    collate = rb._collate_fn
    if collate is not torch.stack and getattr(collate, "__name__", "") not in _COLLATES:
        raise _refused(f"collate_fn is {collate!r}", "make it the last transform")
    unit = getattr(rb, "_sample_unit", None)
    if unit is not None and not _named(unit, ("Transition",)):
        raise _refused(f"sample_unit is a {type(unit).__name__}", f"{build}, with a view")
    if getattr(rb, "shared", False):
        raise _refused("shared is True", "send rows to the process that has the buffer")
    if not getattr(rb, "_sync", True):
        raise _refused("sync is False", "leave sync out")
    if storage.ndim > 2 or rb.dim_extend != storage.ndim - 1:
        raise _refused(
            f"the storage has ndim={storage.ndim} and dim_extend={rb.dim_extend}",
            "use ndim=2 for [num_envs, T], and flatten what is more",
        )
    if len(storage) and not isinstance(_rows(storage), TensorDictBase):
        raise _refused("the storage holds no TensorDicts", "use pytorch.ReplayBuffer")


def _environments(storage: Any, num_envs: int | None) -> int | None:
    """Return the number of environments; None if the storage has one dimension."""
    if storage.ndim == 1:
        if num_envs is not None:
            raise ValueError(
                f"{_NAME}: num_envs is {num_envs}, but the storage has one dimension; make it with "
                "ndim=2, or leave num_envs out"
            )
        return None
    known = int(storage.shape[1]) if len(storage) else None
    if known is None and num_envs is None:
        raise ValueError(
            f"{_NAME}: the storage has ndim=2 and is empty, so it does not know how many "
            "environments there are; give num_envs"
        )
    if None not in (known, num_envs) and known != num_envs:
        raise ValueError(
            f"{_NAME}: num_envs is {num_envs}, but the storage holds {known} environments; leave "
            "num_envs out"
        )
    return num_envs if known is None else known


def _sampler(sampler: Any, batch_size: int | None) -> dict[str, Any]:
    """Return the arguments of the new buffer that replace a sampler."""
    name = type(sampler).__name__ if type(sampler).__module__.startswith("torchrl.") else ""
    shuffled = name in ("SamplerWithoutReplacement", "SliceSamplerWithoutReplacement")
    prioritized = name in ("PrioritizedSampler", "PrioritizedSliceSampler")
    slices = name in ("SliceSampler", "SliceSamplerWithoutReplacement", "PrioritizedSliceSampler")
    if not (shuffled or prioritized or slices or name == "RandomSampler"):
        raise _refused(
            f"the sampler is a {type(sampler).__name__}", "see docs/know/coming_from_torchrl.md"
        )
    if shuffled and not sampler.shuffle:
        raise _refused("the sampler has shuffle=False", "read rb[start:stop] or rb.episodes()")
    window: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if slices:
        length, options = _slices(sampler, batch_size)
        window = {"window": length}
        if not sampler.strict_length:
            window["strict"] = False
        if not prioritized:
            window["by"] = "episode"
    if shuffled:
        if sampler.drop_last:
            options["drop_last"] = True
        return {"sampler": fbuf.Shuffled(**window), **options}
    if not prioritized:
        return {"sampler": fbuf.Uniform(**window), **options}
    if sampler.reduction != "max":
        raise _refused(
            f"the sampler has reduction={sampler.reduction!r}", "reduce priorities yourself"
        )
    if sampler.dtype != torch.float32:
        raise _refused(f"the sampler has dtype={sampler.dtype}", "leave dtype out")
    within = sampler._max_priority_within_buffer
    drawn = fbuf.Prioritized(
        float(sampler.alpha),
        beta=float(sampler.beta),
        eps=float(sampler._eps),
        new_priority="largest" if within else "largest_ever",
        normalize="buffer",
        **window,
    )
    return {"sampler": drawn, **options}


def _slices(sampler: Any, batch_size: int | None) -> tuple[int, dict[str, Any]]:
    """Return the length of slices, and the arguments of the new buffer that lay them out."""
    for name in ("span", "fragmented"):
        value: Any = getattr(sampler, name, False)
        if any(value) if isinstance(value, tuple | list) else value:
            raise _refused(f"the sampler has {name}={value}", f"leave {name} out")
    if "static-stop-and-length" in sampler._cache:
        raise _refused(
            "the sampler has ends or trajectories of its own", "store them, and name their key"
        )
    length = sampler.slice_len
    if length is None:
        if batch_size is None:
            raise _refused(
                "the sampler has num_slices, and the buffer no batch_size",
                "give one of the two: rb's batch_size, or slice_len",
            )
        length = batch_size // sampler.num_slices
        if length * sampler.num_slices != batch_size:
            raise ValueError(
                f"{_NAME}: batch_size must be divisible by num_slices, {sampler.num_slices}, got "
                f"{batch_size}; give another batch_size"
            )
    options: dict[str, Any] = {
        "view": fbuf.Sequence(length, boundary="stop" if sampler.strict_length else "pad"),
        "slices": "padded" if sampler.pad_output else "flat",
        "truncated_key": sampler.truncated_key,
        "init_key": sampler.init_key,
    }
    if sampler._fetch_traj and not sampler._traj_key_auto:
        options["traj_key"] = sampler.traj_key
    elif not sampler._fetch_traj:
        options["traj_key"] = False
        if sampler.end_keys or sampler.end_key != ("next", "done"):
            options["end_keys"] = sampler.end_keys or (sampler.end_key,)
    return length, options


def _rows(storage: Any) -> Any:
    """Return the rows of a storage, by place."""
    if type(storage).__name__ != "ListStorage":
        return storage[:]
    rows = storage[:]
    if not all(isinstance(row, TensorDictBase) for row in rows):
        return rows
    return torch.stack(list(rows))


def _fill(new: Any, rb: Any) -> None:
    """Add the rows of a buffer, oldest first, so that each row keeps its place."""
    storage, sampler = rb.storage, rb.sampler
    rows = _rows(storage)  # [steps] or [steps, num_envs], by place
    full = rows.shape[: storage.ndim].numel() == new.capacity
    oldest = rb.writer._cursor % len(rows) if full else 0
    if oldest:  # moves the cursor to the place of the oldest row; these rows are replaced below
        _extend(new, rows[:oldest], storage.ndim)
        new.buffer.end_episode()
    places = _extend(new, torch.cat([rows[oldest:], rows[:oldest]]), storage.ndim)
    new._run.write_count = int(getattr(rb.writer, "_write_count", len(storage)))
    if not type(sampler).__name__.startswith("Prioritized"):
        return
    index = torch.arange(places.numel())
    stored = torch.as_tensor(sampler._sum_tree[index]).double()
    alpha, eps = float(sampler.alpha), float(sampler._eps)
    given = (stored ** (1 / alpha) - eps).clamp_min(0) if alpha else torch.ones_like(stored)
    largest = sampler._max_priority[0]
    if largest is not None and float(largest) > float(given.max()):
        new.update_priority(0, float(largest))  # the default of new rows, with "largest_ever"
    new.update_priority(index, given)


def _extend(new: Any, rows: Any, dims: int) -> torch.Tensor:
    rows = rows.contiguous()
    rows = rows if dims == 1 else rows.transpose(0, 1)
    return new._writer.extend(rows, take_priority=False, check_order=False)
