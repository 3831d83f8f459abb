"""One buffer over a mesh: the same batch on any number of devices, drawn exactly from all rows."""

import collections
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import inside, meshes, restored
from support.meshes import BATCH, ITEM, SAMPLERS, SHARDS, same
from support.programs import built

import fbuf
from fbuf import sharded
from fbuf.mesh import exchange

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")

FEW = {"prioritized": ("item",)}
"""The cases of `make test`: a sampler and its views."""

WHOLE = {
    "prioritized": ("item", "hindsight"),
    "uniform": ("item", "fields", "transition", "offsets", "n_steps"),
    "window": ("sequence", "return"),
    "stride": ("item", "time_major"),
    "episode": ("time_major", "episode"),
    "priority_window": ("n_steps", "frames", "offsets", "hindsight"),
    "stratified": ("item", "transition"),
    "largest_ever": ("item", "goals", "led_to"),
    "shuffled": ("transition", "hindsight"),
    "shuffled_window": ("n_step", "sequence"),
    "shuffled_episode": ("time_major",),
    "mixture": ("item", "padded", "led_to"),
    "mixture_window": ("return", "time_major"),
}

OPTIMISED = ("prioritized", "window", "mixture")
"""Compiled as users have it, which takes four times as long."""

CASES = [
    *(pytest.param(name, views, id=name) for name, views in FEW.items()),
    *(
        pytest.param(
            name,
            views,
            id=name,
            marks=pytest.mark.optimised if name in OPTIMISED else pytest.mark.sweep,
        )
        for name, views in WHOLE.items()
    ),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "views"), CASES)
def test_one_shard_is_the_plain_buffer(name, views):
    sampler, quick = SAMPLERS[name], name not in OPTIMISED
    plain = meshes.run(sampler, views, 1, module=fbuf, quick=quick)
    one = meshes.run(sampler, views, 1, shards=1, quick=quick)
    same(meshes.comparable(plain), meshes.comparable(one))


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "views"), CASES)
def test_batches_do_not_depend_on_the_number_of_devices(name, views, request):
    swept = request.node.get_closest_marker("sweep") is not None
    views = views if swept else views[:1]
    turns, quick = 26 if swept else 4, name not in OPTIMISED  # 208 operations, or 32
    found = meshes.run(SAMPLERS[name], views, 8, turns, quick=quick)
    state, (batches, _) = found
    assert {shard.device for shard in state.fault.addressable_shards} == set(jax.devices()[:8])
    assert all(batch.mask[1:].any() for batch in batches.values())
    assert len(np.unique(batches[views[0]].ids.shard)) > 4
    others = (1, 2, 4) if swept else (2,)
    for devices in others:
        same(found, meshes.run(SAMPLERS[name], views, devices, turns, quick=quick))


def build(sampler, shards=4, devices=4, filled=(8, 8, 8, 8), priority=None, **options):
    """A buffer of 4 shards, of which each environment has so many rows; a row is its number."""
    envs = len(filled)
    state = sharded.init(
        jnp.int32(0),
        envs * max(*filled, 1),
        mesh=meshes.mesh(devices),
        shards=shards,
        num_envs=envs,
        lockstep=False,
        sampler=sampler,
        **options,
    )
    steps = max(*filled, 1)
    number = np.arange(envs * steps, dtype=np.int32).reshape(envs, steps)
    mask = np.arange(steps)[None] < np.array(filled)[:, None]
    given = {} if priority is None else {"priority": priority(number)}
    return sharded.add(state, number, mask=mask, **given), number[mask]


def counted(state, draws, step=None):
    """Count the draws of each row, by each device."""
    batch = sharded.sample(state, jax.random.key(5), draws, step=step)
    assert bool(batch.mask.all())
    return np.asarray(batch.data).reshape(state.num_devices, -1), batch


def chi_square(counts, expected):
    from scipy import stats

    share = expected.astype(np.float64) / expected.sum(dtype=np.float64)
    return stats.chisquare(counts, share * counts.sum()).pvalue


