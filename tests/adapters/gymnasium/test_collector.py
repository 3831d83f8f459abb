"""Every step of the environments is in the buffer, once and as it was."""

import itertools

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import gymnasium
import jax
import jax.numpy as jnp
from fbuf_adapters.gymnasium import Collector, CollectorError
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv
from support import environments, programs
from support.environments import MODES, policy, steps_in, steps_of, vector
from support.in_processes import Drawing

import fbuf


def expected(envs, calls, mode):
    return [step for env in range(envs) for step in steps_of(env, calls, mode == "next_step")]


def shared(state):
    """The steps in a buffer made with `next_of`."""
    batch = fbuf.rows(state, view=fbuf.Transition())
    return steps_in(batch, batch.data.item, batch.data.next_observation)


def stored(state):
    """The steps in a buffer with a field for the next observation."""
    batch = fbuf.rows(state)
    return steps_in(batch, batch.data, batch.data["next_observation"])


def there(batch, *names):
    """Fields of the rows that are there."""
    return [np.asarray(batch.data[name])[np.asarray(batch.mask)] for name in names]


def buffer(collector, capacity=600, more=(), **options):
    item = collector.item
    fields = {"next_observation": item["observation"], "version": jnp.int32(0)}
    item |= {name: fields[name] for name in more}
    return fbuf.init(item, capacity, **collector.options, **options)


KINDS = ["array", "dict", "tuple", "float64"]


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        pytest.param(mode, kind, marks=[pytest.mark.sweep] * (n != m or mode != "same_step"))
        for m, mode in enumerate(MODES)
        for n, kind in enumerate(KINDS)
    ],
)
def test_every_step_is_in_the_buffer_as_it_was(mode, kind):
    with Collector(vector(3, mode, kind=kind), policy, chunk=8) as collector:
        state = buffer(collector, next_of="observation", max_ends=300)
        for steps in (5, 8, 1, 27):  # the chunk divides one of them
            state = collector.collect(state, steps)
    assert shared(state) == expected(3, 41, mode)
    fbuf.raise_on_fault(state)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "mode",
    [pytest.param(mode, marks=[pytest.mark.sweep] * (mode != "next_step")) for mode in MODES],
)
def test_a_field_can_hold_the_next_observation(mode):
    with Collector(vector(3, mode), policy, chunk=8) as collector:
        state = buffer(collector, more=["next_observation"])
        state = collector.collect(collector.collect(state, 20), 13)
    assert stored(state) == expected(3, 33, mode)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", MODES)
def test_environments_in_processes_of_their_own(mode):
    envs = vector(2, mode, asynchronous=True)
    with Collector(envs, policy, chunk=8) as collector:
        state = collector.collect(buffer(collector, next_of="observation"), 20)
    assert shared(state) == expected(2, 20, mode)
    assert not any(process.is_alive() for process in envs.processes)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "mode",
    [pytest.param(mode, marks=[pytest.mark.sweep] * (mode != "next_step")) for mode in MODES],
)
def test_cart_pole_is_what_it_is_without_a_collector(mode):
    make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=12)
    act = lambda observation: (observation.sum(-1) > 0).astype(int)
    envs = SyncVectorEnv([make] * 2, autoreset_mode=MODES[mode])
    with Collector(envs, act, chunk=16, seed=3) as collector:
        state = collector.collect(buffer(collector, next_of="observation", max_ends=300), 60)
    batch = fbuf.rows(state, view=fbuf.Transition())
    mask = np.asarray(batch.mask)
    item, following, terminated = jax.tree.map(
        lambda leaf: np.asarray(leaf)[mask],
        (batch.data.item, batch.data.next_observation, batch.terminated),
    )
    rows = {
        item["observation"][n].tobytes(): (
            int(item["action"][n]),
            following[n].tobytes(),
            bool(terminated[n]),
        )
        for n in range(len(terminated))
    }
    for env in range(2):
        alone = make()
        observation, _ = alone.reset(seed=3 + env)
        left = 60
        while left > 0:
            action = int(act(observation))
            following, _, terminated, truncated, _ = alone.step(action)
            came = rows.pop(observation.tobytes())
            assert came == (action, following.tobytes(), terminated)
            observation, left = following, left - 1
            if terminated or truncated:
                observation, _ = alone.reset()
                left -= mode == "next_step"
    assert not rows


