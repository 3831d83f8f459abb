"""The front with flashbax's functions: the same windows, priorities and shapes, by an oracle."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
import warnings

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters import flashbax as fbx

import fbuf

ALPHA = 0.6


class Oracle:
    """The steps of each environment, in NumPy; all environments step together."""

    def __init__(self, environments, steps, window, period, from_oldest):
        self.environments, self.steps = environments, steps
        self.window, self.period, self.from_oldest = window, period, from_oldest
        self.time = 0
        self.priority = {}  # by environment and time
        self.largest = 0.0

    def add(self, steps):
        """Add steps, and return them: the number of the environment, and the time."""
        times = np.arange(self.time, self.time + steps, dtype=np.int32)
        for time in times:
            for environment in range(self.environments):
                self.priority[environment, int(time)] = self.largest or 1.0
        self.largest = self.largest or 1.0
        self.time += steps
        environments = np.arange(self.environments, dtype=np.int32)
        both = np.broadcast_arrays(environments[:, None], times[None])
        return {"environment": jnp.asarray(both[0]), "time": jnp.asarray(both[1])}

    @property
    def oldest(self):
        return max(self.time - self.steps, 0)

    def starts(self):
        """The times that a window begins at."""
        first = self.oldest if self.from_oldest else 0
        last = self.time - self.window
        times = range(first, last + 1, self.period)
        return [time for time in times if time >= self.oldest]

    def probabilities(self, exponent=ALPHA):
        """Return the probability of each window."""
        values = {
            (environment, time): self.priority[environment, time] ** exponent
            for environment in range(self.environments)
            for time in self.starts()
        }
        total = sum(values.values())
        return {start: value / total for start, value in values.items() if value}

    def set(self, start, priority):
        self.priority[start] = priority
        self.largest = max(self.largest, priority)


ITEM = {"environment": jnp.int32(0), "time": jnp.int32(0)}


def probabilities(state):
    """Return the probability of each window of a state, by the numbers in its first row."""
    buffer = state.buffer
    ids = fbuf.ids_at(buffer, jnp.arange(buffer.capacity, dtype=jnp.int32))
    rows, likely = fbuf.read(buffer, ids).data, np.asarray(fbuf.probability(buffer, ids))
    starts = zip(rows["environment"].tolist(), rows["time"].tolist(), strict=True)
    return {start: p for start, p in zip(starts, likely, strict=True) if p > 0}


def check_batch(oracle, batch):
    """All windows are whole, in order, and start where the oracle says."""
    environment, time = (np.asarray(batch.experience[name]) for name in ITEM)
    assert np.all(environment == environment[:, :1])
    assert np.all(time == time[:, :1] + np.arange(oracle.window))
    assert set(time[:, 0].tolist()) <= set(oracle.starts())


CONFIGS = [  # environments, steps, window, period, and the steps of each add
    (2, 13, 3, 1, (4, 4, 4, 4, 4)),
    (3, 12, 5, 4, (1, 3, 7, 12, 2)),
    pytest.param(1, 16, 16, 3, (16, 5, 16, 1), marks=pytest.mark.sweep),
    pytest.param(2, 10, 4, 7, (3, 3, 3, 3, 3, 3), marks=pytest.mark.sweep),
]


@pytest.mark.first(1)
@pytest.mark.parametrize(("environments", "steps", "window", "period", "adds"), CONFIGS)
@pytest.mark.filterwarnings("ignore:.*is larger than sample_sequence_length")
def test_windows_are_those_of_the_oracle(environments, steps, window, period, adds):
    """They are counted from the oldest step, over the end of the ring, for adds of any length."""
    buffer = fbx.make_trajectory_buffer(
        environments, 64, window, period, window, max_length_time_axis=steps
    )
    oracle = Oracle(environments, steps, window, period, from_oldest=True)
    state = buffer.init(ITEM)
    for number, add in enumerate(adds):
        state = buffer.add(state, oracle.add(add))
        expected = oracle.probabilities(exponent=0)
        assert probabilities(state) == pytest.approx(expected, rel=1e-6)
        assert bool(buffer.can_sample(state)) == bool(expected)
        if expected:
            batch = buffer.sample(state, jax.random.key(number))
            check_batch(oracle, batch)
        assert int(state.current_index) == oracle.time % steps
        assert bool(state.is_full) == (oracle.time >= steps)
        assert int(fbx.utils.get_timestep_count(state)) == environments * min(oracle.time, steps)


def test_every_window_is_drawn_as_often():
    buffer = fbx.make_trajectory_buffer(2, 40_000, 3, 2, 3, max_length_time_axis=9)
    oracle = Oracle(2, 9, 3, 2, from_oldest=True)
    state = buffer.init(ITEM)
    for add in (5, 6):
        state = buffer.add(state, oracle.add(add))
    batch = buffer.sample(state, jax.random.key(0)).experience
    drawn = np.asarray(batch["environment"][:, 0] * 100 + batch["time"][:, 0])
    windows, counts = np.unique(drawn, return_counts=True)
    assert windows.tolist() == [e * 100 + time for e in (0, 1) for time in oracle.starts()]
    expected = 40_000 / len(windows)
    assert ((counts - expected) ** 2 / expected).sum() < 30  # chi square, 7 degrees of freedom


PRIORITISED = [
    (2, 12, 3, 1, (4, 5, 4, 4, 4)),
    (1, 12, 5, 4, (3, 3, 3, 3, 12, 2)),
    pytest.param(3, 15, 7, 5, (1, 9, 9, 15, 4), marks=pytest.mark.sweep),
]


@pytest.mark.first(1)
@pytest.mark.parametrize(("environments", "steps", "window", "period", "adds"), PRIORITISED)
def test_probabilities_are_those_of_the_oracle(environments, steps, window, period, adds):
    buffer = fbx.make_prioritised_trajectory_buffer(
        environments, 8, window, period, window, max_length_time_axis=steps
    )
    oracle = Oracle(environments, steps, window, period, from_oldest=False)
    state, random = buffer.init(ITEM), np.random.default_rng(0)
    for number, add in enumerate(adds):
        state = buffer.add(state, oracle.add(add))
        expected = oracle.probabilities()
        assert probabilities(state) == pytest.approx(expected, rel=1e-6)
        assert bool(buffer.can_sample(state)) == (oracle.time >= window)
        if not expected:
            continue
        batch = buffer.sample(state, jax.random.key(number))
        check_batch(oracle, batch)
        starts = list(zip(*(batch.experience[name][:, 0].tolist() for name in ITEM), strict=True))
        likely = [expected[start] for start in starts]
        np.testing.assert_allclose(batch.probabilities, likely, rtol=1e-6)
        priorities = random.uniform(0.1, 1.0, len(starts)).astype(np.float32)
        state = buffer.set_priorities(state, batch.indices, jnp.asarray(priorities))
        for start, priority in zip(starts, priorities, strict=True):
            oracle.set(start, float(priority))  # of an index that repeats the last one counts
        assert probabilities(state) == pytest.approx(oracle.probabilities(), rel=1e-6)


@pytest.fixture(scope="module")
def items():
    """A prioritised item buffer with the rows 0 to 7, and its functions, compiled."""
    buffer = fbx.make_prioritised_item_buffer(8, 4, sample_batch_size=64, add_batches=True)
    buffer = buffer.replace(
        add=jax.jit(buffer.add),
        sample=jax.jit(buffer.sample),
        set_priorities=jax.jit(buffer.set_priorities),
    )
    state = buffer.add(buffer.init(jnp.float32(0)), jnp.arange(8, dtype=jnp.float32))
    return buffer, state


def test_a_row_of_priority_0_is_never_drawn(items):
    buffer, state = items
    ids = fbuf.ids_at(state.buffer, jnp.arange(7, dtype=jnp.int32))
    state = buffer.set_priorities(state, ids, jnp.zeros(7))
    batch = buffer.sample(state, jax.random.key(0))
    assert np.all(batch.experience == 7)
    assert np.all(batch.probabilities == 1)
    state = buffer.set_priorities(state, batch.indices, jnp.zeros(64))
    assert buffer.can_sample(state)  # steps are counted, and not priorities
    batch = buffer.sample(state, jax.random.key(0))
    assert np.all(batch.probabilities == 0)
    assert np.all(batch.indices.slot == -1)
    assert int(buffer.set_priorities(state, batch.indices, jnp.ones(64)).buffer.fault) == int(
        state.buffer.fault
    )


def test_late_and_bad_priorities_change_nothing(items):
    buffer, state = items
    late = buffer.sample(state, jax.random.key(0)).indices
    state = buffer.add(state, jnp.arange(8, 16, dtype=jnp.float32))  # over all of them
    before = probabilities_of_items(state)
    state = buffer.set_priorities(state, late, jnp.full(64, 100.0))
    np.testing.assert_array_equal(probabilities_of_items(state), before)
    assert fbuf.Fault(int(state.buffer.fault)) == fbuf.Fault.STALE_ID
    now = buffer.sample(state, jax.random.key(0)).indices
    for bad in (jnp.nan, jnp.inf, -1.0):
        changed = buffer.set_priorities(state, now, jnp.full(64, bad))
        np.testing.assert_array_equal(probabilities_of_items(changed), before)
        with pytest.raises(RuntimeError, match="BAD_PRIORITY"):
            fbuf.raise_on_fault(changed.buffer)


def probabilities_of_items(state):
    return fbuf.probability(state.buffer, fbuf.newest_ids(state.buffer, 8))


def test_a_new_row_gets_the_largest_priority_ever(items):
    """It is not rounded to an integer, as in flashbax 0.1.3."""
    buffer, state = items
    ids = fbuf.ids_at(state.buffer, jnp.arange(8, dtype=jnp.int32))
    state = buffer.set_priorities(state, ids, jnp.full(8, 2.9))
    state = buffer.set_priorities(state, ids, jnp.full(8, 0.5))
    state = buffer.add(state, jnp.zeros(1))
    newest = fbuf.probability(state.buffer, fbuf.newest_ids(state.buffer, 1))[0]
    expected = 2.9**ALPHA / (2.9**ALPHA + 7 * 0.5**ALPHA)
    assert float(newest) == pytest.approx(expected, rel=1e-6)


def rows(*shape):
    return jnp.arange(np.prod(shape, dtype=int), dtype=jnp.float32).reshape(shape)


EITHER = [pytest.param(False, marks=pytest.mark.sweep), True]
"""Without priorities, and with."""


FLAT = [  # add_sequences, add_batch_size, the shape of a batch
    (False, None, ()),
    (True, None, (3,)),
    (False, 2, (2,)),
    (True, 2, (2, 3)),
]


@pytest.mark.parametrize("prioritised", EITHER)
@pytest.mark.parametrize(("add_sequences", "add_batch_size", "shape"), FLAT)
def test_pairs_of_each_kind_of_batch(add_sequences, add_batch_size, shape, prioritised):
    make = fbx.make_prioritised_flat_buffer if prioritised else fbx.make_flat_buffer
    buffer = make(12, 2, 16, add_sequences, add_batch_size)
    lanes, steps = add_batch_size or 1, (shape or (1,))[-1] if add_sequences else 1
    state, time = buffer.init(jnp.float32(0)), 0
    while time < 8:
        enough = time >= 2 // lanes + 1
        assert bool(buffer.can_sample(state)) == enough
        batch = 1000 * np.arange(lanes)[:, None] + time + np.arange(steps)
        batch = jnp.asarray(batch.reshape(shape), jnp.float32)
        state, time = buffer.add(state, batch), time + steps
    drawn = buffer.sample(state, jax.random.key(0))
    first, second = drawn.experience
    np.testing.assert_array_equal(first + 1, second)
    assert first.shape == (16,)
    assert drawn.experience.first is first
    assert float((first % 1000).min()) >= max(0, time - 12 // lanes)
    assert (lanes == 1) == bool(np.all(first < 1000))
    experience = np.asarray(state.experience)
    assert experience.shape == (lanes, 12 // lanes)
    assert experience[0, (time - 1) % (12 // lanes)] == time - 1


@pytest.mark.parametrize("prioritised", EITHER)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_items_of_each_kind_of_batch(shape, prioritised):
    make = fbx.make_prioritised_item_buffer if prioritised else fbx.make_item_buffer
    buffer = make(7, 2, 32, add_sequences=len(shape) == 2, add_batches=len(shape) >= 1)
    state = buffer.init(jnp.float32(0))
    assert not buffer.can_sample(state)
    for number in range(3):
        state = buffer.add(state, rows(*shape) + 10 * number)
    drawn = set(buffer.sample(state, jax.random.key(0)).experience.tolist())
    added = [float(row) + 10 * number for number in range(3) for row in rows(*shape).ravel()]
    assert drawn == set(added[-7:])
    assert buffer.can_sample(state)
    assert state.experience.shape == (1, 7)


def test_a_queue_hands_out_every_step_once():
    queue = fbx.make_trajectory_queue(13, 2, add_sequence_length=3, sample_sequence_length=5)
    oracle, state, read = Oracle(2, 13, 5, 1, from_oldest=True), queue.init(ITEM), 0
    for _ in range(12):
        while queue.can_add(state):
            state = queue.add(state, oracle.add(3))
            assert int(state.write_index) == oracle.time % 13
        while queue.can_sample(state):
            state, batch = queue.sample(state)
            assert batch.experience["time"].tolist() == [list(range(read, read + 5))] * 2
            read += 5
            assert int(state.read_index) == read % 13
    assert read == oracle.time - oracle.time % 5
    assert not state.is_full
    same, batch = queue.sample(state)  # too few steps: none is read
    assert np.all(batch.experience["time"] == 0)
    assert int(same.read_index) == int(state.read_index)
    full = functools.reduce(lambda state, _: queue.add(state, oracle.add(3)), range(6), state)
    assert full.is_full
    with pytest.raises(RuntimeError, match="FULL"):
        fbuf.raise_on_fault(full.buffer)


def test_a_mixer_takes_shares_of_each_buffer():
    buffer = fbx.make_prioritised_flat_buffer(100, 1, sample_batch_size=8)
    states = [
        functools.reduce(buffer.add, [jnp.float32(number)] * 4, buffer.init(jnp.float32(0)))
        for number in (1, 2, 3)
    ]
    mixer = fbx.make_mixer([buffer] * 3, sample_batch_size=10, proportions=[0.25, 0.5, 0.25])
    assert mixer.can_sample(states)
    batch = jax.jit(mixer.sample)(states, jax.random.key(0))
    assert batch.experience.first.tolist() == [1] * 3 + [2] * 5 + [3] * 2
    assert batch.probabilities.shape == batch.indices.slot.shape == (10,)
    state = buffer.set_priorities(
        states[1], jax.tree.map(lambda leaf: leaf[3:8], batch.indices), jnp.zeros(5)
    )
    assert int(state.buffer.fault) == 0


def test_can_sample_counts_steps_and_looks_at_nothing_else():
    """Full, with no whole window: after 8 steps, the one of step 5 lacks two."""
    buffer = fbx.make_prioritised_trajectory_buffer(1, 2, 5, 5, 5, max_length_time_axis=5)
    state = buffer.init(jnp.float32(0))
    for steps, ready in ((3, False), (2, True), (3, True)):
        state = buffer.add(state, jnp.zeros((1, steps)))
        assert bool(buffer.can_sample(state)) == ready
    batch = buffer.sample(state, jax.random.key(0))
    assert batch.probabilities.tolist() == [0, 0]


BUFFERS = {
    "item": (fbx.make_item_buffer, (8, 1, 4)),
    "flat": (fbx.make_flat_buffer, (8, 1, 4)),
    "trajectory": (fbx.make_trajectory_buffer, (1, 4, 2, 1, 2, 8)),
    "prioritised item": (fbx.make_prioritised_item_buffer, (8, 1, 4)),
    "prioritised flat": (fbx.make_prioritised_flat_buffer, (8, 1, 4)),
    "prioritised trajectory": (fbx.make_prioritised_trajectory_buffer, (1, 4, 2, 1, 2, 8)),
    "queue": (fbx.make_trajectory_queue, (8, 1, 1, 2)),
}


@pytest.mark.parametrize("kind", [*BUFFERS, "mixer"])
def test_under_vmap_one_answer_is_for_all_seeds(kind):
    """So `lax.cond(can_sample)` takes one branch there: else both, and the state is copied."""
    make, arguments = BUFFERS["item" if kind == "mixer" else kind]
    buffer = make(*arguments)
    window = (1, 1) if "trajectory" in kind or kind == "queue" else ()

    def step(state, key):
        state = buffer.add(state, jax.random.normal(key, window))
        if hasattr(buffer, "set_priorities"):
            batch = buffer.sample(state, key)
            state = buffer.set_priorities(state, batch.indices, jax.random.uniform(key, (4,)))
        return state, None

    def run(key):
        state, _ = jax.lax.scan(step, buffer.init(jnp.float32(0)), jax.random.split(key, 3))
        if kind == "mixer":
            return fbx.make_mixer([buffer] * 2, 4, [1, 1]).can_sample([state, state])
        return buffer.can_sample(state)

    keys = jax.random.split(jax.random.key(0), 2)
    assert jax.vmap(run, out_axes=None)(keys)  # refused if the answers might differ


def step(buffer, state, key):
    """One step of training: draw, then add, and give priorities to what was drawn."""
    batch = buffer.sample(state, key)
    state = buffer.add(state, jnp.ones((2, 1, 8)))
    if hasattr(buffer, "set_priorities"):
        state = buffer.set_priorities(state, batch.indices, batch.experience.mean(axis=(1, 2)))
    steps = fbx.utils.get_tree_shape_prefix(state.experience, 2)[1]  # its values are not read
    return state, batch.experience.sum() + steps


def made(prioritised, steps=2000, **options):
    make = fbx.make_prioritised_trajectory_buffer if prioritised else fbx.make_trajectory_buffer
    return make(2, 4, 3, 1, 3, max_length_time_axis=steps, **options)


@pytest.mark.parametrize("prioritised", [False, True])
def test_a_scanned_step_is_in_place(prioritised):
    buffer = made(prioritised)

    @functools.partial(jax.jit, donate_argnums=0)
    def train(state, keys):
        return jax.lax.scan(functools.partial(step, buffer), state, keys)

    state = buffer.init(jnp.zeros(8))
    fbuf.check_in_place(train, state, jax.random.split(jax.random.key(0), 9))
    state, _ = train(state, jax.random.split(jax.random.key(0), 9))
    assert int(state.current_index) == 9
    add = jax.jit(buffer.add, donate_argnums=0)  # as users of flashbax write it
    fbuf.check_in_place(add, state, jnp.ones((2, 1, 8)))


def test_calls_from_python_consume_nothing():
    buffer = made(True, steps=20)
    empty = buffer.init(jnp.zeros(8))
    one = buffer.add(empty, jnp.ones((2, 4, 8)))
    batch = buffer.sample(one, jax.random.key(0))
    two = buffer.set_priorities(one, batch.indices, jnp.ones(4))
    assert [int(state.current_index) for state in (empty, one, two)] == [0, 4, 4]
    assert float(empty.experience.sum()) == 0 < float(one.experience.sum())


@pytest.mark.sweep
@pytest.mark.parametrize("prioritised", EITHER)
def test_seeds_are_mapped_and_devices_too(prioritised):
    buffer, keys = made(prioritised, steps=20), jax.random.split(jax.random.key(0), 2)

    def run(key):
        state = buffer.add(buffer.init(jnp.zeros(8)), jnp.ones((2, 4, 8)))
        return step(buffer, state, key)

    alone = [run(key) for key in keys]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of pmap
        mapped = [jax.vmap(run)(keys), jax.pmap(run)(keys)]
    for state, total in mapped:
        np.testing.assert_array_equal(total, jnp.stack([total for _, total in alone]))
        assert state.current_index.tolist() == [5, 5]
        assert not state.is_full.any()
        assert buffer.can_sample(state).tolist() == [True, True]
        assert state.experience.shape == (2, 2, 20, 8)
        assert fbx.utils.get_timestep_count(state).tolist() == [10, 10]
        assert fbx.utils.get_max_index(state) == 20


def test_each_device_has_a_buffer_of_its_own():
    buffer = made(True, steps=20)
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def run(keys):
        state = buffer.add(buffer.init(jnp.zeros(8)), jnp.ones((2, 4, 8)))
        state, total = step(buffer, state, keys[0])
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (state, total))

    state, total = run(jax.random.split(jax.random.key(0), 2))
    assert total.tolist() == [116, 116]
    assert state.current_index.tolist() == [5, 5]


@pytest.mark.parametrize("kind", ["buffer", "prioritised", "queue"])
def test_states_are_saved_like_any_tree(kind, tmp_path):
    if kind == "queue":
        buffer = fbx.make_trajectory_queue(20, 2, 4, 4)
    else:
        buffer = made(kind == "prioritised", steps=20)
    empty = buffer.init(jnp.zeros(8))
    state = buffer.add(empty, rows(2, 4, 8))
    saved = [
        pickle.loads(pickle.dumps(state)),
        copy.deepcopy(state),
        flax.serialization.from_bytes(empty, flax.serialization.to_bytes(state)),
    ]
    for restored in saved:
        assert type(restored) is type(state)
        for one, other in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
            np.testing.assert_array_equal(one, other)
    fbuf.save(tmp_path / "buffer", state.buffer)
    loaded = fbuf.load(tmp_path / "buffer", sampler=empty.buffer.sampler, episodes="keep").state
    np.testing.assert_array_equal(state.replace(buffer=loaded).experience, state.experience)


def test_a_buffer_is_hashable_for_static_arguments():
    buffer = made(False)
    assert hash(buffer) == hash(buffer.replace())
    assert buffer == buffer.replace()


def test_a_removed_row_would_be_drawn():
    state = made(False, steps=20)
    state = state.add(state.init(jnp.zeros(8)), rows(2, 4, 8))
    buffer = state.buffer
    with pytest.raises(ValueError, match="was made with removable=False"):
        fbuf.remove(buffer, fbuf.newest_ids(buffer, 1), donate=False)
    with pytest.raises(ValueError, match=r"no row can be removed; make the buffer with fbuf\.init"):
        buffer.sampler.remove(buffer.index, buffer.ring, fbuf.newest_ids(buffer, 1).slot)


TRAJECTORY = {
    "add_batch_size": 4,
    "sample_batch_size": 8,
    "sample_sequence_length": 3,
    "period": 1,
    "min_length_time_axis": 3,
    "max_length_time_axis": 10,
}
FLAT_ARGUMENTS = {"max_length": 10, "min_length": 2, "sample_batch_size": 4, "add_batch_size": 2}
QUEUE = {
    "max_length_time_axis": 10,
    "add_batch_size": 2,
    "add_sequence_length": 3,
    "sample_sequence_length": 3,
}
MISUSE = [
    ("trajectory_buffer", {"period": 0}, "period must be from 1 to"),
    ("trajectory_buffer", {"period": -1}, "period must be from 1 to"),
    ("trajectory_buffer", {"sample_batch_size": 0}, "sample_batch_size must be from 1 to"),
    ("trajectory_buffer", {"sample_sequence_length": 0}, "sample_sequence_length must be from 1"),
    ("trajectory_buffer", {"sample_sequence_length": 11}, "at most max_length_time_axis, which is"),
    ("trajectory_buffer", {"min_length_time_axis": -3}, "min_length_time_axis must be from 1"),
    ("trajectory_buffer", {"min_length_time_axis": 11}, "at most max_length_time_axis, which is"),
    ("trajectory_buffer", {"add_batch_size": 0}, "add_batch_size must be from 1"),
    ("trajectory_buffer", {"add_batch_size": 2.0}, "add_batch_size must be an int"),
    ("trajectory_buffer", {"max_size": 40}, "give either max_length_time_axis"),
    ("trajectory_buffer", {"max_length_time_axis": None}, "give either max_length_time_axis"),
    (
        "trajectory_buffer",
        {"max_length_time_axis": None, "max_size": 42},
        "max_size is no multiple of add_batch_size=4, so the buffer holds 40 steps",
    ),
    ("trajectory_buffer", {"period": 4}, "period=4 is larger than sample_sequence_length=3"),
    ("prioritised_trajectory_buffer", {"period": 0}, "period must be from 1 to"),
    ("prioritised_trajectory_buffer", {"period": 11}, "period must be at most max_length"),
    ("prioritised_trajectory_buffer", {"period": 3}, "so the buffer keeps 9 steps"),
    (
        "prioritised_trajectory_buffer",
        {"priority_exponent": 1.1},
        "priority_exponent must be from 0 to 1",
    ),
    ("prioritised_trajectory_buffer", {"device": "gpu:0"}, "device must be one of 'cpu', 'gpu'"),
    ("flat_buffer", {"max_length": 3}, "max_length must be from 4 to"),
    ("flat_buffer", {"min_length": 10}, "take 6 steps of each of 2 environments"),
    ("flat_buffer", {"sample_batch_size": 0}, "sample_batch_size must be from 1"),
    ("flat_buffer", {"add_sequences": 3}, "add_sequences must be True or False"),
    ("flat_buffer", {"add_batch_size": 3}, "so the buffer holds 9 steps instead of 10"),
    ("trajectory_queue", {"add_sequence_length": 11}, "add_sequence_length must be at most"),
    ("trajectory_queue", {"sample_sequence_length": 0}, "sample_sequence_length must be from 1"),
]


@pytest.mark.parametrize(("name", "changes", "message"), MISUSE)
def test_arguments_of_no_use_are_named(name, changes, message):
    base = FLAT_ARGUMENTS if name == "flat_buffer" else TRAJECTORY
    base = QUEUE if name == "trajectory_queue" else base
    with pytest.raises((ValueError, TypeError, UserWarning), match=message) as caught:
        getattr(fbx, f"make_{name}")(**(base | changes))
    assert f"fbuf.make_{name}: " in str(caught.value)


def test_what_is_right_warns_of_nothing():
    """flashbax warns of max_size, and of a window that raises the least length."""
    fbx.make_trajectory_buffer(**(TRAJECTORY | {"max_length_time_axis": None, "max_size": 40}))
    fbx.make_trajectory_buffer(**(TRAJECTORY | {"min_length_time_axis": 1}))
    fbx.make_trajectory_queue(**(QUEUE | {"max_size": 20}))


OBSERVATION = {"obs": jnp.zeros(4)}
BATCHES = [
    (
        {"obs": jnp.zeros((2, 4))},
        r"batch must be of shape \[add_batch_size, steps, 4\], got \(2, 4\)",
    ),
    ({"obs": jnp.zeros((3, 5, 4))}, r"items\['obs'\] must be"),
    ({"obs": jnp.zeros((2, 5, 3))}, "shapes are never broadcast"),
    ({"obs": jnp.zeros((2, 11, 4))}, "batch has 11 steps, and the buffer keeps 10"),
    ({"obs": jnp.zeros((2, 5, 4), jnp.float16)}, "must be float32"),
    ({"observation": jnp.zeros((2, 5, 4))}, r"items\['obs'\] is missing"),
]


@pytest.mark.parametrize(("batch", "message"), BATCHES)
def test_batches_that_do_not_fit_are_refused(batch, message):
    buffer = fbx.make_trajectory_buffer(**(TRAJECTORY | {"add_batch_size": 2}))
    with pytest.raises((ValueError, TypeError), match=message):
        buffer.add(buffer.init(OBSERVATION), batch)


def test_other_misuse_is_named():
    items = fbx.make_item_buffer(10, 1, 4, add_sequences=True, add_batches=True)
    with pytest.raises(ValueError, match="batch has 12 steps, and the buffer keeps 10"):
        items.add(items.init(jnp.float32(0)), jnp.zeros((3, 4)))
    flat = fbx.make_prioritised_flat_buffer(**FLAT_ARGUMENTS)
    state = flat.init(jnp.float32(0))
    with pytest.raises(TypeError, match=r"indices must be those of a sample.*fbuf\.ids_at"):
        flat.set_priorities(state, jnp.arange(4), jnp.ones(4))
    with pytest.raises(ValueError, match="all leaves of tree must have the same first 2"):
        fbx.utils.get_tree_shape_prefix({"a": jnp.zeros((2, 3)), "b": jnp.zeros((2, 4))}, 2)
    with pytest.raises(TypeError, match="all of one kind"):
        fbx.make_mixer([items, flat], 4, [1, 1])
    with pytest.raises(ValueError, match="one number a buffer, and not all 0"):
        fbx.make_mixer([flat], 4, [0.0])
    mixer = fbx.make_mixer([flat, flat], 100, [1, 1])
    with pytest.raises(ValueError, match="50 rows of a mixed sample are from buffer 0"):
        mixer.sample([state, state], jax.random.key(0))
    with pytest.raises(ValueError, match="states must be one a buffer, got 1 for 2"):
        mixer.can_sample([state])


@pytest.mark.parametrize("cut", ["load", "end_episode"])
@pytest.mark.parametrize("kind", ["trajectory", "flat"])
def test_windows_go_across_the_end_that_a_load_sets(kind, cut, tmp_path):
    if kind == "flat":
        buffer = fbx.make_flat_buffer(16, 2, 64)
    else:
        buffer = fbx.make_trajectory_buffer(1, 64, 3, 1, 3, max_length_time_axis=16)
    length = 2 if kind == "flat" else 3
    state = buffer.init({"x": jnp.int32(0)})
    rows = jnp.arange(1, 7, dtype=jnp.int32)
    for number, row in enumerate(rows):
        if number == 3 and cut == "load":
            fbuf.save(tmp_path / "run", state.buffer)
            loaded = fbuf.load(tmp_path / "run", sampler=state.buffer.sampler).state
            state = dataclasses.replace(state, buffer=loaded)
        elif number == 3:
            state = dataclasses.replace(state, buffer=fbuf.end_episode(state.buffer))
        state = buffer.add(state, {"x": row if kind == "flat" else row.reshape(1, 1)})
    drawn = buffer.sample(state, jax.random.key(0)).experience
    steps = (
        drawn["x"] if kind == "trajectory" else jnp.stack([drawn.first["x"], drawn.second["x"]], 1)
    )
    assert {tuple(window) for window in np.asarray(steps).tolist()} == {
        tuple(range(first, first + length)) for first in range(1, 8 - length)
    }
    # Views of fbuf see the end.
    view = fbuf.NStep(3, gamma=1.0, reward="x", next_observation="x")
    batch = fbuf.sample(state.buffer, jax.random.key(1), 64, view=view)
    ends = {1: 6, 2: 5, 3: 3}
    for first, reward, cut_off in zip(
        batch.data.item["x"], batch.data.reward, batch.truncated, strict=True
    ):
        if int(first) in ends:
            assert (float(reward), bool(cut_off)) == (ends[int(first)], True)
