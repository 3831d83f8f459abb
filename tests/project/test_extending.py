"""A sampler and a view from outside: nothing in `fbuf` knows them, and every contract holds."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import pathlib
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats
from support import contracts, meshes, programs
from support.contracts import BATCH, ITEM, consumed, in_place, rows
from support.own import Hot, Newest, Surprising, Tempered

import fbuf

VIEW = Surprising()
HOT = Hot()


def step(state, key):
    state = fbuf.add(state, rows(16), priority=jax.random.uniform(key, (16,)) * 2)
    batch = fbuf.sample(state, key, BATCH, view=VIEW)
    error = jax.random.uniform(key, (BATCH,)) * 2
    state = fbuf.update_priority(state, batch.ids, error)
    return fbuf.remove(state, jax.tree.map(lambda x: x[:3], batch.ids)), consumed(batch)


def then_add(state, key):
    batch = fbuf.sample(state, key, BATCH, view=VIEW)
    state = fbuf.add(fbuf.after(state, batch), rows(16))
    return state, consumed(batch)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("body", "sampler", "seeds"),
    [
        (step, HOT, 0),
        (then_add, HOT, 0),
        *(
            pytest.param(*case, marks=pytest.mark.sweep)
            for case in (
                (then_add, fbuf.Uniform(), 0),
                (step, HOT, 8),
                (contracts.sample_update_add, HOT, 0),
                (contracts.with_masks, HOT, 0),
                (contracts.row_by_row, HOT, 0),
                (contracts.clear_between, HOT, 0),
                (contracts.windows(VIEW, then_remove=True), fbuf.Prioritized(window=2), 0),
                (contracts.windows(VIEW, then_remove=True), fbuf.Uniform(window=2), 8),
                (contracts.draw_update_add, fbuf.FreshFirst(HOT), 0),
            )
        ),
    ],
)
def test_every_byte_is_in_place(body, sampler, seeds):
    in_place(body, sampler, seeds=seeds)


@pytest.mark.sweep
def test_one_trace_serves_all_calls():
    run = jax.jit(chex.assert_max_traces(step, n=1))
    state = fbuf.init(ITEM, 40, sampler=HOT)
    for i in range(3):
        state, _ = run(state, jax.random.key(i))


@pytest.mark.sweep
def test_vmap_is_the_same_as_one_by_one():
    keys = jax.random.split(jax.random.key(0), (4, 3))
    one = fbuf.init(ITEM, 50, sampler=HOT)
    many = jax.tree.map(lambda x: jnp.stack([x] * 3), one)
    many, seen = jax.jit(lambda s, k: lax.scan(jax.vmap(step), s, k))(many, keys)
    alone = jax.jit(lambda s, k: lax.scan(step, s, k))
    for i in range(3):
        state, values = alone(one, keys[:, i])
        chex.assert_trees_all_equal(state, jax.tree.map(lambda x, i=i: x[i], many))
        np.testing.assert_allclose(values, seen[:, i], rtol=1e-6)


def filled():
    state = fbuf.init({"reward": 0.0}, 20, sampler=HOT)
    numbers = np.arange(12, dtype=np.float32)
    state = fbuf.add(state, {"reward": numbers**2}, priority=numbers / 5)  # hot: from 6 on
    return fbuf.remove(state, fbuf.Ids(jnp.int32([11, 3]), jnp.int32([0, 0])))


@pytest.mark.sweep
def test_the_same_in_every_way_eager_jit_scan_vmap():
    draw = functools.partial(fbuf.sample, batch_size=8, view=VIEW)
    programs.every_way(draw, filled(), jax.random.split(jax.random.key(1), 2))


@pytest.mark.sweep
def test_draws_are_as_likely_as_they_say():
    state, count = filled(), 100_000
    batch = fbuf.sample(state, jax.random.key(3), count)
    mask = np.asarray(batch.mask)
    slots = np.asarray(batch.ids.slot)[mask]
    likely = np.asarray(fbuf.probability(state, fbuf.ids_at(state, jnp.arange(12))))
    assert likely[3] == likely[11] == 0
    np.testing.assert_allclose(np.asarray(batch.probability)[mask], likely[slots], rtol=1e-6)
    expected = likely * count
    found = np.bincount(slots, minlength=12)
    kept = expected > 0
    chi = ((found - expected)[kept] ** 2 / expected[kept]).sum()
    assert chi < 40  # of 10 rows; above that one key in 60,000
    assert int(fbuf.stats(state)["num_hot"]) == 5
    assert not fbuf.sample(fbuf.clear(state), jax.random.key(0), 4).mask.any()


@pytest.mark.sweep
def test_the_view_over_samplers_of_fbuf_and_over_rows_by_name():
    state = filled()
    batch = fbuf.read(state, fbuf.ids_at(state, jnp.int32([0, 1, 5])), view=VIEW)
    np.testing.assert_array_equal(batch.data.surprise, [0, 1, 9])
    with pytest.raises(ValueError, match=r"^fbuf\.Surprising: reward names 'x'"):
        fbuf.read(state, batch.ids, view=Surprising("x"))


GROUPED = fbuf.Grouped("task", 3)
COMPOSED = {
    "hot": fbuf.FreshFirst(HOT, most=3),
    "tempered": Tempered(GROUPED),
    "both": fbuf.FreshFirst(Tempered(GROUPED), most=3),
    "limited": fbuf.Limited(fbuf.FreshFirst(Tempered(GROUPED), most=3), max_uses=10**9),
}
"""Samplers of a user inside of fbuf's, and around them."""