@pytest.mark.sweep
def test_continuous_actions_and_extras():
    def act(observation):
        action = np.stack([environments.chosen(observation), observation[:, 0]], -1)
        return action, {"log_prob": observation[:, 0].astype(np.float64), "n": observation[:, 2:]}

    with Collector(vector(3, action="continuous"), act, chunk=8) as collector:
        assert collector.item["log_prob"] == jax.ShapeDtypeStruct((), np.float32)
        state = collector.collect(buffer(collector, next_of="observation"), 20)
    assert shared(state) == expected(3, 20, "same_step")
    names = "observation", "action", "log_prob", "n"
    observation, action, log_prob, n = there(fbuf.rows(state), *names)
    assert (log_prob == observation[:, 0]).all()
    assert (n == observation[:, 2:]).all()
    assert (action[:, 1] == observation[:, 0]).all()


@pytest.mark.sweep
def test_fields_can_be_left_out():
    act = lambda observation: (policy(observation), {"value": np.zeros(3)})
    with Collector(vector(3), act, chunk=8) as collector:
        item = collector.item
        del item["value"], item["reward"]
        state = collector.collect(fbuf.init(item, 300, **collector.options), 10)
    assert set(fbuf.rows(state).data) == {"observation", "action"}


BLANK = {"target": np.float32(0), "of": {"both": (jax.ShapeDtypeStruct((2,), jnp.int8), [True])}}


@pytest.mark.sweep
def test_fields_that_are_written_later():
    with Collector(vector(3), policy, chunk=8, blank=BLANK) as collector:
        assert collector.item["of"]["both"][0] == jax.ShapeDtypeStruct((2,), jnp.int8)
        assert collector.item["target"] == jax.ShapeDtypeStruct((), jnp.float32)
        state = collector.collect(buffer(collector, 60, next_of="observation", max_ends=60), 13)
        batch = fbuf.rollout(state)
        assert not any(np.any(leaf) for leaf in jax.tree.leaves([batch.data[n] for n in BLANK]))
        state = fbuf.write(state, batch.ids, {"target": batch.data["reward"]})
        state = collector.collect(state, 5)
        some = {name: spec for name, spec in collector.item.items() if name != "of"}
        collector.collect(fbuf.init(some, 60, **collector.options), 5)
    assert shared(state) == expected(3, 18, "same_step")
    data = fbuf.rollout(state).data
    np.testing.assert_array_equal(data["target"][:, :13], data["reward"][:, :13])


@pytest.mark.parametrize(
    ("blank", "error", "message"),
    [
        ({"reward": 0.0}, ValueError, "blank has a field 'reward', which is filled already"),
        ({"value": 0.0}, ValueError, "'value', which is filled"),
        ({"version": 0}, ValueError, "'version', which is filled"),
        ({"truncated": False}, ValueError, "'truncated', which is filled"),
        (["advantage"], TypeError, "blank must be a dict.*got a list"),
        ({"a": {"b": np.zeros(3)}}, TypeError, r"blank\['a'\]\['b'\] is float64"),
        ({"a": "zero"}, TypeError, r"blank\['a'\] must be an array, got str"),
    ],
)
def test_blank_fields_that_cannot_be(blank, error, message):
    act = lambda observation: (policy(observation), {"value": np.zeros(2)})
    envs = vector(2)
    with pytest.raises(error, match=message), Collector(envs, act, blank=blank) as collector:
        buffer(collector)


@pytest.mark.sweep
def test_three_programs_for_all_lengths():
    with Collector(vector(3), policy, chunk=16) as collector:
        state = buffer(collector)
        before = programs.count_for(state, "add")
        lengths = (16, 1, 7, 2, 3, 33, 50, 16)
        for steps in lengths:
            state = collector.collect(state, steps)
        assert before < programs.count_for(state, "add") <= before + 3
    assert int(fbuf.size(state)) == 3 * sum(lengths)


@pytest.mark.sweep
def test_a_policy_sees_what_it_acts_on_once():
    seen = []

    def act(observation):
        seen.append(observation.copy())
        return policy(observation)

    with Collector(vector(2), act, chunk=4) as collector:
        state = buffer(collector)  # calls it, and the first step takes what it returned
        collector.collect(state, 10)
    assert len(seen) == 10


@pytest.mark.sweep
@pytest.mark.parametrize("how", ["cleared", "new"])
def test_an_empty_buffer_takes_a_dummy_for_a_dummy(how):
    with Collector(vector(3, "next_step"), policy, chunk=8) as collector:
        new = lambda: buffer(collector, more=["next_observation"])
        state, total = new(), 0
        for steps in (3, 4, 2, 5, 1, 7):
            state = collector.collect(fbuf.clear(state) if how == "cleared" else new(), steps)
            total += steps
            every = expected(3, total, "next_step")
            assert all(step in every for step in stored(state))