@pytest.mark.sweep
@pytest.mark.parametrize("filled", [(8, 8, 8, 8), (8, 1, 3, 0), (0, 0, 5, 0)], ids=str)
@pytest.mark.parametrize("way", ["uniform", "prioritized", "stratified", "mixture"])
def test_draws_are_exact_over_all_shards(way, filled):
    pytest.importorskip("scipy")
    weight = lambda number: (number * 7 % 11).astype(np.float32)
    exact = {"alpha": 1.0, "eps": 0.0}
    sampler = {
        "uniform": fbuf.Uniform(),
        "prioritized": fbuf.Prioritized(**exact),
        "stratified": fbuf.Prioritized(**exact, draws="stratified"),
        "mixture": fbuf.Mixture(priorities=fbuf.Prioritized(**exact)),
    }[way]
    state, there = build(
        sampler, filled=filled, priority=weight if sampler.keeps_priorities else None
    )
    by_device, batch = counted(state, 120_000)
    likely = np.ones(there.size) / there.size
    if way != "uniform":
        by_priority = weight(there) / weight(there).sum()
        likely = by_priority if way != "mixture" else (likely + by_priority) / 2
    drawable = likely > 0
    assert np.isin(by_device, there[drawable]).all()
    expected = dict(zip(there.tolist(), likely, strict=True))
    np.testing.assert_allclose(
        batch.probability, [expected[row] for row in by_device.reshape(-1).tolist()], rtol=2e-6
    )
    for part in (by_device, *by_device):  # of all devices, and of each alone
        counts = np.array([np.sum(part == row) for row in there[drawable]])
        if way == "stratified":  # less variance than chance
            np.testing.assert_allclose(counts / part.size, likely[drawable], atol=0.01)
        elif counts.size > 1:
            assert chi_square(counts, likely[drawable]) > 1e-4


@pytest.mark.sweep
@pytest.mark.parametrize("by", ["start", "episode"])
def test_windows_are_drawn_exactly_over_all_shards(by):
    pytest.importorskip("scipy")
    lengths = (12, 4, 2, 7)
    state = sharded.init(
        jnp.int32(0),
        4 * 16,
        mesh=meshes.mesh(4),
        num_envs=4,
        lockstep=False,
        sampler=fbuf.Uniform(window=3, by=by),
    )
    number = np.arange(64, dtype=np.int32).reshape(4, 16)
    mask = np.arange(16)[None] < np.array(lengths)[:, None]
    ends = np.zeros((4, 16), bool)
    ends[0, 6] = ends[3, 3] = True
    state = sharded.add(state, number, mask=mask, terminated=ends)
    episodes = [range(0, 7), range(7, 12), range(16, 20), range(48, 52), range(52, 55)]
    starts = {row: each for each in episodes for row in each if row + 2 in each}
    by_device, _ = counted(state, 100_000)
    assert set(np.unique(by_device).tolist()) == set(starts)
    expected = np.array([1.0 if by == "start" else 1 / (len(e) - 2) for e in starts.values()])
    for part in (by_device, *by_device):
        counts = np.array([np.sum(part == row) for row in starts])
        assert chi_square(counts, expected) > 1e-4


@pytest.mark.sweep
@pytest.mark.parametrize("filled", [(8, 8, 8, 8), (8, 1, 3, 0)], ids=str)
def test_an_epoch_has_every_row_once(filled):
    state, there = build(fbuf.Shuffled(), filled=filled)
    orders = []
    for epoch in range(2):
        rows = []
        for first in range(0, there.size, 8):
            batch = sharded.sample(
                state, jax.random.key(0), 8, step=(jnp.int32(epoch), jnp.int32(first))
            )
            rows += np.asarray(batch.data)[np.asarray(batch.mask)].tolist()
        assert sorted(rows) == there.tolist()
        orders.append(rows)
    assert orders[0] != orders[1]


