"""The one way in: host arrays stay their owner's, and what cannot be right is refused by name."""

from __future__ import annotations

import enum
import functools
import itertools
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

ITEM = {"x": jnp.zeros(3), "n": jnp.int32(0)}
EXACT = fbuf.Prioritized(alpha=1.0, eps=0.0)
ROWS = 512
"""Rows of a NumPy array that JAX reads in another thread, after the call has returned."""


def aligned(array):
    """The same numbers where JAX reads its owner's memory: it copies other arrays at once."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    found = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def full(shape, value, dtype):
    return aligned(np.full(shape, value, dtype))


def rows(count, value=1):
    return {"x": full((count, 3), value, np.float32), "n": full(count, value, np.int32)}


def filled(count=4, sampler=EXACT, capacity=8):
    return fbuf.add(fbuf.init(ITEM, capacity, sampler=sampler), rows(count))


def ids(count=2):
    return fbuf.Ids(aligned(np.arange(count, dtype=np.int32)), full(count, 0, np.int32))


def spoil(tree):
    """Overwrite arrays, as their owner may as soon as the call has returned."""
    for leaf in jax.tree.leaves(tree):
        leaf[...] = 1 if leaf.dtype == bool else 77


def add(state):
    items = rows(ROWS)
    flags = {"terminated": full(ROWS, False, bool), "truncated": full(ROWS, False, bool)}
    options = {**flags, "priority": full(ROWS, 2, np.float32), "mask": full(ROWS, True, bool)}
    state = fbuf.add(state, items, **options)
    options["mask"][...] = False
    spoil((items, flags, options["priority"]))
    np.testing.assert_array_equal(fbuf.rows(state).data["n"], 1)
    assert not fbuf.rows(state).terminated.any()
    assert float(fbuf.stats(state)["priority_total"]) == 2 * ROWS
    return state


def update_priority(state):
    named, new, mask = ids(ROWS), full(ROWS, 3, np.float32), full(ROWS, True, bool)
    state = fbuf.update_priority(state, named, new, mask=mask)
    mask[...] = False
    spoil((named, new))
    assert float(fbuf.stats(state)["priority_total"]) == 3 * ROWS
    return state


def write(state):
    named, fields = ids(ROWS), {"n": full(ROWS, 5, np.int32)}
    state = fbuf.write(state, named, fields)
    spoil((named, fields))
    np.testing.assert_array_equal(fbuf.rows(state).data["n"], 5)
    return state


def remove(state):
    named = ids(ROWS // 2)
    state = fbuf.remove(state, named)
    spoil(named)
    assert int(fbuf.size(state)) == ROWS // 2
    return state


def reading(state):
    named, slots = ids(ROWS), aligned(np.arange(ROWS, dtype=np.int32))
    batch, found = fbuf.read(state, named), fbuf.ids_at(state, slots)
    likely = fbuf.probability(state, named)
    spoil((named, slots))
    assert batch.mask.all()
    np.testing.assert_array_equal(found.slot, np.arange(ROWS))
    np.testing.assert_allclose(likely, 1 / ROWS, rtol=1e-6)
    return state


@pytest.mark.parametrize(
    "operation",
    [
        add,
        reading,
        *(pytest.param(v, marks=pytest.mark.sweep) for v in (update_priority, write, remove)),
    ],
)
def test_a_numpy_array_is_its_owners_again_when_the_call_returns(operation):
    for _ in range(2):  # the first one compiles, and what is late is there by then
        state = fbuf.init(ITEM, ROWS, sampler=EXACT)
        operation(late(state if operation is add else add(state)))


@jax.jit
def late(state):
    """The same state, in a while: so what is called with it does not run before it returns."""
    slow = jnp.zeros(2048, jnp.int32)  # of fewer numbers JAX would wait for the result
    slow = jax.lax.fori_loop(0, 30_000, lambda turn, found: found * 3 + turn, slow).max()
    return jax.tree.map(lambda leaf: jnp.where(slow == -1, jnp.zeros_like(leaf), leaf), state)


def test_a_numpy_array_given_while_tracing_is_its_owners_again():
    items = rows(4)
    step = jax.jit(lambda state: fbuf.add(state, items))
    state = step(fbuf.init(ITEM, 8))
    spoil(items)
    state = step(state)
    np.testing.assert_array_equal(fbuf.read(state, fbuf.newest_ids(state, 8)).data["n"], 1)


def gae(reward):
    batch, value = fbuf.rollout(filled()), np.ones(8, np.float32)
    return fbuf.targets.gae(batch, reward, value, gamma=0.9, lambda_=0.9)


LARGE = np.array([2**32 + 1, 0])
WIDE = {
    "add items": lambda: fbuf.add(filled(), {**rows(2), "n": LARGE}),
    "add priority": lambda: fbuf.add(filled(), rows(2), priority=LARGE),
    "update_priority priority": lambda: fbuf.update_priority(filled(), ids(), LARGE),
    "update_priority ids.slot": lambda: fbuf.update_priority(
        filled(), fbuf.Ids(LARGE, ids().generation), np.ones(2, np.float32)
    ),
    "update_priority ids.generation": lambda: fbuf.update_priority(
        filled(), fbuf.Ids(ids().slot, LARGE), np.ones(2, np.float32)
    ),
    "write fields": lambda: fbuf.write(filled(), ids(), {"n": LARGE}),
    "write ids.slot": lambda: fbuf.write(
        filled(), fbuf.Ids(LARGE, LARGE), {"n": np.ones(2, np.int32)}
    ),
    "remove ids.slot": lambda: fbuf.remove(filled(), fbuf.Ids(LARGE, ids().generation)),
    "read ids.slot": lambda: fbuf.read(filled(), fbuf.Ids(LARGE, LARGE)),
    "probability ids.slot": lambda: fbuf.probability(filled(), fbuf.Ids(LARGE, LARGE)),
    "neighbours ids.slot": lambda: fbuf.neighbours(filled(), fbuf.Ids(LARGE, LARGE), (1,)),
    "sequence_priority priority": lambda: fbuf.sequence_priority(LARGE, np.ones(2, bool)),
    "targets.gae reward": lambda: gae(LARGE),
    "thin error": lambda: fbuf.thin(fbuf.sample(filled(), KEY, 2), KEY, 1, LARGE),
}


@pytest.mark.parametrize("name", WIDE)
def test_64_bits_are_never_cut(name):
    function, argument = name.split()
    with pytest.raises(TypeError, match=rf"^fbuf\.{function}: {argument}.*int64.*astype"):
        WIDE[name]()


class Tensor:
    """Stands for a tensor where there is no torch."""


Tensor.__module__ = "torch"
TENSOR = Tensor()
ANYWHERE = {
    "a torch tensor": (TENSOR, "is a torch tensor; use fbuf_adapters.pytorch"),
    "text": (np.array(["a", "b"]), "dtype <U1, which JAX has no arrays of"),
    "objects": (np.array([None, 1], object), "dtype object, which JAX has no arrays of"),
    "another byte order": (np.ones(2, ">f4"), "byte order of another machine"),
    "a masked array": (np.ma.masked_array([1.0, 2.0], [0, 1]), "is a masked array"),
}
ARGUMENTS = {
    "add: items['n']": lambda given: fbuf.add(filled(), {**rows(2), "n": given}),
    "add: terminated": lambda given: fbuf.add(filled(), rows(2), terminated=given),
    "add: priority": lambda given: fbuf.add(filled(), rows(2), priority=given),
    "add: mask": lambda given: fbuf.add(filled(), rows(2), mask=given),
    "update_priority: priority": lambda given: fbuf.update_priority(filled(), ids(), given),
    "update_priority: mask": lambda given: fbuf.update_priority(
        filled(), ids(), np.ones(2, np.float32), mask=given
    ),
    "remove: ids.slot": lambda given: fbuf.remove(filled(), fbuf.Ids(given, ids().generation)),
    "write: fields['n']": lambda given: fbuf.write(filled(), ids(), {"n": given}),
    "end_episode: mask": lambda given: fbuf.end_episode(filled(), mask=given),
    "sequence_priority: loss_mask": lambda given: fbuf.sequence_priority(
        np.ones(2, np.float32), given
    ),
    "targets.gae: reward": lambda given: gae(given),
    "thin: error": lambda given: fbuf.thin(fbuf.sample(filled(), KEY, 2), KEY, 1, given),
}


@pytest.mark.parametrize(("where", "what"), list(itertools.product(ARGUMENTS, ANYWHERE)))
def test_what_is_no_array_is_refused_by_the_name_of_the_argument(where, what):
    given, message = ANYWHERE[what]
    with pytest.raises(TypeError) as refused:
        ARGUMENTS[where](given)
    assert type(refused.value) is TypeError
    assert str(refused.value).startswith(f"fbuf.{where} ")
    assert message in str(refused.value)


KEY = jax.random.key(0)
LANES = {"num_envs": 2}


def lanes(**options):
    return fbuf.init(ITEM, 8, num_envs=2, **options)


class Action(enum.IntEnum):
    JUMP = 300


def narrow():
    return fbuf.init({"a": np.int8(0)}, 4)


def one_id():
    return fbuf.Ids(jnp.int32(0), jnp.int32(0))


MISUSE = [  # what is called, exactly which exception, and what it says
    (lambda: fbuf.sample(filled(), 0, 2), TypeError, "sample: key must be a random key"),
    (lambda: fbuf.sample(filled(), TENSOR, 2), TypeError, "sample: key must be a random key"),
    (lambda: fbuf.sample(filled(), KEY, 2, view=fbuf.Item), TypeError, "call it: Item"),
    (lambda: fbuf.sample(filled(), KEY, 2, view=[]), TypeError, "view must be a View"),
    (lambda: fbuf.sample(filled(), KEY, [2]), TypeError, "batch_size must be an int"),
    (lambda: fbuf.sample(filled(), KEY, 2, step=1), ValueError, "leave step out"),
    (lambda: fbuf.sample(filled(), KEY, 2, beta="x"), TypeError, "beta must be a number"),
    (lambda: fbuf.sample(filled(), KEY), TypeError, "sample: missing a required argument"),
    (lambda: fbuf.sample(filled(), KEY, 2, size=3), TypeError, "sample: got an unexpected"),
    (
        lambda: fbuf.sample(filled(), KEY, size=3),
        TypeError,
        "'size'; it takes state, key, batch_size",
    ),
    (lambda: fbuf.size([]), TypeError, "a ShardedState, got list; .* or fbuf.sharded.init"),
    (lambda: fbuf.add(filled(), rows(2), donate=1), TypeError, "donate must be True or False"),
    (lambda: fbuf.add(lanes(), rows(2), time_major=1), TypeError, "time_major must be True"),
    (lambda: fbuf.remove(filled(), [0, 1]), TypeError, "ids must be a fbuf.Ids"),
    (lambda: fbuf.remove(filled(), jnp.arange(2)), TypeError, "got an array; for slots, use"),
    (lambda: fbuf.remove(filled(), 3), TypeError, "got an array; for slots, use"),
    (lambda: fbuf.remove(filled(), fbuf.Ids([0], [0])), TypeError, r"ids.slot must be an array"),
    (
        lambda: fbuf.remove(filled(), fbuf.Ids(np.ones(2, np.float32), np.zeros(2, np.int32))),
        TypeError,
        "ids.slot must be int32",
    ),
    (
        lambda: fbuf.remove(filled(), fbuf.Ids(np.int32([0]), np.int32([0, 1]))),
        ValueError,
        "must be of one shape",
    ),
    (lambda: fbuf.write(filled(), ids(), {1: 1}), TypeError, "must be the name of a field"),
    (lambda: fbuf.write(filled(), ids(), {"z": 1, 1: 1}), TypeError, "must be the name of a field"),
    (lambda: fbuf.write(filled(), ids(), [1]), TypeError, "fields must be a dict"),
    (lambda: fbuf.write(filled(), ids(), {"y": 1}), ValueError, "'y', but the items"),
    (lambda: fbuf.Item(fields=(1,)), TypeError, "fields must be a tuple of names"),
    (lambda: fbuf.FrameStack(2, field=1), TypeError, "field must be the name of a field"),
    (lambda: fbuf.Sequence(2, burn_in=-1), ValueError, "burn_in must be from 0"),
    (lambda: fbuf.Sequence(2, time_major=1), TypeError, "time_major must be True or False"),
    (lambda: fbuf.Uniform(4, 2), TypeError, "positional"),
    (lambda: fbuf.Uniform(first_only=1), TypeError, "first_only must be True or False"),
    (lambda: fbuf.Mixture(1e39), ValueError, "uniform must be at least 0, and finite in float32"),
    (lambda: fbuf.Mixture(1.0, prioritized=1e-46), ValueError, "prioritized must be at least 0"),
    (lambda: fbuf.can_sample(filled(), -1), ValueError, "min_size must be from 0"),
    (lambda: fbuf.can_sample(filled(), 0.5), TypeError, "min_size must be an int"),
    (lambda: fbuf.newest_ids(filled(), 9), ValueError, "count must be from 1 to 8"),
    (lambda: fbuf.newest_ids(filled(), 0), ValueError, "count must be from 1 to 8"),
    (lambda: fbuf.nbytes(ITEM, 8, rows=1), TypeError, "nbytes: got an unexpected"),
    (lambda: fbuf.Mixture(1e-30, prioritized=1e30), ValueError, "uniform is 1e-30, of 1e.30"),
    (lambda: fbuf.Transition(3), TypeError, "next_of must be the name of a field"),
    (lambda: fbuf.Transition(("a", "b")), TypeError, "write a nested name with dots: 'a.b'"),
    (lambda: fbuf.NStep(2, gamma=0.9, next_of=3), TypeError, "next_of must be the name"),
    (lambda: fbuf.rows([]), TypeError, "rows: state must be a fbuf.State"),
    (lambda: fbuf.rows(filled(), view=fbuf.Item), TypeError, "rows: view must be a View"),
    (
        lambda: fbuf.rows(filled(), view=fbuf.Hindsight(jnp.equal, goal="x", achieved="x")),
        ValueError,
        "rows: Hindsight is random, and fbuf.rows takes no key",
    ),
    (
        lambda: fbuf.rows(lanes(), view=fbuf.Sequence(2, time_major=True)),
        ValueError,
        "rows: a view with time_major=True takes ids of one axis",
    ),
    (lambda: fbuf.end_episode(filled(), jnp.bool_(True)), TypeError, "too many positional"),
    (lambda: fbuf.add(filled(), {"x": np.ones((2, 3), np.float32)}), ValueError, r"\['n'\] is mis"),
    (lambda: fbuf.add(filled(), {**rows(2), "y": 1}), ValueError, r"items\['y'\] is no field"),
    (
        lambda: fbuf.add(lanes(), jax.tree.map(lambda x: np.stack([x] * 5), rows(2))),
        ValueError,
        "give time_major=True",
    ),
    (
        lambda: fbuf.add(
            lanes(), jax.tree.map(lambda x: np.stack([x] * 2), rows(5)), time_major=True
        ),
        ValueError,
        "leave time_major out",
    ),
    (
        lambda: fbuf.init(ITEM, 20, num_envs=2, sampler=fbuf.Uniform(stride=4)),
        ValueError,
        "take a capacity of 16 or 24",
    ),
    (
        lambda: fbuf.sample(
            filled(4, fbuf.Uniform(3)), KEY, 2, view=fbuf.Sequence(3, boundary="cross")
        ),
        ValueError,
        "Take boundary='stop'",
    ),
    (
        lambda: fbuf.sample(filled(), KEY, 2, view=fbuf.Sequence(3)),
        ValueError,
        "make the buffer with window=3",
    ),
    (
        lambda: fbuf.read(filled(), ids(), view=fbuf.Hindsight(jnp.equal, goal="x", achieved="x")),
        ValueError,
        "needs a key",
    ),
    (lambda: fbuf.add(s := filled(), fbuf.add(s, rows(1), donate=False)), ValueError, "tree"),
    (lambda: fbuf.add((filled(),), rows(1)), TypeError, "got tuple; give the state alone"),
    (
        lambda: fbuf.sample((), KEY, 2),
        TypeError,
        "a ShardedState, got tuple; give the state alone",
    ),
    (lambda: fbuf.add(filled(), rows(1), True), TypeError, "give these by name: terminated"),
    (lambda: fbuf.can_sample(filled(), jnp.float32(1.5)), ValueError, "min_size must be one int"),
    (lambda: fbuf.update_priority(filled(), ids(), None), TypeError, "priority must be an array"),
    (
        lambda: fbuf.add(narrow(), {"a": jnp.full(2, 300)}),
        TypeError,
        r"items\['a'\] must be int8.*got int32",
    ),
    (lambda: fbuf.add(narrow(), {"a": Action.JUMP}), ValueError, "which int8 cannot hold"),
    (lambda: fbuf.add(fbuf.init(0.0, 4), 2**24 + 1), ValueError, "which float32 cannot hold"),
    (
        lambda: fbuf.write(filled(), one_id(), {"n": 3_000_000_000}),
        ValueError,
        r"fields\['n'\] is 3000000000, which int32 cannot hold",
    ),
    (
        lambda: fbuf.write(filled(), one_id(), {"x": (1e300, 0.0, 0.0)}),
        ValueError,
        r"fields\['x'\] must have the tree",
    ),
    (
        lambda: fbuf.write(fbuf.add(fbuf.init(0.0, 4), 1.0), one_id(), {"": 1e300}),
        ValueError,
        "fields",
    ),
]


@pytest.mark.parametrize(("call", "exception", "message"), MISUSE)
def test_misuse(call, exception, message):
    with pytest.raises(exception, match=message) as refused:
        call()
    assert type(refused.value) is exception


def test_arrays_of_the_state_itself_are_refused_and_the_state_stays():
    wide = fbuf.add(fbuf.init({"image": jnp.zeros(600)}, 4), {"image": jnp.ones((4, 600))})
    with pytest.raises(ValueError, match=r"items\['image'\] is an array of the state itself"):
        fbuf.add(wide, {"image": wide.storage.wide[0]})
    assert int(fbuf.size(wide)) == 4


ON_TWO_DEVICES = """
import jax, jax.numpy as jnp, fbuf
everywhere = jax.NamedSharding(jax.make_mesh((2,), ("data",)), jax.P())
state = jax.device_put(fbuf.init({"image": jnp.zeros(600)}, 4), everywhere)
state = fbuf.add(state, {"image": jnp.ones((4, 600))})
try:
    fbuf.add(state, {"image": state.storage.wide[0]})