@pytest.mark.first(1)
@pytest.mark.parametrize("name", COMPOSED)
def test_samplers_of_users_compose_with_fresh_rows_and_groups(name):
    sampler, count = COMPOSED[name], 40_000
    item = {"number": jnp.int32(0), "task": jnp.int32(0)}
    state = fbuf.init(item, 24, sampler=sampler)
    numbers = np.arange(20, dtype=np.int32)
    rows = {"number": numbers, "task": np.where(numbers < 14, 0, numbers % 2 + 1)}
    given = {"priority": numbers / 10} if sampler.keeps_priorities else {}
    rows = jax.tree.map(lambda leaf: leaf.astype(np.int32), rows)
    state = fbuf.add(state, rows, **jax.tree.map(np.float32, given))
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.int32([3, 17])))
    fresh = 3 if sampler.notes_draws else 0
    if fresh:
        state, batch = fbuf.draw(state, jax.random.key(0), count)
        assert batch.data["number"][:3].tolist() == [0, 1, 2]
        assert int(fbuf.stats(state)["fresh"]) == 18 - 3
    else:
        batch = fbuf.sample(state, jax.random.key(0), count)
    likely = np.asarray(fbuf.probability(state, fbuf.ids_at(state, jnp.arange(20))), float)
    there = np.asarray(batch.mask)[fresh:]
    found = np.asarray(batch.data["number"])[fresh:][there]
    probability = np.asarray(batch.probability)[fresh:][there]
    np.testing.assert_allclose(probability, likely[found], rtol=1e-5)
    counts, drawable = np.bincount(found, minlength=20), likely > 0
    assert counts[~drawable].sum() == 0
    expected = likely[drawable] / likely.sum() * found.size
    assert stats.chisquare(counts[drawable], expected).pvalue > 1e-4


@dataclasses.dataclass(frozen=True)
class Same(fbuf.samplers.Wrapper):
    """A wrapper that changes nothing."""

    sampler: fbuf.samplers.Sampler


@pytest.mark.parametrize(
    "sampler", [fbuf.Fifo(), fbuf.Shuffled(), fbuf.Reservoir(), fbuf.Limited(max_uses=1)], ids=repr
)
def test_an_order_or_a_limit_is_not_wrapped(sampler):
    with pytest.raises(ValueError, match=r"fbuf\.Same: .* has an order or limits of its own"):
        Same(sampler)