@pytest.mark.sweep
def test_each_shard_is_a_plain_buffer_of_its_environments():
    """After a history the shards hold the same as plain buffers with the same history."""
    sampler, turns = SAMPLERS["priority_window"], 26
    state, (batches, _) = meshes.run(sampler, ("item",), 4, turns)
    given = meshes.inputs(0, turns)
    ids = jax.tree.map(np.asarray, batches["item"].ids)
    for shard, own in enumerate(meshes.parts(state)):
        plain = fbuf.init(
            ITEM, meshes.CAPACITY // SHARDS, num_envs=1, sampler=sampler, next_of="obs", max_ends=3
        )
        for t in range(turns):
            now = jax.tree.map(lambda leaf, t=t: leaf[t], given)
            rows = jax.tree.map(lambda leaf, at=shard: leaf[at : at + 1], now["rows"])
            plain = fbuf.add(plain, rows.pop("items"), **rows)
            plain = fbuf.end_episode(plain, mask=now["ends"][shard : shard + 1])
            mine = ids.shard[t] == shard
            named = fbuf.Ids(np.where(mine, ids.slot[t], -1), ids.generation[t])
            plain = fbuf.update_priority(plain, named, now["update"], mask=now["updated"])
            seen = {"seen": np.arange(BATCH, dtype=np.int32)}
            plain = fbuf.write(plain, named, seen, mask=now["written"])
            plain = fbuf.remove(plain, named, mask=now["removed"])
        same(jax.tree.leaves(own), jax.tree.leaves(plain))


def test_new_rows_get_the_largest_priority_of_all_shards():
    state, _ = build(fbuf.Prioritized(alpha=1.0, eps=0.0), filled=(1, 1, 1, 1), devices=2)
    state = sharded.update_priority(
        state, sharded.ShardedIds(*(jnp.int32([v, 0]) for v in (2, 0, 0))), jnp.float32([9.0, 3.0])
    )
    state = sharded.add(state, np.arange(4, dtype=np.int32))
    assert float(sharded.stats(state)["new_priority"]) == 9.0
    assert float(sharded.stats(state)["priority_total"]) == 4 * 9.0
    sharded.raise_on_fault(state)


@pytest.mark.sweep
def test_the_largest_priority_may_be_below_1():
    state = sharded.init(
        jnp.int32(0),
        8,
        mesh=meshes.mesh(1),
        shards=2,
        sampler=fbuf.Prioritized(alpha=1.0, eps=0.0),
    )
    one = {"priority": jnp.float32([0.25, 0.125]), "mask": jnp.array([True, False])}
    state = sharded.add(state, jnp.zeros(2, jnp.int32), **one)
    assert float(sharded.stats(state)["new_priority"]) == 0.25
    state = sharded.add(state, jnp.zeros(2, jnp.int32))
    assert float(sharded.stats(state)["priority_total"]) == 0.75


@pytest.mark.sweep
def test_the_size_of_an_epoch_is_that_of_all_shards():
    state = sharded.init(jnp.int32(0), 8, mesh=meshes.mesh(2), sampler=fbuf.Shuffled())
    assert int(sharded.stats(state)["epoch_size"]) == 0
    state = sharded.add(state, jnp.zeros(6, jnp.int32))
    assert int(sharded.stats(state)["epoch_size"]) == 6


@pytest.mark.sweep
@pytest.mark.parametrize("width", [(), (3,)])
def test_one_step_of_all_environments_may_say_that_time_comes_first(width):
    options = {"mesh": meshes.mesh(1), "num_envs": 4, "shards": 2}
    states = [sharded.init(jnp.zeros(width), 16, **options) for _ in range(2)]
    step = jnp.arange(4.0 * max(len(width) * 3, 1)).reshape(4, *width)
    states[0] = sharded.add(states[0], step, time_major=True)
    states[1] = sharded.add(states[1], step)
    same(*states)


@pytest.mark.sweep
def test_a_step_inside_shard_map_is_that_from_outside():
    mesh = meshes.mesh(4)
    state, _ = build(fbuf.Prioritized(), shards=4, devices=4)
    spec, rows = sharded.specs(state), np.arange(4, dtype=np.int32)

    def step(state, rows, key):
        state = sharded.add(state, rows)
        batch = sharded.sample(state, key, 16)
        state = sharded.update_priority(state, batch.ids, batch.weight)
        return sharded.after(state, batch), (batch, sharded.size(state))

    data = jax.P("data")
    parts = sharded.ShardedSample(data, data, data, data, data, data, data, jax.P())
    inside = jax.shard_map(
        step, mesh=mesh, in_specs=(spec, data, jax.P()), out_specs=(spec, (parts, jax.P()))
    )
    key = jax.random.key(1)
    same(jax.jit(step)(state, rows, key), jax.jit(inside)(state, rows, key))


