"""A check of a compiled step: each cause of a copy by its name, and steps that copy nothing."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from support.few import few

import fbuf
from fbuf.ops.larger import enlarged
from fbuf.xla.program import Program, array_of
from fbuf.xla.whole import Cause, written_whole

KEY = jax.random.key(0)
ITEM = {"obs": jnp.zeros(3), "reward": jnp.float32(0)}
SMALL, LARGE = 96, 2**18
COPIES_BRANCHES = jax.__version_info__ < (0, 11, 2)
"""Later versions of JAX write in each branch in place."""


def rows(count=4):
    return {"obs": jnp.ones((count, 3)), "reward": jnp.ones(count)}


def shapes(capacity=SMALL, sampler=fbuf.Uniform(), **options):
    return jax.eval_shape(lambda: fbuf.init(ITEM, capacity, sampler=sampler, **options))


def batched(capacity=SMALL, seeds=2, sampler=fbuf.Uniform()):
    make = jax.vmap(lambda _: fbuf.init(ITEM, capacity, sampler=sampler))
    return jax.eval_shape(lambda: make(jnp.arange(seeds)))


def checked(step, *args, **kwargs):
    fbuf.check_in_place(jax.jit(step, donate_argnums=0), *args, **kwargs)


def causes(step, *args, **kwargs):
    """The causes that the message of a check names, or a message of another kind."""
    try:
        checked(step, *args, **kwargs)
    except RuntimeError as error:
        return {cause for cause in Cause if f"By {cause.value}: " in str(error)} or str(error)
    return set()


# --- the causes ----------------------------------------------------------------------------------


def added(state):
    return fbuf.add(state, rows())


def by_chance(key):
    return jax.random.uniform(key) > 0.5


def in_place(state, key):
    state = added(state)
    batch = fbuf.sample(state, key, 8)
    if state.sampler.keeps_priorities:
        state = fbuf.update_priority(state, batch.ids, batch.data["reward"])
    return state


def only_read(state, key):
    return state, fbuf.sample(state, key, 8).data


def branch(state, key):
    return lax.cond(by_chance(key), lambda state: state, added, state)


def branches(state, key):
    return lax.switch(jax.random.randint(key, (), 0, 3), [added, lambda s: s, fbuf.clear], state)


def select(state, key):
    return jax.tree.map(functools.partial(jnp.where, by_chance(key)), added(state), state)


@jax.jit
def sampled_apart(state, key):
    return fbuf.sample(state, key, 8)


def order(state, key):
    batch = sampled_apart(state, key)
    return added(state), batch.data["reward"].sum()


def order_and_select(state, key):
    """The second state is a copy of the first one, with a row in it."""
    return {"one": order(state["one"], key), "two": select(state["two"], key)}


def fill(state, key):
    return fbuf.clear(added(state))


def loop(state, key):
    turns = jax.random.randint(key, (), 1, 5)
    step = lambda carry: (carry[0] + 1, added(carry[1]))
    return lax.while_loop(lambda carry: carry[0] < turns, step, (0, state))[1]


def computed(state, key):
    """Priorities that fade, written into the sampler's own tree."""
    leaves, tree = jax.tree.flatten(added(state))
    return tree.unflatten([leaf + 1 if leaf.size > SMALL else leaf for leaf in leaves])


STEPS = {
    "in place": (in_place, None),
    "only read": (only_read, None),
    "branch": (branch, Cause.BRANCH),
    "branches": (branches, Cause.BRANCH),
    "select": (select, Cause.SELECT),
    "order": (order, Cause.ORDER),
    "fill": (fill, Cause.FILL),
    "loop": (loop, Cause.LOOP),
    "computed": (computed, Cause.COMPUTED),
}


class Train(NamedTuple):
    """All that a program carries, with a part that is not there."""

    steps: jax.Array
    buffer: fbuf.State
    ema: None = None


def plain(step, state):
    return step, state