def test_groups_are_found_inside_of_a_sampler_of_a_user():
    rows = {"task": jnp.int32([0, 2, 2])}
    for sampler in (Same(GROUPED), fbuf.FreshFirst(Same(GROUPED))):
        state = fbuf.add(fbuf.init({"task": jnp.int32(0)}, 8, sampler=sampler), rows)
        assert fbuf.group_sizes(state).tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match="has no groups"):
        fbuf.group_sizes(fbuf.init({"task": jnp.int32(0)}, 8, sampler=fbuf.EvictLowest()))


@pytest.mark.sweep
def test_a_sampler_of_a_user_draws_beside_fresh_rows_over_a_mesh():
    mesh = jax.make_mesh((1,), ("data",))
    sampler = fbuf.FreshFirst(Newest(steps=2), most=4)
    state = fbuf.sharded.init(jnp.int32(0), 32, mesh=mesh, shards=4, sampler=sampler)
    state = fbuf.sharded.add(state, jnp.arange(16, dtype=jnp.int32))
    state, batch = fbuf.sharded.draw(state, jax.random.key(0), 12)
    assert batch.data[:4].tolist() == [0, 4, 8, 12]
    assert set(batch.data[4:].tolist()) <= {2, 3, 6, 7, 10, 11, 14, 15}
    assert int(fbuf.sharded.stats(state)["fresh"]) == 12


def test_what_it_cannot_do_is_refused_by_its_name():
    state = fbuf.init({"reward": 0.0}, 8, sampler=HOT)
    with pytest.raises(ValueError, match="Hot draws with replacement"):
        fbuf.sample(state, jax.random.key(0), 2, step=0)


class Samples(fbuf.Uniform):
    """The attribute `in_order` of an earlier version would be ignored."""

    in_order = True


class Orders(fbuf.Uniform):
    """The property `in_order` of an earlier version would be ignored."""

    @property
    def in_order(self):
        return True


class OrdersOnce(fbuf.Uniform):
    """A property of an earlier version, computed once."""

    @functools.cached_property
    def in_order(self):
        return True


class Moves(Hot):
    """The method `moved` of an earlier version would not be called."""

    def moved(self, index, ring, slots, old, old_slots):
        return index, jnp.zeros(slots.shape, jnp.uint32)


class Reads(fbuf.samplers.Sampler):
    """A queue as an earlier version had it: abstract methods are missing, too."""

    reads_once = True


class Limits(Hot):
    """The method `room` of an earlier version would let more rows in than it says."""

    def room(self, index, ring):
        return jnp.zeros(ring.heads, jnp.int32)


class Queues(fbuf.Fifo):
    """A queue whose `room` is called."""

    def room(self, index, ring):
        return jnp.minimum(super().room(index, ring), 1)


class Takes(Hot):
    """A sampler of this version, from which others derive."""

    def take_over(self, index, ring, slots, origin):
        raise AssertionError


class TakesAsBefore(Takes):
    """A subclass that overrides by the old name."""

    def moved(self, index, ring, slots, old, old_slots):
        raise AssertionError


class Weighs(fbuf.samplers.PlannedSampler):
    """A planned sampler as an earlier version had it."""

    def mass(self, index, ring):
        return ring.count()


class Looks(fbuf.views.View):
    """A view as an earlier version had it."""

    def look(self, reader, slots, key):
        raise AssertionError


class Makes(fbuf.Item):
    """A view whose `make` would not be called."""

    def make(self, layout, rows, seen):
        raise AssertionError


class MakesAlone(fbuf.Item):
    """A view whose `make` needs no object."""

    @staticmethod
    def make(layout, rows, seen):
        raise AssertionError


class Named(fbuf.Item):
    """A view with names of its own that an earlier version used for something else."""

    @classmethod
    def make(cls, number):
        return cls()

    def look(self):
        return self