def in_place(sampler, shards, devices, capacity=2**18):
    """Return the state's bytes on a device, the aliased ones, and copies of its arrays, in a step.

    Arrays of up to 2,000 entries are left out: arrays of a batch may have the same size.
    """
    mesh = meshes.mesh(devices)
    item = {"obs": jnp.zeros(8), "image": jnp.zeros((12, 12), jnp.uint8)}
    item |= {"version": jnp.int32(0), "reward": jnp.float32(0)}
    envs = None if sampler.places else 16
    state = sharded.init(item, capacity, mesh=mesh, shards=shards, num_envs=envs, sampler=sampler)
    goal = fbuf.Hindsight(
        lambda a, g: (a == g).all().astype(jnp.float32),
        strategy={"future": 1, "random": 1},
        goal="obs",
        achieved="obs",
    )
    view = fbuf.Item() if sampler.places or sampler.fields else goal

    def step(state, rows, key):
        state = sharded.add(state, rows)
        if sampler.fields:
            state = sharded.expire(state, rows["version"].max())
        if sampler.notes_draws:
            state, batch = sharded.draw(state, key, 16, view=view)
        else:
            batch = sharded.sample(state, key, 16)
        if sampler.keeps_priorities:
            state = sharded.update_priority(state, batch.ids, batch.weight)
        return sharded.write(state, batch.ids, {"reward": batch.probability}), batch

    rows = {name: jnp.zeros((16, *leaf.shape), leaf.dtype) for name, leaf in item.items()}
    rows = jax.device_put(rows, jax.NamedSharding(mesh, jax.P("data")))
    program = built(jax.jit(step, donate_argnums=0), state, rows, jax.random.key(0))
    own = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) // devices
    shapes = re.findall(r"= \w+\[([\d,]+)\]\S* copy\(", program.as_text())
    sizes = [np.prod([int(n) for n in shape.split(",")]) for shape in shapes]
    stored = {leaf.size // devices for leaf in jax.tree.leaves(state)}
    copies = [size for size in sizes if size in stored and size > 2000]
    return own, program.memory_analysis().alias_size_in_bytes, copies, program


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "shards"),
    [
        ("prioritized", 8),
        *(
            pytest.param(n, 8, marks=pytest.mark.sweep)
            for n in ("uniform", "window", "episode", "priority_window", "mixture")
        ),
        *(
            pytest.param(n, 16, marks=pytest.mark.sweep)
            for n in ("prioritized", "largest_ever", "window", "mixture")
        ),
    ],
)
def test_every_byte_is_in_place(name, shards):
    own, aliased, copies, program = in_place(SAMPLERS[name], shards, 8)
    assert aliased == own
    assert not copies
    text = program.as_text()
    assert len(re.findall(r" all-to-all(?:-start)?\(", text)) == 1
    assert not re.findall(r" (?:collective-permute|reduce-scatter)(?:-start)?\(", text)


LIMITED = fbuf.Limited(fbuf.Prioritized(), max_uses=4)
EXPIRING = fbuf.Limited(fbuf.Prioritized(), max_uses=4, version="version")
FRESH = fbuf.Limited(fbuf.FreshFirst(), max_uses=4, max_age=1000)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sampler", "shards"),
    [
        (EXPIRING, 8),  # with more shards a device the loop over stale rows copies the index
        (LIMITED, 16),
        (FRESH, 8),
        (FRESH, 16),
        (fbuf.Reservoir(), 16),
        (fbuf.EvictLowest(), 8),
        (fbuf.EvictLowest(), 16),
    ],
)
def test_lives_and_places_are_in_place(sampler, shards):
    own, aliased, copies, _ = in_place(sampler, shards, 8)
    assert aliased == own
    assert not copies