@pytest.mark.sweep
def test_weights_come_with_their_version():
    class Constant:
        action = 5

        def __call__(self, observation):
            return np.full(len(observation), self.action)

        def load(self, weights):
            assert isinstance(weights["action"], np.ndarray)
            self.action = int(weights["action"])

    weights = {"action": jnp.int32(6)}
    with Collector(vector(2), Constant(), chunk=4) as collector:
        state = collector.collect(buffer(collector, more=["version"]), 6)
        assert collector.publish(weights) == 1
        mine = {"action": np.array(7)}
        assert collector.publish(mine) == 2
        mine["action"][...] = 9  # the learner goes on
        assert collector.stats()["policy_age"] == 2
        state = collector.collect(state, 6)
        stats = collector.stats()
    assert (stats["policy_version"], stats["policy_age"]) == (2, 0)
    data = there(fbuf.rows(state), "version", "action")
    assert sorted(zip(*(column.tolist() for column in data), strict=True)) == (
        [(0, 5)] * 12 + [(2, 7)] * 12
    )


@pytest.mark.sweep
def test_the_seed_is_that_of_the_policy_too():
    def drawn(seed):
        with Collector(vector(2), Drawing(), seed=seed) as collector:
            state = collector.collect(buffer(collector), 8)
        return np.asarray(fbuf.rollout(state).data["action"])

    first = drawn(4)
    np.testing.assert_array_equal(drawn(4), first)
    assert not np.array_equal(drawn(5), first)
    np.testing.assert_array_equal(drawn(np.int64(4)), first)
    for seed in (None, [1, 2]):  # no one number: the policy is the caller's to seed
        act = Drawing()
        Collector(vector(2), act, seed=seed).close()
        assert not act.seeds


