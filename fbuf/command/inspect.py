"""What a checkpoint holds. Rows are read from their files; no buffer is made."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checks import memory
from fbuf.command import text
from fbuf.command.verify import newest
from fbuf.disk import config, container, manifest, reader, stores, trees, whole, writer
from fbuf.disk.errors import CheckpointError
from fbuf.disk.manifest import Manifest
from fbuf.state import State
from fbuf.storage.faults import Fault
from fbuf.storage.ring import CUT, DUMMY, ENDS, REMOVED
from fbuf.verbs.init import init

_REWARDS = ("reward", "rewards", "r")

_OPTIONS = ("autoreset", "lockstep", "next_of", "max_ends")
"""What the buffer was made with beside its item, its capacity and its sampler."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What a checkpoint holds.

    Attributes:
        figures: All figures, as JSON has them.
        lengths: The rows of each episode that is there from its first row to its last.
        returns: The sum of rewards of each, undiscounted; None if there is no reward.
        likely: How likely one draw is to be each row that may be drawn, times the number of these
            rows; None if that is not known, or none is drawn.
    """

    figures: dict[str, Any]
    lengths: np.ndarray
    returns: np.ndarray | None
    likely: np.ndarray | None


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
        known = whole.numbers(folder)
        number = known[-1] if known else newest(path)[1]
        try:
            if known:
                return _shards(folder, number, reward)
            return _looked(folder, number, manifest.read(folder, number), reward)
        except (CheckpointError, FileNotFoundError):
            if number in (whole.numbers(folder) if known else manifest.numbers(folder)):
                raise
            # A run that goes on saving has deleted meanwhile what was being read.
        except (TypeError, LookupError, AttributeError, AssertionError) as error:
            raise CheckpointError(f"{folder} is not what fbuf writes: {error!r}") from error


def _shards(folder: pathlib.Path, number: int, reward: str | None) -> Found:
    """What a checkpoint over a mesh holds, all shards together."""
    found = whole.read(folder, number)
    each: list[Found] = []
    for shard, part in enumerate(found.parts):
        own = whole.check_part(folder, shard, part)
        each.append(_looked(own, part.number, manifest.read(own, part.number), reward))
    of = [one.figures for one in each]
    lengths = np.concatenate([one.lengths for one in each])
    returns = [one.returns for one in each if one.returns is not None]
    joined = np.concatenate(returns) if returns else None
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
        "episodes": len(lengths),
        "length": _spread(lengths),
        "return": None if joined is None else _spread(joined),
        "likely": None,
        "effective sample size": None,
        "faults": [flag.name for flag in Fault if any(flag.name in f["faults"] for f in of)],
    }
    return Found(figures, lengths, joined, None)


def _looked(folder: pathlib.Path, number: int, found: Manifest, reward: str | None) -> Found:
    like, sampler = _like(found)
    values = reader.read_index(folder, found)[0]
    flags, cursor = values[".ring.flags"], values[".ring.cursor"]
    lanes = _lanes(like, cursor)
    there = np.concatenate(lanes) if lanes else np.zeros(0, np.int64)
    of_rows = flags[there]
    field = _reward_field(like, reward)
    rewards = None if field is None else _rewards(folder, found, like, field)
    lengths, returns = _episodes(lanes, flags, cursor, like.ring.head_capacity, rewards)
    unread = likely = None
    if sampler is not None:
        state = _with_arrays(sampler, values)
        if state.sampler.reads_once:
            steps = state.sampler.unread(state.index, state.ring).sum()
            unread = int(steps) * (state.ring.lanes // state.ring.heads)
        else:
            likely = _likely(state)
    fault = int(values[".fault"])
    files = sum(file.length for file in found.files.values())
    held = int((of_rows & REMOVED == 0).sum())
    figures: dict[str, Any] = {
        "path": str(folder),
        "checkpoint": number,
        "time": found.about.get("time"),
        "fbuf": found.about.get("fbuf"),
        "sampler": config.sampler_words(found.config["sampler"]),
        "item": trees.words(found.config["item"]),
        "capacity": like.capacity,
        **{name: found.config[name] for name in ("num_envs", *_OPTIONS)},
        "rows": held,
        "fill": there.size / like.capacity,
        "removed": int(((of_rows & REMOVED > 0) & (of_rows & DUMMY == 0)).sum()),
        "dummies": int((of_rows & DUMMY > 0).sum()),
        "oldest": max(map(len, lanes), default=0),
        "memory": memory.nbytes(like),
        "bytes on disk": files,
        "files": len(found.files) + 1,
        "episodes": len(lengths),
        "length": _spread(lengths),
        "return": None if returns is None else _spread(returns),
        "reward": field and field[0],
        "unread": unread,
        "likely": None if likely is None else _spread(likely),
        "effective sample size": None if likely is None else _effective(likely),
        "faults": [flag.name for flag in Fault if fault & flag],
        "extra": None if found.extra == {"none": []} else _names(found.extra),
    }
    return Found(figures, lengths, returns, likely)


def table(found: Found) -> str:
    """The figures for people to read."""
    of = found.figures
    lane = f", {of['num_envs']} environments" if of["num_envs"] else ""
    episodes = f"{of['episodes']:,} whole"
    if of["length"]:
        episodes += f", of {text.spread(*of['length'])} rows"
    returns = "no field called reward; say which one with --reward"
    if of["reward"]:
        returns = text.spread(*of["return"]) if of["return"] else "no whole episode"
    likely = "only fbuf.load knows: the sampler is one of your own"
    options = [f"{name}={of[name]!r}" for name in _OPTIONS]
    if of["next_of"] is None:  # then there are no ends to keep anything of
        options.pop()
    shards = {}
    if "shards" in of:
        least, most = of["rows of a shard"]
        shards = {"shards": f"{of['shards']}, of {least:,} to {most:,} rows"}
        likely = "only fbuf.sharded.load knows: they depend on all shards"
    if of["unread"] is not None:
        likely = f"none: rows are read once; {of['unread']:,} of {of['capacity']:,} are unread"
    if found.likely is not None:
        likely = "no row can be drawn"
        if of["likely"]:
            likely = (
                f"{text.spread(*of['likely'])} times as likely as the average row; effective "
                f"sample size {of['effective sample size']:,.0f}"
            )
    return text.lines(
        {
            "path": of["path"],
            "checkpoint": f"{of['checkpoint']}, of {of['time']}, by fbuf {of['fbuf']}",
            "sampler": of["sampler"],
            "options": ", ".join(options),
            "item": of["item"],
            "capacity": f"{of['capacity']:,} rows{lane}, {memory.in_words(of['memory'])} of memory",
            **shards,
            "rows": f"{of['rows']:,}, {of['fill']:.1%} of the slots; {of['removed']:,} removed, "
            f"{of['dummies']:,} resets",
            "age": f"the oldest row is of {of['oldest']:,} steps ago",
            "disk": f"{memory.in_words(of['bytes on disk'])} in {of['files']:,} files",
            "episodes": episodes,
            "returns": returns,
            "draws": likely,
            "faults": ", ".join(of["faults"]) or "none",
            "extra": of["extra"] or "nothing",
        }
    )


def _like(found: Manifest) -> tuple[State[Any], State[Any] | None]:
    """The buffer as shapes and dtypes; and without its rows, unless its sampler is not known."""
    data = {**found.config, "item": trees.without_classes(found.config["item"])}
    known = config.is_known(data["sampler"])
    if not known:
        data["sampler"] = {"name": "Uniform", "options": {}}
    given = config.arguments(data, None, None)
    like = jax.eval_shape(lambda: init(**given))
    if not known:
        return like, None
    reader.check_shapes(found, like)
    return like, jax.eval_shape(writer.small, like)


def _lanes(like: State[Any], cursor: np.ndarray) -> list[np.ndarray]:
    """The slots of each lane that hold a row, the oldest first."""
    ring, found = like.ring, list[np.ndarray]()
    for head, (at, _, stored, _) in enumerate(cursor.T.astype(np.int64)):
        offsets = (at - stored + np.arange(stored)) % ring.head_capacity
        if ring.heads == ring.lanes:
            found.append(offsets * ring.heads + head)
        else:
            found += [offsets[lane :: ring.lanes] for lane in range(ring.lanes)]
    return found


def _episodes(
    lanes: list[np.ndarray],
    flags: np.ndarray,
    cursor: np.ndarray,
    room: int,
    rewards: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The length and the return of each episode that is there whole, and not removed."""
    lengths: list[np.ndarray] = []
    returns: list[np.ndarray] = []
    # Where rows have been overwritten, the oldest episode may have begun before the oldest row.
    head, lap, stored, _ = cursor.astype(np.int64)
    all_there = (stored < room) | (lap * room + head == room)
    for slots, none_gone in zip(lanes, np.resize(all_there, len(lanes)), strict=True):
        of = flags[slots]
        from_the_first = bool(of.size) and bool(none_gone or of[0] & DUMMY)
        real = of & DUMMY == 0
        slots, of = slots[real], of[real]
        ends = np.flatnonzero(of & ENDS)
        if not ends.size:
            continue
        starts = np.r_[0, ends[:-1] + 1]
        whole = of[starts] & CUT == 0
        whole[0] &= from_the_first
        there = (of & REMOVED == 0)[: ends[-1] + 1].astype(int)
        whole &= np.add.reduceat(there, starts) > 0
        lengths.append((ends - starts + 1)[whole])
        if rewards is not None:
            sums = np.add.reduceat(rewards[slots][: ends[-1] + 1], starts)
            returns.append(sums[whole])
    empty = np.zeros(0)
    joined = np.concatenate(lengths) if lengths else empty.astype(np.int64)
    if rewards is None:
        return joined, None
    return joined, np.concatenate(returns) if returns else empty