@pytest.mark.sweep
def test_a_stale_id_and_one_of_no_shard_are_skipped():
    state, _ = build(fbuf.Prioritized(), shards=4, devices=4)
    ids = sharded.sample(state, jax.random.key(0), 4).ids
    before = sharded.stats(state)
    state = sharded.remove(state, ids)
    state = sharded.update_priority(state, ids, jnp.full(4, 100.0))
    assert int(sharded.stats(state)["fault"]) == fbuf.Fault.STALE_ID
    nowhere = sharded.ShardedIds(jnp.int32([4, -1, 99, 0]), ids.slot, ids.generation)
    state = sharded.update_priority(state, nowhere, jnp.full(4, 100.0))
    with pytest.raises(RuntimeError, match=r"fbuf\.raise_on_fault.*outside the buffer"):
        sharded.raise_on_fault(state)
    assert float(sharded.stats(state)["new_priority"]) == float(before["new_priority"])
    nobody = sharded.ShardedIds(jnp.full(4, -1), jnp.full(4, -1), jnp.zeros(4, jnp.int32))
    state = sharded.clear(state)
    sharded.raise_on_fault(
        sharded.update_priority(state, nobody, jnp.ones(4)), ignore=fbuf.Fault(0)
    )


@pytest.mark.sweep
def test_an_empty_buffer_gives_a_masked_batch():
    state = sharded.init(jnp.int32(0), 32, mesh=meshes.mesh(4), sampler=fbuf.Prioritized())
    assert not bool(sharded.can_sample(state))
    batch = sharded.sample(state, jax.random.key(0), 8)
    assert not batch.mask.any()
    assert not batch.weight.any()
    assert (batch.ids.shard == -1).all()
    assert (batch.ids.slot == -1).all()
    assert int(batch.fault) == 0


_ALONG = jax.P("data")
NOBODY = sharded.ShardedIds(*[jnp.full(4, -1, jnp.int32)] * 3)