except ValueError as error:
    print(error)
print(int(fbuf.size(state)), "rows")
"""


def test_arrays_of_the_state_itself_are_refused_on_several_devices():
    """There JAX would end Python."""
    ran = subprocess.run([sys.executable, "-c", ON_TWO_DEVICES], capture_output=True, text=True)
    assert "items['image'] is an array of the state itself" in ran.stdout, ran.stderr
    assert ran.stdout.endswith("4 rows\n")


def test_own_arrays_are_found_in_any_mapping():
    state = filled()
    fields = types.MappingProxyType({"n": state.ring.removed})
    with pytest.raises(ValueError, match=r"fields\['n'\] is an array of the state itself"):
        fbuf.write(state, one_id(), fields)


TRACED = []
"""The names of the functions that are traced."""


@functools.cache  # the oldest JAX cannot take a listener back
def listen():
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **about: (
            TRACED.append(about.get("fun_name")) if event.endswith("jaxpr_trace_duration") else None
        )
    )


@pytest.fixture
def traced():
    listen()
    TRACED.clear()
    return TRACED


def test_one_program_is_for_arguments_by_position_and_by_name(traced):
    sampler = fbuf.Prioritized(alpha=0.375)  # nobody else's: all of it is traced here
    state, named, new = filled(sampler=sampler), ids(), np.ones(2, np.float32)
    device, wide = jax.tree.map(jnp.asarray, (named, new))
    state = fbuf.update_priority(state, device, wide)
    state = fbuf.update_priority(state, device, priority=wide)
    state = fbuf.update_priority(state, priority=wide, ids=device)
    state = fbuf.update_priority(priority=new, ids=named, state=state)
    state = fbuf.update_priority(state, named, new)
    fbuf.update_priority(state, device, wide, donate=True)
    assert traced.count("update_priority") == 1


def test_a_number_of_numpys_is_the_same_program(traced):
    state = filled(sampler=fbuf.Prioritized(alpha=0.625))
    for size in (np.int64(3), np.int64(3), np.int32(3), 3):
        assert fbuf.sample(state, KEY, size).mask.shape == (3,)
    assert traced.count("sample") == 1


def test_a_state_of_numpy_arrays_is_its_owners_again():
    count = 2**17  # so many take longer to read than the call takes to return
    state = fbuf.add(fbuf.init(jnp.zeros(4), count), jnp.ones((count, 4)))
    for _ in range(4):
        host = jax.tree.map(np.array, jax.device_get(state))
        batch = fbuf.read(host, ids(count))
        spoil(host.storage)
        assert (np.asarray(batch.data) == 1).all()


def test_a_state_of_numpy_arrays_is_taken_inside_a_trace_too():
    host = jax.device_get(fbuf.add(fbuf.init(ITEM, 8), rows(3)))
    step = jax.jit(lambda items: fbuf.add(host, items))
    assert int(fbuf.size(step(rows(2)))) == 5


@pytest.mark.sweep
def test_a_state_of_numpy_arrays_is_taken_without_jit_too():
    host = jax.device_get(filled())
    with jax.disable_jit():
        after = fbuf.update_priority(fbuf.add(host, rows(2)), ids(), np.ones(2, np.float32))
    assert int(fbuf.size(after)) == int(fbuf.size(filled())) + 2


def test_a_consumed_state_is_refused_inside_a_trace_too():
    state = filled()
    fbuf.add(state, rows(1))
    with pytest.raises(RuntimeError, match=r"fbuf\.sample: this state was consumed"):
        jax.jit(lambda key: fbuf.sample(state, key, 2))(KEY)


def test_large_ints_are_unsigned():
    state = fbuf.add(fbuf.init({"u": np.uint32(0)}, 4), {"u": 3_000_000_000})
    assert int(fbuf.rows(state).data["u"][-1]) == 3_000_000_000
    state = fbuf.update_priority(filled(), one_id(), 3_000_000_000)
    assert float(fbuf.stats(state)["priority_total"]) > 2.9e9
    with jax.enable_x64(True):
        state = fbuf.init({"n": np.int64(0), "u": np.uint64(0)}, 4)
        for number in (3_000_000_000, 2**40):
            state = fbuf.add(state, {"n": number, "u": np.uint64(number)})
            assert int(fbuf.rows(state).data["n"][-1]) == number


@pytest.mark.sweep
def test_environments_come_first_unless_it_is_said_otherwise():
    items = jnp.arange(6, dtype=jnp.int32).reshape(2, 3)
    one = fbuf.add(fbuf.init(jnp.int32(0), 8, num_envs=2), items)
    other = fbuf.add(fbuf.init(jnp.int32(0), 8, num_envs=2), items.T, time_major=True)
    for state in (one, other):
        np.testing.assert_array_equal(fbuf.rows(state).data[:, 1:], items)


@pytest.mark.parametrize(
    "field",
    [
        "imag",
        *(
            pytest.param(name, marks=pytest.mark.sweep)
            for name in ("real", "denominator", "numerator", "bit_count")
        ),
    ],
)
def test_an_attribute_of_numbers_is_no_field(field):
    state = fbuf.add(fbuf.init(jnp.float32(0), 4), jnp.ones(2))
    with pytest.raises(ValueError, match=f"names '{field}', but the items"):
        fbuf.write(state, ids(), {field: np.ones(2, np.float32)})
    with pytest.raises(ValueError, match=f"names 'x.{field}', but the items"):
        fbuf.sample(filled(), KEY, 2, view=fbuf.Item((f"x.{field}",)))
    with pytest.raises(ValueError, match=f"next_of names '{field}'"):
        fbuf.init(jnp.float32(0), 4, next_of=field)


@pytest.mark.parametrize("size", [1.0, True, np.float32(1), jnp.int32(1)])
def test_what_equals_a_static_argument_is_checked_all_the_same(size):
    """The program of an int is there, and 1.0 and True are the same number."""
    state = filled()
    assert fbuf.sample(state, KEY, 1).mask.shape == (1,)
    assert fbuf.sample(state, KEY, np.int64(1)).mask.shape == (1,)
    with pytest.raises(TypeError, match="batch_size must be an int"):
        fbuf.sample(state, KEY, size)
    with pytest.raises(ValueError, match="batch_size must be from 1"):
        fbuf.sample(state, KEY, 0)
    with pytest.raises(ValueError, match="one random key, got uint32 of shape"):
        fbuf.sample(state, jnp.zeros((2, 2), jnp.uint32), 1)


@pytest.mark.parametrize("sampler", [fbuf.Uniform(), EXACT])
def test_a_scalar_mask_is_for_all(sampler):
    state = filled(sampler=sampler)
    for mask, size in ((False, 4), (np.bool_(False), 4), (jnp.bool_(True), 2)):
        assert int(fbuf.size(fbuf.remove(state, ids(), mask=mask, donate=False))) == size
    if sampler is EXACT:
        new = np.full(2, 5, np.float32)
        for mask, total in ((False, 4.0), (True, 12.0)):
            after = fbuf.update_priority(state, ids(), new, mask=mask, donate=False)
            assert float(fbuf.stats(after)["priority_total"]) == total


def test_one_line_shows_a_state():
    state = fbuf.init(ITEM, 8, num_envs=2, sampler=EXACT)
    assert repr(state) == "State(Prioritized, 0 of 8 rows, 2 environments)"
    later = fbuf.add(state, rows(2))
    assert repr(later) == "State(Prioritized, 2 of 8 rows, 2 environments)"
    assert repr(state) == "State(consumed)"
    many = jax.vmap(lambda _: fbuf.init(ITEM, 8))(jnp.arange(3))
    assert repr(many) == "State(Uniform, ? of 8 rows, a batch of (3,) buffers)"
    seen = []
    jax.eval_shape(lambda state: seen.append(repr(state)), later)
    assert seen == ["State(Prioritized, ? of 8 rows, 2 environments)"]
    assert "State(" in repr(jax.tree.map(lambda leaf: leaf.shape, later))


def test_can_sample_waits_for_so_many_rows():
    state = filled(4)
    assert [bool(fbuf.can_sample(state, n)) for n in (0, 1, 4, 5)] == [True, True, True, False]
    state = fbuf.remove(state, ids(1))
    assert not fbuf.can_sample(state, 4)
    assert not fbuf.can_sample(fbuf.init(ITEM, 4), 0)


def test_nbytes_takes_what_init_takes():
    options = {"num_envs": 2, "lockstep": False, "next_of": "x", "max_ends": 3, "sampler": EXACT}
    state = fbuf.init(ITEM, 8, **options)
    assert fbuf.nbytes(ITEM, 8, **options) == sum(x.nbytes for x in jax.tree.leaves(state))


@pytest.mark.sweep
def test_a_numpy_step_is_its_owners_again():
    state = fbuf.add(
        fbuf.init(jnp.int32(0), 4096, sampler=fbuf.Shuffled()), np.arange(4096, dtype=np.int32)
    )
    expected = np.asarray(fbuf.sample(state, KEY, 256, step=0).data)
    memory = np.zeros(64, np.int32)
    aligned = -memory.ctypes.data % 64 // 4  # JAX takes aligned memory as it is
    step = memory[aligned : aligned + 1].reshape(())
    for _ in range(50):
        step[...] = 0
        batch = fbuf.sample(state, KEY, 256, step=step)
        step[...] = 5
        np.testing.assert_array_equal(batch.data, expected)


@pytest.mark.sweep
def test_after_from_python_is_the_same_state():
    state = filled()
    assert fbuf.after(state, fbuf.sample(state, KEY, 2)) is state
    for nothing in (None, {}):
        with pytest.raises(TypeError, match="batch must be what was read"):
            fbuf.after(state, nothing)


@pytest.mark.sweep
def test_steps_first_is_for_one_axis_of_rows():
    view = fbuf.Sequence(2, boundary="pad", time_major=True)
    state = filled(sampler=fbuf.Uniform())
    with pytest.raises(ValueError, match="takes ids of one axis"):
        fbuf.read(state, fbuf.ids_at(state, jnp.int32([[0, 1]])), view=view)
    with pytest.raises(ValueError, match="leave time_major out of the view"):
        fbuf.sample_mixed([(state, 1.0), (state, 1.0)], KEY, 4, view=view)
    gone = fbuf.Ids(jnp.int32([1, 3]), jnp.int32([5, 0]))
    for time_major in (False, True):
        view = fbuf.Sequence(2, boundary="pad", time_major=time_major, state="n")
        np.testing.assert_array_equal(fbuf.read(state, gone, view=view).data.state, [0, 1])