def _reward_field(like: State[Any], wanted: str | None) -> tuple[str, int] | None:
    """The name and the number of the leaf of the reward."""
    if wanted is not None:
        try:
            leaf = like.storage.layout.find("inspect", "--reward", wanted)
        except ValueError as error:
            raise ValueError(str(error).removeprefix("fbuf.inspect: ")) from None
        if not isinstance(leaf, int):
            raise ValueError(f"--reward names {wanted!r}, which has fields of its own")
        if like.storage.layout.fields[leaf].size != 1:
            raise ValueError(f"--reward names {wanted!r}, which is more than one number a row")
        return wanted, leaf
    paths = [path for path, _ in jax.tree.leaves_with_path(like.storage.item)]
    for name in _REWARDS:
        for leaf, path in enumerate(paths):
            field = like.storage.layout.fields[leaf]
            if path and getattr(path[-1], "key", None) == name and field.size == 1:
                return ".".join(str(getattr(part, "key", part)) for part in path), leaf
    return None


def _rewards(
    folder: pathlib.Path, found: Manifest, like: State[Any], field: tuple[str, int]
) -> np.ndarray:
    """The reward of every slot, as float64."""
    storage, leaf = like.storage, field[1]
    (store, *_) = stores.of_state(like)
    number = (
        0
        if storage.layout.fields[leaf].narrow
        else 1 + sum(not other.narrow for other in storage.layout.fields[:leaf])
    )
    spec = store.arrays[number]
    values = np.zeros(like.capacity)

    def put(path: pathlib.Path, count: int, rows: Any, at: int, widths: list[int]) -> None:
        view = container.views(path, count, widths)[at]
        for done, some in rows:
            part = np.ascontiguousarray(view[done : done + some.size])
            array = jnp.asarray(
                part.reshape(-1).view(spec.dtype).reshape(some.size, *spec.shape[1:])
            )
            own = storage
            if number == 0:
                own = dataclasses.replace(storage, words=array)
            else:
                wide = list(storage.wide)
                wide[number - 1] = array
                own = dataclasses.replace(storage, wide=tuple(wide))
            read = own.read_leaves(jnp.arange(some.size, dtype=jnp.int32), [leaf])[0]
            values[some] = np.asarray(read).reshape(-1).astype(np.float64)

    for segment in found.segments["rows"]:
        places = stores.of_segment(segment)
        rows = zip(range(0, stores.size(places), store.step), store.rows(places), strict=True)
        put(folder / segment.file, stores.size(places), rows, number, store.widths)
    if found.written is not None:
        name, count = found.written
        numbers = container.views(folder / name, count, [8])[0]
        slots = np.array(numbers).reshape(-1).view(np.int64)
        steps = range(0, count, store.step)
        put(
            folder / name,
            count,
            ((at, slots[at : at + store.step]) for at in steps),
            number + 1,
            [8, *store.widths],
        )
    return values