REFUSED = [
    (lambda m: sharded.init(ITEM, 100, mesh=m, shards=3), ValueError, "multiple of the 4 devices"),
    (lambda m: sharded.init(ITEM, 99, mesh=m), ValueError, "capacity must be a multiple.*take 96"),
    (lambda m: sharded.init(ITEM, 96, mesh=m, num_envs=6), ValueError, "num_envs must be a mult"),
    (lambda m: sharded.init(ITEM, 96, mesh=m, axis="model"), ValueError, "axis must be one of"),
    (lambda m: sharded.init(ITEM, 96, mesh=4), TypeError, "mesh must be a Mesh"),
    (lambda m: sharded.init(ITEM, 96, mesh=m, sampler=fbuf.Fifo()), TypeError, "Fifo cannot draw"),
    (
        lambda m: sharded.init(ITEM, 96, mesh=m, sampler=fbuf.Mixture(recent=1.0, recent_rows=10)),
        ValueError,
        "multiple of the 4 shards",
    ),
    (lambda m: sharded.init(ITEM, 2**32, mesh=m, sampler=fbuf.Shuffled()), ValueError, "an epoch"),
    (lambda m: sharded.sample(small(m), jax.random.key(0), 6), ValueError, "take 8"),
    (lambda m: sharded.sample(small(m), jax.random.key(0), 8, step=1), ValueError, "takes no step"),
    (lambda m: sharded.add(small(m), jnp.zeros(6)), ValueError, "must be a multiple of 4"),
    (lambda m: sharded.add(small(m), jnp.zeros(())), ValueError, "one item without"),
    (lambda m: sharded.add(small(m), jnp.zeros((4, 2))), ValueError, r"fbuf\.add: items"),
    (lambda m: fbuf.read(small(m), fbuf.no_ids(1)), TypeError, "read: .* not work over a mesh"),
    (
        lambda m: sharded.specs(fbuf.init(jnp.zeros(()), 8)),
        TypeError,
        "make one with fbuf.sharded.init",
    ),
    (
        lambda m: fbuf.sample(small(m), jax.random.key(0), 8, count=4),
        ValueError,
        "fbuf.sample: over a mesh there is no count; leave it out",
    ),
    (
        lambda m: fbuf.draw(small(m), jax.random.key(0), 8, count=4),
        ValueError,
        "fbuf.draw: over a mesh there is no count",
    ),
    (
        lambda m: fbuf.remove(small(m), NOBODY, episodes=True),
        ValueError,
        "fbuf.remove: over a mesh there is no episodes",
    ),
    (lambda m: fbuf.stats(small(m), detailed=True), ValueError, "stats: .* there is no detailed"),
    (
        lambda m: fbuf.save("/nowhere", small(m), background=True),
        ValueError,
        "save: .* there is no background",
    ),
    (
        lambda m: sharded.update_priority(
            small(m), fbuf.Ids(jnp.zeros(4, jnp.int32), jnp.zeros(4, jnp.int32)), jnp.ones(4)
        ),
        TypeError,
        "ids must be a fbuf.sharded.ShardedIds",
    ),
    (
        lambda m: sharded.remove(small(m), sharded.ShardedIds(*[jnp.zeros(6, jnp.int32)] * 3)),
        ValueError,
        "number of ids must be a multiple of the 4 devices",
    ),
    (
        lambda m: sharded.add(
            small(m),
            jax.device_put(jnp.zeros(4), jax.NamedSharding(meshes.mesh(2), jax.P("data"))),
        ),
        ValueError,
        "items lies on 2 device.*but the mesh of the state has 4",
    ),
    (
        lambda m: sharded.add(
            small(m),
            jax.device_put(
                jnp.zeros(4), jax.NamedSharding(jax.sharding.Mesh(m.devices[::-1], "data"), _ALONG)
            ),
        ),
        ValueError,
        "items lies on 4 devices.*but the mesh of the state has 4 devices",
    ),
    (
        lambda m: sharded.sample(small(m), jax.device_put(jax.random.key(0), jax.devices()[1]), 8),
        ValueError,
        r"key lies on 1 device.*NamedSharding\(state\.mesh, jax\.P\(\)\)",
    ),
    (lambda m: sharded.size(jax.device_get(small(m))), ValueError, "do not lie on its mesh"),
    (
        lambda m: sharded.size(jax.device_put(small(m), jax.devices()[0])),
        ValueError,
        "do not lie on its mesh",
    ),
    (
        lambda m: sharded.add(small(m), jnp.zeros(8), terminated=jnp.zeros(3, bool)),
        ValueError,
        r"fbuf\.add: terminated must be of shape \(8,\)",
    ),
    (
        lambda m: sharded.add(small(m), jnp.zeros(8), priority=jnp.zeros(4)),
        ValueError,
        r"fbuf\.add: priority must be of shape \(8,\)",
    ),
    (
        lambda m: sharded.add(small(m), jnp.zeros(8), next_observation=jnp.zeros(8)),
        ValueError,
        r"fbuf\.add: next_observation is for buffers made with next_of",
    ),
    (
        lambda m: sharded.init(ITEM, 64, mesh=m, num_envs=24),
        ValueError,
        r"capacity must be a multiple of num_envs \(24\), got 64; take 48",
    ),
    (lambda m: fbuf.resize(small(m), 4), TypeError, "does not work over a mesh"),
    (
        lambda m: sharded.reshard(
            sharded.init(
                ITEM,
                64,
                mesh=m,
                num_envs=8,
                sampler=fbuf.Mixture(prioritized=0.0, recent=0.5, recent_rows=4),
            ),
            8,
        ),
        ValueError,
        "recent_rows must be a multiple of the 8 shards.*take 8",
    ),
]


def small(mesh):
    return sharded.init(jnp.zeros(()), 8, mesh=mesh, sampler=fbuf.Prioritized())


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED)
def test_misuse_is_refused_with_what_to_do(call, kind, message):
    with pytest.raises(kind, match=message):
        call(meshes.mesh(4))


def test_the_functions_of_fbuf_take_it_in_every_way():
    empty, rows = small(meshes.mesh(4)), jnp.arange(4.0)
    state = fbuf.add(items=rows, state=empty, donate=False)
    same(state, fbuf.add(empty, rows, donate=False))
    same(state, jax.jit(fbuf.add)(empty, rows))
    batch = fbuf.sample(state, jax.random.key(0), 8, count=None)
    assert isinstance(batch, sharded.ShardedSample)
    assert isinstance(state, sharded.ShardedState)
    assert int(fbuf.size(fbuf.remove(fbuf.after(state, batch), batch.ids))) < 4


