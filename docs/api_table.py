"""Write the pages of docs/look_up/: every public name with its signature, and the reference."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import pathlib
from types import ModuleType
from typing import Any

import jax

import fbuf.samplers.public
import fbuf.views.public

HERE = pathlib.Path(__file__).parent / "look_up"


def names_of(module: ModuleType) -> tuple[str, ...]:
    """The classes that a module exports, a line each."""
    return tuple(name for name, thing in vars(module).items() if isinstance(thing, type))


THEMES: dict[str, tuple[str, ...]] = {
    "Making a buffer": ("init", "nbytes", "capacity_for", "resize", "extend", "split", "State"),
    "Writing": (
        *("add", "update_priority", "write", "remove", "expire", "clear", "end_episode", "after"),
    ),
    "Checking a step": ("check_in_place",),
    "Drawing": (
        *("sample", "Sample", "draw", "sample_mixed", "MixedSample", "thin"),
        "sequence_priority",
    ),
    "Reading without drawing": (
        *("read", "rows", "Batch", "newest_ids", "ids_at", "neighbours", "no_ids"),
        *("Ids", "group_ids", "group_sizes", "uses", "probability"),
    ),
    "Rows that are used once": (
        *("pop", "unread", "space", "rollout", "Rollout", "Pace", "PaceCounter"),
    ),
    "Asking": (
        *("size", "can_sample", "stats", "raise_on_fault", "Fault", "check_finite"),
        *("NotFiniteError", "report", "Report", "Finding", "plot"),
    ),
    "Saving": ("save", "load", "has_checkpoint", "Checkpoint", "wait", "CheckpointError"),
    "Samplers": names_of(fbuf.samplers.public),
    "Views": names_of(fbuf.views.public),
}
"""Names of `fbuf` by what they are for."""

TARGETS = {
    "fbuf.targets": (*("lambda_returns", "gae", "vtrace", "retrace", "Targets", "Advantages"),),
}
"""The targets of the steps of a sequence or a rollout."""

MESH = {
    "fbuf.sharded": (
        *("init", "specs", "thin", "load", "reshard"),
        *("ShardedState", "ShardedSample", "ShardedIds", "ShardedCheckpoint", "Count"),
    ),
}
"""The names that only a mesh has. All others of `fbuf.sharded` are those of `fbuf`."""

PYTORCH = {
    "fbuf_adapters.pytorch": (
        *("ReplayBuffer", "to_torch", "from_torch", "add_from_torch", "callback", "InteropError"),
    ),
    "fbuf_adapters.tensordict": ("TensorDictReplayBuffer", "from_torchrl"),
}

COLLECTING = {
    "fbuf_adapters.gymnasium": ("Collector", "ProcessCollector", "CollectorError"),
    "fbuf_adapters.ray": ("Collector",),
    "fbuf_adapters.gymnax": ("Collector",),
}
"""The collector of brax has the same form as that of gymnax."""

SB3 = {
    "fbuf_adapters.sb3": (
        *("ReplayBuffer", "HerReplayBuffer", "PrioritizedReplay", "PrioritizedDQN"),
        *("PrioritizedSAC", "PrioritizedTD3", "PrioritizedReplayBufferSamples"),
        "CheckpointCallback",
    ),
}

BRAX = {
    "fbuf_adapters.brax": (
        *("UniformSamplingQueue", "PrioritizedSamplingQueue", "Queue", "ReplayBuffer"),
        "ReplayBufferState",
    ),
}
"""The buffers; the collector is under `COLLECTING`."""

DATASETS = {
    "fbuf.host": ("HostStore", "Batches"),
    "fbuf_adapters.datasets": (
        *("from_minari", "from_lerobot", "from_ogbench", "from_rlds", "from_d4rl", "from_npz"),
        *("from_parquet", "from_pandas"),
        *(
            "from_arrays",
            "load",
            "Source",
            "Block",
            "RowFlags",
            "to_minari",
            "to_npz",
            "lerobot_metadata",
            "LeRobotMetadata",
            "VideoFrames",
        ),
        "DatasetError",
    ),
}

FLASHBAX = {
    "fbuf_adapters.flashbax": (
        *("make_item_buffer", "make_flat_buffer", "make_trajectory_buffer"),
        *("make_prioritised_item_buffer", "make_prioritised_flat_buffer"),
        *("make_prioritised_trajectory_buffer", "make_trajectory_queue", "make_mixer"),
    ),
}
"""The functions that make a buffer; the modules have flashbax's names."""

