"""No row can be drawn, or none from short episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.doctor.text import count
from fbuf.samplers.grouped import Grouped
from fbuf.samplers.limited import Limited
from fbuf.samplers.protocol.nested import nested

_MANY = 0.1
"""The suspicious share of rows in short episodes: every run has a few."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    del leaves
    rows = found.figures["rows"]
    if not rows:
        removed = found.figures["removed"]
        why = f": all {removed:,} are removed" if removed else ""
        yield Finding(
            "error",
            "empty",
            f"The buffer holds no row{why}.",
            "Add rows, and keep the state that fbuf.add returns: state = fbuf.add(state, rows).",
        )
        return
    if found.sampler.is_queue or not found.parts[0].known:
        return
    states = [part.state for part in found.parts]
    if not any(state.sampler.can_sample(state.index, state.ring) for state in states):
        yield _nothing(found)
        return
    window, lengths = found.sampler.min_window, found.episodes.lengths
    is_short = lengths < window
    if is_short.any() and lengths[is_short].sum() >= _MANY * lengths.sum():
        yield Finding(
            "warning",
            "short_episodes",
            f"{is_short.sum():,} of {count(lengths.size, 'whole episode')} are shorter than the "
            f"window of {window} rows, and none of their rows is drawn.",
            "Take a shorter window, or strict=False in the sampler, which draws short episodes, "
            "too.",
        )


def _nothing(found: Found) -> Finding:
    """Return the finding that no row can be drawn, with the reason."""
    rows, window = found.figures["rows"], found.sampler.min_window
    start = f"There are {count(rows, 'row')}, and none can be drawn"
    stretches = (slots for lanes in found.lanes for lane in lanes for slots in lane.unbroken())
    longest = max((slots.size for slots in stretches), default=0)
    state = found.parts[0].state
    inside = [of for of, _ in nested(state.sampler, state.index, state.ring)]
    live = found.figures["sampler figures"].get("live")
    if longest < window:
        why = f": the window is {window} rows, and the longest episode has {longest}."
        remedy = (
            "Add more rows, if the episodes go on. Else take a shorter window, or strict=False in "
            "the sampler."
        )
    elif live == 0 and any(isinstance(of, Limited) for of in inside):
        why = ": fbuf.Limited has retired all of them."
        remedy = "Add rows more often, or raise max_uses, max_age or the version of fbuf.expire."
    elif any(isinstance(of, Grouped) for of in inside):
        groups = len(found.figures["sampler figures"]["groups"])
        why = f": no row has one of the {count(groups, 'group')}, or its group has the share 0."
        remedy = "Store the group of each row in the field, or write it later with fbuf.write."
    elif found.sampler.keeps_priorities:
        why = ": all priorities are 0."
        remedy = (
            "Give fbuf.Prioritized an eps above 0, and look at the TD errors that "
            "fbuf.update_priority gets."
        )
    else:
        why = "."
        remedy = "Look at the window, stride and first_only of the sampler."
    return Finding("error", "nothing_to_draw", start + why, remedy)