def _with_arrays(small: State[Any], values: dict[str, np.ndarray]) -> State[Any]:
    """A buffer without its rows, and with all else."""
    arrays = [jnp.asarray(values[path]) for path in writer.by_path(small)]
    return jax.tree.unflatten(jax.tree.structure(small), arrays)


def _likely(state: State[Any]) -> np.ndarray:
    """How likely a draw is to be each row that may be drawn, times their number."""
    ring, sampler = state.ring, state.sampler

    @jax.jit
    def probability(index: Any, ring: Any) -> jax.Array:
        slots = jnp.arange(ring.capacity, dtype=jnp.int32)
        there = ring.holds(slots) & (ring.flags & REMOVED == 0)
        likely = sampler.probability(index, ring, jnp.where(there, slots, 0))
        return jnp.where(there & sampler.can_sample(index, ring), likely, 0)

    likely = np.asarray(probability(state.index, ring), np.float64)
    likely = likely[likely > 0]
    return likely * likely.size


def _spread(values: np.ndarray) -> tuple[float, float, float] | None:
    """The least, the median and the most."""
    if not np.isfinite(values).all():
        values = values[np.isfinite(values)]
    if not values.size:
        return None
    return float(values.min()), float(np.median(values)), float(values.max())


def _effective(likely: np.ndarray) -> float:
    """See `fbuf.stats`; of probabilities times their number."""
    return float(likely.size**2 / np.sum(likely**2)) if likely.size else 0.0


def _names(extra: Any) -> str:
    """What was saved beside the buffer, in short."""
    kind, content = trees.only(extra)
    if kind == "dict":
        return ", ".join(key for key, _ in content)
    return content[0] if kind == "other" else f"a {kind}"