def scanned(step, state):
    def body(state, key):
        given = step(state, key)
        return given if type(given) is tuple else (given, None)

    return lambda state, key: lax.scan(body, state, jax.random.split(key, 3)), state


def for_seeds(step, state):
    states = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), state)
    return lambda state, key: jax.vmap(step)(state, jax.random.split(key, 2)), states


def in_a_tree(step, state):
    def run(carry, key):
        given = step(carry["train"].buffer, key)
        buffer, more = given if type(given) is tuple else (given, None)
        train = carry["train"]._replace(steps=carry["train"].steps + 1, buffer=buffer)
        return {**carry, "train": train}, more

    return run, {"train": Train(jnp.int32(0), state), "none": None}


FORMS = {"plain": plain, "scan": scanned, "vmap": for_seeds, "tree": in_a_tree}
CASES = [
    (step, form, prioritised, capacity)
    for step in STEPS
    for form in FORMS
    for prioritised in (False, True)
    for capacity in (SMALL, LARGE)
]
QUICK = [
    ("in place", "plain", True, SMALL),
    ("in place", "vmap", False, LARGE),
    ("in place", "scan", False, SMALL),
    ("only read", "tree", False, SMALL),
    ("branch", "plain", False, SMALL),
    ("branch", "scan", False, LARGE),
    ("branch", "vmap", False, SMALL),
    ("branches", "tree", True, SMALL),
    ("select", "plain", False, LARGE),
    ("select", "scan", True, SMALL),
    ("select", "tree", False, SMALL),
    ("order", "plain", False, SMALL),
    ("order", "scan", False, LARGE),
    ("order", "vmap", False, SMALL),
    ("fill", "plain", True, SMALL),
    ("fill", "tree", False, LARGE),
    ("loop", "plain", False, SMALL),
    ("loop", "vmap", False, SMALL),
    ("computed", "plain", True, LARGE),
]


def expected(step, form):
    """The causes of a step as a user writes it."""
    cause = STEPS[step][1]
    if cause is Cause.BRANCH and form == "vmap":
        cause = Cause.SELECT  # JAX runs both branches, and chooses
    if (cause is Cause.BRANCH and not COPIES_BRANCHES) or (cause is Cause.LOOP and form != "vmap"):
        cause = None
    found = set() if cause is None else {cause}
    return found | ({Cause.FILL} if step == "branches" else set())


@pytest.mark.parametrize("case", few(CASES, *QUICK), ids=lambda case: " ".join(map(str, case)))
def test_each_cause_is_found_by_name(case):
    step, form, prioritised, capacity = case
    sampler = fbuf.Prioritized() if prioritised else fbuf.Uniform()
    run, given = FORMS[form](STEPS[step][0], shapes(capacity, sampler))
    assert causes(run, given, KEY) == expected(step, form)


def test_the_message_names_the_part_the_count_and_the_remedy():
    """Two buffers, each with a cause of its own."""
    states = {"one": shapes(96), "two": shapes(192)}
    with pytest.raises(RuntimeError) as raised:
        checked(order_and_select, states, KEY)
    said = str(raised.value)
    chosen, waiting = said.partition("By an order of reads: ")[::2]
    assert "By a select: storage.words u32[524,544] (2 times), ring.flags u8[131,136]" in chosen
    assert "mask= of fbuf.add" in chosen
    assert waiting.startswith("storage.words u32[524,928] (2 times): ")
    assert "Call state = fbuf.after(state, batch) right after the sample" in waiting
    assert "Then check again: another cause may stand behind" in waiting
    assert "Small buffers were looked at with 131,232 and 131,136 rows." in waiting


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int4])
def test_numbers_that_are_made_wider_are_a_dtype(dtype):
    """XLA makes them wider on a CPU to write one row. The text is of a program without a buffer."""
    write = lambda array, at: array.at[at].set(jnp.ones(4, array.dtype))
    array = jax.ShapeDtypeStruct((2**16, 4), dtype)
    run = jax.jit(write, donate_argnums=0).lower(array, jnp.int32(3))
    program = Program(run.compile().as_text())
    found = written_whole(program, [array_of(array.shape, array.dtype)])
    assert {whole.cause for whole in found} == {Cause.DTYPE}


