"""Runs of starts: to draw an episode first, and then a start in it.

The starts of an episode follow each other in its lane: a run. Where one is missing, as a row of its
window was removed, there are two. The first and the last start of every
run are marked, in two trees over the rows lane by lane, each lane from its first slot to its last.
So the r-th run is that of the r-th first start; its last one is the next in the same lane, around
the seam if need be. A run grows at its end, shrinks at its beginning and is split by removing rows;
each is a few marks.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fbuf import _loop, _order, _ring
from fbuf._ring import Ring, Span
from fbuf.samplers import _bits
from fbuf.samplers._start_index import Change, StartIndex
from fbuf.samplers._starts import Window
from fbuf.trees import mark_tree
from fbuf.trees.mark_tree import MarkTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Runs:
    """The first and the last start of every run, lane by lane; int32 scalar how many runs."""

    firsts: MarkTree
    lasts: MarkTree
    count: jax.Array


def empty(ring: Ring) -> Runs:
    """No run."""
    return Runs(mark_tree.empty(ring.capacity), mark_tree.empty(ring.capacity), jnp.int32(0))


def add(
    runs: Runs, starts: StartIndex, ring: Ring, span: Span, window: Window, change: Change
) -> Runs:
    """Take note of what an add has changed; `starts` is the index from afterwards."""
    length, stride, room = window.length, window.stride, ring.lane_length
    places = span.places
    assert places is not None
    written = _lane_by_lane(ring, jnp.minimum(span.slots, ring.capacity - 1))
    kept = span.slots < ring.capacity
    first_gone = (mark_tree.read(runs.firsts, written) & kept).astype(jnp.int32)
    last_gone = (mark_tree.read(runs.lasts, written) & kept).astype(jnp.int32)
    there = change.there.astype(jnp.int32)
    previous = _ring.later(ring, change.starts, -stride)
    joined = jnp.zeros_like(there)
    if not window.first:
        # The start before it belongs to the same episode, and was neither removed nor overwritten.
        same = places.position >= length + stride
        stays = places.newer + length - 1 + stride < room
        joined = jnp.where(same & stays & mark_tree.read(starts.tree, previous), there, 0)
    beheaded, behead = _beheaded(runs, starts, ring, span, window)
    new_firsts = (
        jnp.concatenate([written, _lane_by_lane(ring, change.starts), beheaded]),
        jnp.concatenate([-first_gone, there - joined, behead]),
    )
    new_lasts = (
        jnp.concatenate(
            [written, _lane_by_lane(ring, change.starts), _lane_by_lane(ring, previous)]
        ),
        jnp.concatenate([-last_gone, there, -joined]),
    )
    return Runs(
        firsts=mark_tree.change(runs.firsts, *new_firsts),
        lasts=mark_tree.change(runs.lasts, *new_lasts),
        count=runs.count + _sum(new_firsts[1]),
    )


def _beheaded(
    runs: Runs, starts: StartIndex, ring: Ring, span: Span, window: Window
) -> tuple[jax.Array, jax.Array]:
    """The oldest start of each lane, and 1 if only now it is the first of its run: `[lanes]`."""
    rows = jnp.broadcast_to(ring.stored // (ring.lanes // ring.heads), (ring.lanes,))
    added = span.count // (ring.lanes // ring.heads)
    newest = jnp.minimum(_ring.newest(ring), ring.capacity - 1)
    oldest = _ring.later(ring, newest, 1 - rows)
    skipped = -(oldest // ring.lanes) % window.stride
    candidate = _ring.later(ring, oldest, skipped)
    # A start that was completed by this add has been looked after already.
    complete = rows - 1 - skipped - (window.length - 1) >= added
    where = _lane_by_lane(ring, candidate)
    is_start = mark_tree.read(starts.tree, candidate)
    mend = complete & is_start & ~mark_tree.read(runs.firsts, where)
    return where, mend.astype(jnp.int32)


def remove(
    runs: Runs, starts: StartIndex, ring: Ring, lost: jax.Array, window: Window
) -> tuple[Runs, StartIndex]:
    """Take out starts that are none any more; `starts` is the index from afterwards.

    Returns:
        The runs, and the starts, whose total is known only once they have been looked at here.
    """
    inside, is_one = jnp.minimum(lost, ring.capacity - 1), lost < ring.capacity
    where = _lane_by_lane(ring, inside)
    first = mark_tree.read(runs.firsts, where) & is_one
    last = mark_tree.read(runs.lasts, where) & is_one
    following = _ring.later(ring, inside, window.stride)
    previous = _ring.later(ring, inside, -window.stride)
    # What was in the middle of a run leaves two.
    begins = (is_one & ~last & mark_tree.read(starts.tree, following)).astype(jnp.int32)
    ends = (is_one & ~first & mark_tree.read(starts.tree, previous)).astype(jnp.int32)
    firsts = jnp.concatenate([-first.astype(jnp.int32), begins])
    lasts = jnp.concatenate([-last.astype(jnp.int32), ends])
    follows, precedes = _lane_by_lane(ring, following), _lane_by_lane(ring, previous)
    looked_at = _sum(begins) + _sum(ends) < 0
    assert starts.total is not None
    return (
        Runs(
            firsts=mark_tree.change(runs.firsts, jnp.concatenate([where, follows]), firsts),
            lasts=mark_tree.change(runs.lasts, jnp.concatenate([where, precedes]), lasts),
            count=runs.count + _sum(firsts),
        ),
        dataclasses.replace(starts, total=_order.after(starts.total, looked_at)),
    )


def clear(runs: Runs) -> Runs:
    """No run. Lane by lane, no part of the trees lies out of reach: they are emptied."""
    return Runs(mark_tree.cleared(runs.firsts), mark_tree.cleared(runs.lasts), runs.count & 0)


def draw(
    runs: Runs, starts: StartIndex, ring: Ring, key: jax.Array, batch_size: int, window: Window
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draw a run, each alike, and a start in it, each alike.

    Returns:
        int32 `[B]` slots, how many starts their runs have, and whether there is a run.
    """
    room = ring.lane_length
    key = _order.key_after(key, runs.count < 0)
    bits = jax.random.bits(key, (2, 2, batch_size), jnp.uint32)
    run = _bits.below(bits[0], runs.count)
    first = mark_tree.select(runs.firsts, run)
    lane = first // room
    # Of a lane's runs one may go around its seam: its last start is the first one marked there,
    # and comes before the first starts of all.
    begin, end = _bounds(runs, ring, lane)
    number = run + _around_seam(runs, starts, ring, lane)
    last = mark_tree.select(runs.lasts, jnp.where(number < end, number, begin))
    length = (last - first) % room // window.stride + 1
    chosen = _bits.below(bits[1], length) * window.stride
    slots = _ring.later(ring, first % room * ring.lanes + lane, chosen)
    return slots, length, run < runs.count