class Both(Surprising):
    """A view for this version and an earlier one."""

    def request(self, reader, slots, key):
        return super().request(reader, slots, key)

    def build(self, layout, rows, seen):
        return super().build(layout, rows, seen)

    look, make = request, build


class Heavy(Hot):
    """A sampler with names of its own that an earlier version used for something else."""

    largest = 3.0

    @property
    def mass(self):
        return 1.0

    def moved(self, by):
        return by

    def in_order(self):
        return False


@pytest.mark.parametrize(
    ("kind", "new"),
    [
        (Samples, "'in_order', .*define 'without_replacement'"),
        (Orders, "'in_order', .*define 'without_replacement'"),
        (OrdersOnce, "'in_order', .*define 'without_replacement'"),
        (Moves, "'moved', .*define 'take_over'"),
        (TakesAsBefore, "'moved', .*define 'take_over'"),
        (Reads, "'reads_once', .*QueueSampler"),
        (Weighs, "'mass', .*define 'shard_totals'"),
        (Limits, "'room', .*QueueSampler"),
    ],
)
def test_a_sampler_with_an_old_name_is_refused(kind, new):
    with pytest.raises(TypeError, match=f"{kind.__name__} defines {new}"):
        fbuf.init(ITEM, 8, sampler=kind())


def with_method(base, name, method):
    return dataclasses.dataclass(frozen=True)(type("Mine", (base,), {name: method}))


OLD_METHODS = {
    "add": (Hot, lambda self, index, ring, span, priority, alpha: None),
    "draw": (Hot, lambda self, index, ring, key, batch_size, beta, step: None),
    "update_priority": (Hot, lambda self, index, ring, slots, priority, alpha: None),
    "take_over": (Hot, lambda self, index, ring, slots, other, old, old_slots: None),
    "plan": (Newest, lambda self, index, ring, totals, key, batch_size, step: None),
    "weigh": (Newest, lambda self, totals, slots, aux, positions, beta, step, axes: None),
    "place": (fbuf.Reservoir, lambda self, index, ring, mask, priority, alpha: None),
}


@pytest.mark.parametrize("name", OLD_METHODS)
def test_a_sampler_with_the_arguments_of_an_earlier_version_is_refused(name):
    base, method = OLD_METHODS[name]
    assert set(OLD_METHODS) == set(base.old_arguments)
    now = inspect.signature(getattr(base, name)).parameters
    said = re.escape(f"Mine.{name} takes the arguments of an earlier version")
    called = re.escape(f"{name}({', '.join(list(now)[1:])}), with ")
    with pytest.raises(TypeError, match=f"{said}.*{called}"):
        with_method(base, name, method)()


def test_a_sampler_may_pass_all_arguments_on():
    passed = lambda self, *arguments: Hot.draw(self, *arguments)
    state = fbuf.init({"reward": 0.0}, 8, sampler=with_method(Hot, "draw", passed)())
    state = fbuf.add(state, {"reward": jnp.ones(2)})
    assert fbuf.sample(state, jax.random.key(0), 2).mask.all()


@pytest.mark.parametrize(
    ("kind", "new"), [(Looks, "request"), (Makes, "build"), (MakesAlone, "build")]
)
def test_a_view_with_an_old_name_is_refused(kind, new):
    state = fbuf.init(ITEM, 8)
    with pytest.raises(TypeError, match=f"{kind.__name__} defines .*define '{new}'"):
        fbuf.sample(state, jax.random.key(0), 2, view=kind())


@pytest.mark.parametrize("kind", [Named, Both])
def test_a_view_may_have_an_old_name_for_something_else(kind):
    state = fbuf.add(fbuf.init({"reward": 0.0}, 8), {"reward": jnp.ones(2)})
    assert fbuf.sample(state, jax.random.key(0), 2, view=kind()).mask.all()
    assert isinstance(Named.make(3).look(), Named)


def test_the_old_name_of_a_class_of_views_says_the_new_one():
    with pytest.raises(ImportError, match=r"fbuf\.views\.Request"):
        from fbuf.views import Look  # noqa: F401  # pyright: ignore (there is none)
    with pytest.raises(AttributeError, match=r"'fbuf\.views' has no attribute 'Loop'"):
        _ = fbuf.views.Loop