def test_pickles_of_earlier_versions_find_the_classes():
    for module, name in (("state", "ShardedIds"), ("state", "ShardedSample"), ("count", "Count")):
        assert pickle.loads(f"cfbuf.mesh.{module}\n{name}\n.".encode()) is getattr(sharded, name)


def test_numbers_that_a_field_cannot_hold_are_refused():
    state = sharded.init({"a": np.int8(0)}, 8, mesh=meshes.mesh(1), shards=1, next_of="a")
    for given, following in ((300, 1), (1, 300)):
        with pytest.raises(ValueError, match=r"fbuf\.add: .* is 300, which int8 cannot"):
            sharded.add(state, {"a": given}, next_observation=following)


def test_a_consumed_state_is_refused():
    state = small(meshes.mesh(2))
    sharded.add(state, jnp.zeros(4))
    with pytest.raises(RuntimeError, match=r"was consumed.*state = fbuf\.add"):
        sharded.size(state)
    assert repr(state) == "ShardedState(consumed)"


def test_a_state_that_shard_map_was_not_told_of_is_refused():
    mesh = meshes.mesh(4)
    state = small(mesh)
    whole = jax.tree.map(lambda _: jax.P(), state)
    size = jax.shard_map(sharded.size, mesh=mesh, in_specs=(whole,), out_specs=jax.P())
    with pytest.raises(ValueError, match=r"in_specs=fbuf\.sharded\.specs\(state\)"):
        jax.jit(size)(state)


@pytest.mark.sweep
@pytest.mark.parametrize("explicit", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_meshes_of_both_kinds_and_of_several_axes(explicit):
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"), axis_types=(kind,) * 2
    )
    state = sharded.init(
        {"x": jnp.int32(0)}, 32, mesh=mesh, axis="data", shards=4, sampler=fbuf.Prioritized()
    )
    state = sharded.add(state, {"x": np.arange(8, dtype=np.int32)})
    batch = sharded.sample(state, jax.random.key(0), 16)
    state = sharded.update_priority(state, batch.ids, np.ones(16, np.float32))
    assert int(sharded.size(state)) == 8
    assert int(sharded.size(sharded.clear(state))) == 0
    counts = collections.Counter(np.asarray(batch.data["x"]).tolist())
    assert set(counts) <= set(range(8))
    assert len(counts) > 3


