"""The figures of a checkpoint."""

from __future__ import annotations

from typing import Any

from fbuf.checkpoint import config, tree_json
from fbuf.checks import sizes
from fbuf.checks.foreign import printable
from fbuf.command.opened import Opened
from fbuf.doctor import summary, text
from fbuf.doctor.look import Found, look
from fbuf.doctor.rewards import Asked

_OPTIONS = ("autoreset", "lockstep", "removable", "next_of", "max_ends")
"""The arguments of `fbuf.init` beside the item, the capacity, `num_envs` and the sampler."""

_OF_TORCH = {"ReplayBuffer", "extra"}
"""The keys that a buffer for PyTorch saves: its own, and what it was given."""


def found(opened: Opened, reward: str | None = None) -> Found:
    """Return the content of a checkpoint: its figures are also those of the files.

    Args:
        opened: The checkpoint.
        reward: The field of the reward; None looks for a field with a usual name.

    Raises:
        ValueError: If there is no such field.
    """
    content = look(opened.parts, Asked(reward, "inspect", "--reward"))
    saved, like, *_ = opened.saved[0]
    given, count = saved.config, len(opened.saved)
    files = [file for one in opened.saved for file in one.manifest.files.values()]
    of_files: dict[str, Any] = {
        "path": opened.path,
        "checkpoint": opened.number,
        "time": printable(str(opened.about.get("time"))),
        "fbuf": printable(str(saved.about.get("fbuf"))),
        "sampler": config.sampler_words(given["sampler"]),
        **{name: given[name] for name in ("num_envs", *_OPTIONS)},
        "item": tree_json.words(given["item"]),
        "memory": sizes.nbytes(like) * count,
        "bytes on disk": sum(file.length for file in files),
        "files": len(files) + count,
        "extra": None if saved.extra == {"none": []} else _names(saved.extra),
    }
    for name in ("num_envs", "max_ends"):  # a shard has its share of these
        of_files[name] = of_files[name] and of_files[name] * count
    if opened.over_mesh:
        rows = [content.live(number).size for number in range(count)]
        of_files |= {"shards": count, "rows of a shard": [min(rows), max(rows)]}
    content.figures.update(of_files)
    return content


def table(content: Found) -> str:
    """Return the figures for people to read."""
    of = content.figures
    lane = f", {of['num_envs']} environments" if of["num_envs"] else ""
    options = [f"{name}={of[name]!r}" for name in _OPTIONS]
    if of["next_of"] is None:  # then no ends are kept
        options.pop()
    shards = {}
    if "shards" in of:
        least, most = of["rows of a shard"]
        shards = {"shards": f"{of['shards']}, of {least:,} to {most:,} rows"}
    return text.lines(
        {
            "path": of["path"],
            "checkpoint": f"{of['checkpoint']}, of {of['time']}, by fbuf {of['fbuf']}",
            "sampler": of["sampler"],
            "options": ", ".join(options),
            "item": of["item"],
            "capacity": f"{of['capacity']:,} rows{lane}, {sizes.in_words(of['memory'])} of memory",
            **shards,
            "disk": f"{sizes.in_words(of['bytes on disk'])} in {of['files']:,} files",
            **summary.entries(content),
            "extra": of["extra"] or "nothing",
            **({"plot": of["plot"]} if "plot" in of else {}),
        }
    )


def _names(extra: Any) -> str:
    """Return in short what was saved beside the buffer."""
    kind, content = tree_json.only(extra)
    if kind == "dict":
        within = dict(content)
        if within.keys() <= _OF_TORCH and "extra" in within:
            return ", ".join(_pairs(within["extra"])) or "nothing"
        return ", ".join(_named(*pair) for pair in within.items())
    return printable(content[0]) if kind == "other" else f"a {kind}"


def _named(name: str, value: Any) -> str:
    """Return a name, and the number, bool or string that it names."""
    leaf, name = value.get("leaf") or {}, printable(name)
    if "float" in leaf:
        return f"{name}={float.fromhex(leaf['float']):.6g}"
    return f"{name}={leaf['value']!r}" if "value" in leaf else name


def _pairs(extra: Any) -> list[str]:
    """Return the keys of a dict that was written as a list of pairs; none of anything else."""
    try:
        ((_, pairs),) = extra["dict"]
        both = [pair["list"] for pair in pairs["list"]]
        return [_named(str(name["leaf"]["value"]), value) for name, value in both]
    except (KeyError, TypeError, ValueError, IndexError):
        return []