class Noise(gymnasium.Env):
    """Observes what its generator draws."""

    observation_space = action_space = spaces.Box(0, 1, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(1), {}

    def step(self, action):
        return self.np_random.random(1), 0.0, False, False, {}


class NoisePolicy(Drawing):
    def __call__(self, observation):
        return self.random.random((len(observation), 1))


@pytest.mark.sweep
def test_the_noise_of_a_policy_is_not_that_of_an_environment():
    envs = SyncVectorEnv([Noise], autoreset_mode=MODES["same_step"])
    with Collector(envs, NoisePolicy(), seed=3) as collector:
        rows = fbuf.rollout(collector.collect(buffer(collector), 40)).data
    action, observation = (np.asarray(rows[name])[:, :40] for name in ("action", "observation"))
    assert not np.isin(action, observation).any()


@pytest.mark.sweep
def test_a_policy_may_write_to_what_it_sees():
    def act(observation):
        observation += 50
        return np.zeros(2, int)

    first = stored_observations(policy)
    np.testing.assert_array_equal(stored_observations(act)[:, :1], first[:, :1])


def stored_observations(act):
    with Collector(vector(2), act, seed=0) as collector:
        return np.asarray(fbuf.rollout(collector.collect(buffer(collector), 4)).data["observation"])


@pytest.mark.parametrize(
    "mode",
    [pytest.param(mode, marks=[pytest.mark.sweep] * (mode != "next_step")) for mode in MODES],
)
def test_stats_know_the_episodes(mode):
    with Collector(vector(3, mode), policy, chunk=8) as collector:
        collector.collect(collector.collect(buffer(collector), 30), 23)
        stats = collector.stats()
    steps = expected(3, 53, mode)
    ends = [step for step in steps if step.terminated or step.truncated]
    whole = [s for s in steps if any((e.env, e.episode) == (s.env, s.episode) for e in ends)]
    assert stats["episodes"] == len(ends)
    assert stats["mean_length"] == pytest.approx(len(whole) / len(ends))
    assert stats["mean_return"] == pytest.approx(sum(s.reward for s in whole) / len(ends), 1e-5)
    assert stats["steps"] == len(steps)
    assert (len(steps) < 3 * 53) == (mode == "next_step")
    seconds = collector._producer.seconds
    assert stats["steps_per_second"] == pytest.approx(len(steps) / seconds)


@pytest.mark.parametrize("calls", [(1, 1, 1, 1, 1, 1, 1, 1), (8,), (3, 5)])
def test_a_step_that_only_resets_is_no_step(calls):
    """Also where the end is the last row of a chunk, and behind an error and a new start."""
    with Collector(vector(3, "next_step", fails=(1, 14)), policy, chunk=4) as collector:
        state = buffer(collector)
        for number in calls:
            state = collector.collect(state, number)
        assert collector.stats()["steps"] == len(expected(3, 8, "next_step"))
        with pytest.raises(ZeroDivisionError):
            collector.collect(state, 40)
        state = collector.recover()
        assert collector.stats()["steps"] == int(fbuf.size(state))
        state = collector.collect(state, 5)
        assert collector.stats()["steps"] == int(fbuf.size(state))


def test_nor_is_it_one_in_the_background():
    with Collector(vector(3, "next_step"), policy, chunk=4, background=True) as collector:
        state = collector.drain(buffer(collector), at_least=30)
        stats = collector.stats()
    assert stats["steps"] == int(fbuf.size(state)) < int(state.ring.count())


def test_two_vectors_of_one_class_keep_their_own_mode():
    make = lambda: gymnasium.make("CartPole-v1")
    first = SyncVectorEnv([make], autoreset_mode=MODES["same_step"])
    SyncVectorEnv([make], autoreset_mode=MODES["next_step"]).close()
    with Collector(first, lambda observation: np.zeros(1, int)) as collector:
        assert collector.options["autoreset"] == "same_step"


# --- what cannot be -------------------------------------------------------------------------------


class Bare(VectorEnv):
    """A vector environment of somebody else's."""

    def __init__(self, observation=None, action=None, metadata=None, **returned):
        self.returned = returned
        self.num_envs = 2
        self.metadata = {"autoreset_mode": MODES["same_step"]} if metadata is None else metadata
        self.single_observation_space = observation or spaces.Box(0, 1, (3,))
        self.single_action_space = action or spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 3), np.float32), {}

    def step(self, actions):
        ends = np.ones(2, bool)
        usual = {
            "observation": np.zeros((2, 3), np.float32),
            "reward": np.zeros(2),
            "terminated": ends,
            "truncated": ~ends,
        }
        return *(usual | self.returned).values(), {}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "reward",
            5.0,
            r"reward as float32 of shape \(2,\), one for each, got float64 of shape \(\)",
        ),
        ("reward", np.zeros((2, 1)), r"reward as float32 of shape \(2,\)"),
        ("terminated", np.full(2, 0.5), r"terminated as bool of shape \(2,\)"),
        ("truncated", np.zeros(1, bool), r"truncated as bool of shape \(2,\)"),
    ],
)
def test_environments_that_return_something_else(name, value, message):
    with Collector(Bare(**{name: value}), lambda _: np.zeros(2, int)) as collector:
        state = buffer(collector)
        with pytest.raises(CollectorError, match=message):
            collector.collect(state, 3)


@pytest.mark.parametrize("shape", [(1, 3), ()])
def test_later_observations_are_looked_at_too(shape):
    envs = Bare(metadata={"autoreset_mode": MODES["next_step"]})
    envs.returned = {"observation": np.zeros(shape, np.float32)}
    assert set(envs.step(None)[-1]) == set()
    with Collector(envs, lambda _: np.zeros(2, int)) as collector:
        state = buffer(collector)
        with pytest.raises(CollectorError, match=r"observation must be float32 of shape \(2, 3\)"):
            collector.collect(state, 3)


def test_one_environment_is_no_vector():
    with pytest.raises(TypeError, match=r"VectorEnv, got a .*make them with gymnasium\.make_vec"):
        Collector(gymnasium.make("CartPole-v1"), policy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metadata": {}}, "does not say what the environments do at the end of an episode"),
        ({"metadata": {"autoreset_mode": "later"}}, "says 'later'"),
        ({"observation": spaces.Text(5)}, "the observation space is a Text space"),
        ({"action": spaces.Graph(spaces.Discrete(2), None)}, "the action space is a Graph space"),
        (
            {"observation": spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})},
            r"the observation space\['a'\] is a Sequence space",
        ),
        ({"observation": spaces.OneOf([spaces.Discrete(2)])}, "OneOf"),
    ],
)
def test_environments_that_cannot_be_stored(options, message):
    with pytest.raises(ValueError, match=message):
        Collector(Bare(**options), policy)


