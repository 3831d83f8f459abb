"""Wrong lines that the tests must find: `python -m tests.support.mutation` puts them in, one by one.

Each names a file, by its path from that of the package, a text that is there once, and the text in
its place. It also has the kind of bug, and the tests that are likeliest to find it.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One wrong line; `tests` are those to run first, by file and what `pytest -k` takes."""

    file: str
    old: str
    new: str
    kind: str
    tests: tuple[str, str]


def of(file: str, *entries: tuple[str, str, str, tuple[str, str]]) -> list[Mutant]:
    return [Mutant(file, *entry) for entry in entries]


def history(case: int) -> tuple[str, str]:
    """A case of `test_any_history` by its number."""
    return "test_against_oracle.py", f"case{case:02} or every{case:02}"


DATASETS = "../adapters/fbuf_adapters/datasets"
SB3 = "../adapters/fbuf_adapters/sb3"
STAGED = "test_sb3.py", "staged"
ROWS = "test_rows.py", "index or indices"
FLAT, FLAT_PER, ONE_SLOT, LARGE = map(history, range(4))
STRIDE, SEGMENTS, SEGMENTS_DUMMY, SEGMENTS_APART = map(history, range(4, 8))
FIRST, PER_APART, MIXED, SHUFFLED, SHUFFLED_APART, GAPS, SHORT = map(history, range(8, 15))
EPOCHS = "test_shuffled.py", "epoch or sizes"
FAULTS = "test_errors.py", "not misuse and not 64_bit"
REFUSED = "test_errors.py", "misuse"
LED_TO = "test_transition.py", "every_row"
LOST = "test_transition.py", "lost"
N_STEP, SEQUENCE = ("test_views.py", "n_step"), ("test_views.py", "test_sequence")
WINDOWED = "test_views.py", "test_window"
MASKED = "test_masked.py", ""
BRANCHES = "test_branches.py", "branch or sampler"
ENDS_ROOM, END_ROOM = ("test_ends_room.py", ""), ("test_end_room.py", "")
NESTED, COPIED, WORDED = (
    ("test_nested_tensordicts.py", ""),
    ("test_copies.py", ""),
    ("test_words.py", ""),
)
DRAWN_N = "test_views.py", "drawn_n or every_n"
TARGETS = "test_targets.py", ""
NEXT_OF_STEPS = "test_targets.py", "lost or crossing"
FRAMES, WRITTEN = ("test_views.py", "frame_stack"), ("test_views.py", "test_write")
BY_WORDS = "test_rows_by_words.py", "rows or trace"
RETURN, REACH = ("test_return_to_go.py", "test_return"), ("test_return_to_go.py", "test_reach")
FRESH = "test_fresh_first.py", "come_first"
GROUP = "test_grouped.py", "as_likely"
LIVES = "test_limited.py", "beyond"
REMOVABLE = "test_removable.py", "differs"
LIVES_OF_ALL = "test_limited.py", "all_shards"
PLACES_OF_ALL = "test_placing.py", "places_its_own"
THIN_OF_ALL = "test_thin.py", "thinned_as_one"
ANY_OF_ALL = "test_hindsight.py", "any_row_over"
BEFORE_ACTING = "test_limited.py", "before_acting"
GOALS = "test_hindsight.py", "every_row"
SHARES = "test_hindsight.py", "each_share or gives_the_goals"
ANY_ROW = "test_hindsight.py", "few_are_left"
COPIES = "test_hindsight.py", "copies"
PLACED = "test_placing.py", "puts"
FIFO = "test_fifo.py", "history or left_out or kept"
SEVERAL = "test_mixture.py", "several or counts or empty or anew"
MIXTURE = "test_mixture.py", "as_likely"
LIKELY, MASKED = ("test_windows.py", "likely"), ("test_windows.py", "mask")
SUMS, BITS = ("test_sum_tree.py", ""), ("test_bit_tree.py", "")
SEVERAL_TREES = "test_bit_tree.py", "several"
THREEFRY = "test_loops.py", "random_bits"
KEYS = "test_loops.py", "derived_keys"
HALVES = "test_loops.py", "halves"
STORAGE, REDUCED = ("test_storage.py", ""), ("test_sequence_priority.py", "")
EPOCHS, NAMES = ("test_shuffled.py", ""), ("test_ids_at.py", "")
OFTEN = "test_distribution.py", "often or alpha or sorted"
THIN, AROUND = ("test_thin.py", ""), ("test_neighbours.py", "")
SPREAD = "test_neighbours.py", "shards"
FLOOR, OLDER = ("test_floor.py", ""), ("test_old_formats.py", "floor")
EAGER = "test_contracts.py", "eager_calls"
CONSUMED = "test_contracts.py", "consumed"
ONE_ROW = "test_contracts.py", "every_byte and common7"
READ = "test_read.py", ""
IN_PLACE = ("test_in_place.py", "one_trace")
CAUSES = ("test_check_in_place.py", "by_name")
NOTHING = ("test_windows.py", "says_so or above_zero")
BROKEN = (
    "test_transition.py",
    "follow or not_written or jump or mask or long_ago or removed_rows or image",
)
DOOR = "test_call.py", "owners or state_itself or environments"
OUTSIDE = "test_extending.py", "place"
WIDE, OVER_SHARDS = ("test_wide.py", ""), ("test_sharded.py", "exact")


def place(case: int) -> tuple[str, str]:
    """A case of `test_every_byte_is_in_place`."""
    return "test_contracts.py", f"common{case}"


def swept(case: int) -> tuple[str, str]:
    """One of those cases that are in the sweep alone."""
    return "test_contracts.py", f"swept{case:02}"


def free(tests: str) -> tuple[str, str]:
    """Tests of the tensors of a batch."""
    return "test_free_tensors.py", tests


