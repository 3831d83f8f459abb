"""Targets: equal to their definitions on every batch of every history, and to rlax's values."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import meshes, returns
from support.pair import APART, FLAT, TOGETHER, Pair

import fbuf
from fbuf import sharded, targets
from fbuf.host import HostStore

ITEM = {"observation": jnp.int32(0), "reward": jnp.zeros(())}
OF_TWO = ("log_prob", "behavior_log_prob")
NAMES = ("reward", "value", "next_value", "q", *OF_TWO)
TIGHT = {"rtol": 1e-5, "atol": 1e-5}


def item_of(numbers):
    numbers = np.asarray(numbers)
    return {"observation": numbers.astype(np.int32), "reward": (numbers % 7 - 3).astype(np.float32)}


def history(shape, autoreset, seed):
    """A buffer that has been played with, and its oracle."""
    pair = Pair(
        shape,
        autoreset=autoreset,
        item=ITEM,
        make=item_of,
        next_of="observation",
        max_ends=shape[1] * (shape[0] or 1),
    )
    rng = np.random.default_rng(seed)
    often = (0.1, 0.3, 0.05, 0.6)[seed % 4]
    for _ in range(9):
        pair.step(rng, (3, 8), often)
    pair.add(8, rng, often)
    return pair, rng


def sequences(pair, batch, view, total):
    """The rows of each sequence of a batch: lists of `total` rows or None."""
    return [
        list(padded(pair.oracle.ahead(slot, total, cross=view.boundary == "cross"), total))
        if there
        else [None] * total
        for slot, there in zip(batch.ids.slot.tolist(), batch.mask.tolist(), strict=True)
    ]


def lanes(pair):
    """The rows of each lane as `fbuf.rollout` has them."""
    oracle = pair.oracle
    found = []
    for lane in range(oracle.envs):
        rows = [oracle.lanes[lane][at] for at in oracle.there(lane)]
        rows = [None if row.removed or row.dummy else row for row in rows]
        found.append(list(padded(rows, oracle.length)))
    return found


def padded(rows, total):
    return [*rows, *[None] * (total - len(rows))]


def arrays(rows, rng, bootstrap):
    """Random numbers for each step, NaN where they must not count; and the steps as a list."""
    shape = len(rows), len(rows[0])
    given = {name: rng.normal(size=shape).astype(np.float32) for name in NAMES}
    given["gamma"], given["lambda_"] = rng.uniform(0.5, 1, (2, *shape)).astype(np.float32)
    listed = []
    for lane, of_lane in enumerate(rows):
        steps = []
        for at, row in enumerate(of_lane):
            if row is None:
                steps.append(None)
                continue
            step = {name: float(array[lane, at]) for name, array in given.items()}
            step |= {"terminated": row.terminated, "truncated": row.truncated}
            steps.append(step if bootstrap else step | {"next_value": None})
        listed.append(steps)
        for at, step in enumerate(steps):
            later = steps[at + 1] if at + 1 < len(steps) else None
            if step is None:
                for name in NAMES:
                    given[name][lane, at] = np.nan
            elif step["terminated"] or (later is not None and not step["truncated"]):
                given["next_value"][lane, at] = np.nan
            elif not bootstrap:  # its target is not known
                for name in ("reward", *OF_TWO):
                    given[name][lane, at] = np.nan
    if not bootstrap:
        del given["next_value"]
    return given, listed


def found_of(batch, given):
    """The results of the functions."""
    common = {name: given[name] for name in ("reward", "value", "gamma", "lambda_")}
    common["next_value"] = given.get("next_value")
    two = {name: given[name] for name in OF_TWO}
    return (
        targets.lambda_returns(batch, **common),
        targets.gae(batch, **common),
        targets.vtrace(batch, **common, **two, rho_bar=1.2, c_bar=0.9),
        targets.retrace(batch, **common, **two, q=given["q"]),
    )


all_four = jax.jit(found_of)


def expected_of(listed, given, learn):
    """The same, by definition: arrays of targets and advantages, and the mask."""
    shape = given["reward"].shape
    value = given["value"].astype(np.float64)
    target = [value.copy(), value.copy(), value.copy(), given["q"].astype(np.float64)]
    advantage, mask = np.zeros((2, *shape)), np.zeros(shape, bool)
    for lane, steps in enumerate(listed):
        for at in range(len(steps)):
            path = returns.run(steps, at)
            if not path:
                continue
            mask[lane, at] = learn[lane, at]
            target[0][lane, at] = returns.lambda_return(path)
            advantage[0][lane, at] = returns.advantage(path)
            target[1][lane, at] = steps[at]["value"] + advantage[0][lane, at]
            target[2][lane, at], advantage[1][lane, at] = returns.v_trace(path, 1.2, 0.9)
            target[3][lane, at] = returns.retrace(path)
    return target, advantage, mask


def check(found, expected, turn=lambda steps: steps):
    target, advantage, mask = expected
    for one, wanted in zip(found, target, strict=True):
        assert one.target.dtype == jnp.float32
        np.testing.assert_array_equal(turn(one.mask), mask)
        np.testing.assert_allclose(turn(one.target), wanted, **TIGHT)
    for one, wanted in zip(found[1:3], advantage, strict=True):
        np.testing.assert_allclose(turn(one.advantage), wanted, **TIGHT)


VIEWS = {
    "padded": fbuf.Sequence(5, boundary="pad", next_of="observation"),
    "burnt in": fbuf.Sequence(4, burn_in=2, bootstrap=1, boundary="pad"),
    "crossing": fbuf.Sequence(7, bootstrap=1, boundary="cross", next_of="observation"),
    "by time": fbuf.Sequence(6, burn_in=1, bootstrap=1, boundary="cross", time_major=True),
}
draw = jax.jit(fbuf.sample, static_argnames=("batch_size", "view"))
every_row = jax.jit(fbuf.rollout, static_argnames="view")


def check_sequences(view, shape, autoreset, seed):
    pair, rng = history(shape, autoreset, seed)
    total = view.burn_in + view.length + view.bootstrap
    batch = draw(pair.state, jax.random.key(seed), 12, view=view)
    rows = sequences(pair, batch, view, total)
    learn = np.zeros((12, total), bool)
    learn[:, view.burn_in : view.burn_in + view.length] = True
    turn = np.transpose if view.time_major else np.asarray
    if view.next_of is not None:
        check_next(pair, batch.data)
    for bootstrap in (True, False):
        given, listed = arrays(rows, rng, bootstrap)
        found = all_four(batch, {name: turn(array) for name, array in given.items()})
        check(found, expected_of(listed, given, learn), turn)


def check_next(pair, data):
    """The next observations are those of `fbuf.Transition`, and 0 where there is no step."""
    batch = every_row(pair.state, view=fbuf.Transition())
    there = np.asarray(batch.mask)
    numbers = np.asarray(batch.data.item["observation"])[there].tolist()
    led_to = dict(
        zip(numbers, np.asarray(batch.data.next_observation)[there].tolist(), strict=True)
    )
    now, valid = np.asarray(data.item["observation"]), np.asarray(data.valid)
    wanted = np.zeros_like(now)
    wanted[valid] = [led_to[number] for number in now[valid].tolist()]
    np.testing.assert_array_equal(data.next_observation, wanted)


def check_rollout(shape, autoreset, seed):
    pair, rng = history(shape, autoreset, seed)
    rows = lanes(pair)
    there = np.array([[row is not None for row in lane] for lane in rows])
    turn = (lambda steps: np.asarray(steps)[0]) if shape[0] is None else np.asarray
    back = (lambda steps: np.asarray(steps)[None]) if shape[0] is None else np.asarray
    for bootstrap in (True, False):
        batch = every_row(pair.state, view=fbuf.Transition() if bootstrap else fbuf.Item())
        np.testing.assert_array_equal(back(batch.mask), there)
        given, listed = arrays(rows, rng, bootstrap)
        found = all_four(batch, {name: turn(array) for name, array in given.items()})
        check(found, expected_of(listed, given, there), back)


BUFFERS = [
    (FLAT, "same_step"),
    (TOGETHER, "next_step"),
    (APART, "same_step"),
    (APART, "next_step"),
]
CASES = [(view, buffer) for view in VIEWS for buffer in range(len(BUFFERS))]
QUICK = [("burnt in", 1), ("by time", 0), ("crossing", 1)]


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("view", "buffer", "seeds"),
    [
        *((*case, range(3)) for case in QUICK),
        *(pytest.param(*case, range(3, 19), marks=pytest.mark.sweep) for case in CASES),
    ],
)
def test_sequences_of_every_history(view, buffer, seeds):
    for seed in seeds:
        check_sequences(VIEWS[view], *BUFFERS[buffer], seed)


@pytest.mark.parametrize(
    ("buffer", "seeds"),
    [
        *((buffer, range(3)) for buffer in (0, 1)),
        *(pytest.param(n, range(3, 19), marks=pytest.mark.sweep) for n in range(len(BUFFERS))),
    ],
)
def test_rollouts_of_every_history(buffer, seeds):
    for seed in seeds:
        check_rollout(*BUFFERS[buffer], seed)


def test_a_sequence_of_which_a_next_observation_is_lost_is_masked():
    """With room for two ends, those of the first two of four episodes are lost."""
    sampler = fbuf.Uniform(first_only=True)
    state = fbuf.init(ITEM, 12, next_of="observation", max_ends=2, sampler=sampler)
    number = np.arange(12, dtype=np.int32)
    state = fbuf.add(
        state, item_of(number), truncated=number % 3 == 2, next_observation=100 + number
    )
    for total, lost in ((2, ()), (3, (0, 3)), (4, (0, 3))):
        view = fbuf.Sequence(total, boundary="cross", next_of="observation", fields=("reward",))
        ids = fbuf.ids_at(state, jnp.array([0, 3, 6, 9]))
        batch = fbuf.read(state, ids, view=view)
        there = [start not in lost for start in (0, 3, 6, 9)]
        assert batch.mask.tolist() == batch.data.valid[:, 0].tolist() == there
        assert batch.data.loss_mask.any(axis=1).tolist() == there
    drawn = fbuf.sample(state, jax.random.key(0), 32, view=view)
    assert 0 < drawn.mask.mean() < 1
    np.testing.assert_array_equal(drawn.data.valid.any(axis=1), drawn.mask)
    assert batch.data.next_observation.tolist()[2] == [7, 8, 108, 10]
    # Behind a removed row nothing counts, nor what is lost there.
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([1])))
    batch = fbuf.read(state, ids, view=view)
    assert batch.mask.tolist() == [True, False, True, True]
    assert batch.data.next_observation.tolist()[0] == [1, 0, 0, 0]
    with pytest.raises(ValueError, match="next_of is 'reward', but the buffer was made with"):
        fbuf.read(state, ids, view=dataclasses.replace(view, next_of="reward"))


def test_segments_of_a_queue_are_joined_at_what_the_last_step_led_to():
    """In two pops each row has the target that it has in one, if the critic is exact."""
    state = fbuf.init(ITEM, 32, num_envs=2, next_of="observation", sampler=fbuf.Fifo())
    number = np.arange(16, dtype=np.int32).reshape(2, 8)
    ends = number == 3
    rows = {"observation": number, "reward": np.ones((2, 8), np.float32)}
    state = fbuf.add(state, rows, truncated=ends, next_observation=number + 1)
    # An endless reward of 1 with a discount of 0.5 has the value 2 everywhere.
    critic = lambda observation: jnp.full(observation.shape, 2.0)
    for _ in range(2):
        state, batch = fbuf.pop(state, 4, view=fbuf.Transition())
        item = batch.data.item
        found = targets.gae(
            batch,
            item["reward"],
            critic(item["observation"]),
            critic(batch.data.next_observation),
            gamma=0.5,
            lambda_=0.9,
        )
        assert found.mask.all()
        np.testing.assert_array_equal(found.advantage, np.zeros((2, 4)))


@pytest.mark.sweep
def test_of_rows_on_the_host():
    options = {"next_of": "observation", "max_ends": 8, "num_envs": 2, "sampler": fbuf.Fifo()}
    state, store = fbuf.init(ITEM, 16, **options), HostStore(ITEM, 16, **options)
    number = np.arange(12, dtype=np.int32).reshape(2, 6)
    given = {"truncated": number % 5 == 3, "next_observation": number + 1}
    state = fbuf.add(state, item_of(number), **given)
    store.add(item_of(number), **given)
    view = fbuf.Transition()
    pairs = [(store.rollout(view=view), fbuf.rollout(state, view=view))]
    pairs += [(store.pop(4, view=view), fbuf.pop(state, 4, view=view)[1])]
    for batches in pairs:
        found, wanted = (
            targets.gae(
                batch,
                batch.data.item["reward"],
                batch.data.item["observation"],
                batch.data.next_observation,
                gamma=0.9,
                lambda_=0.8,
            )
            for batch in batches
        )
        np.testing.assert_array_equal(found.target, wanted.target)
        np.testing.assert_array_equal(found.mask, wanted.mask)
        assert wanted.mask.any()


def unbroken(columns, terminated):
    """A rollout of rows in a row, as rlax takes them."""
    state = fbuf.init({"x": 0.0}, terminated.size)
    state = fbuf.add(state, {"x": jnp.zeros(terminated.size)}, terminated=jnp.asarray(terminated))
    return fbuf.rollout(state), {n: jnp.asarray(c, jnp.float32) for n, c in columns.items()}


RLAX = json.loads((pathlib.Path(__file__).parent / "rlax_values.json").read_text())


@pytest.mark.parametrize("number", range(len(RLAX["cases"])))
def test_rlaxs_values_on_unbroken_steps(number):
    case = RLAX["cases"][number]
    batch, given = unbroken(case["given"], np.array(case["terminated"]))
    rate = {"gamma": case["gamma"], "lambda_": case["lambda_"]}
    common = (batch, given["reward"], given["value"], given["next_value"])
    two = {name: given[name] for name in OF_TWO}
    close = functools.partial(np.testing.assert_allclose, **TIGHT)
    close(targets.lambda_returns(*common, **rate).target, case["lambda_returns"])
    close(targets.gae(*common, **rate).advantage, case["gae"])
    bars = {"rho_bar": case["rho_bar"]}
    found = targets.vtrace(*common, **two, **rate, **bars)
    close(found.target - given["value"], case["vtrace_errors"])
    close(found.advantage, case["vtrace_advantage"])
    q = {"q": given["q"]}
    close(targets.retrace(*common, **two, **rate, **q).target - given["q"], case["retrace_errors"])


def some(seed=0, count=4):
    """A batch of sequences with ends, and numbers for it."""
    pair, rng = history(TOGETHER, "same_step", seed)
    view = fbuf.Sequence(5, bootstrap=1, boundary="cross")
    batch = fbuf.sample(pair.state, jax.random.key(1), count, view=view)
    rows = sequences(pair, batch, view, 6)
    given, _ = arrays(rows, rng, bootstrap=True)
    return batch, {name: jnp.asarray(array) for name, array in given.items()}


def test_the_same_in_every_way():
    batch, given = some()
    eager = found_of(batch, given)
    one = found_of(batch, {**given, "gamma": 0.9, "lambda_": jnp.float32(0.8)})
    full = {name: jnp.full((4, 6), number) for name, number in (("gamma", 0.9), ("lambda_", 0.8))}
    ways = {
        "jit": (all_four(batch, given), eager),
        "vmap": (jax.vmap(found_of)(batch, given), eager),
        "numpy": (found_of(batch, jax.tree.map(np.asarray, given)), eager),
        "one rate": (one, found_of(batch, given | full)),
    }
    for found, wanted in ways.values():
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


def test_a_discount_for_each_sequence_under_vmap():
    batch, given = some()
    rates = jnp.array([0.0, 0.5, 0.9, 1.0])
    each = jax.vmap(lambda b, r, v, n, g: targets.gae(b, r, v, n, gamma=g, lambda_=0.7))
    found = each(batch, given["reward"], given["value"], given["next_value"], rates)
    for lane, rate in enumerate(rates):
        whole = targets.gae(
            batch, given["reward"], given["value"], given["next_value"], gamma=rate, lambda_=0.7
        )
        np.testing.assert_allclose(found.advantage[lane], whole.advantage[lane], rtol=1e-6)


def test_one_layout_is_the_other_one_turned():
    pair, rng = history(TOGETHER, "next_step", 2)
    view = fbuf.Sequence(5, bootstrap=1, boundary="cross")  # as many steps as draws
    batches = [
        fbuf.sample(pair.state, jax.random.key(3), 6, view=dataclasses.replace(view, time_major=t))
        for t in (False, True)
    ]
    assert [batch.data.time_major for batch in batches] == [False, True]
    given, _ = arrays(sequences(pair, batches[0], view, 6), rng, bootstrap=True)
    plain = found_of(batches[0], given)
    turned = found_of(batches[1], {name: array.T for name, array in given.items()})
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(turned), strict=True):
        np.testing.assert_array_equal(a, b.T)


def test_no_gradient_flows_through_a_target():
    batch, given = some()

    def total(given):
        leaves = jax.tree.leaves(found_of(batch, given))
        return sum(jnp.nansum(leaf) for leaf in leaves if leaf.dtype == jnp.float32)

    for leaf in jax.tree.leaves(jax.grad(total)(given)):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))

    def loss(value):
        made = found_of(batch, given | {"value": value})[2]
        return jnp.where(made.mask, (made.target - value) ** 2, 0).sum()

    value = jnp.nan_to_num(given["value"])  # a network is run on rows of zeros, too
    made = found_of(batch, given)[2]
    error = np.where(made.mask, made.target - value, 0)
    np.testing.assert_allclose(jax.grad(loss)(value), -2 * error, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_numbers_are_summed_as_float32(dtype):
    batch, given = some()
    narrow = {n: array.astype(dtype) for n, array in given.items()}
    wide = {n: array.astype(jnp.float32) for n, array in narrow.items()}
    for a, b in zip(
        jax.tree.leaves(found_of(batch, narrow)),
        jax.tree.leaves(found_of(batch, wide)),
        strict=True,
    ):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_integers_are_rewards_and_64_bits_make_nothing_wider():
    batch, given = unbroken({"value": [0.0, 0.0]}, np.array([False, True]))
    rewards = jnp.array([200, 100], jnp.uint8)
    found = targets.lambda_returns(batch, rewards, given["value"], gamma=1.0, lambda_=1.0)
    np.testing.assert_array_equal(found.target, [300, 100])
    with jax.enable_x64(True):
        found = targets.gae(
            batch, np.ones(2), np.zeros(2), gamma=np.float64(0.5), lambda_=np.float64(1)
        )
    assert found.advantage.dtype == found.target.dtype == jnp.float32
    np.testing.assert_array_equal(found.advantage, [1.5, 1])


def test_what_is_not_a_number_stays_in_its_episode():
    nan, count = float("nan"), 6
    ends = np.array([0, 0, 1, 0, 0, 1], bool)
    batch, given = unbroken({name: np.ones(count) for name in NAMES}, ends)
    given |= {"gamma": 0.9, "lambda_": 0.9}
    for name in ("reward", "value", "q", *OF_TWO):
        spoilt = found_of(batch, given | {name: given[name].at[3].set(nan)})
        for found, good in zip(spoilt, found_of(batch, given), strict=True):
            np.testing.assert_array_equal(found.target[:3], good.target[:3])


def test_a_drawn_row_that_is_none_has_no_target():
    """Also where the batch alone says so."""
    batch, given = some()
    masked = dataclasses.replace(batch, mask=jnp.array([True, False, True, False]))
    found = targets.gae(
        masked, given["reward"], given["value"], given["next_value"], gamma=0.9, lambda_=0.9
    )
    assert found.mask[0].any()
    assert not found.mask[jnp.array([1, 3])].any()
    np.testing.assert_array_equal(found.advantage[1], 0)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
def test_over_a_mesh():
    view = fbuf.Sequence(3, bootstrap=1, boundary="pad")
    state = sharded.init(jnp.float32(0), 64, mesh=meshes.mesh(8), num_envs=8)
    rows = np.arange(48, dtype=np.float32).reshape(8, 6)
    state = sharded.add(state, rows, terminated=rows % 5 == 4, truncated=rows % 7 == 6)
    batch = sharded.sample(state, jax.random.key(0), 16, view=view)
    rates = {"gamma": 0.9, "lambda_": 0.8}
    found = targets.gae(batch, batch.data.item, 2 * batch.data.item, **rates)
    one = jax.tree.map(np.asarray, batch)
    plain = fbuf.Sample(
        one.data, one.ids, one.mask, one.terminated, one.truncated, one.probability, one.weight
    )
    wanted = targets.gae(plain, one.data.item, 2 * one.data.item, **rates)
    assert 0 < wanted.mask.mean() < 1
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(a, b)


def good():
    state = fbuf.add(fbuf.init(ITEM, 3), item_of(np.arange(3)))
    return fbuf.rollout(state)


THREE = jnp.zeros(3)
FINE = {"reward": THREE, "value": THREE, "gamma": 0.9, "lambda_": 0.9}


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"reward": jnp.zeros(4)}, ValueError, r"reward must be of shape \(3,\), one number for"),
        (
            {"value": jnp.zeros(4)},
            ValueError,
            r"value must .* give the values of what .*next_value",
        ),
        ({"value": jnp.zeros((3, 1))}, ValueError, r"value must be .*; take \[..., 0\]"),
        ({"next_value": jnp.zeros(())}, ValueError, "next_value must be of shape"),
        ({"value": jnp.zeros(3, bool)}, TypeError, "value must be real, got bool"),
        ({"reward": [0.0, 0.0, 0.0]}, TypeError, "reward must be an array, got a list"),
        ({"value": None}, TypeError, "value must be an array, got None"),
        ({"gamma": 1.5}, ValueError, "gamma must be from 0 to 1, got 1.5"),
        ({"lambda_": -0.1}, ValueError, "lambda_ must be from 0 to 1"),
        ({"lambda_": None}, TypeError, "lambda_ must be a number, got None"),
        ({"gamma": jnp.zeros(2)}, ValueError, r"gamma must be of shape \(3,\)"),
        ({"gamma": "high"}, TypeError, "gamma must be a number"),
    ],
)
def test_what_is_refused(changed, error, match):
    with pytest.raises(error, match=r"fbuf\.targets\.gae: " + match):
        targets.gae(good(), **(FINE | changed))


def test_what_is_refused_of_two_policies():
    two = {name: THREE for name in OF_TWO}
    for function, changed, error, match in (
        (targets.vtrace, {"rho_bar": -1.0}, ValueError, r"vtrace: rho_bar must be at least 0"),
        (targets.vtrace, {"c_bar": None}, TypeError, r"vtrace: c_bar must be a number, got None"),
        (
            targets.vtrace,
            {"log_prob": jnp.zeros((3, 2))},
            ValueError,
            "vtrace: log_prob must be of",
        ),
        (targets.retrace, {"q": jnp.zeros(2)}, ValueError, "retrace: q must be of shape"),
        (
            targets.retrace,
            {"behavior_log_prob": 0.0},
            ValueError,
            "retrace: behavior_log_prob must",
        ),
    ):
        own = {"q": THREE} if function is targets.retrace else {}
        with pytest.raises(error, match=rf"fbuf\.targets\.{match}"):
            function(good(), **(FINE | two | own | changed))
    with pytest.raises(TypeError, match=r"fbuf\.targets\.retrace: .*'q'"):
        targets.retrace(good(), **FINE, **two)


def test_rows_that_do_not_follow_one_another_are_refused():
    state = fbuf.add(fbuf.init(ITEM, 3), item_of(np.arange(3)))
    state = fbuf.init({**ITEM, "next_observation": jnp.int32(0)}, 3)
    state = fbuf.add(state, item_of(np.arange(3)) | {"next_observation": np.zeros(3, np.int32)})
    n_step = fbuf.NStep(2, gamma=0.9)
    for batch, match in (
        (fbuf.rows(state), "as fbuf.rollout and fbuf.pop return them, .*got Batch"),
        (fbuf.read(state, fbuf.newest_ids(state, 3)), "got Batch"),
        (fbuf.sample(state, jax.random.key(0), 3), "got Sample with dict as data; draw with view="),
        (fbuf.sample(state, jax.random.key(0), 3, view=n_step), "NStepTransition as data"),
        (fbuf.rollout(state, view=n_step), "Rollout with NStepTransition as data"),
        (state, "got State"),
        (None, "got NoneType"),
    ):
        with pytest.raises(TypeError, match=rf"^fbuf\.targets\.gae: batch must be .*{match}"):
            targets.gae(batch, **FINE)
    batch, given = some()
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), batch)
    with pytest.raises(ValueError, match=r"one or two axes, got \(2, 4, 6\); use jax.vmap"):
        targets.gae(many, **{name: given[name] for name in FINE})
    with pytest.raises(ValueError, match="give it in the layout of the batch"):
        targets.gae(batch, **{name: given[name].T for name in FINE})