def test_a_copy_behind_a_branch_in_place_is_an_order_of_reads():
    def step(state, key):
        batch = sampled_apart(state, key)
        return lax.cond(by_chance(key), added, lambda s: s, added(state)), batch.data["reward"]

    assert causes(step, shapes(), KEY) == {Cause.ORDER}


def test_a_branch_that_only_draws_is_no_cause():
    def step(state, key):
        draw = lambda state: fbuf.sample(state, key, 8).data["reward"]
        drawn = lax.cond(by_chance(key), draw, lambda _: jnp.zeros(8), state)
        return added(fbuf.after(state, drawn)), drawn

    assert causes(step, shapes(), KEY) == set()


# --- small buffers -------------------------------------------------------------------------------

SAMPLERS = [
    fbuf.Uniform(window=3),
    fbuf.Prioritized(stride=2, window=4),
    fbuf.Mixture(0.5),
    fbuf.Fifo(),
    fbuf.Shuffled(),
    fbuf.Reservoir(),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_a_larger_buffer_is_one_of_a_larger_capacity(sampler):
    envs = None if isinstance(sampler, fbuf.Reservoir) else 4
    next_of = None if envs is None else "obs"
    make = functools.partial(shapes, sampler=sampler, num_envs=envs, next_of=next_of)
    larger = enlarged({"state": make(96)})["state"]
    assert larger.capacity == 1367 * 96
    alike = make(1367 * 96)
    assert jax.tree.structure(larger) == jax.tree.structure(alike)
    if next_of is None:
        assert jax.tree.leaves(larger) == jax.tree.leaves(alike)


def test_so_is_each_of_a_batch_and_each_shard():
    assert jax.tree.leaves(enlarged(batched())) == jax.tree.leaves(batched(1367 * 96))
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    make = lambda capacity: fbuf.sharded.init(ITEM, capacity, mesh=mesh, shards=4, num_envs=8)
    larger, alike = enlarged(make(4 * 96)), make(4 * 1367 * 96)
    assert jax.tree.structure(larger) == jax.tree.structure(alike)
    for got, wanted in zip(jax.tree.leaves(larger), jax.tree.leaves(alike), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert got.sharding == wanted.sharding


def test_a_large_buffer_is_taken_as_it_is():
    state = shapes(2**14)
    assert enlarged((state, None)) == (state, None)


def test_a_small_buffer_over_a_mesh_is_checked():
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    state = fbuf.sharded.init(ITEM, 96, mesh=mesh)
    add = lambda state: fbuf.sharded.add(state, rows())
    checked(lambda state, due: add(state), state, True)
    choose = lambda due: functools.partial(jnp.where, due)
    found = causes(lambda state, due: jax.tree.map(choose(due), add(state), state), state, True)
    assert found == {Cause.SELECT}


@pytest.mark.parametrize("capacity", [96, 2**15])
def test_seeds_on_several_devices_are_checked(capacity):
    seeds = jax.sharding.NamedSharding(Mesh(np.array(jax.devices()[:2]), ("seed",)), jax.P("seed"))
    place = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=seeds)
    states = jax.tree.map(place, batched(capacity, seeds=4))
    assert all(leaf.sharding == seeds for leaf in jax.tree.leaves(enlarged(states)))
    checked(jax.vmap(added), states)
    keys = jax.random.split(KEY, 4)
    assert causes(jax.vmap(select), states, keys) == {Cause.SELECT}


def test_a_step_of_one_capacity_is_told_so():
    """Shapes that follow from the capacity fit no larger buffer."""
    state = shapes()
    ones = jnp.ones(state.capacity)

    def step(state):
        return added(state), jnp.where(state.ring.flags > 0, ones, 0.0)

    with pytest.raises(ValueError, match=r"no buffer has an array of 16 KiB.*a larger capacity"):
        checked(step, state)
    state = shapes(5000)  # its rows take more than 16 KiB
    ones = jnp.ones(state.capacity)
    checked(step, state)
    wrong = lambda state: fbuf.add(state, jnp.ones(3))
    with pytest.raises(ValueError, match=r"fbuf\.add: items"):  # of the user's own
        checked(wrong, shapes())


# --- programs as users write them ----------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Run:
    """A state of a training run."""

    params: dict
    buffers: tuple
    name: str = dataclasses.field(metadata={"static": True})


def test_a_step_of_two_buffers_in_a_dataclass_passes():
    @functools.partial(jax.jit, donate_argnames=("run",), static_argnames=("count", "view"))
    def step(run, demos, key, count, view=None, extra=None):
        first, second = run.buffers
        first, second = fbuf.add(first, rows()), fbuf.add(second, rows())
        batch = fbuf.sample_mixed([(first, 0.5), (demos, 0.5)], key, count)
        params = jax.tree.map(lambda w: w + batch.sample.data["reward"].sum(), run.params)
        return dataclasses.replace(run, params=params, buffers=(first, second))

    small, large = fbuf.init(ITEM, 96), fbuf.init(ITEM, 2**14)
    run = Run({"w": jnp.zeros(3)}, (small, large), "run")
    fbuf.check_in_place(step, run, fbuf.init(ITEM, 64), key=KEY, count=8, extra=None)
    assert int(fbuf.size(small)) == 0  # nothing is consumed


def test_the_check_passes_a_step_in_place_and_consumes_nothing():
    state = {"buffer": fbuf.init(jnp.zeros(3), 2**16), "steps": jnp.int32(0)}

    @functools.partial(jax.jit, donate_argnames="carry", static_argnames="count")
    def step(carry, key, count):
        buffer = fbuf.add(carry["buffer"], jnp.ones((4, 3)))
        batch = fbuf.sample(buffer, key, count)
        buffer = fbuf.after(buffer, batch)
        return {"buffer": buffer, "steps": carry["steps"] + 1}, batch.data.sum()

    fbuf.check_in_place(step, carry=state, key=KEY, count=16)
    assert int(fbuf.size(state["buffer"])) == 0


@pytest.mark.optimised
@pytest.mark.parametrize("form", ["unrolled", "inner loop", "older state"])
def test_a_missing_after_is_an_order_of_reads(form):
    def unrolled(state, key):
        body = lambda state, key: (lambda state: (state, drawn(state, key)))(added(state))
        return lax.scan(body, state, jax.random.split(key, 4), unroll=2)

    def inner_loop(state, key):
        def body(state, key):
            used = drawn(state, key)
            return lax.scan(lambda s, _: (added(s), None), state, length=3)[0], used

        return lax.scan(body, state, jax.random.split(key, 4))

    def drawn(state, key):
        return fbuf.sample(state, key, 32).data["reward"].sum()

    def older_state(state, key):
        return added(state), drawn(state, key)

    steps = {"unrolled": unrolled, "inner loop": inner_loop, "older state": older_state}
    assert causes(steps[form], shapes(), KEY) == {Cause.ORDER}


# --- what else it refuses ------------------------------------------------------------------------


def test_the_check_finds_an_array_that_is_donated_twice():
    """As a target network that is the network: JAX says so only when the step runs."""
    state, params = fbuf.init(jnp.zeros(8), 10_000), {"w": jnp.zeros((3, 4))}

    def step(carry, rows):
        state, params, target = carry
        return (fbuf.add(state, rows), params, jax.tree.map(lambda w: w + 1, target))

    jitted = jax.jit(step, donate_argnums=0)
    rows = jnp.ones((2, 8))
    with pytest.raises(RuntimeError, match=r"float32\[3, 4\] is among.*twice.*jnp\.copy"):
        fbuf.check_in_place(jitted, (state, params, params), rows)
    fbuf.check_in_place(jitted, (state, params, jax.tree.map(jnp.copy, params)), rows)
    only = jax.jit(step_of_the_state, donate_argnums=0)
    fbuf.check_in_place(only, state, params, params, rows)  # not donated: as often as you like


def step_of_the_state(state, params, target, rows):
    return fbuf.add(state, rows + params["w"].sum() + target["w"].sum())


def test_the_check_refuses_what_it_cannot_read():
    state = fbuf.init(jnp.zeros(3), 2**16)
    step = lambda state: fbuf.add(state, jnp.ones((4, 3)))
    with pytest.raises(TypeError, match=r"give jax\.jit\(step, donate_argnums=0\)"):
        fbuf.check_in_place(step, state)
    with pytest.raises(RuntimeError, match="is not donated"):
        fbuf.check_in_place(jax.jit(step), state)
    with pytest.raises(ValueError, match="no buffer is there"):
        fbuf.check_in_place(jax.jit(lambda x: x), jnp.zeros(3))
    batched = jax.vmap(lambda _: fbuf.init(jnp.zeros(3), 2**16))(jnp.arange(2))
    with pytest.raises(ValueError, match="leave timed out"):
        fbuf.check_in_place(jax.jit(jax.vmap(step), donate_argnums=0), batched, timed=True)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_the_check_finds_memory_that_no_result_takes():
    run = jax.jit(lambda state: fbuf.size(fbuf.add(state, jnp.ones((4, 3)))), donate_argnums=0)
    with pytest.raises(RuntimeError, match=r"no result lies in the memory .*u32\[196,608\]"):
        fbuf.check_in_place(run, fbuf.init(jnp.zeros(3), 2**16))


def test_the_check_times_what_no_program_shows(monkeypatch):
    """A step whose time grows with the capacity, though its program copies nothing."""
    state = fbuf.init(jnp.zeros(3), 2**16)

    class Slow:
        """A step that looks at each row once more, from outside of the program."""

        def __init__(self):
            self.jitted = jax.jit(lambda s: fbuf.add(s, jnp.ones((4, 3))), donate_argnums=0)
            self.lower = self.jitted.lower

        def __call__(self, state):
            for _ in range(state.capacity // 2**10):
                np.random.default_rng(0).random(2**12).sort()
            return self.jitted(state)

    fbuf.check_in_place(Slow(), state)
    with pytest.raises(RuntimeError, match=r"a 64th of the capacity.*Use another version of JAX"):
        fbuf.check_in_place(Slow(), state, timed=True)


@pytest.mark.sweep
def test_a_buffer_that_is_only_read_need_not_be_donated():
    def step(state, demos, key):
        batch = fbuf.sample_mixed([(state, 0.5), (demos, 0.5)], key, 8)
        return fbuf.add(state, jnp.zeros(2)), jnp.sum(batch.sample.data)

    plain = lambda: jax.eval_shape(lambda: fbuf.init(jnp.zeros(2), 2**16))
    demos = plain()
    fbuf.check_in_place(jax.jit(step, donate_argnums=0), plain(), demos, jax.random.key(0))
    read = jax.jit(lambda state, key: fbuf.sample(state, key, 4).data)
    fbuf.check_in_place(read, demos, jax.random.key(0))
    returned = jax.jit(lambda *given: (*step(*given), given[1]), donate_argnums=0)
    with pytest.raises(RuntimeError, match="returns a buffer that is not donated"):
        fbuf.check_in_place(returned, plain(), demos, jax.random.key(0))


def test_a_small_buffer_is_refused_as_a_large_one_is():
    small = fbuf.init(ITEM, 16)
    with pytest.raises(RuntimeError, match="is not donated"):
        fbuf.check_in_place(jax.jit(added), small)
    size = lambda state: fbuf.size(added(state))
    with (
        pytest.warns(UserWarning, match="Some donated buffers were not usable"),
        pytest.raises(RuntimeError, match="no result lies in the memory"),
    ):
        checked(size, small)
