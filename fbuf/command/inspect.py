"""The figures of a checkpoint, whose rows are read where they lie."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checkpoint import (
    config,
    manifest,
    reader,
    row_ranges,
    sharded_manifest,
    tree_json,
    writer,
)
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.manifest import Manifest
from fbuf.checks import sizes
from fbuf.command import draws, rewards, text
from fbuf.command.draws import Draws
from fbuf.command.rewards import Episodes
from fbuf.command.verify import newest
from fbuf.host.checkpoint_rows import SavedRows
from fbuf.ops.init import init
from fbuf.samplers import Uniform
from fbuf.samplers.queues import queue_of
from fbuf.state import State
from fbuf.storage.faults import Fault
from fbuf.storage.ring import DUMMY, REMOVED
from fbuf.storage.stored_lanes import Lane, stored_lanes

_OPTIONS = ("autoreset", "lockstep", "next_of", "max_ends")
"""The arguments of `fbuf.init` beside the item, the capacity, `num_envs` and the sampler."""


@dataclasses.dataclass(frozen=True)
class Found:
    """The content of a checkpoint.

    Attributes:
        figures: All figures, as JSON has them.
        episodes: The whole episodes.
        draws: The rows that may be drawn; None if they are not known, or rows are not drawn.
        why_not: Why there are no returns, and why no draws, by these names.
    """

    figures: dict[str, Any]
    episodes: Episodes
    draws: Draws | None
    why_not: dict[str, str]


def look(path: pathlib.Path, reward: str | None = None) -> Found:
    """Return the content of the newest checkpoint of a directory.

    Args:
        path: The directory.
        reward: The field of the reward; None looks for a field with a usual name.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        CheckpointError: If the checkpoint is damaged.
        ValueError: If there is no such field.
    """
    folder = path.resolve()
    while True:
        known = sharded_manifest.numbers(folder)
        number = known[-1] if known else newest(folder)
        try:
            if not known:
                part = _opened(folder, number, reward)
                return _found([part], str(folder), number, part.manifest.about)
            of_all = sharded_manifest.read(folder, number)
            parts = [
                _opened(sharded_manifest.check_part(folder, shard, part), part.number, reward)
                for shard, part in enumerate(of_all.parts)
            ]
            found = _found(parts, str(folder), number, of_all.about)
            rows = [int((part.flags & REMOVED == 0).sum()) for part in parts]
            found.figures.update({"shards": len(parts), "rows of a shard": [min(rows), max(rows)]})
            return found
        except (CheckpointError, FileNotFoundError):
            if number in (sharded_manifest.numbers(folder) if known else manifest.numbers(folder)):
                raise
            # A run that goes on saving has deleted this checkpoint meanwhile.
        except (TypeError, LookupError, AttributeError, AssertionError) as error:
            raise CheckpointError(f"{folder} is not what fbuf writes: {error!r}") from error


class _Opened(NamedTuple):
    """The checkpoint of a buffer, or of one shard of a buffer over a mesh.

    Attributes:
        manifest: Its manifest.
        like: The shapes and dtypes of the buffer.
        fault: The fault bits.
        lanes: The stored rows.
        reward: The name of the reward's field; None if there is none.
        why_none: Why there is no reward.
        not_finite: How many rewards are NaN or infinite, of rows that are not removed.
        episodes: The whole episodes of each lane.
        draws: The rows that may be drawn; None if they are not known, or rows are not drawn.
        unread: How many rows of a queue are unread; None without a queue.
    """

    manifest: Manifest
    like: State[Any]
    fault: int
    lanes: list[Lane]
    reward: str | None
    why_none: str
    not_finite: int
    episodes: list[Episodes]
    draws: Draws | None
    unread: int | None

    @property
    def flags(self) -> np.ndarray:
        """uint8 `[rows]`; the flags of the stored rows."""
        return np.concatenate([lane.flags for lane in self.lanes])


def _opened(folder: pathlib.Path, number: int, reward: str | None) -> _Opened:
    """Read the index of a checkpoint, and of its rows the rewards."""
    found = manifest.read(folder, number)
    data = {**found.config, "item": tree_json.without_classes(found.config["item"])}
    known = config.is_known(data["sampler"])
    if not known:
        data["sampler"] = config.sampler_data(Uniform())
    given = config.arguments(data, None, None)
    like = jax.eval_shape(lambda: init(**given))
    state = jax.eval_shape(writer.small, like)
    if known:
        reader.check_shapes(found, like)
    else:
        state = dataclasses.replace(state, index=None, next_obs=None)
    arrays = reader.read_index(folder, found)[0]
    read = lambda path, _: jnp.asarray(arrays[jax.tree_util.keystr(path)])
    state = jax.tree_util.tree_map_with_path(read, state)
    layout, lanes = like.storage.layout, list(stored_lanes(state.ring))
    name = of_slots = drawn = unread = None
    why_none, not_finite = rewards.reward_field(layout, reward), 0
    if not isinstance(why_none, str):
        (name, leaf), why_none = why_none, ""
        step = row_ranges.of_state(like)[0].step
        rows = SavedRows(folder, found, layout, like.capacity)
        of_slots = rewards.values(rows, layout, leaf, lanes, step)
        live = (lane.slots[lane.flags & REMOVED == 0] for lane in lanes)
        not_finite = sum(int((~np.isfinite(of_slots[slots])).sum()) for slots in live)
    if known and state.sampler.is_queue:
        steps = queue_of(state.sampler).unread(state.index, state.ring).sum()
        unread = int(steps) * state.ring.lanes_per_head
    elif known:
        drawn = draws.of_state(state)
    whole, fault = [rewards.episodes(lane, of_slots) for lane in lanes], int(state.fault)
    return _Opened(found, like, fault, lanes, name, why_none, not_finite, whole, drawn, unread)


def _found(parts: Sequence[_Opened], path: str, number: int, about: dict[str, Any]) -> Found:
    """Return the content of a buffer, or of all shards of a buffer over a mesh."""
    first, count = parts[0], len(parts)
    saved, given = first.manifest, first.manifest.config
    capacity = first.like.capacity * count
    flags = np.concatenate([part.flags for part in parts])
    removed, dummies = flags & REMOVED > 0, flags & DUMMY > 0
    files = [file for part in parts for file in part.manifest.files.values()]
    episodes = rewards.together([one for part in parts for one in part.episodes])
    returns = episodes.returns
    each = [part.draws for part in parts if part.draws is not None]
    drawn, why_not = draws.together(each) if each else None, {}
    if first.why_none:
        why_not["returns"] = first.why_none
    if first.unread is not None:
        of_all = f"{first.unread:,} of {capacity:,}"
        why_not["draws"] = f"none: rows are read once; {of_all} are unread"
    elif drawn is None:
        why_not["draws"] = "only fbuf.sharded.load knows: they depend on all shards"
        if not each:
            why_not["draws"] = "only fbuf.load knows: the sampler is one of your own"
    figures: dict[str, Any] = {
        "path": path,
        "checkpoint": number,
        "time": about.get("time"),
        "fbuf": saved.about.get("fbuf"),
        "sampler": config.sampler_words(given["sampler"]),
        **{name: given[name] for name in ("num_envs", *_OPTIONS)},
        "item": tree_json.words(given["item"]),
        "capacity": capacity,
        "rows": int((~removed).sum()),
        "fill": flags.size / capacity,
        "removed": int((removed & ~dummies).sum()),
        "dummies": int(dummies.sum()),
        "oldest": max(lane.slots.size for part in parts for lane in part.lanes),
        "rewards not finite": None if returns is None else sum(part.not_finite for part in parts),
        "memory": sizes.nbytes(first.like) * count,
        "bytes on disk": sum(file.length for file in files),
        "files": len(files) + count,
        "episodes": episodes.lengths.size,
        "length": _spread(episodes.lengths),
        "return": None if returns is None else _spread(returns),
        "returns not finite": None if returns is None else int((~np.isfinite(returns)).sum()),
        "reward": first.reward,
        "unread": first.unread,
        "likely": None if drawn is None else _spread(drawn.likely),
        "effective sample size": None if drawn is None else drawn.effective,
        "faults": [flag.name for flag in Fault if any(part.fault & flag for part in parts)],
        "extra": None if saved.extra == {"none": []} else _names(saved.extra),
    }
    for name in ("num_envs", "max_ends"):  # a shard has its share of these
        figures[name] = figures[name] and figures[name] * count
    return Found(figures, episodes, drawn, why_not)


def table(found: Found) -> str:
    """Return the figures for people to read."""
    of = found.figures
    lane = f", {of['num_envs']} environments" if of["num_envs"] else ""
    episodes = f"{of['episodes']:,} whole"
    if of["length"]:
        episodes += f", of {text.spread(*of['length'])} rows"
    options = [f"{name}={of[name]!r}" for name in _OPTIONS]
    if of["next_of"] is None:  # then no ends are kept
        options.pop()
    shards = bad = {}
    if "shards" in of:
        least, most = of["rows of a shard"]
        shards = {"shards": f"{of['shards']}, of {least:,} to {most:,} rows"}
    if of["rewards not finite"]:
        bad = {"rewards": _not_finite(of["rewards not finite"], of["rows"])}
    return text.lines(
        {
            "path": of["path"],
            "checkpoint": f"{of['checkpoint']}, of {of['time']}, by fbuf {of['fbuf']}",
            "sampler": of["sampler"],
            "options": ", ".join(options),
            "item": of["item"],
            "capacity": f"{of['capacity']:,} rows{lane}, {sizes.in_words(of['memory'])} of memory",
            **shards,
            "rows": f"{of['rows']:,}, {of['fill']:.1%} of the slots; {of['removed']:,} removed, "
            f"{of['dummies']:,} resets",
            "age": f"the oldest row is of {of['oldest']:,} steps ago",
            "disk": f"{sizes.in_words(of['bytes on disk'])} in {of['files']:,} files",
            "episodes": episodes,
            "returns": found.why_not.get("returns") or _returns(of),
            **bad,
            "draws": found.why_not.get("draws") or _draws(of),
            "faults": ", ".join(of["faults"]) or "none",
            "extra": of["extra"] or "nothing",
            **({"plot": of["plot"]} if "plot" in of else {}),
        }
    )


def _returns(of: dict[str, Any]) -> str:
    """Return the returns in words."""
    if not of["episodes"]:
        return "no whole episode"
    said = [text.spread(*of["return"])] if of["return"] else []
    if of["returns not finite"]:
        said.append(_not_finite(of["returns not finite"], of["episodes"]))
    return "; ".join(said)


def _not_finite(count: int, of: int) -> str:
    return f"{count:,} of {of:,} {'is' if count == 1 else 'are'} NaN or infinite"


def _draws(of: dict[str, Any]) -> str:
    """Return in words how likely rows are to be drawn."""
    if not of["likely"]:
        return "no row can be drawn"
    spread, size = text.spread(*of["likely"]), of["effective sample size"]
    return f"{spread} times as likely as the average row; effective sample size {size:,.0f}"


def _spread(values: np.ndarray) -> tuple[float, float, float] | None:
    """Return the least, the median and the largest of the finite values."""
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    # The median may be the mean of two, whose sum may be too large for a float64.
    middle = 2 * np.median(values / 2)
    return float(values.min()), float(middle), float(values.max())


def _names(extra: Any) -> str:
    """Return in short what was saved beside the buffer."""
    kind, content = tree_json.only(extra)
    if kind == "dict":
        return ", ".join(key for key, _ in content)
    return content[0] if kind == "other" else f"a {kind}"
