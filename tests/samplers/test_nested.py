"""Samplers inside of samplers: groups, priorities and figures are found in every index."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.own import Hot

import fbuf
from fbuf.samplers import Sampler, Wrapper
from fbuf.samplers.protocol.conditions import Window

ROWS = {"task": jnp.int32([0, 2, 2])}
GROUPED = fbuf.Grouped("task", 3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Index:
    """An index with more than that of the wrapped sampler; no field has a name that fbuf knows."""

    calls: jax.Array
    theirs: Any
    twin: Any = None


@dataclasses.dataclass(frozen=True)
class Counting(Wrapper):
    """A wrapper that counts the calls of `add`, and does not say where the other index is."""

    sampler: Sampler
    twins: bool = False

    def init(self, ring):
        theirs = self.sampler.init(ring)
        return Index(jnp.int32(0), theirs, self.sampler.init(ring) if self.twins else None)

    def add(self, index, ring, span):
        theirs, faults = self.sampler.add(index.theirs, ring, span)
        return Index(index.calls + 1, theirs, index.twin), faults

    def remove(self, index, ring, slots):
        theirs = self.sampler.remove(index.theirs, ring, slots)
        return dataclasses.replace(index, theirs=theirs)

    def can_sample(self, index, ring):
        return self.sampler.can_sample(index.theirs, ring)

    def draw(self, index, ring, ask):
        return self.sampler.draw(index.theirs, ring, ask)

    def probability(self, index, ring, slots):
        return self.sampler.probability(index.theirs, ring, slots)

    def note(self, index, ring, draw):
        return dataclasses.replace(index, theirs=self.sampler.note(index.theirs, ring, draw))

    def stats(self, index, ring):
        return {"calls": index.calls} | self.sampler.stats(index.theirs, ring)


class Saying(Counting):
    """The same, and it says where the other index is."""

    def inner(self, index):
        yield self.sampler, index.theirs


def buffer(sampler):
    return fbuf.add(fbuf.init({"task": jnp.int32(0)}, 8, sampler=sampler), ROWS)


@pytest.mark.first(3)
@pytest.mark.parametrize(
    "around",
    [
        Counting,
        Saying,
        lambda inner: Saying(inner, twins=True),
        lambda inner: fbuf.FreshFirst(Counting(inner)),
        lambda inner: Counting(fbuf.FreshFirst(inner)),
        lambda inner: Saying(Counting(fbuf.FreshFirst(Saying(inner)))),
    ],
    ids=["counting", "saying", "twins", "inside", "around", "deep"],
)
def test_what_is_inside_of_a_wrapper_with_an_index_of_its_own_is_found(around):
    state = buffer(around(GROUPED))
    assert fbuf.group_sizes(state).tolist() == [1, 0, 2]
    assert fbuf.group_ids(state, 2, 3).slot.tolist() == [1, 2, -1]
    figures = fbuf.report(state).figures
    assert figures["sampler figures"]["groups"] == [1, 0, 2]
    assert figures["sampler figures"]["calls"] == 1


def test_priorities_inside_of_a_wrapper_with_an_index_of_its_own_are_reported():
    inside, plain = (
        fbuf.report(buffer(sampler)).figures
        for sampler in (Counting(fbuf.Prioritized()), fbuf.Prioritized())
    )
    calls = inside["sampler figures"].pop("calls")
    assert (calls, inside) == (1, plain)


def test_an_index_with_two_like_parts_is_refused_with_the_remedy():
    state = buffer(Counting(GROUPED, twins=True))
    for function in (fbuf.group_sizes, fbuf.report):
        with pytest.raises(TypeError, match=r"Counting has 2 parts like that of Grouped.*inner\("):
            function(state)


@pytest.mark.parametrize("around", [fbuf.FreshFirst, lambda inner: fbuf.Limited(inner, max_age=5)])
def test_a_sampler_that_plans_nothing_is_reported_inside_of_those_that_do(around):
    found = fbuf.report(buffer(around(Hot()))).figures["sampler figures"]
    assert found["num_hot"] == 0


@pytest.mark.sweep
def test_the_lowest_priority_of_all_shards_is_reported_and_not_their_sum():
    mesh, sampler = jax.make_mesh((1,), ("data",)), fbuf.EvictLowest(fbuf.Prioritized(alpha=1.0))
    state = fbuf.sharded.init(jnp.int32(0), 8, mesh=mesh, shards=2, sampler=sampler)
    state = fbuf.sharded.add(
        state, jnp.arange(4, dtype=jnp.int32), priority=jnp.float32([3, 2, 5, 4])
    )
    found = fbuf.report(state).figures["sampler figures"]
    assert found["lowest"] == float(fbuf.sharded.stats(state)["lowest"])
    assert found["priority_total"] == float(fbuf.sharded.stats(state)["priority_total"])


@dataclasses.dataclass(frozen=True)
class Named(Hot):
    """A sampler of windows with an attribute of its own by a name that fbuf had for another."""

    window: int = 2
    _window = Window(1, 1, first_only=False, strict=True)

    @property
    def min_window(self):
        return 1


def test_the_conditions_of_a_sampler_are_not_guessed_from_its_attributes():
    assert Counting(Named()).start_conditions == Window(2, 1, first_only=False, strict=False)
    assert Counting(GROUPED).start_conditions == GROUPED.start_conditions
