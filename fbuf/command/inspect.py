"""What a checkpoint holds. Rows are read from their files; no buffer is made."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checkpoint import config, manifest, reader, sharded_manifest, tree_json, writer
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.manifest import Manifest
from fbuf.checks import sizes
from fbuf.command import draws, rewards, text
from fbuf.command.draws import Draws
from fbuf.command.rewards import Episodes
from fbuf.command.verify import newest
from fbuf.ops.init import init
from fbuf.samplers.queues import queue_of
from fbuf.state import State
from fbuf.storage.faults import Fault
from fbuf.storage.ring import DUMMY, REMOVED

_OPTIONS = ("autoreset", "lockstep", "next_of", "max_ends")
"""What the buffer was made with beside its item, its capacity and its sampler."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What a checkpoint holds.

    Attributes:
        figures: All figures, as JSON has them.
        episodes: Its whole episodes.
        draws: The rows that may be drawn; None if that is not known, or rows are not drawn.
        why_not: Why there are no returns, and why no draws, by these names.
    """

    figures: dict[str, Any]
    episodes: Episodes
    draws: Draws | None
    why_not: dict[str, str]


def look(path: pathlib.Path, reward: str | None = None) -> Found:
    """Look at the newest checkpoint of a directory.

    Args:
        path: The directory.
        reward: The field of the reward; None looks for one called so.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        CheckpointError: If the checkpoint is damaged.
        ValueError: If there is no such field.
    """
    folder = path.resolve()
    while True:
        known = sharded_manifest.numbers(folder)
        number = known[-1] if known else newest(path)[1]
        try:
            if known:
                return _shards(folder, number, reward)
            return _looked(folder, number, manifest.read(folder, number), reward)
        except (CheckpointError, FileNotFoundError):
            if number in (sharded_manifest.numbers(folder) if known else manifest.numbers(folder)):
                raise
            # A run that goes on saving has deleted meanwhile what was being read.
        except (TypeError, LookupError, AttributeError, AssertionError) as error:
            raise CheckpointError(f"{folder} is not what fbuf writes: {error!r}") from error


def _shards(folder: pathlib.Path, number: int, reward: str | None) -> Found:
    """What a checkpoint over a mesh holds, all shards together."""
    found = sharded_manifest.read(folder, number)
    each: list[Found] = []
    for shard, part in enumerate(found.parts):
        own = sharded_manifest.check_part(folder, shard, part)
        each.append(_looked(own, part.number, manifest.read(own, part.number), reward))
    of = [one.figures for one in each]
    episodes = rewards.together([one.episodes for one in each])
    parts = [one.draws for one in each if one.draws is not None]
    drawn = draws.together(parts) if parts else None
    bad = None if episodes.returns is None else sum(f["rewards not finite"] for f in of)
    sums = ("capacity", "rows", "removed", "dummies", "memory", "bytes on disk", "files")
    rows = [figures["rows"] for figures in of]
    figures = {
        **of[0],
        **{name: sum(figures[name] for figures in of) for name in sums},
        "path": str(folder),
        "checkpoint": number,
        "time": found.about.get("time"),
        "shards": len(of),
        "rows of a shard": [min(rows), max(rows)],
        "num_envs": of[0]["num_envs"] and of[0]["num_envs"] * len(of),
        "max_ends": of[0]["max_ends"] and of[0]["max_ends"] * len(of),
        "fill": sum(figures["fill"] for figures in of) / len(of),
        "oldest": max(figures["oldest"] for figures in of),
        **_of_episodes(episodes),
        "rewards not finite": bad,
        **_of_draws(drawn),
        "faults": [flag.name for flag in Fault if any(flag.name in f["faults"] for f in of)],
    }
    why_not = each[0].why_not
    if parts and drawn is None:
        why_not["draws"] = "only fbuf.sharded.load knows: they depend on all shards"
    return Found(figures, episodes, drawn, why_not)


def _looked(folder: pathlib.Path, number: int, found: Manifest, reward: str | None) -> Found:
    like, sampler = _like(found)
    values = reader.read_index(folder, found)[0]
    flags, cursor = values[".ring.flags"], values[".ring.cursor"]
    lanes = rewards.lanes_of(like, cursor)
    field = rewards.field_of(like, reward)
    of_slots = None if field is None else rewards.values(folder, found, like, field)
    episodes = rewards.episodes(lanes, flags, cursor, like.ring.head_capacity, of_slots)
    why_not = {} if field else {"returns": rewards.why_none(like)}
    unread = drawn = None
    if sampler is None:
        why_not["draws"] = "only fbuf.load knows: the sampler is one of your own"
    else:
        state = _with_arrays(sampler, values)
        if state.sampler.is_queue:
            steps = queue_of(state.sampler).unread(state.index, state.ring).sum()
            unread = int(steps) * state.ring.lanes_per_head
            of_all = f"{unread:,} of {like.capacity:,}"
            why_not["draws"] = f"none: rows are read once; {of_all} are unread"
        else:
            drawn = draws.of_state(state)
    fault = int(values[".fault"])
    figures: dict[str, Any] = {
        "path": str(folder),
        "checkpoint": number,
        "time": found.about.get("time"),
        "fbuf": found.about.get("fbuf"),
        "sampler": config.sampler_words(found.config["sampler"]),
        **{name: found.config[name] for name in ("num_envs", *_OPTIONS)},
        "item": tree_json.words(found.config["item"]),
        "capacity": like.capacity,
        **_of_rows(lanes, flags, of_slots),
        "memory": sizes.nbytes(like),
        "bytes on disk": sum(file.length for file in found.files.values()),
        "files": len(found.files) + 1,
        **_of_episodes(episodes),
        "reward": field and field[0],
        "unread": unread,
        **_of_draws(drawn),
        "faults": [flag.name for flag in Fault if fault & flag],
        "extra": None if found.extra == {"none": []} else _names(found.extra),
    }
    return Found(figures, episodes, drawn, why_not)


def _of_rows(
    lanes: list[np.ndarray], flags: np.ndarray, of_slots: np.ndarray | None
) -> dict[str, Any]:
    """The figures of rows; of the rewards of all slots, too, if there are any."""
    there = np.concatenate(lanes) if lanes else np.zeros(0, np.int64)
    of = flags[there]
    live = of & REMOVED == 0
    bad = None if of_slots is None else int((~np.isfinite(of_slots[there[live]])).sum())
    return {
        "rows": int(live.sum()),
        "fill": there.size / flags.size,
        "removed": int((~live & (of & DUMMY == 0)).sum()),
        "dummies": int((of & DUMMY > 0).sum()),
        "oldest": max(map(len, lanes), default=0),
        "rewards not finite": bad,
    }


def _of_episodes(episodes: Episodes) -> dict[str, Any]:
    """The figures of whole episodes."""
    returns = episodes.returns
    return {
        "episodes": episodes.lengths.size,
        "length": _spread(episodes.lengths),
        "return": None if returns is None else _spread(returns),
        "returns not finite": None if returns is None else int((~np.isfinite(returns)).sum()),
    }


def _of_draws(drawn: Draws | None) -> dict[str, Any]:
    """The figures of draws."""
    return {
        "likely": None if drawn is None else _spread(drawn.likely),
        "effective sample size": None if drawn is None else drawn.effective,
    }


def table(found: Found) -> str:
    """The figures for people to read."""
    of = found.figures
    lane = f", {of['num_envs']} environments" if of["num_envs"] else ""
    episodes = f"{of['episodes']:,} whole"
    if of["length"]:
        episodes += f", of {text.spread(*of['length'])} rows"
    options = [f"{name}={of[name]!r}" for name in _OPTIONS]
    if of["next_of"] is None:  # then there are no ends to keep anything of
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
    """The returns in words."""
    if not of["episodes"]:
        return "no whole episode"
    said = [text.spread(*of["return"])] if of["return"] else []
    if of["returns not finite"]:
        said.append(_not_finite(of["returns not finite"], of["episodes"]))
    return "; ".join(said)


def _not_finite(count: int, of: int) -> str:
    return f"{count:,} of {of:,} {'is' if count == 1 else 'are'} NaN or infinite"


def _draws(of: dict[str, Any]) -> str:
    """How likely rows are to be drawn, in words."""
    if not of["likely"]:
        return "no row can be drawn"
    spread, size = text.spread(*of["likely"]), of["effective sample size"]
    return f"{spread} times as likely as the average row; effective sample size {size:,.0f}"


def _like(found: Manifest) -> tuple[State[Any], State[Any] | None]:
    """The buffer as shapes and dtypes; and without its rows, unless its sampler is not known."""
    data = {**found.config, "item": tree_json.without_classes(found.config["item"])}
    known = config.is_known(data["sampler"])
    if not known:
        data["sampler"] = {"name": "Uniform", "options": {}}
    given = config.arguments(data, None, None)
    like = jax.eval_shape(lambda: init(**given))
    if not known:
        return like, None
    reader.check_shapes(found, like)
    return like, jax.eval_shape(writer.small, like)


def _with_arrays(small: State[Any], values: dict[str, np.ndarray]) -> State[Any]:
    """A buffer without its rows, and with all else."""
    arrays = [jnp.asarray(values[path]) for path in writer.by_path(small)]
    return jax.tree.unflatten(jax.tree.structure(small), arrays)


def _spread(values: np.ndarray) -> tuple[float, float, float] | None:
    """The least, the median and the most of those that are finite."""
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    # The median may be the mean of two, whose sum may be too large for a float64.
    middle = 2 * np.median(values / 2)
    return float(values.min()), float(middle), float(values.max())


def _names(extra: Any) -> str:
    """What was saved beside the buffer, in short."""
    kind, content = tree_json.only(extra)
    if kind == "dict":
        return ", ".join(key for key, _ in content)
    return content[0] if kind == "other" else f"a {kind}"