def zeros(*shape, dtype=int):
    return lambda _: np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (zeros(3), r"action as int64 of shape \(2,\).*got int64 of shape \(3,\)"),
        (zeros(), r"got int64 of shape \(\)"),
        (zeros(2, dtype=float), "got float64"),
        (lambda _: {"a": np.zeros(2, int)}, "got a dict of"),
        (
            lambda _: (np.zeros(2, int), {"value": np.zeros(3)}),
            r"extra 'value' of shape \(2, ...\)",
        ),
        (lambda _: (np.zeros(2, int), {"reward": np.zeros(2)}), "called 'reward'"),
        (lambda _: (np.zeros(2, int), {"name": np.array(["a", "b"])}), "cannot be stored"),
    ],
)
def test_policies_that_return_something_else(act, message):
    with (
        Collector(Bare(), act) as collector,
        pytest.raises((CollectorError, ValueError), match=message),
    ):
        buffer(collector)


def test_extras_that_change():
    calls = iter([np.int32, np.float64])
    act = lambda _: (np.zeros(2, int), {"value": np.zeros(2, next(calls))})
    with Collector(vector(2), act) as collector:
        state = buffer(collector)
        with pytest.raises(CollectorError, match="extra 'value' as float64"):
            collector.collect(state, 3)


@pytest.mark.sweep
def test_extras_of_another_width_are_as_at_first():
    """Weights made by NumPy are of 64 bits, and so is what is computed from them."""
    calls = itertools.cycle([np.float32, np.float64])
    act = lambda _: (np.zeros(2, int), {"value": np.full(2, 0.5, next(calls))})
    with Collector(vector(2), act) as collector:
        state = collector.collect(buffer(collector), 3)
    assert fbuf.rows(state).data["value"][:, -3:].tolist() == [[0.5] * 3] * 2


def test_an_observation_that_does_not_fit_in_32_bits():
    class Far(environments.Walk):
        def observation(self):
            return (super().observation()[0], 2**33 if self.at > 2 else 0)

    envs = SyncVectorEnv([lambda: Far(0, "tuple")], autoreset_mode=MODES["same_step"])
    with (
        Collector(envs, lambda observation: np.zeros(1, int)) as collector,
        pytest.raises(ValueError, match="observation holds 8589934592, which int32 cannot hold"),
    ):
        collector.collect(buffer(collector), 30)


def test_final_observations_that_are_missing():
    with Collector(Bare(), zeros(2)) as collector:
        state = buffer(collector, next_of="observation")
        with pytest.raises(CollectorError, match="info has no 'final_obs'"):
            collector.collect(state, 3)
        assert int(fbuf.size(collector.recover())) == 0  # it ended in the first step


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda c: fbuf.init(c.item, 60, num_envs=3), "made with num_envs=3.*num_envs=2"),
        (lambda c: fbuf.init(c.item, 60), "num_envs=None"),
        (lambda c: fbuf.init(c.item, 60, num_envs=2, autoreset="disabled"), "autoreset='disabled'"),
        (lambda c: fbuf.init(c.item | {"x": 0.0}, 60, **c.options), "a field 'x', which nobody"),
        (lambda c: fbuf.init(c.item | {"reward": 0}, 60, **c.options), "the field 'reward' is"),
        (lambda c: fbuf.init(0.0, 60, **c.options), "item is a ShapeDtypeStruct"),
        (lambda c: fbuf.init(c.item, 60, next_of="reward", **c.options), "next_of='reward'"),
        (lambda c: {}, "must be a fbuf.State, .* got dict"),
    ],
)
def test_buffers_made_for_something_else(make, message):
    with Collector(vector(2), policy) as collector:
        state = make(collector)
        with pytest.raises((ValueError, TypeError), match=message):
            collector.collect(state, 3)


def test_a_closed_collector():
    envs = vector(2)
    with Collector(envs, policy) as collector:
        state = buffer(collector)
    collector.close()
    assert envs.closed
    for call in (
        lambda: collector.collect(state, 3),
        lambda: collector.publish({}),
    ):
        with pytest.raises(CollectorError, match="the collector is closed; make another one"):
            call()


def test_environments_that_somebody_closed():
    envs = vector(2)
    with Collector(envs, policy) as collector:
        state = collector.collect(buffer(collector), 3)
        envs.close()
        with pytest.raises(CollectorError, match="the environments are closed"):
            collector.collect(state, 3)


def test_a_policy_without_load():
    with Collector(vector(2), policy) as collector:
        with pytest.raises(CollectorError, match=r"\(function\) has no method load"):
            collector.publish({})
        with pytest.raises(CollectorError, match="steps in your thread; call"):
            collector.drain(None)
        with pytest.raises(CollectorError, match="the last call did not raise"):
            collector.recover()