@pytest.mark.sweep
def test_keys_that_differ_along_another_axis_are_noticed():
    """Where there are copies of the buffer, which would each go another way."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("model", "data"))
    state = sharded.init(jnp.int32(0), 32, mesh=mesh, axis="data", sampler=fbuf.Prioritized())
    state = sharded.add(state, np.arange(8, dtype=np.int32))

    def draw(state, keys):
        batch = sharded.sample(state, jax.random.wrap_key_data(keys[0]), 16)
        return batch.mask, batch.fault

    each = jax.shard_map(
        draw,
        mesh=mesh,
        in_specs=(sharded.specs(state), jax.P("model")),
        out_specs=(jax.P(("model", "data")), jax.P()),
    )
    for seeds in ((3, 3), (3, 4)):
        keys = jnp.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
        mask, fault = jax.jit(each)(state, keys)
        assert bool(mask.all()) == bool(mask.any()) == (seeds[0] == seeds[1])
        assert int(fault) == (0 if seeds[0] == seeds[1] else fbuf.Fault.CALLS_DIFFER)


@pytest.mark.parametrize(
    "kind", [jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto], ids=str
)
def test_a_buffer_that_a_program_makes(kind, random_tags):
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4], axis_types=(kind,))

    def make():
        return sharded.init(jnp.int32(0), 64, mesh=mesh, num_envs=4)

    shapes = lambda tree: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]
    made = jax.jit(make)()
    assert shapes(made) == shapes(jax.eval_shape(make)) == shapes(make())
    state = sharded.add(made, np.arange(4, dtype=np.int32))
    batch = sharded.sample(state, jax.random.key(0), 32)
    assert set(np.asarray(batch.data).tolist()) == {0, 1, 2, 3}
    assert int(sharded.size(sharded.remove(state, batch.ids))) == 0


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "window", "shuffled"])
def test_a_mesh_that_is_set(sampler, tmp_path):
    """Made and used inside `jax.set_mesh`: the same batch as outside."""
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    sampler, step = SAMPLERS[sampler], {"step": 0} if sampler == "shuffled" else {}

    def drawn():
        state = sharded.init(jnp.int32(0), 64, mesh=mesh, num_envs=4, sampler=sampler)
        for number in range(3):
            state = sharded.add(state, np.arange(4, dtype=np.int32) + 4 * number)
        batch = sharded.sample(state, jax.random.key(0), 8, **step)
        return sharded.remove(state, batch.ids), batch

    _, outside = drawn()
    with jax.set_mesh(mesh):
        state, inside = drawn()
        assert int(sharded.size(state)) < 12
        for call in (
            lambda: sharded.save(tmp_path, state),
            lambda: restored.sharded_load(tmp_path, mesh=mesh),
            lambda: sharded.reshard(state, 4),
        ):
            with pytest.raises(RuntimeError, match=r"inside jax.set_mesh .*call it outside"):
                call()
    same(outside, inside)
    sharded.save(tmp_path, state)


@pytest.mark.sweep
def test_misuse_is_said():
    mesh = meshes.mesh(2)
    state = sharded.init(jnp.int32(0), 8, mesh=mesh, num_envs=4)
    state = sharded.add(state, np.arange(4, dtype=np.int32))
    batch = sharded.sample(state, jax.random.key(0), 4)
    with pytest.raises(TypeError, match="fields must be a dict of names"):
        sharded.write(state, batch.ids, 3)
    with pytest.raises(TypeError, match="state is traced; call it outside of jit"):
        jax.jit(sharded.reshard, static_argnums=1)(state, 4)
    inside = jax.shard_map(
        lambda: sharded.size(sharded.init(jnp.int32(0), 8, mesh=mesh)),
        mesh=mesh,
        in_specs=(),
        out_specs=jax.P(),
    )
    with pytest.raises(ValueError, match="inside shard_map over 'data'; make the buffer outside"):
        inside()
    other = sharded.init(jnp.int32(0), 8, mesh=meshes.mesh(1), num_envs=4)
    with pytest.raises(ValueError, match="ids name rows of the buffer that gave them"):
        sharded.remove(other, batch.ids)


def test_a_place_is_how_many_of_its_shard_come_before(monkeypatch):
    """By each of the three ways to count: the one of a CPU, and two of accelerators."""
    parts = np.random.default_rng(0).integers(0, 5, (3, 200), np.int32)
    expected = [[row[:at].tolist().count(of) for at, of in enumerate(row)] for row in parts]
    np.testing.assert_array_equal(exchange._places(jnp.asarray(parts), 5), expected)
    for most in (200, 199):
        monkeypatch.setattr(exchange, "_COMPARED", most)
        with inside.forms_of_other_platforms():
            places = jax.jit(lambda parts: exchange._places(parts, 5))(parts)
        np.testing.assert_array_equal(places, expected)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_the_state_of_first_steps_has_no_axis_of_time_to_swap(shape):
    item = {"h": jnp.zeros(shape), "n": jnp.int32(0)}
    mesh = jax.make_mesh((8,), ("data",))
    options = {"mesh": mesh, "num_envs": 8, "sampler": fbuf.Uniform(window=2)}
    state = sharded.init(item, 64, **options)
    numbers = jnp.arange(48, dtype=jnp.int32).reshape(6, 8)
    h = jnp.broadcast_to(
        numbers.astype(jnp.float32).reshape(6, 8, *(1,) * len(shape)), (6, 8, *shape)
    )
    state = fbuf.add(state, {"h": h, "n": numbers}, time_major=True)
    view = fbuf.Sequence(2, time_major=True, state="h")
    data = jax.device_get(fbuf.sample(state, jax.random.key(0), 16, view=view).data)
    assert data.item["n"].shape == (2, 16)
    assert data.state.shape == (16, *shape)
    np.testing.assert_array_equal(data.state.reshape(16, -1)[:, 0], data.item["n"][0])
    np.testing.assert_array_equal(data.item["n"][1] - data.item["n"][0], 8)
