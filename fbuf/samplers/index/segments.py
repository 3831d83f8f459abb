"""Segments of starts: to draw an episode first, and then a start in it.

The starts of an episode follow each other in its lane: a segment. A missing start, whose window
lost a row, splits a segment in two. Two bit trees mark the first and the last start of every
segment. In these trees the rows lie lane by lane, each lane from its first slot to its last. The
r-th segment begins with the r-th first start. It ends with the next last start in the same lane,
around the seam if need be. A segment grows at its end, shrinks at its beginning and is split by
removing rows. Each of these changes a few bits.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._pytree import pytree
from fbuf.samplers.chance import random_bits, shards
from fbuf.samplers.index.start_index import Change, StartIndex
from fbuf.samplers.index.starts import int32_sum
from fbuf.samplers.protocol.conditions import Window
from fbuf.samplers.protocol.planned import Plan
from fbuf.samplers.protocol.sampler import Ask
from fbuf.storage.ring import Ring, Span
from fbuf.trees import bit_tree
from fbuf.trees.bit_tree import BitTree
from fbuf.xla.filled import zeros
from fbuf.xla.loop import zero_after
from fbuf.xla.tie import once, tie


@pytree
class Segments:
    """The first and the last start of every segment, lane by lane, and their number."""

    firsts: BitTree
    lasts: BitTree
    count: jax.Array


def empty(ring: Ring) -> Segments:
    """Return an index without segments."""
    none = bit_tree.empty(ring.capacity), bit_tree.empty(ring.capacity)
    return Segments(*none, zeros((), np.int32))


def add(
    segments: Segments, starts: StartIndex, ring: Ring, span: Span, window: Window, change: Change
) -> tuple[Segments, StartIndex]:
    """Index the changes of an add; `starts` is the index after the add.

    Returns:
        The segments, and the starts, whose total is known only after the reads here.
    """
    length, stride, room = window.length, window.stride, ring.lane_length
    in_episode = span.in_episode
    assert in_episode is not None
    written = _lane_by_lane(ring, ring.clamp(span.slots))
    kept = span.slots < ring.capacity
    first_gone = (bit_tree.read(segments.firsts, written) & kept).astype(jnp.int32)
    last_gone = (bit_tree.read(segments.lasts, written) & kept).astype(jnp.int32)
    new = change.is_start.astype(jnp.int32)
    previous = ring.later(change.slots, -stride)
    joined = jnp.zeros_like(new)
    if not window.first_only:
        # The start before belongs to the same episode, and was neither removed nor overwritten.
        same = in_episode.position >= length + stride
        stays = in_episode.newer + length - 1 + stride < room
        joined = jnp.where(same & stays & bit_tree.read(starts.tree, previous), new, 0)
    beheaded, behead = _beheaded(segments, starts, ring, span, window)
    first_gone, last_gone, joined, behead = once((first_gone, last_gone, joined, behead))
    new_firsts = (
        jnp.concatenate([written, _lane_by_lane(ring, change.slots), beheaded]),
        jnp.concatenate([-first_gone, new - joined, behead]),
    )
    new_lasts = (
        jnp.concatenate(
            [written, _lane_by_lane(ring, change.slots), _lane_by_lane(ring, previous)]
        ),
        jnp.concatenate([-last_gone, new, -joined]),
    )
    count = segments.count + int32_sum(new_firsts[1])
    made = Segments(
        firsts=bit_tree.change(segments.firsts, *new_firsts),
        lasts=bit_tree.change(segments.lasts, *new_lasts),
        count=count,
    )
    assert starts.total is not None
    return made, dataclasses.replace(starts, total=tie(starts.total, count))


def _beheaded(
    segments: Segments, starts: StartIndex, ring: Ring, span: Span, window: Window
) -> tuple[jax.Array, jax.Array]:
    """Return the oldest start of each lane, and 1 where it newly begins its segment: `[lanes]`."""
    rows = ring.lane_steps()
    added = span.count // ring.lanes_per_head
    newest = ring.clamp(ring.newest())
    oldest = ring.later(newest, 1 - rows)
    skipped = -(oldest // ring.lanes) % window.stride
    candidate = ring.later(oldest, skipped)
    # A start that this add completed has been indexed already.
    complete = rows - 1 - skipped - (window.length - 1) >= added
    where = _lane_by_lane(ring, candidate)
    is_start = bit_tree.read(starts.tree, candidate)
    mend = complete & is_start & ~bit_tree.read(segments.firsts, where)
    return where, mend.astype(jnp.int32)


def remove(
    segments: Segments, starts: StartIndex, ring: Ring, lost: jax.Array, window: Window
) -> tuple[Segments, StartIndex]:
    """Take out lost starts; `starts` is the index after the removal.

    Returns:
        The segments, and the starts, whose total is known only after the reads here.
    """
    inside, is_one = ring.clamp(lost), lost < ring.capacity
    where = _lane_by_lane(ring, inside)
    first = bit_tree.read(segments.firsts, where) & is_one
    last = bit_tree.read(segments.lasts, where) & is_one
    following = ring.later(inside, window.stride)
    previous = ring.later(inside, -window.stride)
    # A lost start in the middle of a segment leaves two segments.
    begins = (is_one & ~last & bit_tree.read(starts.tree, following)).astype(jnp.int32)
    ends = (is_one & ~first & bit_tree.read(starts.tree, previous)).astype(jnp.int32)
    firsts = jnp.concatenate([-first.astype(jnp.int32), begins])
    lasts = jnp.concatenate([-last.astype(jnp.int32), ends])
    follows, precedes = _lane_by_lane(ring, following), _lane_by_lane(ring, previous)
    looked_at = int32_sum(begins) + int32_sum(ends)
    assert starts.total is not None
    return (
        Segments(
            firsts=bit_tree.change(segments.firsts, jnp.concatenate([where, follows]), firsts),
            lasts=bit_tree.change(segments.lasts, jnp.concatenate([where, precedes]), lasts),
            count=segments.count + int32_sum(firsts),
        ),
        dataclasses.replace(starts, total=tie(starts.total, looked_at)),
    )


@pytree
class SegmentPicks:
    """Draws of starts: the numbers of their segments, int32 `[B]`, and bits, uint32 `[2, B]`."""

    segments: jax.Array
    bits: jax.Array


def plan(counts: jax.Array, ask: Ask) -> Plan:
    """Draw segments of all shards, all equally likely, from int32 `[S]` counts of the shards."""
    first, bits = random_bits.bits(ask.key, (2, 2, ask.batch_size), counts)
    shard, segment = shards.by_count(counts, ask.key, first)
    return Plan(shard, SegmentPicks(segment, bits))


def pick(
    segments: Segments, starts: StartIndex, ring: Ring, picks: SegmentPicks, window: Window
) -> tuple[jax.Array, jax.Array]:
    """Draw a start in each of these segments, all equally likely.

    Returns:
        int32 `[B]` slots, and the numbers of starts of their segments.
    """
    segment, room = picks.segments, ring.lane_length
    first = bit_tree.select(segments.firsts, segment)
    lane = first // room
    # One segment of a lane may go around its seam. Its last start is then the first last start of
    # the lane, before all first starts.
    begin, end = _bounds(segments, ring, lane)
    number = segment + _around_seam(segments, starts, ring, lane)
    last = bit_tree.select(segments.lasts, jnp.where(number < end, number, begin))
    length = (last - first) % room // window.stride + 1
    chosen = random_bits.below(picks.bits, length) * window.stride
    return ring.later(first % room * ring.lanes + lane, chosen), length


def lengths(segments: Segments, ring: Ring, slots: jax.Array, window: Window) -> jax.Array:
    """Count the starts of the segments of these starts: int32 `[B]`."""
    room = ring.lane_length
    where = _lane_by_lane(ring, slots)
    begin = where // room * room
    edges = jnp.concatenate([begin, begin + room])
    first_begin, first_end = bit_tree.rank(segments.firsts, edges).reshape(2, -1)
    last_begin, last_end = bit_tree.rank(segments.lasts, edges).reshape(2, -1)
    # The newest first start up to this start, and the first last start at or behind it. Around the
    # seam: the newest first start of the lane, and its oldest last start.
    before = bit_tree.rank(segments.firsts, where + 1)
    first = bit_tree.select(segments.firsts, jnp.where(before > first_begin, before, first_end) - 1)
    from_here = bit_tree.rank(segments.lasts, where)
    last = bit_tree.select(segments.lasts, jnp.where(from_here < last_end, from_here, last_begin))
    return (last - first) % room // window.stride + 1


def _around_seam(segments: Segments, starts: StartIndex, ring: Ring, lane: jax.Array) -> jax.Array:
    """Return 1 for lanes in which a segment goes around the seam, 0 for others: int32 `[B]`."""

    def goes_around(lane: jax.Array) -> jax.Array:
        # The first slot of a lane has the number of the lane.
        begins = bit_tree.read(segments.firsts, lane * ring.lane_length)
        return (bit_tree.read(starts.tree, lane) & ~begins).astype(jnp.int32)

    if ring.lanes < lane.shape[0]:
        # Not before a lane is known, or it would be ready from the start: see `fbuf.xla.loop`.
        every = jnp.arange(ring.lanes, dtype=jnp.int32) + zero_after(lane)
        return goes_around(every)[lane]
    return goes_around(lane)


def _bounds(segments: Segments, ring: Ring, lane: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Count the segments before each lane, and up to its end: `[B]` each."""
    if ring.lanes == 1:
        return jnp.zeros_like(lane), jnp.broadcast_to(segments.count, lane.shape)
    if ring.lanes < lane.shape[0]:
        edges = jnp.arange(ring.lanes + 1, dtype=jnp.int32) * ring.lane_length
        before = bit_tree.rank(segments.lasts, edges)
        return before[lane], before[lane + 1]
    edges = jnp.concatenate([lane, lane + 1]) * ring.lane_length
    begin, end = bit_tree.rank(segments.lasts, edges).reshape(2, -1)
    return begin, end


def _lane_by_lane(ring: Ring, slots: jax.Array) -> jax.Array:
    """Return the places of slots in the order of one lane after another."""
    step = slots // ring.lanes
    return (slots - step * ring.lanes) * ring.lane_length + step
