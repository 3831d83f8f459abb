"""Wrong lines that the tests must find: `python -m tests.support.mutation` puts them in, one by one.

Each is a file of the package, a text that is there once, what it becomes, the kind of bug, and the
tests that are likeliest to find it.
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
    return "test_against_oracle.py", f"case{case:02}"


FLAT, FLAT_PER, ONE_SLOT, LARGE = map(history, range(4))
STRIDE, RUNS, RUNS_DUMMY, RUNS_APART = map(history, range(4, 8))
FIRST, PER_APART, MIXED, SHUFFLED, SHUFFLED_APART, GAPS = map(history, range(8, 14))
FAULTS = "test_errors.py", "not misuse and not 64_bit"
LED_TO = "test_transition.py", "every_row"
N_STEP, SEQUENCE = ("test_views.py", "n_step"), ("test_views.py", "test_sequence")
FRAMES, WRITTEN = ("test_views.py", "frame_stack"), ("test_views.py", "test_write")
RETURN, REACH = ("test_return_to_go.py", "test_return"), ("test_return_to_go.py", "test_reach")
GOALS = "test_hindsight.py", "same_episode or every_row"
SEVERAL = "test_mixture.py", "several or counts or empty"
MIXTURE = "test_mixture.py", "as_likely"
LIKELY, MASKED = ("test_windows.py", "likely"), ("test_windows.py", "mask")
SUMS, MARKS = ("test_sum_tree.py", ""), ("test_mark_tree.py", "")
STORAGE, REDUCED = ("test_storage.py", ""), ("test_sequence_priority.py", "")
EPOCHS = "test_shuffled.py", ""
OFTEN = "test_distribution.py", "often or alpha or sorted"
SEEDS = "test_contracts.py", "one_by_one"


def place(case: int) -> tuple[str, str]:
    """A case of `test_every_byte_is_in_place`."""
    return "test_contracts.py", f"common{case}"


# A line an entry, however long.
# ruff: noqa: E501
# fmt: off
MUTANTS = [
    *of(
        "_ring.py",
        ("rank >= max(each - ring.places, 0)", "rank >= 0", "seam", STRIDE),
        ("kept = chosen & (count - rank <= ring.places)", "kept = chosen", "mask", FLAT_PER),
        ("ring.stored.astype(jnp.uint32) + count, size)", "ring.stored.astype(jnp.uint32) + count, size - 1)", "count", FLAT),
        ("ring.lap.astype(jnp.uint32) + end // size", "ring.lap.astype(jnp.uint32)", "generation check", FLAT),
        ("(place >= head[0])", "(place > head[0])", "generation check", FLAT),
        ("ring.lap + 1, ring.stored & 0", "ring.lap, ring.stored & 0", "generation check", FLAT),
        ("removed=ring.removed & 0", "removed=ring.removed", "count", FLAT),
        ("(replaced & REMOVED > 0) & was_stored", "replaced & REMOVED > 0", "count", FLAT),
        ("by.astype(jnp.uint32)) % size).astype", "by.astype(jnp.uint32)) % (size + 1)).astype", "seam", RUNS),
        ("+ size - 1 - place.astype", "+ size - place.astype", "seam", RUNS),
        ("(ring.lanes // ring.heads) - 1 - newer(ring, slots)", "(ring.lanes // ring.heads) - newer(ring, slots)", "seam", FRAMES),
        ("(place < head[2])", "(place <= head[2])", "count", FLAT),
        ("live = inside & same & (flags & REMOVED == 0)", "live = inside & same", "fault bit", FLAT),
        ("holds(ring, slot) & (ids.generation == generation_of(ring, slot))", "holds(ring, slot)", "generation check", FLAT),
        ("same = holds(ring, slot) & (ids", "same = (ids", "generation check", FLAT),
        ("return live, ~inside & (ids.slot != NO_SLOT), inside", "return live, ~inside, inside", "fault bit", FLAT),
        ("(TERMINATED | TRUNCATED | DUMMY) == 0) & lanes", "(TERMINATED | TRUNCATED) == 0) & lanes", "episode end", RUNS_DUMMY),
        ("jnp.where(lanes, jnp.zeros_like(leaf), leaf)", "leaf", "episode end", RUNS),
        (".min(newer(ring, slots), mode", ".max(newer(ring, slots), mode", "windows", STRIDE),
        ("slots = place * ring.heads + lane", "slots = place * ring.heads", "episode end", RUNS_APART),
        ("slot=jnp.where(mask, slots, NO_SLOT)", "slot=slots", "mask", FLAT),
        ("inside &= ~places.dummy", "inside &= True", "episode end", ONE_SLOT),
        ("[1][2] == ring.places", "[1][2] != ring.places", "views", SEQUENCE),
    ),
    *of(
        "_episodes.py",
        ("dummy = run % 2 == 1", "dummy = run >= 1", "episode end", STRIDE),
        ("ends = ends & ~dummy", "ends = ends & True", "episode end", STRIDE),
        ("before.position + number + 1, number - begin", "before.position + number + 1, number - begin + 1", "windows", FIRST),
        ("begin = jnp.maximum(begin, _newest(dummy, -_MANY))", "begin = begin * 1", "episode end", STRIDE),
        ("before.intact + number + 1", "before.position + number + 1", "windows", RUNS),
        ("jnp.where(count > 0, last, before)", "last", "mask", PER_APART),
        ("else count) - 1 - number", "else count) - number", "windows", STRIDE),
    ),
    *of(
        "_storage.py",
        ("min(field.dtype.itemsize, 4) for", "4 for", "dtype", STORAGE),
        ("return bits.reshape(shape) != 0", "return bits.reshape(shape) > 1", "dtype", STORAGE),
        ("[narrow.get(number, rows) for", "[rows for", "views", WRITTEN),
        ("(0, -bits.shape[1] % ratio)", "(-bits.shape[1] % ratio, 0)", "dtype", STORAGE),
    ),
    *of(
        "_nexts.py",
        ("ends = span.drawable & (flags & (TERMINATED | TRUNCATED) > 0)", "ends = span.drawable & (flags & TERMINATED > 0)", "next observations", LED_TO),
        ("(_ring.newer(ring, inside) == 0) & ~ends", "~ends", "next observations", LED_TO),
        ("kept = ends & (count - rank <= room).reshape(-1)", "kept = ends & True", "next observations", LED_TO),
        ("(before != slots) & looks & there", "(before != slots) & there", "fault bit", LED_TO),
        ("(before != slots) & looks & there", "(before != slots) & looks", "fault bit", ("test_transition.py", "removed_row")),
        ("(place >= 0) & (_rows.read(nexts.owner, inside) == slots)", "place >= 0", "next observations", LED_TO),
        ("aside = ended | newest", "aside = ended", "next observations", LED_TO),
        ("own = jnp.where(newest, slots % lanes, where)", "own = jnp.where(newest, 0, where)", "next observations", LED_TO),
        ("cursor=((cursor + count) % jnp.uint32(room)).astype(jnp.int32)", "cursor=nexts.cursor", "next observations", LED_TO),
        ("_order.after(where, _order.never(before))", "where", "order", place(3)),
    ),
    *of(
        "_update.py",
        ("live & chosen, outside & chosen, stale & chosen", "live & chosen, outside, stale", "mask", FLAT),
        ("live & chosen, outside & chosen, stale & chosen", "live, outside & chosen, stale & chosen", "mask", FLAT),
        ("slots = jnp.where(last_of_each(slots), slots, state.capacity)", "slots = slots + 0", "count", FLAT),
        ("fault=state.fault & jnp.uint32(0)", "fault=state.fault", "fault bit", FLAT),
        ("slots = _order.after(slots, state.fault", "_order.after(slots, state.fault", "order", place(3)),
    ),
    *of(
        "_fault.py",
        ("return fault | bits[0]", "return bits[0]", "fault bit", FAULTS),
        ("lax.reduce(bits, fault,", "lax.reduce(bits, np.uint32(0),", "fault bit", FLAT),
        ("return faults | lax.reduce(rows", "return lax.reduce(rows", "fault bit", SEEDS),
    ),
    *of(
        "_add.py",
        ("flags |= jnp.where(given", "flags = jnp.where(given", "episode end", FLAT),
        ("faults |= lost", "faults |= lost & 0", "fault bit", LED_TO),
        ("removed = _order.after(state.ring.removed, ", "removed = _order.after(state.ring.removed, False & ", "order", place(0)),
    ),
    *of(
        "_sample.py",
        ("there &= reading.known", "there &= True", "mask", ("test_transition.py", "lost")),
        ("weight = jnp.where(there, weight, 0)", "weight = weight * 1", "weights", ("test_transition.py", "lost")),
        ("slot=_order.after(ids.slot, impossible)", "slot=ids.slot", "order", place(2)),
    ),
    *of(
        "_sample_mixed.py",
        ("key=lambda at: counts[at] - exact[at]", "key=lambda at: exact[at] - counts[at]", "count", SEVERAL),
        ("jnp.where(together.mask, log_weight, -jnp.inf)", "log_weight", "weights", SEVERAL),
        ("jax.random.fold_in(key, number), beta", "key, beta", "mask", SEVERAL),
    ),
    *of(
        "samplers/_start_index.py",
        ("mark_tree.read(index.tree, written) & (span.slots < ring.capacity)", "mark_tree.read(index.tree, written)", "mask", FLAT),
        ("_sum(jnp.where(span.was_stored, gone, 0))", "_sum(gone)", "count", STRIDE),
        ("mark_tree.read(index.tree, inside) & _ring.holds(ring, starts)", "mark_tree.read(index.tree, inside) & (starts < ring.capacity)", "windows", MIXED),
        ("starts = jnp.where(last_of_each(starts), starts, ring.capacity)", "starts = starts + 0", "windows", STRIDE),
        ("if ring.heads > 1:", "if ring.heads > 99:", "count", SHUFFLED_APART),
        ("_bits.below(bits[0], _ring.filled(ring))", "_bits.below(bits[0], jnp.int32(ring.capacity))", "mask", STRIDE),
        ("lax.cond(removed == 0, ", "lax.cond(removed >= 0, ", "mask", FLAT),
        ("written = _order.after(written, index.total < 0)", "written = written + 0", "order", ("test_contracts.py", "common")),
    ),
    *of(
        "samplers/_starts.py",
        ("places.intact >= window.length", "places.intact > window.length", "windows", STRIDE),
        ("(places.newer + earlier < ring.lane_length)", "(places.newer + earlier <= ring.lane_length)", "seam", RUNS),
        ("places.position == window.length", "places.position >= window.length", "windows", FIRST),
        ("(slots // ring.lanes) % window.stride", "(slots // ring.lanes + 1) % window.stride", "windows", STRIDE),
        ("ring.capacity - 1)[:, None], -earlier)", "ring.capacity - 1)[:, None], earlier)", "windows", STRIDE),
    ),
    *of(
        "samplers/_runs.py",
        ("jnp.where(same & stays & mark_tree", "jnp.where(same & mark_tree", "by-episode", GAPS),
        ("same = places.position >= length + stride", "same = places.position > length + stride", "by-episode", RUNS),
        ("mend = complete & is_start &", "mend = is_start &", "by-episode", RUNS),
        ("begins = (is_one & ~last &", "begins = (is_one &", "by-episode", GAPS),
        ("(last - first) % room // window.stride", "(last - first) // window.stride", "seam", RUNS),
        ("run + _around_seam(runs, starts, ring, lane)", "run + 0", "seam", LIKELY),
        ("_bits.below(bits[1], length) * window.stride", "_bits.below(bits[1], length)", "by-episode", RUNS),
        ("total=_order.after(starts.total, looked_at)", "total=starts.total", "order", place(1)),
    ),
    *of(
        "samplers/prioritized.py",
        ("jnp.where(jnp.signbit(old), -new, new)", "new", "windows", PER_APART),
        ("evicted = span.was_stored & _awake(before)", "evicted = _awake(before)", "count", FIRST),
        ("new = jnp.where(valid, stored, default)", "new = stored", "fault bit", FLAT_PER),
        ("bits_where(~valid & span.drawable", "bits_where(~valid", "fault bit", FLAT_PER),
        ("raised = jnp.maximum(raised, _SMALLEST)", "raised = raised * 1", "tree rounding", FAULTS),
        ("jnp.where(base > 0, raised, 0)", "raised", "weights", ONE_SLOT),
        ("& (stored <= most)", "& (stored < jnp.inf)", "fault bit", FAULTS),
        ("jnp.where(mask, log_weight, -jnp.inf).max()", "jnp.where(mask, log_weight, -jnp.inf).min()", "weights", FLAT_PER),
        ("sum_tree.aggregate(tree, Aggregate.LARGEST_INVERSE)", "sum_tree.aggregate(tree, Aggregate.SUM)", "weights", LARGE),
        ("mean = total / jnp.maximum(self.count(index, ring), 1).astype(jnp.float32)", "mean = total", "weights", SEVERAL),
        ("jax.random.permutation(order_key, batch_size)", "jnp.arange(batch_size)", "order", OFTEN),
        ("return jnp.where(largest > 0, largest, 1)", "return largest", "weights", FLAT_PER),
        ("tree = jax.tree.map(jnp.zeros_like, index.tree)", "tree = sum_tree.cleared(index.tree)", "tree rounding", PER_APART),
        ("jnp.concatenate([starts, slots]), jnp.concatenate([-jnp.abs(old), -new])", "jnp.concatenate([slots, starts]), jnp.concatenate([-new, -jnp.abs(old)])", "windows", PER_APART),
        ("return jnp.maximum(index.largest_ever,", "return jnp.minimum(index.largest_ever,", "weights", ONE_SLOT),
        ("slots = _order.after(span.slots, _order.never(before))", "slots = span.slots", "order", place(4)),
    ),
    *of(
        "samplers/uniform.py",
        ("-power * jnp.log(relative)", "power * jnp.log(relative)", "weights", RUNS),
    ),
    *of(
        "samplers/mixture.py",
        ("jnp.where(there >= size, there - size, there)", "there", "seam", MIXTURE),
        ("jnp.where(wraps, total - before + up_to, up_to - before)", "up_to - before", "seam", MIXED),
        ("* ring.lanes + (ring.lanes - 1 - slots % ring.lanes)", "* ring.lanes", "weights", MIXED),
        ("[total > 0, by_priority, recent > 0]", "[total > 0, total > 0, recent > 0]", "weights", MIXED),
    ),
    *of(
        "samplers/shuffled.py",
        ("jax.random.fold_in(key, epoch)", "key", "order", EPOCHS),
        ("mark_tree.read(index.tree, found) & _ring.holds(ring, found)", "mark_tree.read(index.tree, found)", "count", SHUFFLED),
        ("mask = (number < left) & (total > 0)", "mask = number < left", "mask", SHUFFLED),
    ),
    *of("samplers/_permutation.py", ("lax.clz(size - 1), 6)", "lax.clz(size - 1), 1)", "order", EPOCHS)),
    *of("samplers/_bits.py", ("(bits >> 8).astype", "(bits >> 9).astype", "tree rounding", OFTEN)),
    *of(
        "trees/_levels.py",
        ("jnp.where((rows < filled)[:, None], nodes, 0)", "nodes", "tree rounding", SUMS),
        ("node = jnp.where(row < filled, reduce(read_row(children, row)), 0)", "node = reduce(read_row(children, row))", "tree rounding", LARGE),
        ("(position[:, None] < position[None, :])", "(position[:, None] > position[None, :])", "order", FLAT_PER),
        ("[ordered[1:] != ordered[:-1], jnp.ones(1, bool)]", "[jnp.ones(1, bool), ordered[1:] != ordered[:-1]]", "order", SUMS),
    ),
    *of(
        "trees/mark_tree.py",
        ("passed = passed_count <= rank", "passed = passed_count < rank", "tree rounding", MARKS),
        ("beyond = low <= rank", "beyond = low < rank", "tree rounding", MARKS),
        ("jnp.where(at < child, -1, jnp", "jnp.where(at <= child, -1, jnp", "tree rounding", MARKS),
        ("jnp.where(number == node >> _SHIFT, before, 0)", "before", "tree rounding", MARKS),
        ("count + 1 - _bit(word, slots[i])", "count + 1", "tree rounding", MARKS),
    ),
    *of(
        "trees/sum_tree.py",
        ("(passed <= target)", "(passed < target)", "tree rounding", SUMS),
        ("sums[ahead - 1] <= targets", "sums[ahead - 1] < targets", "tree rounding", SUMS),
        ("filled - 1, filled), 0, 1 - 2.0**-24)", "filled - 1, filled), 0, 1)", "tree rounding", SUMS),
        ("jnp.where(part > 0, 1 / part, 0)", "1 / part", "tree rounding", ONE_SLOT),
        ("jnp.abs(part) if which", "part if which", "windows", FIRST),
        ("jnp.where(behind < filled, tree.capacity, behind)", "behind", "seam", LARGE),
        ("jnp.where(behind < filled, tree.capacity, behind)", "tree.capacity + 0 * behind", "seam", LARGE),
        ("(first + jnp.arange(most, dtype=jnp.int32)) % count", "jnp.minimum(first + jnp.arange(most, dtype=jnp.int32), count - 1)", "seam", LARGE),
        ("return _order.after(slots, tree.nodes[-1][0, 0, 0] < 0)", "return slots", "order", place(0)),
    ),
    *of(
        "views/_steps.py",
        ("_all_so_far((flags & REMOVED == 0) & stored)", "(flags & REMOVED == 0) & stored", "views", N_STEP),
        ("there & _all_so_far(went_on)", "there & _all_so_far(goes_on)", "episode end", N_STEP),
        ("jnp.broadcast_to(number <= newer", "jnp.broadcast_to(number < newer", "seam", N_STEP),
    ),
    *of(
        "views/n_step.py",
        ("jnp.where(flags & TERMINATED > 0, 0", "jnp.where(flags & 3 > 0, 0", "episode end", N_STEP),
        ("last = count[:, None] - 1", "last = count[:, None] * 0", "views", N_STEP),
    ),
    *of(
        "views/frame_stack.py",
        ("cut = (before > older)", "cut = (before >= older)", "seam", FRAMES),
        ("jnp.where(cut, before - 1, k - 1)", "jnp.where(cut, before, k - 1)", "episode end", FRAMES),
        ("jnp.arange(self.k - 1, -1, -1, dtype", "jnp.arange(self.k, dtype", "order", FRAMES),
    ),
    *of(
        "views/sequence.py",
        ("after_end, ~_ring.full(ring, slots))", "after_end, True)", "views", SEQUENCE),
        ("(number < self.burn_in + self.length)", "(number <= self.burn_in + self.length)", "views", SEQUENCE),
        ("flags = jnp.where(there, steps.flags, 0)", "flags = steps.flags", "mask", SEQUENCE),
    ),
    *of(
        "views/_episode.py",
        ("if forward else (0, _ENDS | REMOVED)", "if forward else (0, REMOVED)", "episode end", REACH),
        ("> 0, step + number - 1, last)", "> 0, step + number, last)", "episode end", REACH),
    ),
    *of(
        "views/return_to_go.py",
        ("beyond = jnp.float32(float(self.gamma) ** number.size)", "beyond = jnp.float32(1)", "views", RETURN),
        ("first + number <= count", "first + number < count", "views", RETURN),
    ),
    *of(
        "views/hindsight.py",
        ("before + steps + 1) - before", "before + steps) - before", "views", GOALS),
        ("whether, which = jax.random.split(key)", "whether, which = key, key", "views", GOALS),
    ),
    *of(
        "_write.py",
        ("jnp.where(last_of_each(slots), slots, state.capacity)", "slots", "order", WRITTEN),
    ),
    *of(
        "_sequence_priority.py",
        ("priority = jnp.where(priority < 0, jnp.nan, priority)", "priority = priority * 1", "weights", REDUCED),
        ("jnp.maximum(learn.sum(axis=-1), 1)", "jnp.maximum(learn.shape[-1], 1 + 0 * learn.sum(axis=-1))", "weights", REDUCED),
    ),
]