TESTING = {
    "fbuf.testing": ("check_sampler", "check_view", "Oracle", "Row", "Shape", "rows"),
}
"""The checks of a sampler or a view of your own."""

OTHERS = {
    "Targets": TARGETS,
    "Over a mesh": MESH,
    "PyTorch": PYTORCH,
    "Collecting": COLLECTING,
    "For Stable-Baselines3": SB3,
    "With brax's methods": BRAX,
    "Rows on the host, and data sets": DATASETS,
    "flashbax's functions": FLASHBAX,
    "Tests of a sampler or a view of your own": TESTING,
}
"""The names outside of `fbuf` itself."""


def signature(name: str, thing: Any) -> str:
    """The call, without types: `add(state, items, *, ...)`; the values that a result has."""
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        return f"{name}: {', '.join(bit.name or '' for bit in thing)}"
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return name
    if dataclasses.is_dataclass(thing) and _is_pytree(thing):
        return f"{name}: {', '.join(field.name for field in dataclasses.fields(thing))}"
    parts: list[str] = []
    only_by_name = False
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not only_by_name:
            parts.append("*")
            only_by_name = True
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        text = prefix.get(parameter.kind, "") + parameter.name
        if parameter.default is not parameter.empty:
            text += f"={_default(parameter.default)}"
        parts.append(text)
    return f"{name}({', '.join(parts)})"


def _is_pytree(kind: Any) -> bool:
    """Whether it is what a function returns: it holds arrays, and users never make one."""
    return kind.__name__ in RESULTS or not jax.tree_util.all_leaves([object.__new__(kind)])


RESULTS = frozenset(("Report", "Finding"))
"""Results without arrays."""


def _default(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}()"
    if repr(value).startswith("<"):  # of dataclasses: a default that is made anew
        return "..."
    return repr(value)


def summary(thing: Any) -> str:
    """The first sentence of the docstring."""
    lines = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    return " ".join(lines.split())


def table(package: str, names: tuple[str, ...]) -> list[str]:
    """A row for each name."""
    import importlib

    module = importlib.import_module(package)
    rows = ["| | |", "| --- | --- |"]
    for name in names:
        thing = getattr(module, name)
        rows.append(f"| `{signature(name, thing)}` | {summary(thing)} |")
    return rows


def _same() -> list[str]:
    """The functions of `fbuf` that take a buffer over a mesh, too."""
    import textwrap

    import fbuf

    own = MESH["fbuf.sharded"]
    names = ", ".join(f"`{name}`" for name in fbuf.sharded.__all__ if name not in own)
    return ["Functions of `fbuf` that take such a buffer, too:", "", *textwrap.wrap(names, 100)]


def api() -> str:
    """The page of tables."""
    lines = [
        "# Every public name",
        "",
        "The call, and what it is for. Give arguments after the `*` by name. For results, the",
        "names of their values. `help(fbuf.add)` says the rest: shapes, errors, costs, an example;",
        "so does the reference of the site that `make docs` builds.",
        "",
        "State comes first everywhere, then key, then data. `B` is the size of a batch, `N` the",
        "capacity.",
        "",
    ]
    for theme, names in THEMES.items():
        lines += [f"## {theme}", "", *table("fbuf", names), ""]
    for theme, packages in OTHERS.items():
        lines += [f"## {theme}", ""]
        for package, names in packages.items():
            lines += [f"From `{package}`:", "", *table(package, names), ""]
        if theme == "Over a mesh":
            lines += [*_same(), ""]
        if theme == "Collecting":
            lines += ["`fbuf_adapters.brax.Collector` is the same for brax.", ""]
    lines += [
        "## A sampler or a view of your own",
        "",
        "`fbuf.samplers.Sampler` and `fbuf.views.View` are what to subclass:",
        "[A sampler or a view of your own](../know/extending.md).",
    ]
    return "\n".join(lines) + "\n"


def reference() -> str:
    """The page that the site fills with docstrings."""
    lines = [
        "# Reference",
        "",
        "The docstrings of all public names, in the site that `make docs` builds. Elsewhere read",
        "[every public name](api.md), or `help(fbuf.add)`.",
        "",
    ]
    for theme, names in THEMES.items():
        lines += [f"## {theme}", "", *(f"::: fbuf.{name}" for name in names), ""]
    for theme, packages in OTHERS.items():
        lines += [f"## {theme}", ""]
        for package, names in packages.items():
            lines += [f"::: {package}.{name}" for name in names]
        lines += [""]
    return "\n".join(lines[:-1]) + "\n"


if __name__ == "__main__":
    (HERE / "api.md").write_text(api())
    (HERE / "reference.md").write_text(reference())