def test_a_queue_may_limit_its_room():
    state = fbuf.init({"reward": 0.0}, 8, sampler=Queues())
    assert fbuf.size(fbuf.add(state, {"reward": jnp.ones(2)})) == 1


def test_a_sampler_may_have_an_old_name_for_something_else():
    state = fbuf.init(ITEM, 8, sampler=Heavy())
    assert not fbuf.can_sample(state)
    assert (Heavy().mass, Heavy.largest, Heavy().moved(2), Heavy().in_order()) == (1, 3, 2, False)


def test_no_verb_asks_what_kind_of_sampler_or_view_it_has():
    import fbuf.ops.init
    import fbuf.ops.sample

    kinds = ("Uniform", "Prioritized", "Shuffled", "Mixture", "Sequence", "NStep", "Hindsight")
    for name in fbuf.__all__:
        code = inspect.unwrap(getattr(fbuf, name))
        if inspect.isfunction(code):
            names = code.__code__.co_names
            assert "getattr" not in names
            assert not ({"isinstance"} & set(names) and set(kinds) & set(names)), name


@pytest.mark.sweep
@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
def test_a_planned_sampler_draws_over_a_mesh():
    sampler, turns = Newest(steps=3), 4
    found, drawn = meshes.run(sampler, ("item", "frames"), 8, turns)
    meshes.same((found, drawn), meshes.run(sampler, ("item", "frames"), 2, turns))
    batch = drawn[0]["item"]
    assert batch.mask.all()
    assert len(np.unique(batch.ids.shard)) == 8
    # Three rows of each of the eight environments, and those that were removed are not drawn.
    assert (1 / np.asarray(batch.probability)).min() > 12
    assert (1 / np.asarray(batch.probability)).max() <= 24
    _, alone = meshes.run(sampler, ("item",), 1, turns, module=fbuf)
    _, one = meshes.run(sampler, ("item",), 1, turns, shards=1)
    assert alone[0]["item"].mask.all()
    chex.assert_trees_all_equal(alone[0]["item"].data, one[0]["item"].data)


STABLE = (
    *("fbuf", "fbuf.samplers", "fbuf.views", "fbuf.testing", "fbuf.host", "fbuf.sharded"),
    "fbuf.adapter_api",  # `Holder` and `Owner` alone
)


@pytest.mark.parametrize("page", ["extending.md", "extending_more.md"])
def test_the_pages_for_authors_use_stable_names(page):
    """No module of fbuf but those that the page calls stable; `fbuf.trees` is named as not so."""
    text = (pathlib.Path(__file__).parents[2] / "docs" / "know" / page).read_text()
    imported = set(re.findall(r"(?m)^from (fbuf[\w.]*) import", text))
    assert imported <= set(STABLE)
    of_adapters = re.findall(r"(?m)^from fbuf\.adapter_api import (.+)$", text)
    of_adapters += re.findall(r"\bfbuf\.adapter_api\.(\w+)", text)
    assert set(of_adapters) <= {"Holder", "Owner"}
    named = set(re.findall(r"\bfbuf\.\w+(?:\.\w+)*", text))
    unstable = {name for name in named if importlib.util.find_spec(".".join(name.split(".")[:2]))}
    unstable -= {name for name in named if name.startswith(tuple(f"{s}." for s in STABLE[1:]))}
    assert unstable <= {*STABLE, "fbuf.trees"}


def test_a_name_that_the_pages_for_authors_import_is_there():
    for page in ("extending.md", "extending_more.md"):
        text = (pathlib.Path(__file__).parents[2] / "docs" / "know" / page).read_text()
        for module, names in re.findall(r"(?m)^from (fbuf[\w.]*) import (.+)$", text):
            for name in names.split(", "):
                assert hasattr(importlib.import_module(module), name), name