# A line an entry, however long.
# ruff: noqa: E501  lines are quoted as they stand in the code
# fmt: off
MUTANTS = [
    *of(
        "storage/ring.py",
        ("(offset >= cursor[0])", "(offset > cursor[0])", "generation check", FLAT),
        ("self.lap + 1, self.stored & 0", "self.lap, self.stored & 0", "generation check", FLAT),
        ("else self.removed & 0", "else self.removed", "count", FLAT),
        ("by.astype(jnp.uint32)) % size).astype", "by.astype(jnp.uint32)) % (size + 1)).astype", "seam", SEGMENTS),
        ("+ size - 1 - offset.astype", "+ size - offset.astype", "seam", N_STEP),
        ("self.lanes_per_head - 1 - self.newer(slots)", "self.lanes_per_head - self.newer(slots)", "seam", FRAMES),
        ("(offset < cursor[2])", "(offset <= cursor[2])", "count", FLAT),
        ("slots = offset * self.heads + lane", "slots = offset * self.heads", "episode end", SEGMENTS_APART),
        ("self.head.astype(jnp.uint32) + size - step)", "self.head.astype(jnp.uint32) + size - 1)", "episode end", SEGMENTS_DUMMY),
        ("[1][2] == self.head_capacity", "[1][2] != self.head_capacity", "views", SEQUENCE),
    ),
    *of(
        "storage/marks.py",
        ("(flags & NEXT_BEGINS == 0) & lanes", "(flags & (TRUNCATED | 1) == 0) & lanes", "episode end", SEGMENTS_DUMMY),
        ("jnp.where(lanes, jnp.zeros_like(leaf), leaf)", "leaf", "episode end", SEGMENTS),
        (".min(ring.newer(slots), mode", ".max(ring.newer(slots), mode", "windows", STRIDE),
    ),
    *of(
        "storage/ids.py",
        ("live = inside & same & ~ring.is_removed(slot)", "live = inside & same", "fault bit", FLAT),
        ("ring.holds(slot) & (ids.generation == now)", "ring.holds(slot)", "generation check", FLAT),
        ("same = ring.holds(slot) & (ids", "same = (ids", "generation check", FLAT),
        ("outside=~inside & (ids.slot != NO_SLOT),", "outside=~inside,", "fault bit", FLAT),
        ("return ids_of(ring, slots, live)", "return ids_of(ring, slots, inside)", "generation check", NAMES),
        ("only(Ids(slots, ring.generation_of(slots)), mask)", "Ids(slots, ring.generation_of(slots))", "mask", FLAT),
    ),
    *of(
        "storage/append.py",
        ("rank >= max(each - ring.head_capacity, 0)", "rank >= 0", "seam", ("test_windows.py", "room")),
        ("chosen & (count[None] - rank <= ring.head_capacity)", "chosen", "mask", FLAT_PER),
        ("ring.stored.astype(jnp.uint32) + count, size)", "ring.stored.astype(jnp.uint32) + count, size - 1)", "count", FLAT),
        ("ring.lap.astype(jnp.uint32) + laps", "ring.lap.astype(jnp.uint32)", "generation check", FLAT),
        ("gone = held & (replaced & REMOVED > 0)", "gone = replaced & REMOVED > 0", "count", FLAT),
        ("evicted=held & ~gone", "evicted=held", "count", FLAT),
        ("evicted=held & ~gone", "evicted=~gone", "count", FLAT),
        ("around = number >= size", "around = number > size", "seam", FLAT),
        ("return number // jnp.uint32(size), number", "return number // jnp.uint32(size) * 0, number", "generation check", FLAT),
        ("removed += jnp.sum(in_episode.dummy & inside,", "removed += jnp.sum(in_episode.dummy,", "count", SEGMENTS_DUMMY),
        ("inside &= ~in_episode.dummy", "inside &= True", "episode end", ONE_SLOT),
        ("_laps_and_offset(head + dropped, ", "_laps_and_offset(head + count, ", "seam", LARGE),
        ("fits = rank < room.astype(jnp.uint32)[None] * ring.lanes_per_head", "fits = rank < room.astype(jnp.uint32)[None]", "queue", ("test_fifo.py", "history or lockstep")),
    ),
    *of(
        "storage/episodes.py",
        ("dummy = run % 2 == 1", "dummy = run >= 1", "episode end", STRIDE),
        ("ends = ends & ~dummy", "ends = ends & True", "episode end", STRIDE),
        ("before.position[None] + number + 1, number - begin", "before.position[None] + number + 1, number - begin + 1", "windows", ("test_windows.py", "over_two_adds")),
        ("begin = jnp.maximum(begin, _newest(dummy, -_MANY))", "begin = begin * 1", "episode end", STRIDE),
        ("before.intact[None] + number + 1", "before.position[None] + number + 1", "windows", STRIDE),
        ("jnp.where(count > 0, last, before)", "last", "mask", SEGMENTS_APART),
        ("else count[None]) - 1 - number", "else count[None]) - number", "windows", STRIDE),
        ("overwritten & (first == 0)", "overwritten & (first == first[:1])", "mask", ("test_command.py", "holds")),
        ("~cut[first] & ", "", "mask", ("test_minari.py", "moved_without")),
    ),
    *of(
        "storage/store.py",
        ("min(field.dtype.itemsize, 4) for", "4 for", "dtype", STORAGE),
        ("by_words and wide_rows.is_whole(field)", "by_words", "frames", BY_WORDS),
        ("[narrow.get(number, leaf) for", "[leaf for", "views", WRITTEN),
        ("place.byte - place.first * size", "place.byte * 0", "dtype", STORAGE),
        ("-(-count // _PART), body, words", "count // _PART, body, words", "seam", STORAGE),
        ("[:, place.first - first : place.last - first]", "[:, place.first : place.last]", "views", N_STEP),
    ),
    *of(
        "storage/words.py",
        ("return bits.reshape(shape) != 0", "return bits.reshape(shape) > 1", "dtype", STORAGE),
        ("(0, -bits.shape[1] % ratio)", "(-bits.shape[1] % ratio, 0)", "dtype", STORAGE),
    ),
    *of(
        "storage/next_obs.py",
        ("ends = span.drawable & (flags & ENDS > 0)", "ends = span.drawable & (flags & 1 > 0)", "next observations", LED_TO),
        ("(ring.newer(inside) == 0) & ~ends", "(ring.newer(inside) == 0)", "next observations", LED_TO),
        ("kept = ends & (count[None] - rank <= room).reshape(-1)", "kept = ends & True", "next observations", LED_TO),
        ("(before != slots) & looks & there", "(before != slots) & there", "fault bit", LED_TO),
        ("(before != slots) & looks & there", "(before != slots) & looks", "fault bit", ("test_transition.py", "removed_row")),
        ("(kept_at >= 0) & (read_rows(self.owner, inside) == slots)", "kept_at >= 0", "next observations", LED_TO),
        ("aside=ended | newest", "aside=ended", "next observations", LED_TO),
        ("own = jnp.where(newest, slots % lanes, where)", "own = jnp.where(newest, 0, where)", "next observations", LED_TO),
        ("cursor=jnp.stack([end % room, lap + end // room]).astype(jnp.int32)", "cursor=self.cursor", "next observations", LED_TO),
        ("tie(where, before)", "where", "order", place(3)),
    ),
    *of(
        "storage/faults.py",
        ("return fault | bits[0]", "return bits[0]", "fault bit", FAULTS),
        ("return lax.reduce(varying(bits, fault), fault,", "return lax.reduce(varying(bits, fault), np.uint32(0),", "fault bit", FLAT),
        ("return faults | made, True", "return made, True", "fault bit", ("test_errors.py", "vmap")),
    ),
    *of(
        "ops/named.py",
        ("bits_where(found.outside & chosen, ", "bits_where(outside, ", "mask", FLAT),
        ("bits_where(found.stale & chosen, ", "bits_where(stale, ", "mask", FLAT),
        ("jnp.where(found.live & chosen, ", "jnp.where(live, ", "mask", FLAT),
    ),
    *of(
        "ops/remove.py",
        ("slots = jnp.where(last_of_each(slots), slots, state.capacity)", "slots = slots + 0", "count", FLAT),
    ),
    *of(
        "ops/clear.py",
        ("fault=state.fault & jnp.uint32(0)", "fault=state.fault", "fault bit", FLAT),
        ("index=index,", "index=state.index,", "count", FLAT),
        ("(state.index, varying(state.sampler.init(new), state.fault))", "(new, varying(state.sampler.init(new), state.fault))", "order", EAGER),
    ),
    *of(
        "ops/add.py",
        ("flags |= jnp.where(given", "flags = jnp.where(given", "episode end", FLAT),
        ("faults |= lost", "faults |= lost & 0", "fault bit", LED_TO),
        ("append(ring, flags, mask, before=state.fault)", "append(ring, flags, mask, before=state.fault[None][:0])", "order", OUTSIDE),
    ),
    *of(
        "dispatch/read_before_write.py",
        ("fault=tie(state.fault, reads)", "fault=state.fault", "order", OUTSIDE),
    ),
    *of(
        "dispatch/call.py",
        ("state = tied(self.name, state, given.get(\"ids\"))", "state = state", "order", OUTSIDE),
        ("state, given = gradients.stopped(arrays[0]), gradients.stopped_but_rows(given)", "state, given = arrays[0], gradients.stopped_but_rows(given)", "gradient", ("test_gradients.py", "")),
        ("state, given = gradients.stopped(arrays[0]), gradients.stopped_but_rows(given)", "state = gradients.stopped(arrays[0])", "gradient", ("test_gradients.py", "twice")),
        ("return self.run(False, *self", "return self.run(True, *self", "gradient", ("test_gradients.py", "consumes")),
        ("state, rest = in_one_turn(change, state, given, known=state.fault)", "state, rest = change(state, given)", "branch", BRANCHES),
    ),
    *of(
        "xla/loop.py",
        ("zero = zero_after(known.reshape(1))", "zero = jnp.int32(0)", "branch", BRANCHES),
        ("carry = jax.tree.map(varying, state, shapes), blanks", "carry = state, blanks", "branch", ("test_branches.py", "share")),
        ("if jax.tree.structure(shapes) != jax.tree.structure(state):", "if False:", "branch", ("test_loops.py", "structure")),
        ("gather.def_vmap(lambda size, batched, *given: (gather(*_each(size, batched, given)), True))", "gather.def_vmap(lambda size, batched, *given: (gather(*_each(size, batched, (given[0], given[1] * 0))), True))", "seeds", ("test_seeds.py", "trees")),
        ("place = (whole, place[0] - whole * size, *place[1:])", "place = (whole * 0, place[0] - whole * size, *place[1:])", "seeds", ("test_seeds.py", "trees")),
    ),
    *of(
        "xla/platform.py",
        ("return [leaf if is_batched else leaf[0] for leaf, is_batched in pairs]", "return [leaf for leaf, is_batched in pairs]", "seeds", ("test_platform.py", "vmap")),
        ("return tuple(seen[0]) if seen else (False,) * counts[0]", "return (True,) * counts[0]", "seeds", ("test_seeds.py", "condition")),
        ("moved = [number for number, of in enumerate(tangents) if type(of) is not ad.Zero]", "moved = list(range(len(tangents)))\n    tangents = [ad.instantiate_zeros(of) for of in tangents]", "gradient", ("test_platform.py", "tangent")),
    ),
    *of(
        "storage/marks.py",
        ("if batched[0] or batched[2]:", "if batched[0]:", "seeds", ("test_seeds.py", "counted")),
        ("if batched[0] or batched[2]:", "if batched[2]:", "seeds", ("test_seeds.py", "counted")),
        ("if batched[0] or batched[2]:", "if True:", "seeds", ("test_seeds.py", "condition")),
    ),
    *of(
        "samplers/prioritized.py",
        ("if self.start_conditions.every_row and not self.may_draw_nothing:", "if not self.may_draw_nothing:", "count", ("test_seeds.py", "cannot_be_drawn")),
        ("if self.start_conditions.every_row and not self.may_draw_nothing:", "if self.start_conditions.every_row:", "count", ("test_seeds.py", "cannot_be_drawn")),
        ("if self.start_conditions.every_row and not self.may_draw_nothing:", "if False:", "seeds", ("test_seeds.py", "condition")),
    ),
    *of(
        "samplers/mixture.py",
        ("return self.window > 1 or (by_priority_alone and self.priorities.may_draw_nothing)", "return self.window > 1", "count", ("test_seeds.py", "cannot_be_drawn")),
    ),
    *of(
        "samplers/index/start_index.py",
        ("return lax.cond((removed == 0).all(), ", "return lax.cond((removed == 0).any(), ", "seeds", ("test_seeds.py", "one_with_holes")),
    ),
    *of(
        "mesh/add.py",
        ("return in_one_turn(change, shard, largest, new_rows, number, known=shard.fault)[0]", "return change(shard, largest, new_rows, number)[0]", "branch", ("test_branches.py", "mesh")),
    ),
    *of(
        "ops/sample.py",
        ("weight=jnp.where(batch.mask, draw.weight, 0)", "weight=draw.weight", "weights", LOST),
        ("random_bits.fold_in(key, 1) if view", "key if view", "views", ("test_views.py", "the_key")),
        ("reads = (draw.probability,)", "reads = ()", "order", OUTSIDE),
        ("jnp.where(first < 0, jnp.int32(check.LARGEST_INT), first)", "first", "seam", ("test_shuffled.py", "below_0")),
    ),
    *of(
        "ops/sample_mixed.py",
        ("key=lambda at: counts[at] - exact[at]", "key=lambda at: exact[at] - counts[at]", "count", SEVERAL),
        ("weights.renormalised(log_weight, together.mask)", "together.weight", "weights", SEVERAL),
        ("random_bits.fold_in(key, number), beta", "key, beta", "mask", SEVERAL),
    ),
    *of(
        "ops/read.py",
        ("jnp.where(live, flat.slot, 0), live, shape", "jnp.where(live, flat.slot, 0), live | True, shape", "read", READ),
    ),
    *of(
        "views/gather.py",
        ("mask &= reading.known", "mask &= True", "mask", LOST),
        ("untouched = type(view) is Item and not zeros and part is None", "untouched = not zeros and part is None", "frames", BY_WORDS),
        ("type(view) is Item and not zeros and part is None", "type(view) is Item and part is None", "frames", BY_WORDS),
        ("type(view) is Item and not zeros and part is None", "type(view) is Item and not zeros", "frames", ("test_rows_by_words.py", "mesh")),
        ("slot = tie(batch.ids.slot, *reads, *flags, *source.reads)", "slot = batch.ids.slot", "order", place(2)),
        ("lambda leaf: select(mask, leaf), data", "lambda leaf: leaf, data", "read", READ),
        ("if zeros and not view.time_major:", "if zeros:", "read", READ),
        ("jnp.swapaxes(flags, 0, 1) if view.time_major", "flags if view.time_major", "views", READ),
        ("flags = select(mask, reading.flags)", "flags = reading.flags", "mask", READ),
    ),
    *of(
        "ops/newest_ids.py",
        ("jnp.arange(count - 1, -1, -1,", "jnp.arange(0, count, 1,", "read", READ),
    ),
    *of(
        "ops/probability.py",
        ("jnp.where(live, found, 0)", "found", "read", FLAT),
    ),
    *of(
        "ops/write.py",
        ("last_of_each(slots), slots,", "last_of_each(slots[::-1])[::-1], slots,", "order", WRITTEN),
    ),
    *of(
        "ops/sequence_priority.py",
        ("priority = jnp.where(priority < 0, jnp.sqrt(priority), priority)", "priority = priority * 1", "weights", REDUCED),
        ("jnp.maximum(loss_mask.sum(axis=-1), 1)", "jnp.maximum(loss_mask.shape[-1], 1 + 0 * loss_mask.sum(axis=-1))", "weights", REDUCED),
    ),
    *of(
        "ops/neighbours.py",
        ("live[:, None] & (there == wished)", "(there == wished)", "generation check", AROUND),
        ("live[:, None] & (there == wished)", "live[:, None]", "episode end", AROUND),
        ("jnp.clip(wished, -before, jnp.maximum(after, 0))", "jnp.clip(wished, -before, last)", "episode end", AROUND),
        ("jnp.clip(wished, -before, jnp.maximum(after, 0))", "jnp.clip(wished, first, jnp.maximum(after, 0))", "episode end", AROUND),
        ("following(reader, slots, last + 1).same_episode", "following(reader, slots, last + 1).unbroken", "episode end", AROUND),
        ('reader.check_lane("steps span", last - first + 1)', "reader.check_lane('steps span', 1)", "views", AROUND),
        ("first, last = min(0, *steps), max(0, *steps)", "first, last = min(steps), max(0, *steps)", "views", AROUND),
    ),
    *of(
        "mesh/neighbours.py",
        ("jnp.where(slot == NO_SLOT, -1, jnp.asarray(ids.shard)[..., None])", "jnp.asarray(ids.shard)[..., None] + 0 * slot", "mask", SPREAD),
        ("found.slot - NO_SLOT", "found.slot", "seam", SPREAD),
    ),
    *of(
        "ops/thin.py",
        ("counts = mask & (error >= 0)", "counts = (error >= 0)", "mask", THIN),
        ("counts = mask & (error >= 0) & (error <=", "counts = mask & (error <=", "mask", THIN),
        (" & (error <= float(jnp.finfo(jnp.float32).max))", "", "mask", THIN),
        ("jnp.where(counts, error, 0)", "error", "mask", THIN),
        ("of_all = jnp.sum(counts, dtype=jnp.int32).astype(jnp.float32)", "of_all = error.shape[0]", "count", THIN),
        ("ids=only(cut.ids, rows.mask)", "ids=cut.ids", "mask", THIN),
        ("        if True in time_first:", "        if False:", "seam", ("test_thin.py", "refused")),
        ("select(mask, cut.terminated)", "cut.terminated", "mask", THIN),
        ("select(mask, cut.truncated)", "cut.truncated", "mask", THIN),
        ("jnp.where(mask, cut.probability * rows.times, 0)", "jnp.where(mask, cut.probability, 0)", "weights", THIN),
        ("jnp.where(mask, cut.weight / rows.times, 0)", "jnp.where(mask, 1 / rows.times, 0)", "weights", THIN),
        ("error * _scale(error.max())", "error * 1", "tree rounding", THIN),
        ("jnp.where(value.max() > 0, value, counts.astype(jnp.float32))", "value", "weights", THIN),
        ("jnp.where(value.max() > 0, value, counts.astype(jnp.float32))", "jnp.where(value.max() > 0, value, 1)", "mask", THIN),
        ("value = jnp.where(value >= _SMALLEST, value, 0)", "value = value + 0", "tree rounding", THIN),
        ("if jnp.shape(batch.terminated) == (size, size):", "if False:", "views", THIN),
        ("        if jnp.shape(leaf)[:1] != (size,):", "        if False:", "views", THIN),
        ("there = jnp.broadcast_to(share.max() > 0, (count,))", "there = jnp.ones(count, bool)", "mask", THIN),
    ),
    *of(
        "dispatch/read_before_write.py",
        ("return waiting(state, reads) if reads else state", "return state", "order", IN_PLACE),
        ("    if len(here) < len(reads):\n", "    if False:\n", "order", ("test_in_place.py", "own_trace")),
        (" if _trace_of(read) is _trace_of(state.fault)]", "]", "order", ("test_in_place.py", "own_trace")),
        ("if named is None or read is not named]", "if named is None]", "order", IN_PLACE),
        ("self.of(fault).append(weakref.ref(read))", "self.of(fault).append(lambda: read)", "order", ("test_in_place.py", "outlives")),
    ),
    *of(
        "ops/read.py",
        ("    read_before_write.note_read(state, batch.ids.slot)\n", "", "order", IN_PLACE),
    ),
    *of(
        "mesh/sample.py",
        ("    read_before_write.note_read(state, batch.ids.slot)\n", "", "order", ("test_in_place.py", "mesh")),
    ),
    *of(
        "ops/check_in_place.py",
        ("    refuse_copies(written_whole(program, arrays), names, note)\n", "", "order", CAUSES),
        ("    _refuse_lost(program.not_in_place(kept), names, note)\n", "", "order", ("test_check_in_place.py", "no_result_takes")),
        ("(lowered.out_info)) > sum(donated)", "(lowered.out_info)) > len(donated)", "order", ("test_check_in_place.py", "cannot_read or only_read")),
        ("return [all(of_buffer) for", "return [True for", "order", ("test_check_in_place.py", "cannot_read or only_read")),
        ("[number in named for number", "[number == 0 for number", "order", ("test_check_in_place_pmap.py", "")),
        ("    if any(map(is_small, buffers)):\n", "    if False:\n", "order", CAUSES),
        ("    if not any(map(large_arrays, buffers)):\n", "    if False:\n", "order", ("test_check_in_place.py", "one_capacity")),
    ),
    *of("ops/slow.py", ("if large > _SLOWER * small:", "if False:", "order", ("test_check_in_place.py", "times"))),
    *of(
        "ops/larger.py",
        ("    return bytes_on_a_device(buffer, state.ring.flags) < LARGE", "    return bytes_on_a_device(buffer, state.ring.flags) < 9 * LARGE", "order", ("test_check_in_place.py", "as_it_is")),
        ("        for _ in buffer.fault.shape:\n", "        for _ in ():\n", "order", ("test_check_in_place.py", "each_of_a_batch")),
        ("(first * buffer.num_shards, *rest)", "(first, *rest)", "order", ("test_check_in_place.py", "each_of_a_batch")),
        ("_placed(larger, sharding) if isinstance", "larger if isinstance", "order", ("test_check_in_place.py", "several_devices")),
        ("-(-_ROWS // state.capacity) | 1", "1", "order", CAUSES),
    ),
    *of("ops/buffers_in.py", ("    if sharding is not None:", "    if False:", "order", ("test_check_in_place.py", "several_devices"))),
    *of("ops/init.py", ("places = old.writes is not None", "places = False", "order", ("test_check_in_place.py", "larger_capacity"))),
    *of("ops/resize.py", (", ends, shards=old.shards)", ", ends)", "order", ("test_check_in_place.py", "each_of_a_batch"))),
    *of(
        "xla/program.py",
        ("if name not in fused:", "if name in fused:", "order", CAUSES),
        (' or root.opcode in WRITES_ROWS:', ":", "order", CAUSES),
        ("([a-z]\\w*)", "([a-z]+\\d*)", "order", ("test_check_in_place.py", "dtype")),
        ("kind is not None and dtype.isbuiltin == 1", "kind is not None", "order", ("test_check_in_place.py", "dtype")),
    ),
    *of(
        "xla/whole.py",
        ("        if not _keeps(of, computing)\n", "        if False\n", "order", CAUSES),
        ('computing.path.endswith("/while")', "False", "order", ("test_check_in_place.py", "by_name and loop")),
        ("dict.fromkeys(split, Cause.BRANCH) | near", "near", "order", ("test_check_in_place.py", "by_name and branch")),
        ("dict.fromkeys(split, Cause.BRANCH) | near", "dict.fromkeys(split, Cause.BRANCH)", "order", ("test_check_in_place.py", "by_name and select")),
        ("if any((array, branch) in copied for branch in of.branches)", "if True", "order", ("test_check_in_place.py", "behind_a_branch")),
    ),
    *of(
        "ops/add.py",
        ("nothing = ring.has_come_around() & ~sampler.can_sample(index, ring)", "nothing = ring.has_come_around() & False", "episode end", NOTHING),
        ("nothing = ring.has_come_around() & ~sampler", "nothing = ~sampler", "episode end", NOTHING),
        ("new.following, observation=observation)", "new.following)", "episode end", BROKEN),
    ),
    *of(
        "samplers/prioritized.py",
        ("return self.window > 1 or self.eps == self.floor == 0", "return self.window > 1", "episode end", NOTHING),
        ("return self.window > 1 or self.eps == self.floor == 0", "return self.window > 1 or self.eps == 0", "fault bit", FLOOR),
        ("jnp.maximum(priority + jnp.float32(self.eps), jnp.float32(self.floor))", "jnp.maximum(priority, jnp.float32(self.floor)) + jnp.float32(self.eps)", "weights", FLOOR),
        ("return self.alpha, self.eps, self.floor", "return self.alpha, self.eps, 0.0", "weights", FLOOR),
        ("return max(1.0, self.floor) ** self.alpha", "return 1.0", "weights", FLOOR),
        ("if self._first_priority > priority_index.largest_storable(ring):", "if False:", "fault bit", REFUSED),
        ("        default = priority_index.default(index, self._first_priority)", "        default = priority_index.default(index, 1.0)", "weights", FLOOR),
    ),
    *of(
        "checkpoint/config.py",
        ('return {**data, "sampler": _with_new_options(data["sampler"])}', "return data", "seam", OLDER),
        ("{name: _with_new_options(of) for name, of in options.items()}", "options", "seam", OLDER),
    ),
    *of(
        "storage/next_obs.py",
        ("        whole = (span.count <= ring.head_capacity)", "        whole = (span.count >= 0)", "episode end", BROKEN),
        ("jnp.where(newest, slots, -1)", "slots", "episode end", BROKEN),
        ("is_open = span.drawable & (flags & ENDS == 0)", "is_open = span.drawable", "episode end", BROKEN),
        ("    same = (one == other) | ((one != one) & (other != other))", "    same = one == other", "episode end", BROKEN),
        ("    return same | (near & finite)\n", "    return same\n", "episode end", BROKEN),
        ("jnp.where(follows & span.drawable, place, -1)", "jnp.where(follows, place, -1)", "mask", BROKEN),
        ("    return same | (near & finite)\n", "    return same | near\n", "episode end", BROKEN),
        ("_ROUNDING * size + _BESIDE_OTHERS * of_row + _SMALLEST", "_ROUNDING * size + _SMALLEST", "episode end", BROKEN),
        ("_ROUNDING * size + _BESIDE_OTHERS * of_row + _SMALLEST", "_ROUNDING * size + _BESIDE_OTHERS * of_row", "episode end", BROKEN),
        ("chosen = np.random.default_rng(0).choice(size, _COMPARED, replace=False)", "chosen = np.arange(0, size, -(-size // _COMPARED))", "episode end", BROKEN),
        ("        follows &= ~ring.is_removed(one_earlier)\n", "", "episode end", BROKEN),
        ("newest = lax.cummax(jnp.where(there, number, -1), axis=0)", "newest = lax.cummax(jnp.where(there, number, number), axis=0)", "episode end", BROKEN),
        ("kept, lost = self._keep(ring, tie(span.slots, broken), ends", "kept, lost = self._keep(ring, span.slots, ends", "order", ("test_contracts.py", "")),
        ("rows.write(tie(where, broken), next_observation)", "rows.write(where, next_observation)", "order", ("test_next_obs.py", "")),
    ),
    *of(
        "ops/raise_on_fault.py",
        ("    return state.ring.has_come_around() & ~state", "    return state.ring.has_come_around() | ~state", "episode end", ("test_windows.py", "draw_again")),
        ("    return bool(jax.device_get(nothing(state)).any())", "    return bool(jax.device_get(nothing(state)).all())", "episode end", ("test_windows.py", "draw_again")),
    ),
    *of(
        "storage/ring.py",
        ("(self.stored == self.head_capacity).any()", "(self.stored == self.head_capacity).all()", "episode end", ("test_windows.py", "in_vain")),
        ("((self.older(slots) == 0) & self.full(slots))", "((self.older(slots) == 0) & False)", "episode end", ("test_resize.py", "grows")),
        ("return (flags & CUT > 0) | ((", "return ((", "episode end", ("test_resize.py", "grows")),
    ),
    *of(
        "mesh/shards.py",
        ("full = next(at for at, block in enumerate(blocks) if block.size)", "full = 0", "seam", ("test_empty_leaves.py", "shards")),
        ("                if block.size\n", "                if True\n", "seam", ("test_empty_leaves.py", "shards")),
    ),
    *of(
        "ops/load.py",
        ('if episodes == "end" and may_have_open_episodes(state.ring):', "if False:", "episode end", ("test_save.py", "open_episodes")),
        ('if episodes == "end" and may_have_open_episodes(state.ring):', 'if episodes == "end":', "compile", ("test_save.py", "compiles_no_program")),
        ('    check.choice("load", "episodes", episodes, get_args(Episodes))\n', "", "door", ("test_save.py", "open_episodes")),
    ),
    *of(
        "mesh/load.py",
        ('loaded._replace(state=cut_episodes(loaded.state))', 'loaded', "episode end", ("test_sharded_disk.py", "open_episodes")),
    ),
    *of(
        "dispatch/host_arrays.py",
        ("        return np.array(leaf)\n", "        return leaf\n", "door", DOOR),
        ("check.array(function, argument + jax.tree_util.keystr(path), leaf)", "del path", "door", ("test_call.py", "64_bits")),
        ("leaf = jax.dtypes.canonicalize_dtype(np.uint64).type(leaf)", "return leaf", "door", ("test_call.py", "unsigned")),
        ("jnp.iinfo(jax.dtypes.canonicalize_dtype(np.int64)).max:", "2**31 - 1:", "door", ("test_call.py", "unsigned")),
    ),
    *of(
        "dispatch/call.py",
        ("if donate and len(set(map(id, leaves))) < len(leaves):", "if False:", "door", DOOR),
        ("returned()(program) if self._holds else program", "program", "frames", BY_WORDS),
        ("if types in self.known else self.checked_static(types, fixed)", "", "door", ("test_call.py", "equals")),
        ("            given = self.passed(self.of_types, given)\n            for state in", "            for state in", "door", ("test_call.py", "equals")),
        ("if is_deleted(state.fault):", "if is_deleted(None):", "door", CONSUMED),
        ("            donate = changes\n", "            donate = False\n", "door", EAGER),
        ("                _origins(frozenset(map(type, [*arrays, *tree_leaves(args[1:count])])))\n                is not _OF_DEVICE", "                False", "door", DOOR),
        ("                or fault.is_deleted()\n", "", "door", CONSUMED),
        ("not in known)", "is None)", "door", ("test_call.py", "equals")),
        ("(changes and type(fault.sharding)", "(False and type(fault.sharding)", "door", DOOR),
        (" and self.of_values.keys().isdisjoint(given)", "", "door", ("test_call.py", "misuse")),
        ("self.by_position(arrays, arguments | fixed)", "arrays, arguments | fixed", "door", ("test_call.py", "one_program")),
        ("if all(passed[argument] is value for argument, value in fixed.items()):", "if True:", "door", ("test_call.py", "numpys")),
        ("if not all(isinstance(state.fault, jax.Array) for state in states):", "if False:", "door", ("test_call.py", "numpy_arrays")),
        ("self._type.plain(before[0]), given)", "self._type.plain(before[0]), copies)", "door", ("test_guards.py", "cannot_hold")),
        ("any(issubclass(of, int | float) for of in types)", "any(issubclass(of, float) for of in types)", "door", ("test_call.py", "misuse")),
    ),
    *of(
        "dispatch/flat_state.py",
        ("if form is self else", "if True else", "door", ("test_resize.py", "smaller")),
        ("_forms.setdefault((structure, sampler), made)", "made", "door", ("test_flat_state.py", "lost")),
        ("return form_of, (self.structure", "return Form, (self.structure", "door", ("test_flat_state.py", "has_the_form")),
        ("threading.RLock()", "threading.Lock()", "door", ("test_flat_state.py", "amid")),
        ("GetAttrKey(_NAMES[first.idx])", "GetAttrKey(_NAMES[0])", "door", ("test_flat_state.py", "names_of_their")),
        ("donate_argnums=0 if donate else ()", "donate_argnums=()", "door", EAGER),
        ("self.programs.get((plain, donate))", "None", "door", ("test_flat_state.py", "programs")),
        ("found = state.__dict__.get(\"_held\")", "found = None", "door", ("test_flat_state.py", "alone")),
    ),
    *of(
        "dispatch/parse.py",
        ("envs_first=len(lead) == 2 and not time_major", "envs_first=False", "door", DOOR),
        ("    if jnp.ndim(leaf):\n        return False\n", "", "door", ("test_call.py", "misuse")),
        ("isinstance(leaf, int) and not isinstance(leaf, bool)", "type(leaf) is int", "door", ("test_call.py", "misuse")),
        ("lead[-1 if time_major else 0] == num_envs", "lead[-1] == num_envs", "door", ("test_windows.py", "refused")),
    ),
    *of(
        "xla/tie.py",
        ("jnp.where(never, jnp.zeros_like(value), value)", "value", "order", place(0)),
        ("lax.full_like(number, 2)", "lax.full_like(number, -1)", "order", FLAT),
    ),
    *of(
        "xla/duplicates.py",
        ("(position[:, None] < position[None, :])", "(position[:, None] > position[None, :])", "order", SUMS),
        ("[ordered[1:] != ordered[:-1], jnp.ones(1, bool)]", "[jnp.ones(1, bool), ordered[1:] != ordered[:-1]]", "order", SUMS),
    ),
    *of(
        "xla/rows.py",
        ("if slots.shape[0] == 1:", "if slots.shape[0] == -1:", "order", ("test_contracts.py", "single")),
        ("else rows[:, first:last]", "else rows[:, : last - first]", "views", N_STEP),
        ("together = 4 // leaf.dtype.itemsize", "together = 4", "frames", BY_WORDS),
        ("row % _WIDEST_LOAD == 0", "row % 4 == 0", "frames", BY_WORDS),
        ("        _returned.reset(before)", "        pass", "frames", BY_WORDS),
    ),
    *of(
        "samplers/index/start_index.py",
        ("jnp.where(ahead >= size, ahead - size, ahead)", "ahead", "seam", MIXTURE),
        ("bit_tree.read(index.bits, written) & (span.slots < ring.capacity)", "bit_tree.read(index.bits, written)", "mask", MASKED),
        ("by = span.drawable.astype(jnp.int32) - span.evicted.astype(jnp.int32)", "by = span.drawable.astype(jnp.int32)", "count", FLAT),
        ("total = index.total + int32_sum(new) - int32_sum(gone)", "total = index.total + int32_sum(new)", "count", STRIDE),
        ("bit_tree.read(index.tree, inside) & (found < ring.capacity)", "bit_tree.read(index.tree, inside)", "mask", FLAT),
        ("ring.heads == 1 and ring.removed is None", "ring.removed is None", "count", REMOVABLE),
        ("return slots if index.bits is None", "return slots * 0 if index.bits is None", "count", REMOVABLE),
        ("        return ring.holds(slots)\n", "        return slots >= 0\n", "read", REMOVABLE),
        ("found = jnp.where(last_of_each(found), found, ring.capacity)", "found = found + 0", "windows", STRIDE),
        ("return index.total is None and ring.heads == 1", "return index.total is None", "count", SHUFFLED_APART),
        ("lax.cond(removed == 0, ", "lax.cond(removed >= 0, ", "mask", FLAT),
        ("written = tie(written, index.total)", "written = written + 0", "order", swept(11)),
    ),
    *of(
        "samplers/index/starts.py",
        ("in_episode.intact >= window.length", "in_episode.intact > window.length", "windows", STRIDE),
        ("(in_episode.newer + earlier < ring.lane_length)", "(in_episode.newer + earlier <= ring.lane_length)", "seam", SEGMENTS),
        ("in_episode.position == window.length", "in_episode.position >= window.length", "windows", FIRST),
        ("(slots // ring.lanes) % window.stride", "(slots // ring.lanes + 1) % window.stride", "windows", STRIDE),
        ("ring.later(inside[:, None], -earlier)", "ring.later(inside[:, None], earlier)", "windows", STRIDE),
        ("in_episode.position > window.length", "in_episode.position >= window.length", "windows", SHORT),
        ("contains &= lax.cummax(ended.astype(jnp.int32), axis=1) == 0", "pass", "windows", SHORT),
        (".at[:, 0].set(False)", "", "windows", SHORT),
        ("contains &= earlier <= ring.older(inside)[:, None]", "pass", "seam", ("test_windows.py", "oldest")),
    ),
    *of(
        "samplers/index/segments.py",
        ("jnp.where(same & stays & bit_tree", "jnp.where(same & bit_tree", "by-episode", GAPS),
        ("same = in_episode.position >= length + stride", "same = in_episode.position > length + stride", "by-episode", SEGMENTS),
        ("new - joined, behead", "new, behead", "by-episode", SEGMENTS),
        ("mend = complete & is_start &", "mend = is_start &", "by-episode", SEGMENTS),
        ("begins = (is_one & ~last &", "begins = (is_one &", "by-episode", GAPS),
        ("ends = (is_one & ~first &", "ends = (is_one &", "by-episode", GAPS),
        ("length = (last - first) % room // window.stride", "length = (last - first) // window.stride", "seam", SEGMENTS),
        ("segment + _around_seam(segments, starts, ring, lane)", "segment + 0", "seam", GAPS),
        ("jnp.where(number < end, number, begin)", "number", "seam", SEGMENTS_DUMMY),
        ("random_bits.below(picks.bits, length) * window.stride", "random_bits.below(picks.bits, length)", "by-episode", SEGMENTS),
        ("total=tie(starts.total, looked_at)", "total=starts.total", "order", swept(11)),
        ("return (last - first) % room // window.stride", "return (last - first) // window.stride", "read", SEGMENTS),
        ("jnp.where(before > first_begin, before, first_end) - 1", "before - 1", "read", GAPS),
        ("jnp.where(from_here < last_end, from_here, last_begin)", "from_here", "read", SEGMENTS),
        ("bit_tree.rank(segments.firsts, where + 1)", "bit_tree.rank(segments.firsts, where)", "read", GAPS),
    ),
    *of(
        "samplers/prioritized.py",
        ("return jnp.where(valid, stored, default), valid", "return stored, valid", "fault bit", FLAT_PER),
        ("bits_where(~valid & span.drawable", "bits_where(~valid", "fault bit", FLAT_PER),
        ("jnp.maximum(raised, float(_FLOAT32.tiny))", "raised", "tree rounding", FAULTS),
        ("jnp.where(base > 0, jnp.maximum(raised, float(_FLOAT32.tiny)), 0)", "jnp.maximum(raised, float(_FLOAT32.tiny))", "weights", ONE_SLOT),
        ("& (stored <= priority_index.largest_storable(ring))", "& (stored < jnp.inf)", "fault bit", FAULTS),
        ("smallest(value.min(), picked.axes)", "value.max()", "weights", FLAT_PER),
        ("sum_tree.aggregate(index.tree, Aggregate.LARGEST_INVERSE)", "sum_tree.aggregate(index.tree, Aggregate.SUM)", "weights", LARGE),
        ("mean = total / jnp.maximum(shards.sum_of_counts(totals.count), 1)", "mean = total", "weights", SEVERAL),
        ("jax.random.permutation(order_key, batch_size)", "jnp.arange(batch_size)", "order", OFTEN),
    ),
    *of(
        "samplers/index/priority_index.py",
        ("jnp.maximum(sum_tree.values(index.tree, slots), 0)", "sum_tree.values(index.tree, slots)", "read", FIRST),
        ("jnp.where(jnp.signbit(old), -values, values)", "values", "windows", PER_APART),
        ("evicted = kept & _is_start(before)", "evicted = _is_start(before)", "count", MASKED),
        ("activated = jnp.where(is_start, slots, ring.capacity)", "activated = slots", "windows", FIRST),
        ("span, -values, activated)", "span, values, activated)", "windows", FIRST),
        ("return jnp.where(most > 0, most, first)", "return most", "weights", FLAT_PER),
        ("lost = last_of_each(found) & (found", "lost = (found", "count", ("test_windows.py", "at_once")),
        ("jnp.concatenate([found, slots]), jnp.concatenate([-jnp.abs(old), -new])", "jnp.concatenate([slots, found]), jnp.concatenate([-new, -jnp.abs(old)])", "windows", PER_APART),
        ("return jnp.maximum(index.largest_ever,", "return jnp.minimum(index.largest_ever,", "weights", ONE_SLOT),
        ("slots=tie(span.slots, before)", "slots=span.slots", "order", place(4)),
    ),
    *of(
        "samplers/chance/weights.py",
        ("jnp.where(mask, log_weight, none)", "log_weight", "weights", SEVERAL),
        ("0.5: jnp.sqrt", "0.5: jnp.abs", "weights", ("test_weights.py", "")),
        ("log_weight = -power * jnp.log(relative)", "log_weight = power * jnp.log(relative)", "weights", MIXED),
    ),
    *of(
        "samplers/uniform.py",
        ("relative = jnp.where(mask, total / each, 1)", "relative = jnp.where(mask, each / total, 1)", "weights", GAPS),
        ("jnp.where(drawn, 1 / total, 0)", "1 / total", "read", STRIDE),
    ),
    *of(
        "samplers/fresh_first.py",
        ("starts.int32_sum(change.evicted) + starts.overwritten_at_once(ring, span, window)", "starts.int32_sum(change.evicted)", "count", FRESH),
        ("starts.int32_sum(change.evicted) + starts.over", "starts.over", "count", FRESH),
        ("is_fresh & draw.mask", "is_fresh", "mask", ("test_fresh_first.py", "count_of_a_batch")),
        ("start_index.is_start(fresh, ring, found) & ~waits", "start_index.is_start(fresh, ring, found)", "resize", ("test_fresh_first.py", "resize")),
        ("if not _alike(window, other._fresh_window)", "if False", "resize", ("test_fresh_first.py", "another_window")),
        ("missed=_counted(index.missed, old.missed)", "missed=index.missed", "count", ("test_fresh_first.py", "missed")),
        ("before = (old_slots - (earlier + into) * old.lanes)", "before = (old_slots - into * old.lanes)", "resize", ("test_fresh_first.py", "serves")),
        ("before = (old_slots - (earlier + into) * old.lanes)", "before = (old_slots - earlier * old.lanes)", "resize", ("test_fresh_first.py", "behind_a_resize")),
        ("fresh, _ = start_index.remove(index.fresh, ring, slots, self._fresh_window)", "fresh = index.fresh", "mask", FRESH),
        ("dataclasses.replace(self.start_conditions, stride=self.stride)", "self.start_conditions", "mask", FRESH),
        ("log_weight = jnp.where(fresh, 0, drawn.log_weight)", "log_weight = drawn.log_weight", "weights", FRESH),
        ("probability = jnp.where(fresh, 1, drawn.probability)", "probability = drawn.probability", "weights", FRESH),
        ("jnp.roll(equal + jnp.clip(left - before, 0, spare), first)", "equal + jnp.clip(left - before, 0, spare)", "exchange", ("test_fresh_first.py", "shards")),
        ("served = picks.fresh & there", "served = picks.fresh", "exchange", ("test_fresh_first.py", "shards")),
    ),
    *of(
        "samplers/index/fresh_order.py",
        ("before = bit_tree.rank(fresh.tree, ring.head)", "before = bit_tree.rank(fresh.tree, ring.head * 0)", "order", FRESH),
        ("is_set & (rows > 0) & (rows < window.length)", "is_set & (rows < 0)", "mask", FRESH),
        ("jnp.sort(jnp.where(is_begun, own, _NONE)) - lanes", "jnp.sort(jnp.where(is_begun, own, _NONE))", "order", FRESH),
        ("there = number if begun is None else number - begun[1].astype(jnp.int32)", "there = number", "mask", FRESH),
        ("age = (step - ring.head[of]) % length", "age = step", "order", FRESH),
        ("ends = jnp.cumsum(passed + 1,", "ends = jnp.cumsum(passed,", "order", FRESH),
    ),
    *of(
        "samplers/limited.py",
        ('if self.max_age is not None and "missed" in found', "if False", "count", ("test_fresh_first.py", "come_first or cut")),
    ),
    *of(
        "samplers/index/starts.py",
        ("if steps + earlier <= ring.lane_length", "if steps <= ring.lane_length", "count", FRESH),
        ("is_start &= ~in_episode.dummy & (back", "is_start &= (back", "count", ("test_fresh_first.py", "without_a_start")),
        ("        is_start &= span.meant\n", "        pass\n", "count", FRESH),
        ("there &= _in_one_episode(ring, inside, earlier)", "there &= earlier > 0", "resize", ("test_fresh_first.py", "merges")),
    ),
    *of(
        "ops/lanes.py",
        ("if isinstance(of, Dealt) or of.first == 0:", "if of.number:", "count", ("test_fresh_first.py", "add_up")),
    ),
    *of(
        "samplers/index/group_index.py",
        ("& (span.slots < ring.capacity))", ")", "mask", GROUP),
        ("jnp.where((groups >= 0) & (groups < number), groups, number)", "jnp.where(groups >= 0, jnp.minimum(groups, number - 1), number)", "mask", GROUP),
        ("slots = tie(span.slots, before, evicted)", "slots = tie(span.slots, before)", "order", BEFORE_ACTING),
        ("tie(slots, before, is_start)", "tie(slots, before)", "order", BEFORE_ACTING),
        ("is_start = bit_tree.read(index.bits, old) & named", "is_start = bit_tree.read(index.bits, old)", "mask", GROUP),
        ("before = jnp.cumsum(index.counts, dtype=jnp.int32) - index.counts", "before = jnp.cumsum(index.counts, dtype=jnp.int32)", "seam", GROUP),
        ("older = before[1] - before[0]", "older = before[1] * 0", "order", GROUP),
        ("lost = bit_tree.read(index.bits, place) & (slots < ring.capacity)", "lost = bit_tree.read(index.bits, place)", "mask", GROUP),
        ("jnp.where(last_of_each(found), found, ring.capacity)", "found", "count", GROUP),
    ),
    *of(
        "samplers/grouped.py",
        ("0 < share / whole < _LEAST", "0 < share / whole < 0", "weights", ("test_grouped.py", "tiny")),
        ("return Plan(shard, GroupPicks(group, rank - before))", "return Plan(shard, GroupPicks(group, rank))", "exchange", ("test_grouped.py", "mesh")),
        ("return jnp.where(counts > 0, shares, 0)", "return shares", "mask", GROUP),
        ("relative = jnp.where(mask, likely * total, 1)", "relative = jnp.where(mask, 1 / likely, 1)", "weights", GROUP),
        ("return jnp.where(group_index.is_start(index, ring, slots), likely, 0)", "return likely", "read", GROUP),
    ),
    *of(
        "ops/named.py",
        ("in_order(flat.slot, state.fault)", "flat.slot, state.fault", "order", ("test_in_place.py", "behind_a_row")),
    ),
    *of(
        "ops/write.py",
        ("if looked_at := row_fields.among(sampler, state.storage.layout, changed):", "if looked_at := {}:", "mask", GROUP),
    ),
    *of(
        "host/contents.py",
        ("looked_at = {n: given_rows[n] for n in", "looked_at = {n: given_rows[n] * 0 for n in", "read", ("test_grouped.py", "host")),
    ),
    *of(
        "samplers/protocol/nested.py",
        ("and _specs(node) == specs", "", "seam", ("test_nested.py", "own_is_found or two_like")),
        ("if len(parts) == 1:", "if parts:", "seam", ("test_nested.py", "two_like")),
        ("if type(sampler).inner is Wrapper.inner:", "if True:", "seam", ("test_nested.py", "is_found")),
    ),
    *of(
        "samplers/limited.py",
        ("span = dataclasses.replace(span, evicted=change.evicted)", "span = dataclasses.replace(span)", "count", LIVES),
        ("(ring.older(written) >= self.max_age)", "(ring.older(written) > self.max_age)", "seam", LIVES),
        ("jnp.where(change.is_start, change.slots, ring.capacity)", "jnp.where(~change.is_start, change.slots, ring.capacity)", "mask", ("test_limited.py", "beyond or late")),
        ("gone &= last_of_each(jnp.where(gone, slots, ring.capacity))", "gone &= True", "count", LIVES),
        ("+ earlier_of_each(counted) <", "<", "count", LIVES),
        ("picked._replace(positions=number)", "picked._replace(positions=number * 0)", "seam", LIVES_OF_ALL),
        ("jnp.where(own, slots, ring.capacity))", "slots)", "count", LIVES_OF_ALL),
        ("return self._counted(index, ring, slots, there)", "return self._counted(index, ring, slots, there & False)", "count", LIVES_OF_ALL),
        ("removed=ring.count() - total", "removed=ring.removed", "count", LIVES),
        ("slots = jnp.where(is_live, slots, ring.capacity)", "slots = slots * 1", "mask", ("test_limited.py", "shape3 or shape4")),
        ("            slots = jnp.where(gone, ring.capacity, slots)\n", "", "resize", ("test_limits_anew.py", "low")),
        ("again = jnp.where(lost, slots, ring.capacity)", "again = jnp.full_like(slots, ring.capacity)", "resize", ("test_limits_anew.py", "more")),
        ("            and window.stride == 1 ", "            and window.stride == 0 ", "resize", ("test_limited.py", "old_versions_stay")),
        ("ages[0] <= ages[1]", "ages[0] < ages[1]", "resize", ("test_limits_anew.py", "stay_so")),
        ("gone &= ~other._used_up(old, before)", "gone &= True", "resize", ("test_limits_anew.py", "judged")),
        ("return ask._replace(batch_size=2 * ask.batch_size) if self.refuses_picks else ask", "return ask", "count", ("test_limited.py", "twice_as_many")),
    ),
    *of(
        "samplers/index/lives.py",
        ("uses = write_rows(uses, slots, jnp.zeros_like(slots))", "uses = uses * 1", "count", LIVES),
        ("slots = tie(span.slots, change.evicted)", "slots = span.slots", "order", BEFORE_ACTING),
        ("uses = write_rows(lives.uses, slots, read_rows(old.uses, old_slots))", "uses = lives.uses * 1", "resize", ("test_limited.py", "resize")),
        ("return ~bit_tree.read(lives.live.tree, slots)", "return bit_tree.read(lives.live.tree, slots)", "resize", ("test_limits_anew.py", "judged")),
        ("is_stale = ~versions.may_be_drawn(lives.versions, ring.clamp(slots))", "is_stale = versions.may_be_drawn(lives.versions, ring.clamp(slots))", "mask", LIVES),
        ("live & versions.may_be_drawn(lives.versions, slots)", "live", "mask", ("test_limited.py", "not_reach")),
    ),
    *of(
        "samplers/chance/candidates.py",
        ("jnp.where(allowed, rank, count)", "jnp.minimum(rank, count)", "mask", LIVES),
        ("position < taken.draws", "position <= taken.draws", "count", LIVES),
        ("renormalised(drawn.log_weight, mask, axes)", "renormalised(drawn.log_weight, mask)", "seam", LIVES_OF_ALL),
    ),
    *of(
        "mesh/sample.py",
        ("return own & sampler.allowed", "return sampler.allowed", "mask", LIVES_OF_ALL),
        ("if sampler.refuses_picks:", "if False:", "mask", LIVES_OF_ALL),
    ),
    *of(
        "storage/next_obs.py",
        ("(read_rows(self.owner, lane) == one_earlier)", "(self.owner[lane] == one_earlier)", "order", ("test_in_place.py", "row_alone")),
    ),
    *of(
        "mesh/update_by_id.py",
        ("jnp.where(every.shard == number, every.slot, NO_SLOT)", "every.slot", "seam", LIVES_OF_ALL),
    ),
    *of(
        "mesh/thin.py",
        ("own = (place >= 0) & (place < here)", "own = place < here", "seam", THIN_OF_ALL),
        ("first = per_device.device_number(state) * part", "first = 0 * part", "seam", THIN_OF_ALL),
        ("jnp.where(own.mask, cut.ids.shard, NO_SLOT)", "cut.ids.shard", "mask", THIN_OF_ALL),
    ),
    *of(
        "mesh/any_rows.py",
        ("jnp.where((shard == number)[:, None], found, 0)", "jnp.where((shard >= number)[:, None], found, 0)", "seam", ANY_OF_ALL),
        ("shard.ring.live()", "shard.ring.count()", "count", ANY_OF_ALL),
    ),
    *of(
        "views/goals.py",
        ('words[at] == "random", of_any)', "False, of_any)", "mask", ("test_hindsight.py", "some_any_rows_over")),
    ),
    *of(
        "samplers/reservoir.py",
        ("key = random_bits.fold_in(key, index.shard)", "pass", "seam", ("test_placing.py", "choose_apart")),
        ("rows.astype(jnp.float32) * _stands_for(index, ring)", "rows.astype(jnp.float32)", "count", PLACES_OF_ALL),
        ("totals.rows[shard]), None)", "totals.rows[0]), None)", "seam", PLACES_OF_ALL),
    ),
    *of(
        "trees/smallest.py",
        ("(begin + steps >= at)", "(begin >= 0)", "seam", ("test_smallest.py", "next_one")),
        ("at = at // FANOUT + 1", "at = at // FANOUT", "seam", ("test_smallest.py", "next_one")),
        ("jnp.where(place > number,", "jnp.where(place >= number,", "seam", ("test_smallest.py", "next_one")),
        ("jnp.where(node < 0, _first(everywhere == most), node)", "jnp.where(node < 0, 0, node)", "seam", ("test_smallest.py", "next_one")),
    ),
    *of(
        "samplers/evict_lowest.py",
        ("newest = jnp.where(kept, slot[0], newest)", "newest = newest + 0", "order", ("test_smallest.py", "ring")),
        ("jnp.where(newest + 1 < ring.capacity, newest + 1, 0)", "newest", "seam", ("test_smallest.py", "ring")),
        ("dataclasses.replace(index.priorities, largest_of_shards=None)", "index.priorities", "seam", PLACES_OF_ALL),
        ('smallest_stats: ClassVar[frozenset[str]] = frozenset({"lowest"})', "smallest_stats: ClassVar[frozenset[str]] = frozenset()", "count", ("test_placing.py", "lowest_of_all")),
    ),
    *of(
        "mesh/add.py",
        ("index = sampler.of_shard(shard.index, number)", "index = sampler.of_shard(shard.index, number * 0)", "seam", ("test_placing.py", "do_not_keep_the_same")),
    ),
    *of(
        "samplers/index/starts.py",
        ("(ring.older(inside) >= earlier)", "(ring.older(inside) >= 0)", "resize", ("test_fresh_first.py", "resize_at_any_time")),
    ),
    *of(
        "samplers/index/versions.py",
        ("return read_rows(versions.rows, slots) >= versions.lowest", "return read_rows(versions.rows, slots) > versions.lowest", "mask", LIVES),
        ("jnp.maximum(versions.lowest, lowest)", "lowest", "mask", ("test_limited.py", "lower_version")),
        ("is_stale = there & ~may_be_drawn(versions, slots)", "is_stale = ~may_be_drawn(versions, slots)", "mask", LIVES),
    ),
    *of(
        "samplers/index/priority_index.py",
        ("num_starts=index.num_starts - starts.int32_sum(lost)", "num_starts=index.num_starts", "count", LIVES),
    ),
    *of(
        "xla/duplicates.py",
        ("position[:, None] > position[None, :]", "position[:, None] >= position[None, :]", "count", ("test_limited.py", "earlier")),
        ("set(position - begin, unique", "set(begin, unique", "count", ("test_limited.py", "earlier")),
    ),
    *of(
        "storage/place.py",
        ("stored = ring.stored[0] + count", "stored = ring.stored[0] + jnp.sum(kept, dtype=jnp.int32)", "count", PLACED),
        ("count = jnp.sum(kept & ~held, dtype=jnp.int32)", "count = jnp.sum(~held, dtype=jnp.int32)", "count", PLACED),
        ("removed -= jnp.sum(was_removed, dtype=jnp.int32)", "removed -= 0", "count", PLACED),
        ("was_removed = held & once(ring.is_removed(inside))", "was_removed = once(ring.is_removed(inside))", "count", PLACED),
        ("evicted=held & ~was_removed", "evicted=held", "count", PLACED),
        ("write_rows(ring.writes, slots, writes + 1)", "write_rows(ring.writes, slots, writes)", "generation check", PLACED),
        ("flags | jnp.where(held, changed, unchanged)", "flags", "mask", ("test_placing.py", "loaded")),
        ("lap = ring.lap[0] + is_full.astype(jnp.int32)", "lap = ring.lap[0]", "seam", ("test_placing.py", "loaded")),
    ),
    *of(
        "samplers/reservoir.py",
        ("fits = (drawn.high == 0) & (drawn.low < ring.capacity)", "fits = drawn.low < ring.capacity", "seam", ("test_placing.py", "word")),
        ("is_free = (so_far.high == 0) & (so_far.low <= ring.capacity)", "is_free = so_far.low <= ring.capacity", "seam", ("test_placing.py", "word")),
        ("slots = jnp.where(mask, slots.astype(jnp.int32), ring.capacity)", "slots = slots.astype(jnp.int32)", "mask", PLACED),
        ("slots = jnp.where(last_of_each(slots), slots, ring.capacity)", "slots = slots * 1", "count", ("test_placing.py", "puts or population or host")),
        ("jnp.where(fits, drawn.low, ring.capacity)", "drawn.low % ring.capacity", "order", ("test_placing.py", "ever_added")),
        ("ring.lap[0], *index.added)", "ring.lap[0])", "order", ("test_placing.py", "ever_added")),
    ),
    *of(
        "samplers/evict_lowest.py",
        ("(value >= least)", "(value > least)", "order", PLACED),
        ("jnp.where(any_free, hole, lowest)", "lowest", "mask", PLACED),
        ("free = start_index.retire(free, ring, jnp.where(fills, slot, ring.capacity))", "free = start_index.retire(free, ring, jnp.where(fills & False, slot, ring.capacity))", "count", PLACED),
        ("slots = jnp.where(last_of_each(slots), slots, ring.capacity)", "slots = slots * 1", "count", PLACED),
        ("kept = meant & (has_room", "kept = (has_room", "mask", PLACED),
        ("jnp.where(kept, values, 0).max()", "values.max()", "order", PLACED),
        ("bits_where(~valid & span.drawable, Fault", "bits_where(valid & span.drawable, Fault", "fault bit", ("test_placing.py", "faults")),
    ),
    *of(
        "ops/end_episode.py",
        ("    if state.ring.writes is not None:", "    if state.ring.writes is None and False:", "mask", ("test_placing.py", "loaded")),
    ),
    *of(
        "samplers/mixture.py",
        ("jnp.where(wraps, total - before + up_to, up_to - before)", "up_to - before", "seam", MIXED),
        ("* ring.lanes + (ring.lanes - 1 - slots % ring.lanes)", "* ring.lanes", "weights", MIXED),
        ("(totals.starts, by_priority, totals.recent)", "(totals.starts, totals.starts, totals.recent)", "weights", ("test_mixture.py", "emptied")),
        ("jnp.where(start_index.is_start(index.starts, ring, slots), likely, 0)", "likely", "read", MIXED),
    ),
    *of(
        "samplers/shuffled.py",
        ("random_bits.fold_in(ask.key, epoch)", "ask.key", "order", EPOCHS),
        ("sparse | start_index.is_start(index, ring, found) | (total == 0)", "sparse | (found >= 0)", "count", SHUFFLED),
        ("mask = (picked.positions < count - ask.step[1]) & (total > 0)", "mask = picked.positions < count - ask.step[1]", "mask", SHUFFLED),
        ("ranks = first + jnp.minimum", "ranks = jnp.minimum", "count", EPOCHS),
        ("random_bits.fold_in(start_key, first)", "start_key", "by-episode", EPOCHS),
    ),
    *of("samplers/chance/permutation.py", ("lax.clz(size - 1), 6)", "lax.clz(size - 1), 1)", "order", EPOCHS)),
    *of(
        "samplers/chance/random_bits.py",
        ("(bits >> 8).astype", "(bits >> 9).astype", "tree rounding", OFTEN),
        ("second += keys[(turn + 2) % 3]", "second += keys[turn % 3]", "tree rounding", THREEFRY),
        ("for number in numbers:", "for number in numbers[:1]:", "order", KEYS),
        ("key * parts) * part, np.int32(count - part))", "key * parts) * part, np.int32(count))", "tree rounding", THREEFRY),
        ("every(keys), 1", "every(keys[::-1]), 1", "tree rounding", THREEFRY),
    ),
    *of(
        "xla/loop.py",
        ("half = -(-count // 2)", "half = max(count // 2, 1)", "order", HALVES),
        ("in_room(make(source, batch), batch)[:-1]", "in_room(make(source, batch), batch)[1:]", "order", HALVES),
        ("lax.fori_loop(zero, 2, body", "lax.fori_loop(zero, 1, body", "order", HALVES),
    ),
    *of(
        "trees/levels.py",
        ("(nodes - 1) // FANOUT + 3", "(nodes - 1) // FANOUT + 2", "seam", SUMS),
        (
            "by_halves(lambda leaves, slots: gathered(leaves.reshape(-1), slots), leaves, slots)",
            "by_halves(gathered, leaves.reshape(-1), slots)", "order", ONE_ROW,
        ),
        ("node = reduce(read_row(sources[0], row, buffer), several)", "node = reduce(read_row(sources[0], row // 2, buffer), several)", "tree rounding", LARGE),
    ),
    *of(
        "trees/bit_tree.py",
        ("passed = lax.le(passed_count, rank)", "passed = lax.lt(passed_count, rank)", "tree rounding", BITS),
        ("beyond = low <= rank", "beyond = low < rank", "tree rounding", BITS),
        ("jnp.where(at < child, -1, jnp", "jnp.where(at <= child, -1, jnp", "tree rounding", BITS),
        ("count + 1 - _bit(word, slot)", "count + 1", "tree rounding", BITS),
        ("own = own + jnp.broadcast_to(first, shape)", "pass", "seeds", SEVERAL_TREES),
        ("words = _behind(first, slots >> _WORD_SHIFT)", "words = slots >> _WORD_SHIFT", "seeds", SEVERAL_TREES),
        ("start = mine[-1] + start", "pass", "seeds", SEVERAL_TREES),
        ("own = varying(lax.broadcasted_iota(jnp.int32, shape, 0), every[0])", "own = lax.broadcasted_iota(jnp.int32, shape, 0)", "seeds", ("test_seeds.py", "over_devices")),
    ),
    *of(
        "trees/running_sums.py",
        ("lax.le(passed, target)", "lax.lt(passed, target)", "tree rounding", SUMS),
        ("return row * FANOUT + first_in", "return row + first_in", "tree rounding", SUMS),
        ("passed = end <= targets", "passed = end < targets", "tree rounding", SUMS),
        ("entry(ends, row) + whole", "whole", "tree rounding", SUMS),
    ),
    *of(
        "trees/sum_tree.py",
        ("jnp.where(part > 0, 1 / jnp.where(part > 0, part, 1), 0)", "1 / jnp.where(part > 0, part, 1)", "tree rounding", ("test_errors.py", "rarest")),
        ("            part = _larger(part, jnp.zeros_like(part))", "            part = jnp.abs(part) if which is Aggregate.LARGEST else _larger(part, jnp.zeros_like(part))", "windows", ("test_windows.py", "no_draw_reaches")),
        ("-0.0 if inactive else 0.0", "0.0", "windows", FIRST),
        ("slots, jnp.where(slots < tree.capacity, new, 0))", "slots, new)", "mask", FLAT_PER),
        ("jnp.abs(value), mode", "value, mode", "windows", FIRST),
        ("touched = jnp.concatenate([slots, activated])", "touched = slots", "windows", SUMS),
        ("rows = jnp.concatenate([rows, activated])", "rows = rows + 0", "windows", SUMS),
        ("activated = row_and_child(activated)[0]", "activated = row_and_child(activated)[0] + 1", "windows", SUMS),
        ("jnp.where(rows < count, rows, rows - count)", "jnp.minimum(rows, count - 1)", "seam", LARGE),
        ("        depth += 1\n", "        depth += 2\n", "windows", SUMS),
        ("jnp.minimum(rows * FANOUT + child, count - 1)", "rows * FANOUT + child", "count", SUMS),
        ("return tie(slots, first_of(tree.nodes[-1])[0, 0])", "return slots", "order", swept(19)),
    ),
    *of(
        "views/steps.py",
        ("_all_so_far((flags & REMOVED == 0) & stored)", "(flags & REMOVED == 0) & stored", "views", N_STEP),
        ("unbroken & _all_so_far(went_on)", "unbroken & _all_so_far(goes_on)", "episode end", N_STEP),
        ("jnp.broadcast_to(number <= newer", "jnp.broadcast_to(number < newer", "seam", N_STEP),
    ),
    *of(
        "views/n_step.py",
        ("(flags & TERMINATED > 0)", "(flags & 3 > 0)", "episode end", N_STEP),
        ("last = count[:, None] - 1", "last = count[:, None] * 0", "views", N_STEP),
        ("same_episode &= number < _drawn(", "same_episode &= number <= _drawn(", "views", DRAWN_N),
        ("jnp.int32(most - fewest + 1)", "jnp.int32(most - fewest)", "views", DRAWN_N),
        ("return fewest + random_bits", "return 1 + random_bits", "views", DRAWN_N),
        ("(same_episode, count, flags, known)", "(steps.same_episode, count, flags, known)", "views", DRAWN_N),
        ("return isinstance(self.n, tuple)", "return False", "views", DRAWN_N),
        ("nothing = ~same_episode[:, 0] | ", "nothing = ", "mask", MASKED),
        ("            same_episode &= reader.mask[:, None]\n", "            pass\n", "mask", MASKED),
        ("            same_episode &= meant[:, None]\n", "", "mask", MASKED),
        ("flags, self.next_of, slots)", "flags, self.next_of)", "mask", LED_TO),
        ("count = jnp.where(meant, count, 1)", "pass", "mask", LED_TO),
    ),
    *of(
        "views/hindsight.py",
        ("            meant = reader.meant(known)\n", "            pass\n", "mask", MASKED),
        ("            relabelled &= rows.each(meant)\n", "            pass\n", "mask", MASKED),
    ),
    *of(
        "views/return_to_go.py",
        ("        if mask is not None:\n", "        if False:\n", "mask", MASKED),
    ),
    *of(
        "views/frame_stack.py",
        ("        if reader.mask is not None:  # a", "        if False:  # a", "mask", MASKED),
    ),
    *of(
        "views/window.py",
        ("        if reader.mask is not None:  # a", "        if False:  # a", "mask", MASKED),
    ),
    *of(
        "ops/ends_room.py",
        ("(jnp.arange(room, dtype=jnp.int32)[:, None] - kept.cursor[:1]) % room", "jnp.arange(room, dtype=jnp.int32)[:, None] + kept.cursor[:1] * 0", "seam", ENDS_ROOM),
        (" & (old_place[jnp.maximum(old_owner, 0)] == before)", "", "seam", ENDS_ROOM),
        ("used &= ring.flags[inside] & REMOVED == 0", "pass", "mask", ENDS_ROOM),
        ("room % more), turns]", "0), turns]", "seam", ENDS_ROOM),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/buffer/_end_room.py",
        ("        if left < 0:\n", "        if False:\n", "adapters", END_ROOM),
        ("        self._left = 0\n\n    def fits", "        pass\n\n    def fits", "adapters", END_ROOM),
        ("        self.counts = False\n", "", "adapters", END_ROOM),
        ("np.count_nonzero(ended & mask)", "np.count_nonzero(ended)", "adapters", END_ROOM),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/crossing/_containers.py",
        ("(whole[key] if key else whole).names = names", "pass", "adapters", NESTED),
        ("nodes.get(path, around)", "nodes.get(path, ((), ()))", "adapters", NESTED),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/buffer/_copies.py",
        ("        vars(self).update(saved.get(\"attributes\", {}))\n", "", "adapters", COPIED),
        ("_become(copy.deepcopy(self.__getstate__(), memo), ", "_become(self.__getstate__(), ", "adapters", COPIED),
        ("self._become(saved, \"end\")", "self._become(saved, \"keep\")", "adapters", ("test_ends.py", "anew")),
        ("copy.deepcopy(self.__getstate__(), memo), \"keep\")", "copy.deepcopy(self.__getstate__(), memo), \"end\")", "adapters", ("test_ends.py", "midst")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/buffer/_from_state.py",
        ("name in options and options[name] != arguments[name]", "False", "adapters", COPIED),
        ("    owner.require(\"from_state\")\n", "", "adapters", COPIED),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/crossing/_words.py",
        ("if isinstance(getattr(fbuf, last, None), type) else said[begins.end() :]", "if True else said[begins.end() :]", "adapters", WORDED),
        ("        if begins is None:\n", "        if False:\n", "adapters", WORDED),
    ),
    *of(
        "targets/steps.py",
        ("there & shifted(there) & ~(term", "there & ~(term", "mask", TARGETS),
        ("& shifted(there) & ~(terminated | truncated)", "& shifted(there) & ~terminated", "episode end", TARGETS),
        ("& shifted(there) & ~(terminated | truncated)", "& shifted(there) & ~truncated", "episode end", TARGETS),
        ("known, at_end = there & (terminated | goes_on)", "known, at_end = there & (terminated | goes_on | truncated)", "bootstrap", TARGETS),
        ("known, at_end = there & (terminated | goes_on)", "known, at_end = there & goes_on", "bootstrap", TARGETS),
        ("known, at_end = there & (terminated | goes_on)", "known, at_end = there", "bootstrap", TARGETS),
        ("known, at_end = there, self", "known, at_end = there & ~truncated, self", "bootstrap", TARGETS),
        ("jnp.where(terminated, 0, jnp.where(goes_on, shifted(own), at_end))", "jnp.where(goes_on, shifted(own), at_end)", "bootstrap", TARGETS),
        ("jnp.where(terminated, 0, jnp.where(goes_on, shifted(own), at_end))", "jnp.where(terminated | truncated, 0, jnp.where(goes_on, shifted(own), at_end))", "bootstrap", TARGETS),
        ("jnp.where(goes_on, shifted(own), at_end)", "jnp.where(goes_on, own, at_end)", "bootstrap", TARGETS),
        ("jnp.where(terminated, 0, jnp.where(goes_on, shifted(own), at_end))", "jnp.where(terminated, 0, shifted(own))", "bootstrap", TARGETS),
        ("learn=learn & known", "learn=known", "mask", TARGETS),
        ("learn=learn & known", "learn=learn", "mask", TARGETS),
        ("return data.valid & drawn, ", "return data.valid | drawn, ", "mask", TARGETS),
        ("return data.valid & drawn, data.loss_mask & drawn", "return data.valid, data.loss_mask", "mask", TARGETS),
        ("0 if self._time_first else -1)\n        return", "-1)\n        return", "order", TARGETS),
        ("steps if self._time_first or steps.ndim", "steps if steps.ndim", "order", TARGETS),
        ("jax.lax.stop_gradient(jnp.asarray(value).astype(jnp.float32))\n        return self._by_time", "jnp.asarray(value).astype(jnp.float32)\n        return self._by_time", "weights", TARGETS),
        ("isinstance(data, NStepTransition) or not (", "not (", "order", TARGETS),
        ("jnp.where(self.known, self.reward + self.gamma * self.following - value, 0)", "self.reward + self.gamma * self.following - value", "mask", TARGETS),
        ("isinstance(value, Rollout) or isinstance(data", "isinstance(value, Rollout | Sample) or isinstance(data", "order", TARGETS),
    ),
    *of(
        "targets/backward.py",
        ("jnp.where(kept == 0, own, own + kept * later)", "own + kept * later", "mask", TARGETS),
        ("(own, kept), reverse=True", "(own, kept), reverse=False", "order", TARGETS),
        ("[steps[1:], jnp.zeros_like(steps[:1])]", "[steps[1:], steps[-1:]]", "seam", TARGETS),
    ),
    *of(
        "targets/ratio.py",
        ("jnp.exp(by_learner - by_actor)", "jnp.exp(by_actor - by_learner)", "weights", TARGETS),
        ("jnp.where(known, jnp.exp(by_learner - by_actor), 0)", "jnp.exp(by_learner - by_actor)", "mask", TARGETS),
    ),
    *of(
        "targets/lambda_returns.py",
        ("(1 - kept) * path.following", "(1 - path.lambda_) * path.following", "bootstrap", TARGETS),
        ("jnp.where(path.known, own, path.value)", "own", "mask", TARGETS),
    ),
    *of(
        "targets/gae.py",
        ("jnp.where(path.linked, path.gamma", "jnp.where(path.known, path.gamma", "seam", TARGETS),
    ),
    *of(
        "targets/vtrace.py",
        ("jnp.where(path.linked, path.gamma * path.lambda_, 0)", "path.gamma * path.lambda_", "seam", TARGETS),
        ("kept = later * jnp.minimum(likelier, ", "kept = later * jnp.maximum(likelier, ", "weights", TARGETS),
        ("jnp.asarray(c_bar)", "jnp.asarray(rho_bar)", "weights", TARGETS),
        ("shifted(error), 0)", "error, 0)", "seam", TARGETS),
        ("back(rho * gained)", "back(gained)", "weights", TARGETS),
    ),
    *of(
        "targets/retrace.py",
        ("path.gamma * shifted(kept)", "path.gamma * kept", "seam", TARGETS),
        ("jnp.where(path.linked, path.gamma * shifted(kept), 0)", "path.gamma * shifted(kept)", "seam", TARGETS),
        ("path.surprise(taken)", "path.surprise(path.value)", "bootstrap", TARGETS),
    ),
    *of(
        "views/frame_stack.py",
        ("jnp.arange(self.k - 1, -1, -1, dtype", "jnp.arange(self.k, dtype", "order", FRAMES),
    ),
    *of(
        "views/window.py",
        ("dtype=jnp.int32)[:, None] - 1", "dtype=jnp.int32)[:, None]", "episode end", WINDOWED),
        ("jnp.clip(wished, -before, ", "jnp.clip(wished, -before - 1, ", "episode end", WINDOWED),
        ("valid[name] = found == wished", "valid[name] = found <= wished", "mask", WINDOWED),
        ("if self.pad == \"zero\":", "if False:", "views", WINDOWED),
        ("for offset in (0, *offsets)", "for offset in offsets", "views", WINDOWED),
        ("-min(every))[:, None]", "-min(every) - 1)[:, None]", "views", WINDOWED),
    ),
    *of(
        "views/steps.py",
        ("cut = (before > older)", "cut = (before >= older)", "seam", FRAMES),
        ("jnp.where(cut, before - 1, most)", "jnp.where(cut, before, most)", "episode end", FRAMES),
    ),
    *of(
        "views/sequence.py",
        ("after_end, ~ring.full(slots))", "after_end, True)", "views", SEQUENCE),
        ("jnp.all(found.reshape(valid.shape) | ~valid, axis=1)", "jnp.all(found.reshape(valid.shape) | True, axis=1)", "mask", NEXT_OF_STEPS),
        ("jnp.all(found.reshape(valid.shape) | ~valid, axis=1)", "jnp.all(found.reshape(valid.shape), axis=1)", "mask", NEXT_OF_STEPS),
        ("            valid &= known[:, None]\n", "", "mask", NEXT_OF_STEPS),
        ("rows = steps.slots.reshape(-1), steps.flags.reshape(-1)", "rows = steps.slots.reshape(-1), 0 * steps.flags.reshape(-1)", "episode end", NEXT_OF_STEPS),
        ("before & NEXT_BEGINS > 0", "before & ENDS > 0", "views", SEQUENCE),
        ("(number < self.burn_in + self.length)", "(number <= self.burn_in + self.length)", "views", SEQUENCE),
        ("flags = jnp.where(valid, steps.flags, 0)", "flags = steps.flags", "mask", SEQUENCE),
        ("valid &= reader.mask[:, None]", "valid &= True", "mask", READ),
        ("data = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), data)", "data = dataclasses.replace(data)", "views", READ),
    ),
    *of(
        "views/episode.py",
        ("if forward else (0, ENDS | REMOVED)", "if forward else (0, REMOVED)", "episode end", REACH),
        ("> 0, step + number - 1, last)", "> 0, step + number, last)", "episode end", REACH),
    ),
    *of(
        "views/return_to_go.py",
        ("beyond = jnp.float32(float(self.gamma) ** CHUNK)", "beyond = jnp.float32(1)", "views", RETURN),
        ("number[None] <= count[:, None]", "number < count[:, None]", "views", RETURN),
    ),
    *of(
        "views/hindsight.py",
        ("judge = jax.vmap(judge, in_axes=(None, 0))", "judge = jax.vmap(judge, in_axes=(None, None))", "views", COPIES),
        ("whether, which = random_bits.split(key, 2)", "whether, which = key, key", "views", GOALS),
    ),
    *of(
        "views/goals.py",
        ("before + end + 1) - before", "before + end) - before", "views", SHARES),
        ("random_bits.below(words[:2], reach + 1)", "random_bits.below(words[:2], reach)", "episode end", SHARES),
        ("jnp.minimum(geometric(words, self.discount), reach)", "jnp.minimum(geometric(words, self.discount), end)", "episode end", SHARES),
        ("least = jnp.minimum(self.nearest, end)", "least = self.nearest + 0 * end", "episode end", SHARES),
        ("least = jnp.minimum(self.nearest, end)", "least = 0 * end", "views", SHARES),
        ("(word >= limit)", "(word <= limit)", "probability", SHARES),
        ("round(end / ends[-1] * 2**32)", "round(end * 2**31)", "probability", SHARES),
        ("tuple((word, share) for word, share in strategy if share)", "tuple((word, 1.0) for word, share in strategy if share)", "probability", SHARES),
        ("which, inside, anywhere = random_bits.split(key, 3)", "which, inside, anywhere = key, key, key", "probability", SHARES),
        ("jnp.where(number == at, way, chosen)", "jnp.where(number >= at - 1, way, chosen)", "probability", SHARES),
        ("random_bits.fold_in(key, turn)", "random_bits.fold_in(key, 0 * turn)", "probability", SHARES),
        ("jnp.swapaxes(made.reshape(words, self.copies, -1), 1, 2)", "jnp.swapaxes(made.reshape(self.copies, words, -1), 0, 1)[:, :1].repeat(self.copies, 1).swapaxes(1, 2)", "probability", COPIES),
    ),
    *of(
        "views/any_row.py",
        ("promise_in_bounds\") & REMOVED == 0\n\n    def draw", "promise_in_bounds\") & 0 == 0\n\n    def draw", "mask", ANY_ROW),
        ("random_bits.below(words(turn), ring.count())", "random_bits.below(words(turn), live)", "count", ANY_ROW),
        ("jnp.where(done, slots, draw(turn))", "draw(turn)", "mask", ANY_ROW),
        ("random_bits.below(words(TURNS), live)", "random_bits.below(words(TURNS), live - 1)", "count", ANY_ROW),
        ("side=\"right\"", "side=\"left\"", "seam", ANY_ROW),
        ("ranks - (ends[head] - ring.stored[head])", "ranks - ends[head]", "seam", ANY_ROW),
        ("offset * ring.heads + head", "offset * ring.heads", "seam", ANY_ROW),
        ("(flags & REMOVED == 0) & ring.holds(slots)", "(flags & REMOVED == 0)", "count", ANY_ROW),
        ("inside & (flags & REMOVED == 0)", "inside", "mask", ANY_ROW),
        ("ends[None] <= left[:, None]", "ends[None] < left[:, None]", "seam", ANY_ROW),
        ("up_to <= left[:, None]", "up_to < left[:, None]", "seam", ANY_ROW),
        ("begin + (block * BLOCK)", "begin + (block * CHUNK)", "seam", ANY_ROW),
        ("jnp.where(here, ends[block] - counts[block], ends[-1])", "jnp.where(here, ends[block], ends[-1])", "count", ANY_ROW),
        ("left - up_to[:, -1], slots, missing & ~here", "left, slots, missing & ~here", "count", ANY_ROW),
    ),
    *of(
        "samplers/chance/geometric.py",
        ("power / (1 + power)", "power", "probability", ("test_hindsight.py", "geometric")),
        (".astype(jnp.int32) << digit", ".astype(jnp.int32) << 0", "probability", ("test_hindsight.py", "geometric")),
    ),
    *of(
        "ops/lanes.py",
        ("(STANDS_IN | UNFINISHED)", "UNFINISHED", "next observations", ("test_minari.py", "stood_in")),
        ("(STANDS_IN | UNFINISHED)", "STANDS_IN", "episode end", ("test_report.py", "load_cut")),
        ("is_open, jnp.uint8(TRUNCATED | UNFINISHED)", "is_open, jnp.uint8(TRUNCATED)", "episode end", ("test_report.py", "join_cut")),
        (".set(lap + 1)", ".set(lap)", "generation check", ("test_resize.py", "stale")),
        ("(before & NEXT_BEGINS == 0)", "(before & ENDS == ENDS)", "episode end", ("test_resize.py", "smaller")),
        ("gone = (step < taken[None]) & (flags", "gone = (step < taken[None]) & False & (flags", "mask", ("test_resize.py", "smaller")),
        ("index, faults = new.sampler.take_over(\n            index, ring, own, Origin(of.state.sampler, of.state.index, slots)\n        )", "faults = jnp.zeros(1, jnp.uint32)", "weights", ("test_resize.py", "smaller")),
        ("fault |= of.state.fault", "fault |= 0", "queue", ("test_resize.py", "faults")),
        ("dataclasses.replace(new.ring, open=still_open)", "dataclasses.replace(new.ring, open=new.ring.open)", "episode end", ("test_resize.py", "smaller")),
        ("read = kept - jnp.minimum(kept, unread)", "read = kept * 0", "queue", ("test_fifo.py", "resize")),
        ("is_open = (flags & ENDS == 0) &", "is_open = (flags & ENDS > 0) &", "episode end", ("test_split.py", "each_episode")),
    ),
    *of(
        "ops/remove.py",
        ("return done + number.size, _without(state, slots)", "return done + number.size, _without(state, jnp.where(done > 0, state.capacity, slots))", "count", ("test_remove_episodes.py", "")),
    ),
    *of(
        "checkpoint/incremental.py",
        ("total + 2**32 * store.head_places, total)", "total, total)", "seam", ("test_many_laps.py", "every_lap")),
        ("np.maximum(past, live)", "past", "seam", ("test_many_laps.py", "every_lap")),
        ("np.maximum(past, live)", "live", "seam", ("test_many_laps.py", "every_lap")),
        ("if of.save_id in ids and of.config == config", "if of.config == config", "seam", ("test_incremental.py", "older_checkpoint or two_buffers")),
        ("if of.save_id in ids and of.config == config", "if of.save_id == save_id and of.config == config", "seam", ("test_incremental.py", "by_turns or failed")),
        ("if of.save_id in ids and of.config == config", "if of.save_id in ids", "seam", ("test_incremental.py", "sampler")),
        ("manifest.readable(folder, numbers if ids else ())", "manifest.readable(folder, numbers[:-1])", "seam", ("test_incremental.py", "restart")),
        ("total = (1 + lap % 2**32) * store.head_places + at", "total = store.head_places + at", "next observations", ("test_save.py", "every_save or ends")),
        ("return np.flatnonzero(changed & older)", "return np.flatnonzero(changed & ~changed)", "read", ("test_save.py", "every_save")),
        ("    if folder not in _warned:\n", "    if folder in _warned:\n", "seam", ("test_incremental.py", "told_so")),
        ("        _warned.add(folder)\n", "", "seam", ("test_incremental.py", "told_so")),
    ),
    *of(
        "checkpoint/lineage.py",
        ("secrets.randbelow(2**31 - 1) + 1", "1 + len(_parents)", "seam", ("test_incremental.py", "restart_of_the_numbers")),
        ("        _parents[given] = parent\n", "        _parents[given] = NONE\n", "seam", ("test_incremental.py", "by_turns")),
        ("    _distrusted.add(save_id)\n", "", "seam", ("test_save.py", "joined_is_checked")),
        ("    cursor[3] = save_id\n", "", "seam", ("test_incremental.py", "returned_one")),
    ),
    *of(
        "checkpoint/deletable.py",
        ("    if unknown:\n", "    if False:\n", "seam", ("test_save.py", "another_run")),
        ("_heads.get(folder, set()) & set(heads)", "_heads.get(folder, set())", "seam", ("test_save.py", "put_back")),
    ),
    *of(
        "checkpoint/other_run.py",
        ("    if other:\n", "    if False:\n", "gate", ("test_incremental.py", "by_turns_are")),
        ("            if not buffer.flags[row] & WRITTEN and", "            if", "gate", ("test_incremental.py", "changes_its")),
        ("        return sum(total) < sum(saved)\n", "        return False\n", "gate", ("test_incremental.py", "emptied")),
        ("        return sum(total) < sum(saved)\n", "        return True\n", "gate", ("test_incremental.py", "changes_its")),
        ("            npy.check(self._folder, file, expected)\n", "", "gate", ("test_incremental.py", "shows_nothing")),
        ("    return bool(found.mean() < 0.5) if wanted else False", "    return bool(wanted)", "gate", ("test_incremental.py", "changes_its")),
    ),
    *of(
        "checkpoint/signed_json.py",
        ("        if newest == _LAST:\n", "        if False:\n", "gate", ("test_foreign_checkpoints.py", "last_number")),
        ("        self._require_readable(body, content, version, parse)\n", "", "gate", ("test_foreign_checkpoints.py", "than_is_read")),
        ('            return b""  # not a line of a manifest\n', "            raise\n", "gate", ("test_foreign_checkpoints.py", "no_plain_file_is_damage")),
    ),
    *of(
        "ops/remade.py",
        ("        return _made(described, state.sampler, layout.tree)\n    except", "        return jax.eval_shape(lambda: state)\n    except", "gate", ("test_foreign_checkpoints.py", "no_load_could")),
    ),
    *of(
        "checks/foreign.py",
        ("    size(path)\n    return open(", "    return open(", "gate", ("test_foreign.py", "plain_file")),
        (' | getattr(os, "O_NONBLOCK", 0)', "", "gate", ("test_foreign.py", "takes_the_place")),
        ("        if path.is_symlink() and not (links and _may_lead(root, path)):", "        if path.is_symlink() and not links:", "gate", ("test_foreign.py", "link_leads")),
        ('("", ".", "..")', '("", ".")', "gate", ("test_foreign.py", "leads_out")),
        ("    if not name.isprintable() or os.path.isabs(name)", "    if os.path.isabs(name)", "gate", ("test_foreign.py", "leads_out")),
        ("max(_FREE, _TIMES * stored)", "_TIMES * stored", "gate", ("test_foreign.py", "far_more or mostly")),
        ("bool(is_blob and _CACHE.fullmatch(blobs.parent.name))", "bool(is_blob)", "gate", ("test_foreign.py", "link_leads")),
        ("    if text.isprintable():\n", "    if True:\n", "gate", ("test_foreign.py", "escape")),
    ),
    *of(
        "checkpoint/reader.py",
        ("    elif lineage.of_cursor(cursor) != found.save_id:\n", "    elif False:\n", "read", ("test_incremental.py", "another_checkpoint")),
        ("        cursor[3] = lineage.NONE\n", "        pass\n", "read", ("test_old_formats.py", "mark")),
    ),
    *of(
        "ops/load.py",
        ("            state = lineage.with_id(state, lineage.NONE)\n", "", "seam", ("test_incremental.py", "made_of")),
    ),
    *of(
        "checkpoint/tree_json.py",
        ("if whole.num_leaves and jax.tree_util.treedef_is_leaf(whole):", "if jax.tree_util.treedef_is_leaf(whole):", "read", ("test_save.py", "optimiser")),
    ),
    *of(
        "runtime/interrupts.py",
        ("            self.waiting.append((self.handler, number, frame))\n", "            self.handler(number, frame)\n", "order", ("test_save.py", "ctrl_c")),
        ("                if handler.waiting is not None:  # the outer block defers it\n", "                if False:\n", "order", ("test_datasets.py", "within_an_add")),
    ),
    *of(
        "checkpoint/files.py",
        ("            _bring(file.fileno(), final)\n", "", "order", ("test_save_crash.py", "moment")),
        ("        sync(parent)\n", "        pass\n", "order", ("test_save_crash.py", "moment")),
    ),
    *of(
        "checkpoint/writer.py",
        (' and not config.is_unknown(newest.config["item"])', "", "seam", ("test_replay_buffer.py", "before_the_first_row")),
        ("        files.sync(folder)\n", "", "order", ("test_save_crash.py", "moment")),
        ("            save_id=save_id,\n", "            save_id=carried,\n", "seam", ("test_incremental.py", "returned_one")),
        ("rewrites=base is None and newest is not None and _is_wasteful(newest, described),", "rewrites=base is None and newest is not None,", "seam", ("test_incremental.py", "nobody")),
        ("            files.delete(folder, {name for name in manifest.ours(folder) if name.endswith(own)})\n", "            pass\n", "order", ("test_save.py", "that_failed")),
    ),
    *of(
        "checkpoint/compact.py",
        ("at + max(begin - segment.first[head], 0)", "at", "count", ("test_save.py", "overwritten")),
        ("at = sum(counts[:head])", "at = 0", "read", ("test_save.py", "joined")),
        ("        npy.check(folder, segment.file, manifest.files[segment.file])\n", "", "read", ("test_save.py", "joined")),
    ),
    *of(
        "samplers/chance/wide.py",
        ("shares * 2.0**24", "shares * 2.0**16", "weights", ("test_grouped.py", "last_bit")),
        ("return Wide(one.high + other.high + carry, low)", "return Wide(one.high + other.high, low)", "count", ("test_grouped.py", "last_bit")),
        ("carries += carry", "carries = carry", "count", WIDE),
        ("(ends.low <= numbers.low)", "(ends.low < numbers.low)", "seam", WIDE),
    ),
    *of(
        "samplers/chance/shards.py",
        ("jnp.zeros(1, jnp.uint32), word[:-1]", "word[:1], word[:-1]", "count", WIDE),
    ),
    *of(
        "mesh/count.py",
        ("halves >> 16", "halves >> 15", "count", WIDE),
    ),
    *of(
        "mesh/exchange.py",
        ("lax.div(place.max(), jnp.int32(room)) + 1", "jnp.int32(1)", "seam", OVER_SHARDS),
        ("mine = jnp.where(mine < 0, count, mine)", "mine = mine + 0", "mask", OVER_SHARDS),
        ("(numbers >= 0) & (numbers < batch)", "numbers >= 0", "mask", ("test_sharded.py", "plain")),
        ("jnp.where(meant, numbers - first, part)", "jnp.where(meant, numbers - first, 0)", "mask", OVER_SHARDS),
    ),
    *of(
        "mesh/update_by_id.py",
        ("jnp.where(shard == number, slot, NO_SLOT)", "slot", "generation check", ("test_sharded.py", "largest_priority")),
        ("jnp.where(exists | (ids.slot == NO_SLOT), ids.slot, _NOWHERE)", "ids.slot", "fault bit", ("test_sharded.py", "stale")),
        ("slot = jnp.where(mask, slot, NO_SLOT)", "slot = slot + 0", "mask", ("test_sharded.py", "devices or plain")),
    ),
    *of(
        "mesh/sample.py",
        ("draw.mask & come & alike", "draw.mask & come", "fault bit", ("test_sharded_processes.py", "differ")),
    ),
    *of(
        "mesh/add.py",
        ("shard = informed(shard)", "shard = shard", "weights", ("test_sharded.py", "largest_priority")),
    ),
    *of(
        "mesh/call.py",
        ("return isinstance(leaf, np.ndarray) and leaf.ndim > 0", "return False", "dtype", ("test_sharded_processes.py", "itself")),
    ),
    *of(
        "mesh/gather_totals.py",
        ("    if others:\n", "    if False:\n", "seam", ("test_sharded.py", "along_another")),
    ),
    *of(
        "mesh/load.py",
        ("if (said != said[0]).any():", "if False:", "read", ("test_sharded_processes.py", "itself")),
        ("if all_have(failure is None, alone) and loaded is not None:", "if loaded is not None:", "read", ("test_sharded_processes.py", "cannot_read")),
    ),
    *of(
        "checkpoint/sharded_manifest.py",
        ("    if there != expected:", "    if False:", "seam", ("test_sharded_disk.py", "another_save")),
    ),
    *of("storage/episodes.py", ("ends[last] & ~unfinished[last]", "ends[last]", "episode end", ("test_report.py", "cut"))),
    *of(
        "ops/end_episode.py",
        ("jnp.ones(state.ring.lanes, bool), TRUNCATED | UNFINISHED", "jnp.ones(state.ring.lanes, bool), TRUNCATED", "episode end", ("test_report.py", "load_cut")),
    ),
    *of(
        "doctor/look.py",
        ("(removed & ~dummies)", "removed", "mask", ("test_command.py", "holds")),
        ("shard * ring.lanes + slot % ring.lanes", "slot % ring.lanes", "slots", ("test_report.py", "shards")),
        (' and of_sampler.get("fresh")', " and False", "mask", ("test_draws.py", "fresh")),
    ),
    *of(
        "doctor/opened.py",
        ("over_mesh=owner.over_mesh", "over_mesh=False", "read", ("test_report.py", "over_a_mesh")),
        ("    with owner.lock:\n", "    if True:\n", "adapters", ("test_owners.py", "holds_the_lock")),
    ),
    *of(
        "owner/owner.py",
        ("            instead = \"give its state, as in collector.state\"\n", "            pass\n", "adapters", ("test_owners.py", "refuses")),
        ("        self.buffer = dataclasses.replace(self.buffer, blocks=change(self.index))\n", "        pass\n", "adapters", ("test_collector_buffers.py", "leaves_the_whole")),
        ("        return self.buffer.num_shards\n", "        return 1\n", "writers", ("test_several_writers.py", "two_collectors")),
        ("        self.asked.refuse(self.buffer)\n", "        pass\n", "adapters", ("test_owners.py", "refuses")),
        ("getattr(self.buffer, \"lock\", None) or self._held.lock", "self._held.lock", "adapters", ("test_owners.py", "holds_the_lock")),
    ),
    *of(
        "host/owner.py",
        ("        if operation == \"add\" and self.buffer.contents.owned:", "        if False:", "adapters", ("test_collector_buffers.py", "says_so")),
        ("        self.buffer.contents.change(operation, **given)\n", "        pass\n", "adapters", ("test_collector_buffers.py", "leaves_the_whole")),
    ),
    *of(
        "doctor/rewards.py",
        ("& (removed == 0)", "", "episode end", ("test_report.py", "nan_is_removed")),
    ),
    *of(
        "doctor/summary.py",
        ('of["drawable"] < of["rows"]', "False", "probability", ("test_draws.py", "priority_0_count")),
    ),
    *of(
        "doctor/picture.py",
        (" and not stored.any()", " and False", "probability", ("test_picture.py", "any_sampler")),
    ),
    *of(
        "doctor/leaves.py",
        ("self.alike &= bool(", "self.alike |= bool(", "mask", ("test_report.py", "any_item")),
        ("places[bad[-1]]", "places[0]", "slots", ("test_report.py", "bad_number")),
        ("some + behind", "some", "slots", ("test_report.py", "shards")),
        ("min(self.least, least) if self._numbers", "min(self.least, least) if self.rows", "mask", ("test_report.py", "range_of_a_field")),
        ("replace=False", "replace=True", "slots", ("test_report.py", "read_in_part")),
    ),
    *of(
        "doctor/draws.py",
        ("shard * capacity", "shard", "slots", ("test_command.py", "proportion")),
        ("[of.ages for of in each]", "[of.ages[::-1] for of in each]", "slots", ("test_command.py", "proportion")),
        ("max(int(count) - likely.size, 0)", "0", "probability", ("test_draws.py", "priority_0_count")),
        ('jnp.minimum(count, sampler.stats(index, ring)["live"])', "count", "probability", ("test_draws.py", "retired")),
    ),
    *of(
        "doctor/findings/samplers.py",
        ("0 < live < 0.05 * rows", "False", "mask", ("test_draws.py", "few_rows")),
    ),
    *of(
        "doctor/findings/probabilities.py",
        ("_ENOUGH = 1000", "_ENOUGH = 100000", "probability", ("test_draws.py", "enough")),
    ),
    *of(
        "doctor/findings/priorities.py",
        (" or same == priorities.of_new(sampler)", "", "probability", ("test_draws.py", "are_alike")),
        ("    if equal == rows:", "    if each.size == 1:", "probability", ("test_draws.py", "priority_0_count")),
    ),
    *of(
        "doctor/findings/values.py",
        ("        same.pop(name, None)", "        pass", "mask", ("test_report.py", "any_item")),
        ("_OF_A_MESH if found.over_mesh else _OF_A_BUFFER", "_OF_A_BUFFER", "read", ("test_report.py", "over_a_mesh")),
    ),
    *of(
        "doctor/findings/drawing.py",
        ("lengths < window", "lengths < 0", "windows", ("test_findings.py", "short_episodes")),
    ),
    *of(
        "doctor/findings/ends.py",
        ("lengths.size < 3 or (lengths == lengths.max()).sum() >= 0.5 * lengths.size", "lengths.size < 3", "episode end", ("test_report.py", "tasks")),
        ("same < max(3, 0.2 * lengths.size)", "same < 1", "episode end", ("test_report.py", "tasks or good_order")),
        ("same < max(3, 0.2 * lengths.size)", "same < 3", "episode end", ("test_report.py", "tasks")),
        ("(full and ends) or whole:", "(full and ends) or found.episodes.lengths.size:", "episode end", ("test_report.py", "not_overwritten")),
        ("    elif _longest(found) >= _ONE and", "    elif", "episode end", ("test_findings.py", "newest_row_alone")),
        (" and _one_episode_each(found):", ":", "episode end", ("test_findings.py", "newest_row_alone")),
        ("return all(lane.episodes.first.size <= 1", "return any(lane.episodes.first.size <= 1", "episode end", ("test_findings.py", "missing_ends")),
        (" & (flags & UNFINISHED == 0)", "", "episode end", ("test_findings.py", "newest_row_alone")),
    ),
    *of(
        "doctor/findings/rewards.py",
        (" or 0 < leaf.scale < _SMALL", "", "mask", ("test_report.py", "any_item")),
        ("return reward > 0 and bool(", "return bool(", "next observations", ("test_report.py", "tasks")),
    ),
    *of(
        "doctor/findings/next_observations.py",
        ("equal > compared // 2", "equal > compared", "next observations", ("test_report.py", "next_observations")),
        ('name == field or name.startswith(f"{field}.")', "name == field", "next observations", ("test_report.py", "in_dicts")),
        ("if not all(leaves[name].alike", "if not any(leaves[name].alike", "next observations", ("test_report.py", "in_dicts")),
        ("live[steps:])", "live[:count])", "mask", ("test_report.py", "reset_is_no")),
    ),
    *of(
        "doctor/stretches.py",
        ("known &= flags & STANDS_IN == 0", "known &= True", "next observations", ("test_planted.py", "healthy")),
        ("return self.flags & REMOVED == 0", "return self.flags & 0 == 0", "mask", ("test_report.py", "reset_is_no or reset")),
        ("np.where(np.isfinite(numbers), numbers, 0)", "numbers", "mask", ("test_report.py", "bad_number")),
    ),
    *of(
        "doctor/findings/continuity.py",
        ("<= 2 * usual", "<= 200 * usual", "next observations", ("test_planted.py", "healthy")),
        (" or (shift > 1 and not _crosses(stretches, shift))", "", "next observations", ("test_planted.py", "healthy")),
        ("(2 if broken else _ENDS)", "_FEW * 1000", "next observations", ("test_planted.py", "kept")),
        ("hits[0] > 0.2 * total", "False", "episode end", ("test_planted.py", "ends_shifted or healthy")),
    ),
    *of(
        "doctor/findings/causes.py",
        ('{"late": error(steps, -1), "early": error(steps, 1)}', '{"late": error(steps, 1), "early": error(steps, -1)}', "seam", ("test_planted.py", "planted")),
        ("own >= _BETTER * (other + 1e-3)", "own >= 0", "mask", ("test_planted.py", "healthy")),
        ('by_row["own"]) < 0.5:', 'by_row["own"]) < -1:', "mask", ("test_planted.py", "healthy")),
    ),
    *of(
        "doctor/findings/copies.py",
        ("(one.observation == of.observation).all()", "(one.observation == of.observation).any()", "mask", ("test_planted.py", "healthy or planted")),
    ),
    *of(
        "command/opened.py",
        ("if whole is not None:", "if whole is None:", "read", ("test_damage.py", "newest")),
    ),
    *of(
        "storage/lost_next.py",
        (" & (lane.flags & REMOVED == 0)", "", "mask", ("test_lost_next.py", "removed")),
        (" & (owner[np.maximum(place, 0)] == slots)", "", "next observations", ("test_lost_next.py", "resize or extend")),
    ),
    *of(
        "ops/lost_next.py",
        ("        fault |= of\n", "        pass\n", "fault bit", ("test_lost_next.py", "resize_counts")),
        ("    if rows <= before:", "    if rows < before:", "mask", ("test_lost_next.py", "whole")),
    ),
    *of(
        "storage/shown.py",
        ("isinstance(leaf, jax.Array) and leaf.is_deleted()", "False", "read", ("test_shown.py", "consumed")),
        ("[part.data for part in leaf.addressable_shards if part.replica_id == 0]", "[leaf]", "read", ("test_shown.py", "consumed")),
    ),
    *of(
        "checks/not_arrays.py",
        ("    return instead if fits else None", "    return instead", "read", ("test_not_arrays.py", "lacks")),
    ),
    *of(
        "doctor/findings/faults.py",
        ("(Fault.STALE_ID, Fault.NOTHING_TO_DRAW)", "(Fault.NOTHING_TO_DRAW,)", "fault bit", ("test_report.py", "stale")),
    ),
    *of(
        "samplers/fifo.py",
        ("unread = jnp.minimum(behind, length).astype(jnp.int32)", "unread = behind.astype(jnp.int32)", "queue", FIFO),
        ("(behind > length).any()", "(behind >= length).any()", "queue", FIFO),
        ("steps = span.count // ring.lanes_per_head", "steps = span.count", "queue", ("test_fifo.py", "history")),
        ("return FifoIndex(index.unread - steps)", "return FifoIndex(index.unread * 0)", "queue", FIFO),
    ),
    *of(
        "ops/pop.py",
        ("read = jnp.maximum(given - keep, 0)", "read = given", "queue", ("test_fifo.py", "segments")),
        ("jnp.where(chosen, jnp.minimum(unread, count), 0)", "jnp.minimum(unread, count)", "queue", FIFO),
        ("return after(state, batch), batch", "return state, batch", "order", ("test_fifo.py", "traces_by_itself")),
    ),
    *of(
        "ops/add.py",
        ("faults = bits_where(left_out, Fault.FULL)", "faults = bits_where(left_out & False, Fault.FULL)", "queue", FIFO),
    ),
    *of(
        "ops/end_episode.py",
        ("ring, slots = marks.end(state.ring, lanes, resets, bits)", "ring, slots = state.ring, lanes * 0 + state.capacity", "queue", FIFO),
    ),
    *of(
        "storage/marks.py",
        ("now_open = dataclasses.replace(now_open, resets=resets)", "pass", "queue", ("test_fifo.py", "resets")),
    ),
    *of(
        "xla/platform.py",
        ("    return default(*leaves)\n\n\nbatching", "    return cpu(*leaves)\n\n\nbatching", "platform", ("test_platform.py", "loops")),
        ("_BatchedForm(form, in_axes, batched) for name, form in", "_BatchedForm(cpu, in_axes, batched) for name, form in", "platform", ("test_platform.py", "may_have")),
        ("flat(gpu or default))", "flat(default))", "platform", ("test_platform.py", "own")),
        ("with jax.sharding.use_abstract_mesh(self._mesh):", "if True:", "platform", ("test_platform.py", "alone or mesh")),
        ("(cpu if _lie_on_cpu(leaves) else default)(*leaves)", "default(*leaves)", "platform", ("test_platform.py", "without_jit")),
        ("(cpu if _lie_on_cpu(arrays) else default)(*operands)", "default(*operands)", "platform", ("test_platform.py", "without_jit")),
    ),
    *of(
        "xla/place.py",
        ("return tree if device == _outside() else", "return tree if True else", "platform", ("test_place.py", "stays_there")),
        ("return tree if device == _outside() else", "return tree if False else", "platform", ("test_place.py", "free or everybody")),
        ("threading.Thread(target=lambda: found.append(config.jax_default_device))", "threading.Thread(target=lambda: found.append(None))", "platform", ("test_place.py", "everybody")),
        ("array.sharding if array.committed else None", "array.sharding", "platform", ("test_place.py", "free")),
    ),
    *of(
        "xla/explicit.py",
        ("return automatic(*jax.sharding.reshard([leaves[number] for number in at], whole))", "return automatic(*[leaves[number] for number in at])", "platform", ("test_explicit.py", "holds")),
        ("and AxisType.Explicit in mesh.axis_types:", "and False:", "platform", ("test_explicit.py", "every_verb")),
    ),
    *of(
        "_exported.py",
        ("        if own:\n", "        if False:\n", "platform", ("test_export.py", "refused")),
        ("if not config.is_known(data):", "if False:", "platform", ("test_export.py", "refused")),
    ),
    *of(
        "storage/layout.py",
        ("field.dtype.itemsize >= 8", "field.dtype.itemsize > 8", "dtype", ("test_guards.py", "64_bits")),
    ),
    *of(
        "ops/lanes.py",
        ("return flat(parts[0] if len(parts) == 1", "return (lambda x: x.reshape(-1, *x.shape[2:]))(parts[0] if len(parts) == 1", "platform", ("test_empty_leaves.py", "moved or one_empty")),
    ),
    *of(
        "ops/rollout.py",
        ("oldest_slots(ring, stored, stored,", "oldest_slots(ring, stored * 0 + ring.lane_length, stored,", "queue", ("test_rollout.py", "rollout")),
    ),
    *of(
        "ops/lane_slots.py",
        ("ring.clamp(ring.newest())[:, None], -back)", "ring.clamp(ring.newest())[:, None], back)", "read", READ),
        ("of_lane(rows) - 1 - step", "of_lane(given) - 1 - step", "queue", FIFO),
    ),
    *of(
        "pace.py",
        ("PaceCounter(left, parts % below, owed - due)", "PaceCounter(left, parts * 0, owed - due)", "queue", ("test_pace.py", "exact")),
        ("owed = counter.owed + ", "owed = ", "queue", ("test_pace.py", "later")),
        ("counted = jnp.maximum(made - counter.warmup, 0)", "counted = jnp.where(counter.warmup > 0, 0, made)", "queue", ("test_pace.py", "exact")),
    ),
    *of(
        f"{DATASETS}/_chunks.py",
        ("if counted[what] > (said := getattr(source, what)):", "if (said := -1) > 0:", "gate", ("test_source.py", "as_it_says")),
        ("    if first < source.rows:\n", "    if False:\n", "gate", ("test_source.py", "as_it_says")),
        ("    if got != wanted:\n", "    if False:\n", "gate", ("test_source.py", "as_it_says")),
    ),
    *of(
        f"{DATASETS}/_flat.py",
        ("lacking & ~terminated, lacking & terminated", "lacking, lacking & False", "next observations", ("test_datasets_ends.py", "terminated_counts")),
        ("leaf[row] if flags.stands_in[row] else 0", "0", "next observations", ("test_datasets_ends.py", "terminated_counts")),
        ("lacking[self._last.rows] = False", "pass", "next observations", ("test_datasets.py", "npz_and_back")),
    ),
    *of(
        f"{DATASETS}/_ends.py",
        ("            truncated |= jumps\n", "", "episode end", ("test_datasets_ends.py", "jump_is")),
        ("            doubts.append(_of_jumps(jumps))\n", "", "episode end", ("test_datasets_ends.py", "jump_is")),
        ("terminated | truncated if goes_on is None else ~goes_on", "terminated | truncated", "episode end", ("test_datasets_ends.py", "counted_on")),
        ("if goes_on is not None and (over := limit & goes_on).any():", "if False:", "episode end", ("test_datasets_ends.py", "too_small")),
        ("    if goes_on is not None or ends.told or ended.all():", "    if ended.any():", "episode end", ("test_datasets_ends.py", "one_terminal")),
        ("    if not ended.any():\n", "    if False:\n", "episode end", ("test_datasets_ends.py", "without_any")),
    ),
    *of(
        f"{DATASETS}/_continuity.py",
        ("continued[rows] &= _alike(last, here[:1], continued[rows])", "pass", "seam", ("test_datasets_ends.py", "jump_is or rounding")),
        ("if max(shares) == 1 and min(shares) < 0.5:", "if False:", "episode end", ("test_datasets_ends.py", "rounding")),
        (" and min(shares) < 0.5:", ":", "episode end", ("test_datasets_ends.py", "grid")),
        ("    return 4 * eps * np.maximum(", "    return 0.0 * np.maximum(", "episode end", ("test_datasets_ends.py", "rounding")),
        (" | ((left != left) & (right != right))", "", "episode end", ("test_datasets_ends.py", "no_number")),
    ),
    *of(
        f"{DATASETS}/_d4rl.py",
        ("told = bool(cut.any())", 'told = "timeouts" in file', "episode end", ("test_datasets_ends.py", "everywhere")),
    ),
    *of(
        f"{DATASETS}/_hdf5.py",
        ("            if isinstance(link, self._h5py.ExternalLink):\n", "            if False:\n", "gate", ("test_foreign_files.py", "no_other_file")),
        ("        if node.external or node.is_virtual:\n", "        if False:\n", "gate", ("test_foreign_files.py", "no_other_file")),
        ("            foreign_files.require_size(declared, self._size)\n", "            pass\n", "gate", ("test_foreign_files.py", "does_not_have")),
    ),
    *of(
        f"{DATASETS}/_parquet.py",
        ("slice(low - begin, high - begin)", "slice(low, high - begin)", "gate", ("test_tables.py", "directory")),
        ("high - starts[n]]", "high]", "seam", ("test_lerobot.py", "any_part")),
        ("if self._kept.get(name, (None, None))[0] != (path, number):", "if name not in self._kept:", "seam", ("test_lerobot.py", "any_part or every_number")),
        ("        if column.null_count:\n", "        if False:\n", "gate", ("test_tables.py", "is_named")),
        ("            shape[-1:] = inner\n", "            pass\n", "gate", ("test_tables.py", "tensors")),
    ),
    *of(
        f"{DATASETS}/_lerobot_metadata.py",
        ("if not chunk or not 0 < fps < math.inf:", "if not chunk:", "gate", ("test_foreign_files.py", "metadata_of_lerobot")),
        ("        return _filled(template, parts)\n", "        return template.format(**parts)\n", "gate", ("test_foreign_files.py", "metadata_of_lerobot")),
        ("    paths = {name: foreign_files.inside(root, name, links=True) for name", "    paths = {name: root / name for name", "gate", ("test_foreign_files.py", "metadata_of_lerobot")),
    ),
    *of(
        f"{DATASETS}/_npz_members.py",
        ("            self._open()  # reopened", "            pass  # anew", "seam", ("test_datasets_ends.py", "jump_is")),
        ("            if declared != there:\n", "            if False:\n", "gate", ("test_foreign_files.py", "takes_no_memory")),
        ("                foreign_files.require_size(declared, size)\n", "", "gate", ("test_foreign_files.py", "many_gigabytes")),
    ),
    *of(
        f"{DATASETS}/_target.py",
        ("    if flags.stands_in.any():\n", "    if False:\n", "next observations", ("test_minari.py", "stands_in")),
    ),
    *of(
        f"{DATASETS}/_ordered_rows.py",
        ("np.concatenate(known) & ~self.stands_in[rows]", "np.concatenate(known)", "next observations", ("test_minari.py", "stands_in")),
    ),
    *of(
        "owner/resume.py",
        ("if episodes == \"end\":", "if False:", "adapters", ("test_buffers.py", "joins_no_row")),
        ("        owner.change(cut_episodes)\n", "        pass\n", "adapters", ("test_host.py", "store_ends")),
        ("values.choice(function, \"episodes\", episodes, get_args(Episodes))", "pass", "adapters", ("test_buffers.py", "one_of_two")),
    ),
    *of(
        "runtime/processes.py",
        ("if get_spawning_popen() is not None:", "if False:", "adapters", ("test_buffers.py", "no_other_process")),
        ("    ForkingPickler.register(kind, _refuse)", "    pass", "adapters", ("test_buffers.py", "no_other_process")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/buffer/_backend.py",
        ("        self._seen = leaves, state  # or the old one would keep its memory\n", "", "adapters", ("test_buffers.py", "replaced_no_memory")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/_replay_buffer.py",
        ("        stays_in_process(cls)\n", "        pass\n", "adapters", ("test_buffers.py", "no_other_process")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/buffer/_snapshot.py",
        ("np.asarray(figures[\"key\"]).reshape(-1)[-1]", "0", "adapters", ("test_buffers.py", "without_a_seed")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/crossing/_item.py",
        ("if more == {1} and not batch:", "if False:", "adapters", ("test_replay_buffer.py", "takes_one_item")),
        ("if more == {-1} and batch:", "if False:", "adapters", ("test_replay_buffer.py", "takes_one_item")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/crossing/_listed.py",
        ("if item is None and _is_batch(items, lead):", "if False:", "adapters", ("test_replay_buffer.py", "may_be_one_tree")),
        ("if leaf.shape != leaves[0].shape or", "if", "adapters", ("test_replay_buffer.py", "a_list_of_items")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/batches/_drawer.py",
        ("make = functools.partial(_modes.under, context, make)", "pass", "adapters", ("test_buffers.py", "modes_of")),
        ("            with returned_batch():", "            if True:", "frames", ("test_frames_by_words.py", "crosses")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/batches/_modes.py",
        ("stack.enter_context(torch.inference_mode())", "pass", "adapters", ("test_buffers.py", "modes_of")),
        ("stack.enter_context(device)", "pass", "adapters", ("test_buffers.py", "default_device")),
        ("stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cached))", "pass", "adapters", ("test_buffers.py", "modes_of")),
    ),
    *of(
        "../adapters/fbuf_adapters/tensordict/_replay_buffer.py",
        ("for name in (\"seed\", \"host\")}", "for name in (\"host\",)}", "adapters", ("test_buffers.py", "without_a_seed")),
    ),
    *of(
        "../adapters/fbuf_adapters/tensordict/_ends.py",
        ("left |= begins[:, 0]", "pass", "adapters", ("test_ends.py", "begins_an_episode")),
        ("cut[:, :-1] |= begins[:, 1:] & ~ended[:, :-1]", "cut[:, :-1] |= begins[:, 1:]", "adapters", ("test_ends.py", "begins_an_episode")),
    ),
    *of(
        "../adapters/fbuf_adapters/tensordict/_transforms.py",
        ("if isinstance(made, TensorDictBase) or is_tensor_collection(made):", "if True:", "adapters", ("test_ends.py", "is_a_tensordict")),
    ),
    *of(
        "../adapters/fbuf_adapters/gymnasium/_worker_pool.py",
        ("seed = secrets.randbelow(2**30) if", "seed = 0 if", "adapters", ("test_processes.py", "without_a_seed")),
    ),
    *of(
        "host/next_obs_check.py",
        ("expected[of_kept] = some_numbers(kept.read(place[of_kept], number))", "expected[of_kept] = 0", "adapters", ("test_host.py", "restored_store")),
        ("place = place[rows]\n", "place = place[rows] * 0\n", "adapters", ("test_host.py", "not_follow or restored_store")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/crossing/_unpack.py",
        ("return free(leaf) if axis is None else _cut(leaf, size, axis)", "return leaf", "tensors", free("gpu")),
        ("return _dlpack.taken(to_dlpack(tensor))", "return tensor.view(tensor.shape)", "tensors", free("read or gpu")),
        ("        return np.array(array)\n", "        raise\n", "tensors", free("within_a_transform")),
        ("leaf.copy() if copied else leaf", "leaf", "tensors", free("small")),
        ("free(leaf.narrow(axis, 0, size).contiguous())", "leaf.narrow(axis, 0, size)", "tensors", free("sizes or gpu")),
        ("np.ascontiguousarray(leaf[(slice(None),) * axis + (slice(size),)])", "leaf[(slice(None),) * axis + (slice(size),)]", "tensors", free("time_major")),
    ),
    *of(
        "../adapters/fbuf_adapters/tensordict/_leaves.py",
        ("free(node.view(dtype).squeeze(-1))", "node.view(dtype).squeeze(-1)", "tensors", free("dicts")),
    ),
    *of(
        "../adapters/fbuf_adapters/tensordict/_slices.py",
        ("free(leaf.flatten(0, 1))", "leaf.flatten(0, 1)", "tensors", free("slices")),
        ("cut = free(_like(rows.last, data.get(self.truncated_key, None)))", "cut = _like(rows.last, data.get(self.truncated_key, None))", "tensors", free("slices")),
    ),
    *of(
        "dispatch/torch_compile.py",
        ("function._torchdynamo_disable = _MARK", "pass", "compile", ("test_torch_compile.py", "say_so")),
        ("        _tell()\n        return True", "        return True", "compile", ("test_torch_compile.py", "when_it_asks")),
        ("(value.fget, value.fset) if isinstance(value, property) else (value,)", "(value,)", "compile", ("test_torch_compile.py", "say_so")),
        ('and "<" not in function.__code__.co_filename', "and True", "compile", ("test_torch_compile.py", "say_so")),
        ("(skip, skip)", "(skip, frames._FrameAction.DEFAULT)", "compile", ("test_torch_compile.py", "breaks")),
    ),
    *of(
        "checkpoint/lock_file.py",
        ("return None if state in \"ZX\" else numbers[18]", "return numbers[18]", "disk", ("test_disks.py", "killed")),
        ("if holder is None or not own.place or (holder.host, holder.place) != (own.host, own.place):", "if holder is None:", "disk", ("test_disks.py", "elsewhere")),
        ("return started is None or (\"\" not in (started, holder.started) and started != holder.started)", "return started is None or started != holder.started", "disk", ("test_disks.py", "may_not_see")),
        ("        path.unlink(missing_ok=True)\n        raise\n", "        raise\n", "disk", ("test_disks.py", "full_disk_leaves")),
        ("if os.getpid() == own.process and _holder(path) == own:", "if _holder(path) is not None:", "disk", ("test_disks.py", "fork_does")),
    ),
    *of(
        "checkpoint/paths.py",
        ("if _URL.match(named):", "if False:", "disk", ("test_disks.py", "url_is_no")),
        ("pathlib.Path(named).expanduser().resolve()", "pathlib.Path(named).resolve()", "disk", ("test_save.py", "misuse")),
    ),
    *of(
        "checkpoint/free_space.py",
        ("        if error.errno in _FULL:", "        if False:", "disk", ("test_disks.py", "full_disk_says")),
        ("_FULL = {errno.ENOSPC, errno.EDQUOT}", "_FULL = {errno.ENOSPC}", "disk", ("test_disks.py", "quota")),
    ),
    *of(
        "ops/fields.py",
        ("first = jnp.minimum(turn * step, capacity - step)", "first = jnp.minimum(turn * step, capacity - step) * 0", "disk", ("test_disks.py", "in_parts")),
        ("whole = any(begin.startswith(f\"{name}.\") for name in drop)", "whole = False", "disk", ("test_disks.py", "cannot_be_changed")),
        ("        if not jax.tree.leaves(inner):", "        if whole:", "disk", ("test_disks.py", "cannot_be_changed")),
        ("    if not node and node is not tree:", "    if False:", "disk", ("test_disks.py", "goes_with")),
        ('            if f"{field}.".startswith(f"{name}."):\n', "            if field == name:\n", "gate", ("test_foreign_checkpoints.py", "not_dropped")),
        ("        if more or less:\n", "        if False:\n", "disk", ("test_disks.py", "fields_are")),
    ),
    *of(
        "ops/lanes.py",
        ("return self.size[None] - kept[None] + step", "return step", "seam", ("test_extend.py", "dealt")),
        ("return self._place(step, kept) < 0 if self.together else None", "return None", "mask", ("test_extend.py", "dealt")),
    ),
    *of(
        "ops/extend.py",
        ("        resets = state.ring.open.resets\n", "        resets = new.ring.open.resets\n", "episode end", ("test_extend.py", "reset")),
    ),
    *of(
        "ops/add.py",
        ("if given.terminated is None and given.truncated is None and new.lead.size >= _MANY:", "if False:", "order", ("test_contracts.py", "beforehand")),
    ),
    *of(
        "ops/check_finite.py",
        ("can = there & (flags & (REMOVED | DUMMY) == 0)", "can = there", "mask", ("test_check_finite.py", "nobody")),
        ("found.setdefault(names[number], []).append(part[of_leaf])", "found[names[number]] = [part[of_leaf]]", "count", ("test_check_finite.py", "parts")),
        ("of_end = ends[slot] & (jax.device_get(kept.kept_at)[slot] == place)", "of_end = ends[slot]", "mask", ("test_check_finite.py", "overwritten")),
        ("(owner >= 0) & (of_end | (place < lanes))", "owner >= 0", "mask", ("test_check_finite.py", "overwritten")),
    ),
    *of(
        "../adapters/fbuf_adapters/gymnasium/_info.py",
        ("if ended is not None and \"final_info\" in info and ended.any():", "if False:", "adapters", ("test_collector_info.py", "returned")),
        ("        into[ended] = self._absent[name]\n", "", "adapters", ("test_collector_info.py", "returned")),
        ("there = envs & known & np.asarray(info.get(f\"_{name}\", True))", "there = envs & np.ones(self._num_envs, bool)", "adapters", ("test_collector_info.py", "returned or None")),
        ("return cast(array, spec.dtype, f\"info[{name!r}]\")", "return array", "adapters", ("test_collector_info.py", "does_not_fit")),
    ),
    *of(
        "../adapters/fbuf_adapters/gymnasium/_stepper.py",
        ("seen[~ended] = before[name][~ended]", "pass", "adapters", ("test_collector_info.py", "observed")),
        ("self._observe.final(info, ended) if self._observe", "self._observe.read(info) if self._observe", "adapters", ("test_collector_info.py", "observed")),
        ("                if self.needs_final:\n                    raise CollectorError(_info.NO_FINAL)\n", "", "adapters", ("test_collector.py", "missing")),
    ),
    *of(
        "../adapters/fbuf_adapters/gymnasium/_chunk_writer.py",
    ),
    *of(
        "storage/left_off.py",
        ("differs[:, :_SAVE_ID].any(axis=1) | differs[:, _SAVE_ID + 1 :].any(axis=1)", "differs.any(axis=1)", "writers", ("test_several_writers.py", "adds_no_row")),
        ("return jnp.copy(jnp.broadcast_to(ring.cursor, (ring.cursor.shape[0], ring.lanes)))", "return jnp.broadcast_to(ring.cursor, (ring.cursor.shape[0], ring.lanes))", "writers", ("test_several_scans.py", "no_array_of")),
        ("(cursor != left).reshape(shards, -1,", "(cursor[:1] != left[:1]).reshape(shards, -1,", "writers", ("test_several_writers.py", "other_changes")),
    ),
    *of(
        "../adapters/fbuf_adapters/_left_off.py",
        ("return jnp.copy(cursor)", "return cursor", "writers", ("test_several_writers.py", "adds_no_row")),
        ("None if isinstance(changed, np.ndarray) and not changed.any() else changed", "None if isinstance(changed, np.ndarray) else changed", "writers", ("test_several_writers.py", "two_collectors")),
    ),
    *of(
        "../adapters/fbuf_adapters/gymnasium/_chunk_writer.py",
        ("ended = known(self._changed(owner), wait=owner.in_place)", "ended = None", "writers", ("test_several_writers.py", "two_collectors")),
        ("            self._left.note(owner.index.ring.cursor)\n", "", "writers", ("test_several_writers.py", "popped_queue")),
    ),
    *of(
        "../adapters/fbuf_adapters/_scanned.py",
        ("mask=others | carry.fresh", "mask=carry.fresh", "writers", ("test_several_scans.py", "")),
        ("return dataclasses.replace(carry, left=place(state.ring)), state", "return carry, state", "writers", ("test_several_scans.py", "")),
    ),
    *of(
        "../adapters/fbuf_adapters/datasets/_target.py",
        ("                self.owner.change(fbuf.end_episode)\n            self.owner.add", "                pass\n            self.owner.add", "writers", ("test_several_writers.py", "data_set")),
        ("_marked, chunk))\n            self._left.note(self.index.ring.cursor)\n", "_marked, chunk))\n", "writers", ("test_several_writers.py", "data_set")),
    ),
    *of(
        "../adapters/fbuf_adapters/tensordict/_writer.py",
        ("if others and not self.ends.knows_ids:", "if False:", "writers", ("test_ends.py", "other_code")),
        ("others = run.seen is not None and found != (run.cursor, run.lap)", "others = run.seen is not None", "writers", ("test_ends.py", "other_code")),
    ),
    *of(
        "../adapters/fbuf_adapters/gymnasium/_chunk.py",
        ("return self.terminated.size - self.resets", "return self.terminated.size", "steps", ("test_collector.py", "resets or stats")),
    ),
    *of(
        "../adapters/fbuf_adapters/gymnasium/_stepper.py",
        ("ended = np.zeros_like(self._ended) if fresh else self._ended", "ended = self._ended", "steps", ("test_collector.py", "only_resets")),
        ("        self._ended = ended[-1]\n", "", "steps", ("test_collector.py", "only_resets")),
    ),
    *of(
        "ops/ids_at.py",
        ("slots = jnp.where(outside, state.capacity, slots)", "slots = slots", "slots", ("test_ids_at.py", "wide")),
        ("if not is_array or isinstance(value, np.ma.MaskedArray):", "if not is_array:", "slots", ("test_ids_at.py", "no_slots")),
    ),
    *of(
        "host/contents.py",
        ("mapped = rows + index * on_cpu", "mapped = index * on_cpu", "adapters", ("test_host.py", "limit_of_the_process_leaves")),
        ("if fitting and asked(fitting * step):", "if fitting:", "adapters", ("test_host.py", "limit_of_the_process_leaves")),
    ),
    *of(
        "../adapters/fbuf_adapters/gymnasium/_chunk.py",
        ("reward=stored(self.reward[:steps], \"reward\")", "reward=self.reward[:steps].astype(np.float32)", "adapters", ("test_collector_info.py", "32_bits")),
    ),
    *of(
        "../adapters/fbuf_adapters/gymnasium/_episodes.py",
        ("starts = [0, *behind[behind < len(ended)].tolist()]", "starts = [0]", "adapters", ("test_episodes.py", "")),
    ),
    *of(
        "../adapters/fbuf_adapters/datasets/_fields.py",
        ("one_number = (shape, wanted) == ((1,), ())", "one_number = True", "adapters", ("test_datasets.py", "axis_of_one")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/crossing/_taken.py",
        ("leaf if leaf.flags.writeable and fits else leaf.copy()", "leaf if fits else leaf.copy()", "adapters", ("test_taken.py", "numbers_are")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/buffer/_reading.py",
        ("torch.arange(found.start, found.stop, found.step) if found else torch.arange(0)", "torch.arange(found.start, found.stop, abs(found.step)) if found else torch.arange(0)", "adapters", ("test_taken.py", "backwards")),
    ),
    *of(
        "mesh/init.py",
        ("    with jax.transfer_guard(\"allow\"):\n        probe", "    if True:\n        probe", "door", ("test_guards.py", "mesh")),
    ),
    *of(
        "checkpoint/background.py",
        ("        with self._running:\n            pass", "        [t.join() for t in threading.enumerate() if t.name.startswith(\"fbuf.save\")]", "disk", ("test_save.py", "interrupted_waits")),
    ),
    *of(
        "runtime/thread.py",
        ("            with self._running:  # an interrupted join would not wait again\n                pass", "            self._thread.join()", "adapters", ("test_interrupts.py", "thread_is_waited")),
    ),
    *of(
        "../adapters/fbuf_adapters/gymnasium/_producer.py",
        ("        return self._ended.wait(seconds)  # an interrupted join would claim that it has", "        thread.join(seconds)\n        return not thread.is_alive()", "adapters", ("test_interrupts.py", "thread_is_waited")),
    ),
    *of(
        "checkpoint/lock.py",
        ("            foreign.size(foreign.inside(path.parent, path.name, links=False))\n", "            pass\n", "gate", ("test_foreign_checkpoints.py", "no_link")),
        ("            raise OSError(error.errno, error.strerror, str(folder / NAME)) from error", "            raise", "disk", ("test_disks.py", "names_its_file")),
    ),
    *of(
        "checkpoint/free_space.py",
        ("        raise OSError(error.errno, f\"{error.strerror}: {where}\", str(folder)) from error", "        raise", "disk", ("test_disks.py", "broken")),
    ),
    *of(
        "views/reader.py",
        ("if field.shape and math.prod(field.shape) == 1:", "if math.prod(field.shape) == 1:", "views", ("test_return_to_go.py", "what_cannot")),
        ("if field.shape and math.prod(field.shape) == 1:", "if False:", "views", ("test_return_to_go.py", "what_cannot")),
    ),
    *of(
        "runtime/fixed_arguments.py",
        (" and not hasattr(type(self), name):", ":", "adapters", ("test_taken.py", "class_of_a_user")),
        ("super(kind, self).__setattr__(name, value)", "object.__setattr__(self, name, value)", "adapters", ("test_taken.py", "class_of_a_user")),
        ("            if name in refused and", "            if False and", "adapters", ("test_taken.py", "cannot_be_set")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/crossing/_taken.py",
        ("dtype=_held(leaf, jnp.float32))", "dtype=torch.float32)", "adapters", ("test_taken.py", "cannot_hold")),
        ("leaf.flags.writeable and fits", "leaf.flags.writeable", "adapters", ("test_taken.py", "any_strides")),
        ("keeps = spec is None and not", "keeps = False and not", "adapters", ("test_taken.py", "keep_their_dtypes")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/crossing/_listed.py",
        ("    if type(items) is tuple and _several(items):", "    if False:", "adapters", ("test_taken.py", "tuple_of")),
    ),
    *of(
        "../adapters/fbuf_adapters/datasets/_fields.py",
        ("    if field in leaves:  # an array, so `observation.camera` is another field", "    if False:", "adapters", ("test_minari.py", "dot")),
    ),
    *of(
        "dispatch/parse.py",
        ("return isinstance(number, float) or int(np.asarray(number, dtype)) == number", "return True", "door", ("test_call.py", "")),
    ),
    *of(
        "ops/raise_on_fault.py",
        ("    return state.ring.has_come_around() & ~", "    return (state.fault > 0) & ~", "mask", ("test_windows.py", "lost_their")),
    ),
    *of(
        "mesh/per_shard.py",
        ("return _all_bits(state), full & ~can", "return _all_bits(state), full", "mask", ("test_windows.py", "lost_their")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/buffer/_contents.py",
        ("drawn_seed() if spec.seed is None else int(spec.seed)", "0 if spec.seed is None else int(spec.seed)", "adapters", ("test_buffers.py", "without_a_seed")),
        ("if state.fault is backend.fault:", "if False:", "adapters", ("test_buffers.py", "same_arrays")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/buffer/_writer.py",
        ("if name != \"alpha\" and getattr(value, \"ndim\", 0) > lead:", "if False:", "adapters", ("test_replay_buffer.py", "flags_of_several")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/batches/_delivery.py",
        ("            if batch is None:", "            if False:", "adapters", ("test_buffers.py", "returns_nothing")),
        ("free(leaf.reshape((*lead, *leaf.shape[1:])))", "leaf.reshape((*lead, *leaf.shape[1:]))", "tensors", free("read")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/buffer/_writer.py",
        ("_taken.as_tensors(next_observation, observed)", "_taken.as_tensors(next_observation)", "adapters", ("test_taken.py", "cannot_hold")),
    ),
    *of(
        "../adapters/fbuf_adapters/tensordict/_codec.py",
        ("(weight, weight.clone())", "(weight, weight)", "tensors", free("dicts")),
        ("{key: _repeated(numbers, dims) for", "{key: numbers.reshape(-1, *[1] * len(dims)).expand(-1, *dims) for", "tensors", free("dims")),
        ("free(leaf.reshape((*slots.shape, *leaf.shape[1:])))", "leaf.reshape((*slots.shape, *leaf.shape[1:]))", "tensors", free("dicts")),
        ("if path}\n            batch = _of_rows", "}\n            batch = _of_rows", "adapters", NESTED),
        ("if self._of_form is not form:", "if self._of_form is None:", "adapters", NESTED),
        (".clone(memory_format=torch.contiguous_format)", "", "tensors", free("dims")),
    ),
    *of(
        "runtime/batch_stream.py",
        ("if self._context is not None:  # the context", "if False:  # batches", "adapters", ("test_buffers.py", "modes_of")),
        ("self._unfinished if in_main and not self._waited else None", "self._unfinished if in_main else None", "adapters", ("test_host.py", "handler_that_asks")),
    ),
    *of(
        "host/uniform_rows.py",
        ("if self._removed is not None and int(seen(leaves[self._removed])):", "if False:", "mask", ("test_numpy_draws.py", "removal")),
        ("            arrays.clear()  # or", "            pass  # or", "adapters", ("test_numpy_draws.py", "own")),
        ("(slots >= head)", "(slots > head)", "adapters", ("test_numpy_draws.py", "those_of_sample")),
        ("_TRUNCATED = _BITS & TERMINATED > 0, _BITS & TRUNCATED > 0", "_TRUNCATED = _BITS & TERMINATED > 0, _BITS & TERMINATED > 0", "adapters", ("test_numpy_draws.py", "those_of_sample")),
        ("(low * factor >> half)", "0", "adapters", ("test_numpy_draws.py", "below")),
        ("            mask.copy(),", "            mask,", "adapters", ("test_numpy_draws.py", "own")),
    ),
    *of(
        "../adapters/fbuf_adapters/pytorch/batches/_numpy_draws.py",
        ("found.key is not asked.key", "False", "adapters", ("test_numpy_draws.py", "another_key")),
        ("stack([turn[0] + (low == 0).astype(jnp.uint32), low])", "stack([turn[0], low])", "adapters", ("test_numpy_draws.py", "in_turn")),
        ("        if last != total:", "        if last is None:", "adapters", ("test_numpy_draws.py", "those_of_sample")),
    ),
    *of(
        "host/transitions.py",
        ("slots + self._lanes, self._wanted", "slots + 1, self._wanted", "next observations", LED_TO),
        ("(aside,) = (flags & ENDS).nonzero()", "(aside,) = (flags & TERMINATED).nonzero()", "next observations", LED_TO),
        (" mode=\"clip\") != slot]", " mode=\"clip\") == -9]", "next observations", LED_TO),
        ("ages < ahead + self._lanes", "ages < ahead", "next observations", LED_TO),
        ("known = ages[near] >= ahead", "known = ages[near] > ahead", "next observations", LED_TO),
        ("newest = newest[flags[newest] & ENDS == 0]", "pass", "next observations", LED_TO),
        ("int(cursor[0, 0]) - 1", "int(cursor[0, 0])", "seam", LED_TO),
    ),
    *of(
        f"{SB3}/_uniform_draws.py",
        ("                seen.cut_off[compared", "                np.zeros_like(seen.cut_off)[compared", "episode end", ("test_steps_by_numpy.py", "not_continued")),
        ("            ends[1:] |= ", "            ends[1:] & ", "episode end", ("test_steps_by_numpy.py", "every_row")),
        ("            ended[near] &= back == staged\n", "", "episode end", ("test_steps_by_numpy.py", "every_row")),
        ("~np.logical_or.accumulate(ended[:, :-1], axis=1)", "~ended[:, :-1]", "episode end", ("test_steps_by_numpy.py", "every_row")),
        ("        valid = ages >= 0\n", "        valid = ages >= -1\n", "seam", ("test_steps_by_numpy.py", "every_row")),
        ("                (new,) = (ages < staged).nonzero()\n", "", "seam", ("test_steps_by_numpy.py", "every_row")),
        ("** counts.astype", "** np.full_like(counts, self.view.n).astype", "views", ("test_steps_by_numpy.py", "every_row")),
        ("        rewards[new] = ", "        rewards[:0] = ", "seam", ("test_steps_by_numpy.py", "every_row")),
        ("            taken.terminated[new] = ", "            taken.terminated[new[:0]] = ", "seam", STAGED),
        ("                mask[new] = True", "                pass", "mask", ("test_sb3.py", "stands_there")),
        ("self._seen.leaves is leaves", "True", "seam", ("test_sb3.py", "amid")),
        ("first = self._seen.written %", "first = 0 * self._seen.written %", "seam", STAGED),
        ("return first + (staged - 1)", "return first + (staged - 2)", "seam", STAGED),
        ("min(staging.steps * staging.n_envs, self._capacity)", "min(seen.written * staging.n_envs, self._capacity)", "seam", ("test_sb3.py", "as_often")),
    ),
    *of(
        f"{SB3}/_memory.py",
        ("        _check_all_there(state)\n        found", "        found", "seam", ("test_sb3.py", "could_be_removed")),
        ("        _check_all_there(state)\n        vars", "        vars", "seam", ("test_sb3.py", "could_be_removed")),
        (", removable=state.ring.removable)", ")", "disk", ("test_sb3.py", "could_be_removed")),
        (" or (\n            state.capacity != self.spec.capacity\n        ):", ":", "disk", ("test_sb3.py", "saved_and_loaded")),
        ("        self._let_go()\n        leaves, structure", "        leaves, structure", "seam", ("test_sb3.py", "in_place")),
        ("            self._let_go()\n            self._own(fbuf.clear", "            self._own(fbuf.clear", "seam", ("test_sb3.py", "in_place")),
        ("self._own(jax.device_put(state, self.device), self.steps)", "self._own(jax.device_put(state, self.device), 0)", "seam", ("test_sb3.py", "saved_and_loaded")),
        ("sum(count for _, count in found.ends)", "0", "next observations", ("test_sb3.py", "saved_and_loaded")),
        ("back * n_envs + (n_envs - 1 - envs), back", "back * n_envs + envs, back", "seam", ROWS),
        ("self._seen is None or self._seen[0] is not leaves", "self._seen is None", "seam", ROWS),
    ),
    *of(
        f"{SB3}/_rows.py",
        ("places % size", "places", "seam", ROWS),
        ("return None  # where NumPy puts", "pass  # where NumPy puts", "seam", ROWS),
        ("        if places.basic:", "        if False:", "seam", ROWS),
        ("        if name in _IN_PLACE:", "        if False:", "seam", ("test_rows.py", "refused")),
    ),
    *of(
        f"{SB3}/_all_rows.py",
        ("            found[~there] = 0", "            pass", "mask", ("test_rows.py", "not_written")),
        ("newest = steps == (memory.steps - 1) % memory.length", "newest = steps >= 0", "episode end", ("test_rows.py", "refused")),
    ),
    *of(
        f"{SB3}/_staging.py",
        ("return found & ~before(self.terminated) & ~before(self.truncated)", "return found", "episode end", ("test_sb3.py", "bit_for_bit")),
        ("return step % self.room if step >= self._begun else -1", "return step % self.room", "seam", ("test_sb3.py", "one_round")),
        ("            rows[-1] = rows[self.room - 1]", "            pass", "seam", ("test_sb3.py", "one_round")),
        ("        self._begun = self.steps\n", "        pass\n", "seam", ("test_sb3.py", "one_round")),
        ("self.go_on(kept[\"newest\"])", "pass", "seam", ("test_sb3.py", "goes_on")),
    ),
    *of(
        f"{SB3}/_memory.py",
        ("- (0 if goes_on else 2)", "", "seam", ("test_sb3.py", "assigned")),
        ("            self.offset = self.steps - counted", "            self.offset = 0", "seam", ("test_sb3.py", "assigned")),
    ),
    *of(
        f"{SB3}/_loaded.py",
        ("steps = stored if stored < length else length + head", "steps = stored", "seam", ("test_sb3.py", "saved_and_loaded")),
        ("-head, axis=0", "0, axis=0", "episode end", ("test_sb3.py", "saved_and_loaded")),
        ("np.array(leaf)[:, 0], following", "np.array(leaf)[0], following", "seam", ("test_sb3.py", "assigned")),
    ),
    *of(
        f"{SB3}/_turns.py",
        ("            if turns.busy:", "            if False:", "adapters", ("test_handlers.py", "other_calls")),
        ("            if turns.adding and not amid_steps:", "            if False:", "adapters", ("test_handlers.py", "takes_no_rows")),
        ("            while self.later and not self.busy and not self.adding:", "            while False:", "adapters", ("test_handlers.py", "adds")),
    ),
    *of(
        f"{SB3}/_replay_buffer.py",
        ("        if turns.adding or turns.busy:  # a signal", "        if False:  # a signal", "adapters", ("test_handlers.py", "adds")),
        ("step = copy.deepcopy((obs", "step = copy.copy((obs", "adapters", ("test_handlers.py", "copy")),
        ("wrong |= ~memory.ages(steps, envs)[1]", "pass", "seam", ("test_overrides.py", "no_row")),
        ("            if self._draws_by_position():", "            if False:", "adapters", ("test_overrides.py", "override")),
    ),
    *of(
        f"{SB3}/_overrides.py",
        (" or name in vars(buffer)", "", "adapters", ("test_overrides.py", "one_object")),
        ("if issubclass(kind, _THEIRS) and", "if False and", "adapters", ("test_overrides.py", "would_not")),
    ),
    *of(
        f"{SB3}/_pickles.py",
        ("        write_files(file.parent, {file.name: content})", "        with open(file, \"wb\") as out:\n            content(out)", "adapters", ("test_saves.py", "moment or fails")),
    ),
    *of(
        f"{SB3}/_algorithms.py",
        ("            options.setdefault(\"gamma\", self.gamma)", "            options.setdefault(\"gamma\", 1.0)", "adapters", ("test_saves.py", "n_steps")),
    ),
    *of(
        f"{SB3}/_batches.py",
        ("            return leaf[rows]", "            return leaf", "mask", ("test_sb3.py", "stands_there")),
    ),
    *of(
        f"{SB3}/_her.py",
        ("        with uninterrupted():", "        if True:", "adapters", ("test_her.py", "together")),
    ),
    *of(
        f"{DATASETS}/_lerobot.py",
        ("np.diff(rows.episode, append=-1) != 0", "np.diff(rows.episode, prepend=-1) != 0", "episode end", ("test_lerobot.py", "every_number")),
        ("Ends(ended, last & ~ended, True", "Ends(ended, np.zeros_like(last), True", "episode end", ("test_lerobot.py", "next_observation")),
        ("if terminated is None else _flag(where, fields, terminated)", "if True else None", "episode end", ("test_lerobot.py", "terminated")),
    ),
    *of(
        f"{DATASETS}/_lerobot_metadata.py",
        ("VideoFrames(key, path, index[places],", "VideoFrames(key, path, frame[places],", "seam", ("test_lerobot.py", "windows or every_number")),
        ("np.lexsort((index, file))", "np.argsort(file, kind=\"stable\")", "seam", ("test_lerobot.py", "windows")),
        ("videos.first[episode] + frame", "videos.first[0] + frame", "seam", ("test_lerobot.py", "every_number")),
        ("(frame >= self.lengths", "(frame > self.lengths", "mask", ("test_lerobot.py", "not_there")),
        ("round(seconds * self.fps)", "int(seconds * self.fps)", "seam", ("test_lerobot.py", "between_two")),
        ("if abs(steps / self.fps - seconds) > _TOLERANCE:", "if False:", "seam", ("test_lerobot.py", "between_two")),
        ("np.rint(np.array(seconds) * fps)", "np.rint(np.array(seconds) * 0)", "seam", ("test_lerobot.py", "windows or every_number")),
        ("\"episode_chunk\": number // chunk", "\"episode_chunk\": 0", "seam", ("test_lerobot.py", "several_chunks")),
    ),
    *of(
        f"{DATASETS}/_lerobot_columns.py",
        ("if counted[episode] != lengths[episode]:", "if counted[episode] < lengths[episode]:", "seam", ("test_lerobot.py", "number_of_steps")),
        ("np.roll(self.frame, 1) + 1)", "self.frame)", "seam", ("test_lerobot.py", "another_order")),
        ("np.searchsorted(self._starts, part.start, \"right\")", "np.searchsorted(self._starts, part.start)", "seam", ("test_lerobot.py", "any_part")),
        ("min(part.stop - begin, count)", "count", "seam", ("test_lerobot.py", "any_part")),
        ("if n not in seen} - named", "if n < 0}", "seam", ("test_lerobot.py", "file_before")),
        ("> 0.5 / fps", "> 5 / fps", "seam", ("test_lerobot.py", "times")),
        ("if (lengths != length).any():", "if lengths.sum() != length * len(lengths):", "seam", ("test_lerobot.py", "ragged")),
        ("(values.type, \"value_type\") or values.null_count:", "(values.type, \"value_type\"):", "mask", ("test_lerobot.py", "ragged")),
        ("narrow(joined, np.dtype(np.int32), exact=True)", "joined.astype(np.int32)", "adapters", ("test_lerobot.py", "int32")),
        ("if decoded.shape[:1] != (len(places),) or self._form not in (None, form):", "if False:", "adapters", ("test_lerobot.py", "another_form")),
    ),
    *of(
        f"{DATASETS}/_ogbench.py",
        ("np.flatnonzero(~last), dict", "np.arange(len(last)), dict", "episode end", ("test_ogbench.py", "last_states")),
        ("np.flatnonzero(~last[:-1] & last[1:])", "np.flatnonzero(last[1:])", "next observations", ("test_ogbench.py", "any_length")),
        ("before + 1)", "before)", "next observations", ("test_ogbench.py", "last_states")),
        ("Last({\"\": observed}, np.flatnonzero(truncated)", "Last({\"\": observed}, before", "next observations", ("test_ogbench.py", "last_states")),
        ("np.zeros_like(truncated), truncated, True", "truncated, np.zeros_like(truncated), True", "episode end", ("test_ogbench.py", "last_states")),
        ("[self._rows[here] - start]", "[self._rows[here] - start - 1]", "next observations", ("test_ogbench.py", "any_length")),
    ),
    *of(
        f"{DATASETS}/_rlds.py",
        ("leaves[name][:-1] for name in names", "leaves[name][1:] for name in names", "next observations", ("test_rlds.py", "last_steps")),
        ("terminated=ended & terminal", "terminated=ended & (not terminal)", "episode end", ("test_rlds.py", "last_steps")),
        ("steps[len(steps) - 1] if len(steps)", "steps[0] if len(steps)", "episode end", ("test_rlds.py", "last_steps")),
        ("if step.get(\"is_last\", False):", "if False:", "episode end", ("test_rlds.py", "refused")),
    ),
    *of(
        "storage/tags.py",
        ("return secrets.randbits(32) - 2**31", "return 0", "identity", ("test_tags.py", "tag_of_its_own")),
        ("bits + jnp.uint32(number * _SPREAD % 2**32)", "bits", "identity", ("test_tags.py", "tag_of_its_own")),
        ("lax.rng_uniform(jnp.uint32(0), jnp.uint32(2**32 - 1), ())", "jnp.uint32(0)", "identity", ("test_tags.py", "tag_of_its_own")),
        ("np.full_like(kept[..., :1, :], new())", "saved[..., -1:, :] * 0", "identity", ("test_tags.py", "given_up")),
        ("MOST_LAPS = 2**16", "MOST_LAPS = 2**32 - 1", "fault bit", ("test_tags.py", "demonstrations")),
        ("MOST_LAPS = 2**16", "MOST_LAPS = 1", "fault bit", ("test_tags.py", "late")),
    ),
    *of(
        "storage/ring.py",
        ("flat.reshape(slots.shape) + self.tag[0]", "flat.reshape(slots.shape)", "identity", ("test_tags.py", "given_up")),
        ("return cursor[1] + cursor[4] -", "return cursor[1] -", "identity", ("test_tags.py", "demonstrations")),
        ("*self.cursor[3:]]),", "*self.cursor[3:4], self.tag * 0]),", "identity", ("test_against_oracle.py", "case00 or case01")),
    ),
    *of("storage/append.py", ("jnp.concatenate([moved, ring.cursor[3:]])", "jnp.concatenate([moved, ring.cursor[3:] * 0])", "identity", ("test_tags.py", "demonstrations"))),
    *of("storage/place.py", ("jnp.concatenate([moved[:, None], ring.cursor[3:]])", "jnp.concatenate([moved[:, None], ring.cursor[3:] * 0])", "identity", ("test_tags.py", "given_up"))),
    *of("ops/split.py", ("None, ends, tag=tags.new())", "None, ends)", "identity", ("test_tags.py", "parts"))),
    *of("mesh/load.py", ("            with tags.alike(tag):\n", "            with tags.alike(0):\n", "identity", ("test_tags.py", "mesh"))),
    *of("mesh/init.py", ("np.full(devices, agreed_tag(mesh), np.int32)", "np.full(devices, 0, np.int32)", "identity", ("test_tags.py", "mesh"))),
    *of(
        "ops/named.py",
        ("    faults |= bits_where(found.foreign & chosen, Fault.FOREIGN_ID)\n", "", "fault bit", ("test_tags.py", "demonstrations")),
    ),
    *of(
        "dispatch/gradients.py",
        ("            if not isinstance(tangent, SymbolicZero):", "            if False:", "gradient", ("test_gradients.py", "refused")),
        ("return jax.lax.stop_gradient(leaf) if traced and _has(leaf) else leaf", "return leaf", "gradient", ("test_gradients.py", "differentiated_tree")),
    ),
    *of(
        "dispatch/parse.py",
        ("whole = gradients.refused(function, argument, tree.unflatten(arrays))", "whole = tree.unflatten(arrays)", "gradient", ("test_gradients.py", "refused")),
        ("values = gradients.refused(function, name, jnp.asarray(leaf))", "values = jnp.asarray(leaf)", "gradient", ("test_gradients.py", "refused")),
    ),
    *of(
        "dispatch/intact.py",
        ("_narrow(dtype) == _narrow(wanted.dtype)", "True", "checks", ("test_intact.py", "cast")),
        ("wanted.shape in (None, shape)", "True", "checks", ("test_intact.py", "named")),
        ('parts[".next_obs.rows"] = ', 'parts[".next_obs.none"] = ', "checks", ("test_intact.py", "kept")),
        ('".index": jax.tree.map', '".none": jax.tree.map', "checks", ("test_intact.py", "priorities")),
    ),
    *of("mesh/call.py", ("leaf, Expected(spec.dtype))", "leaf, Expected())", "checks", ("test_intact.py", "mesh"))),
    *of(
        "../adapters/fbuf_adapters/pytorch/buffer/_snapshot.py",
        ("ahead = [_renamed(batch, tag - figures.get(\"tag\", 0)) for batch in ahead]", "pass", "identity", ("test_ids_after_a_load.py", "")),
    ),
    *of(
        "checkpoint/other_run.py",
        ("    if newest.save_id in own:\n        return True\n", "", "gate", ("test_incremental.py", "by_turns or part")),
        ("    if own & given_up:\n        return False\n", "", "gate", ("test_incremental.py", "part or older_checkpoint")),
        ("    given_up.add(newest.save_id)\n", "", "gate", ("test_incremental.py", "part or older_checkpoint")),
        ("buffer.tag == _last.get(folder)", "False", "gate", ("test_incremental.py", "changes_its_buffer")),
        ("buffer.tag not in _tags.get(folder, ())", "True", "gate", ("test_incremental.py", "changes_its_buffer")),
        ("        if related is False:\n            other = True", "        if related is False:\n            other = False", "gate", ("test_incremental.py", "part or older_checkpoint")),
        ("    return bool(found.mean() < 0.5)", "    return bool(found.mean() < 0.0)", "gate", ("test_incremental.py", "by_turns")),
    ),
    *of(
        "doctor/stretches.py",
        ("    steps = flags & DUMMY == 0\n", "    steps = flags >= 0\n", "read", ("test_planted.py", "only_reset")),
    ),
    *of(
        "doctor/findings/copies.py",
        ("    runs = np.lib.stride_tricks.sliding_window_view(kinds, _RUN)", "    runs = kinds[:, None]", "read", ("test_planted.py", "come_again")),
    ),
    *of(
        "../adapters/fbuf_adapters/flashbax/buffers/_broadcast.py",
        ("missing < 0 or (missing and math.prod(lead) != 1)", "missing < 0", "adapters", ("test_broadcast.py", "refused or mixed")),
        ("missing < 0 or (missing and math.prod(lead) != 1)", "missing != 0", "adapters", ("test_broadcast.py", "repeated")),
        ("all(size in (1, want) for", "all(size in (1, want, 2) for", "adapters", ("test_broadcast.py", "refused")),
        ("all(size in (1, want) for", "all(size == 1 for", "adapters", ("test_broadcast.py", "repeated")),
        ("zip(own, feature[missing:], strict=True)", "zip(own, feature, strict=False)", "adapters", ("test_broadcast.py", "repeated or refused")),
        ("        check.array(\"add\", name, leaf)\n", "", "adapters", ("test_broadcast.py", "checked_like_others")),
    ),
    *of(
        "../adapters/fbuf_adapters/flashbax/buffers/_made.py",
        ("    batch = _broadcast.as_stored(buffer.storage.item, batch, axes)\n", "", "adapters", ("test_broadcast.py", "repeated")),
    ),
    *of(
        "../adapters/fbuf_adapters/flashbax/buffers/_arguments.py",
        ("len({shape[:2] for shape in shapes}) > 1", "False", "adapters", ("test_broadcast.py", "same_batches")),
    ),
    *of(
        f"{DATASETS}/_checks.py",
        ('getattr(flag, "dtype", None) != np.bool_', "False", "checks", ("test_source.py", "no_bool")),
        ("len(rows) != 1 or not {(), rows}", "not {(), rows}", "checks", ("test_source.py", "no_bool")),
        ("len(rows) != 1 or not {(), rows}.issuperset(shapes.values())", "len(rows) != 1", "checks", ("test_source.py", "no_bool")),
    ),
]
