"""The names of TorchRL's buffers that a `TensorDictReplayBuffer` lacks, and what to use instead."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from fbuf_adapters.tensordict._codec import NAME

P = ParamSpec("P")
T = TypeVar("T")

_EXPONENTS = "set rb.alpha and rb.beta; for another sampler make a buffer with sampler=..."
_ROWS = "read rows with rb[:] or rb.episodes(); its size is len(rb), of rb.capacity"
_MADE = "give it when the buffer is made"
_WRITE = (
    "change fields with rb.buffer.write(ids, fields), where the ids of a batch are "
    "fbuf.Ids(batch['index'], batch['index_generation'])"
)
_HOOKS = "save what is yours with rb.dumps(path, extra=...), which rb.loads(path) returns"
_ONE_PROCESS = (
    "its rows lie in one process, and cannot be shared with the workers of a collector of several "
    "processes, such as MultiSyncCollector. Make the collector without replay_buffer, and add what "
    "it yields: `for data in collector: rb.extend(data)`. A Collector of one process takes "
    "replay_buffer=rb"
)

_ATTRIBUTES = {
    **dict.fromkeys(("sampler", "set_sampler"), _EXPONENTS),
    "storage": _ROWS,
    "read_all_in_order": _ROWS,
    "set_storage": "give capacity=n when the buffer is made, and host= for rows in files",
    **dict.fromkeys(("writer", "set_writer"), "rb.extend writes the rows in turn, without one"),
    "transform": "use rb.append_transform(...) or rb.insert_transform(0, ...)",
    "priority_key": _MADE,
    "set_rng": "give seed= when the buffer is made",
    "dim_extend": "give num_envs= when the buffer is made",
    "mark_update": "call rb.update_tensordict_priority(batch)",
    **dict.fromkeys(
        ("set_", "set_at_", "update_", "update_if_present", "submit_update_if_present"), _WRITE
    ),
    "write_all": _WRITE,
    **dict.fromkeys(("register_save_hook", "register_load_hook"), _HOOKS),
    **dict.fromkeys(("_storage", "share", "shared", "as_remote", "client"), _ONE_PROCESS),
    **dict.fromkeys(("start", "shutdown", "is_alive", "synchronize"), _ONE_PROCESS),
}

_WHOLE = "or make this buffer from one of TorchRL: from_torchrl(rb)"
_SIZE = (
    "give capacity=n in place of a storage of max_size n (with host=True or a directory if it is "
    f"large), {_WHOLE}"
)

_ARGUMENTS = {
    "storage": _SIZE,
    "writer": "leave writer out: extend writes the rows in turn",
    "collate_fn": "give transform= a function of the batch",
    "transform_factory": "give transform=transform_factory()",
    "generator": "give seed=",
    "dim_extend": "give num_envs=n for data [n, T]",
    "sample_unit": "give view=, such as fbuf.Sequence(L), and a sampler with window=L",
    "reduction": "the largest of several priorities of a row counts",
    "checkpointer": "rb.dumps(path) writes the rows that are new",
    "shared": _ONE_PROCESS,
    **dict.fromkeys(("alpha", "beta", "eps"), "give sampler=fbuf.Prioritized(alpha=..., beta=...)"),
}

_SLICES = 'window=L, by="episode"), view=fbuf.Sequence(L)'
_SAMPLERS = {
    "RandomSampler": "sampler=fbuf.Uniform()",
    "SamplerWithoutReplacement": "sampler=fbuf.Shuffled()",
    "PrioritizedSampler": "sampler=fbuf.Prioritized(alpha=..., beta=...)",
    "SliceSampler": f"sampler=fbuf.Uniform({_SLICES}",
    "SliceSamplerWithoutReplacement": f"sampler=fbuf.Shuffled({_SLICES}",
    "PrioritizedSliceSampler": "sampler=fbuf.Prioritized(window=L), view=fbuf.Sequence(L)",
}


def misplaced(name: str, *_: str) -> str:
    """Return what to say of an argument that a draw does not take."""
    if name == "beta":
        return f"{NAME}.sample: there is no argument 'beta'; set it before, such as rb.beta = 0.5"
    return f"{NAME}.sample() got an unexpected keyword argument {name!r}"


def explained(name: str) -> str:
    """Return why the buffer has no attribute of this name; empty if TorchRL has none either."""
    return f"{NAME} has no {name!r}: {_ATTRIBUTES[name]}" if name in _ATTRIBUTES else ""


def refuses_torchrl(
    make: Callable[Concatenate[T, P], None],
) -> Callable[Concatenate[T, P], None]:
    """Have a constructor say what replaces the arguments of TorchRL's constructors."""

    @functools.wraps(make)
    def made(self: T, *args: P.args, **options: P.kwargs) -> None:
        _check(args, options)
        make(self, *args, **options)

    return made


def _check(args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Raise at an argument that only TorchRL's constructors take."""
    where = f"{NAME}.__init__:"
    for name in options:
        if name in _ARGUMENTS:
            raise TypeError(f"{where} there is no argument {name!r}; {_ARGUMENTS[name]}")
    given = {"capacity": args[0] if args else None, **options}
    for name in ("capacity", "sampler"):
        kind = type(given.get(name))
        if kind.__module__.partition(".")[0] == "torchrl":
            sampler = f"give {_SAMPLERS.get(kind.__name__, 'one of fbuf')}, {_WHOLE}"
            use = _SIZE if name == "capacity" else sampler
            raise TypeError(f"{where} {name} is TorchRL's {kind.__name__}; {use}")