def _around_seam(runs: Runs, starts: StartIndex, ring: Ring, lane: jax.Array) -> jax.Array:
    """1 for lanes in which a run goes around the seam, 0 for others: int32 `[B]`."""

    def goes_around(lane: jax.Array) -> jax.Array:
        # A lane's first slot is that of the same number.
        begins = mark_tree.read(runs.firsts, lane * ring.lane_length)
        return (mark_tree.read(starts.tree, lane) & ~begins).astype(jnp.int32)

    if ring.lanes < lane.shape[0]:
        # Not before a lane is known, for it would be ready from the first: see `fbuf._loop`.
        every = jnp.arange(ring.lanes, dtype=jnp.int32) + _loop.zero_after(lane)
        return goes_around(every)[lane]
    return goes_around(lane)


def _bounds(runs: Runs, ring: Ring, lane: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How many runs there are before each lane, and up to its end: `[B]` each."""
    if ring.lanes == 1:
        return jnp.zeros_like(lane), jnp.broadcast_to(runs.count, lane.shape)
    if ring.lanes < lane.shape[0]:
        edges = jnp.arange(ring.lanes + 1, dtype=jnp.int32) * ring.lane_length
        before = mark_tree.rank(runs.lasts, edges)
        return before[lane], before[lane + 1]
    edges = jnp.concatenate([lane, lane + 1]) * ring.lane_length
    begin, end = mark_tree.rank(runs.lasts, edges).reshape(2, -1)
    return begin, end


def _lane_by_lane(ring: Ring, slots: jax.Array) -> jax.Array:
    """Where slots lie when the lanes come one after the other."""
    step = slots // ring.lanes
    return (slots - step * ring.lanes) * ring.lane_length + step


def _sum(counts: jax.Array) -> jax.Array:
    return jnp.sum(counts, dtype=jnp.int32)  # with 64-bit types on, it would be int64
