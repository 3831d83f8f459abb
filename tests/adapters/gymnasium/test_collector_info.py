"""Info in rows and observations, rewards that are vectors, and final observations by any name."""

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import functools

import gymnasium
import jax.numpy as jnp
from fbuf_adapters.gymnasium import Collector, CollectorError, ProcessCollector
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from support.environments import MODES, Walk, policy
from support.few import few

import fbuf


class Telling(Walk):
    """Its info has the episode and the step, as a mask too, and at an end how it went."""

    def told(self, **more):
        allowed = np.arange(4) == (self.episode + self.at) % 4
        return {"at": 100 * self.episode + self.at, "allowed": allowed, **more}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0], self.told(fresh=True)

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        more = {"is_success": terminated} if terminated or truncated else {}
        return observation, reward, terminated, truncated, self.told(**more)


def vector(mode, kind=Telling, count=3, **options):
    makes = [functools.partial(kind, env, **options) for env in range(count)]
    return SyncVectorEnv(makes, autoreset_mode=MODES[mode])


SUCCESS = {"is_success": np.bool_(False), "at": np.int64(-1), "fresh": np.bool_(False)}


@pytest.mark.parametrize("mode", few(MODES, "same_step", "next_step"))
def test_a_step_has_the_info_that_it_returned(mode):
    """At an end too, where it is that of the next episode in info itself."""
    with Collector(vector(mode), policy, info=SUCCESS, chunk=8) as collector:
        state = fbuf.init(collector.item, 300, **collector.options)
        state = collector.collect(collector.collect(state, 20), 13)
    batch = fbuf.rows(state)
    check_rows(batch)


def check_rows(batch):
    mask = np.asarray(batch.mask)
    place = np.asarray(batch.data["observation"])[mask]
    at, success = (np.asarray(batch.data[name])[mask] for name in ("at", "is_success"))
    np.testing.assert_array_equal(at, 100 * place[:, 1] + place[:, 2] + 1)
    np.testing.assert_array_equal(success, np.asarray(batch.terminated)[mask])
    assert at.dtype == np.int32
    assert not np.asarray(batch.data["fresh"])[mask].any()  # no step returned it
    assert success.any()
    assert len(at) > 50


@pytest.mark.parametrize("mode", few(MODES, "same_step", "disabled"))
def test_a_policy_sees_what_is_to_be_observed_and_next_observations_have_it(mode):
    seen = []

    def masked(observation):
        place = observation["observation"]
        allowed = observation["allowed"].argmax(1)
        assert observation["allowed"].dtype == bool
        seen.append((allowed == (place[:, 1] + place[:, 2]) % 4).all())
        return policy(place)

    with Collector(vector(mode), masked, observe=("allowed",), chunk=8) as collector:
        state = fbuf.init(
            collector.item, 300, next_of="observation", max_ends=300, **collector.options
        )
        state = collector.collect(collector.collect(state, 20), 13)
    assert seen == [True] * 33
    batch = fbuf.rows(state, view=fbuf.Transition())
    mask = np.asarray(batch.mask)
    for one in (batch.data.item["observation"], batch.data.next_observation):
        place, allowed = (np.asarray(one[name])[mask] for name in ("observation", "allowed"))
        np.testing.assert_array_equal(allowed.argmax(1), (place[:, 1] + place[:, 2]) % 4)
    fbuf.raise_on_fault(state)


@pytest.mark.sweep
def test_so_it_is_in_processes():
    with ProcessCollector(
        functools.partial(Telling, 1), masked, processes=1, envs_per_process=2, mode="sync",
        info=SUCCESS, observe=["allowed"], chunk=16,
    ) as collector:  # fmt: skip
        state = fbuf.init(collector.item, 300, next_of="observation", **collector.options)
        state = collector.collect(state, 40)
    batch = fbuf.rows(state, view=fbuf.Transition())
    place = np.asarray(batch.data.next_observation["observation"])[np.asarray(batch.mask)]
    allowed = np.asarray(batch.data.next_observation["allowed"])[np.asarray(batch.mask)]
    np.testing.assert_array_equal(allowed.argmax(1), (place[:, 1] + place[:, 2]) % 4)
    rows = fbuf.rows(state)
    rows.data["observation"] = rows.data["observation"]["observation"]
    check_rows(rows)


def masked(observation):
    return policy(observation["observation"])


def test_what_cannot_be_read_of_info_says_so():
    with pytest.raises(TypeError, match=r"info=\('at',\)"):
        Collector(vector("same_step"), policy, info="at")
    with pytest.raises(ValueError, match="info has 'reward', which the collector fills itself"):
        Collector(vector("same_step"), policy, info=("reward",))
    collector = Collector(vector("same_step"), policy, info=("is_success",))
    with pytest.raises(CollectorError, match=r"reset returns .*'at'.*info=\{'is_success': np.bool"):
        _ = collector.item
    wrong = {"allowed": np.zeros(3, bool)}
    collector = Collector(vector("same_step"), policy, info=wrong)
    state = fbuf.init(collector.item, 60, **collector.options)
    with pytest.raises(CollectorError, match=r"info\['allowed'\] must be bool of shape \(3, 3\)"):
        collector.collect(state, 5)
    extra = lambda observation: (policy(observation), {"at": np.zeros(3)})
    collector = Collector(vector("same_step"), extra, info=("at",))
    with pytest.raises(CollectorError, match="are both called 'at'"):
        _ = collector.item


class Sparse(Walk):
    """Tells a goal at a reset only, and a hint in the second step only."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0], {"goal": 10 + self.episode}

    def step(self, action):
        told = {"hint": 100 * self.episode + self.at + 1} if self.at == 1 else {}
        return *super().step(action)[:4], told


@pytest.mark.sweep
@pytest.mark.parametrize("mode", few(MODES, "disabled", "next_step"))
def test_what_is_not_told_is_not_that_of_a_step_before(mode):
    """Neither of another episode: there stands what was given for none."""
    envs = vector(mode, Sparse)
    observe = {"goal": np.int32(-1), "hint": np.int32(-2)}
    with Collector(envs, masked, observe=observe, info={"hint": np.int32(-3)}) as collector:
        state = fbuf.init(
            collector.item, 300, next_of="observation", max_ends=300, **collector.options
        )
        state = collector.collect(state, 40)
    batch = fbuf.rows(state, view=fbuf.Transition())
    mask = np.asarray(batch.mask)
    hint = np.asarray(batch.data.item["hint"])[mask]
    for one in (batch.data.item["observation"], batch.data.next_observation):
        place, goal, told = (np.asarray(one[n])[mask] for n in ("observation", "goal", "hint"))
        np.testing.assert_array_equal(goal, np.where(place[:, 2] == 0, 10 + place[:, 1], -1))
        told_here = np.where(place[:, 2] == 2, 100 * place[:, 1] + 2, -2)
        np.testing.assert_array_equal(told, told_here)
    np.testing.assert_array_equal(hint, np.where(told == -2, -3, told))


class Wide(Walk):
    """Tells numbers that do not fit what they are to be stored as."""

    def __init__(self, env, told):
        super().__init__(env)
        self.wide = told

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0], {}

    def step(self, action):
        return *super().step(action)[:4], {"x": self.wide}


@pytest.mark.parametrize(
    ("absent", "told", "message"),
    [
        (np.int32(0), 5_000_000_000, r"info\['x'\] holds 5000000000, which int32 cannot hold"),
        (np.int8(0), 300, r"info\['x'\] holds 300, which int8 cannot hold"),
        (np.float32(0), 1e300, r"info\['x'\] holds 1e\+300, which float32 cannot hold"),
        (np.float32(0), {"r": 1.0}, r"info\['x'\] is a dict; have a wrapper copy"),
        (np.float32(0), "text", r"info\['x'\] must be numbers"),
    ],
    ids=str,
)
def test_info_that_does_not_fit_is_refused(absent, told, message):
    envs = vector("same_step", functools.partial(Wide, told=told))
    collector = Collector(envs, policy, info={"x": absent})
    state = fbuf.init(collector.item, 60, **collector.options)
    with pytest.raises((CollectorError, ValueError), match=message):
        collector.collect(state, 3)


@pytest.mark.sweep
def test_info_may_be_a_list_of_dicts():
    """As Gymnasium's wrapper `DictInfoToList` makes it."""
    envs = gymnasium.wrappers.vector.DictInfoToList(vector("same_step"))
    with Collector(envs, masked, info=SUCCESS, observe=("allowed",), chunk=8) as collector:
        state = fbuf.init(collector.item, 300, next_of="observation", **collector.options)
        state = collector.collect(state, 33)
    batch = fbuf.rows(state, view=fbuf.Transition())
    mask = np.asarray(batch.mask)
    both = batch.data.item["observation"], batch.data.next_observation
    one, two = (np.asarray(part["observation"])[mask] for part in both)
    np.testing.assert_array_equal(two, one + np.array([0, 0, 1]))
    rows = fbuf.rows(state)
    rows.data["observation"] = rows.data["observation"]["observation"]
    check_rows(rows)


class Several(Walk):
    """Its rewards are vectors, as MO-Gymnasium has them."""

    reward_space = spaces.Box(-np.inf, np.inf, (2,))

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward, -reward]), *rest


class SeveralVector(SyncVectorEnv):
    """As MO-Gymnasium's vector environments."""

    def __init__(self, makes, **options):
        super().__init__(makes, **options)
        self.reward_space = self.envs[0].reward_space
        self._rewards = np.zeros((self.num_envs, 2))


@pytest.mark.sweep
def test_a_reward_may_be_a_vector():
    makes = [functools.partial(Several, env) for env in range(3)]
    envs = SeveralVector(makes, autoreset_mode=AutoresetMode.SAME_STEP)
    with Collector(envs, policy, chunk=8) as collector:
        assert collector.item["reward"].shape == (2,)
        state = fbuf.init(collector.item, 300, **collector.options)
        state = collector.collect(state, 20)
        one, two = collector.stats()["mean_return"]
    assert one == pytest.approx(-two)
    assert one > 1
    batch = fbuf.rows(state)
    rewards = np.asarray(batch.data["reward"])[np.asarray(batch.mask)]
    expected = np.asarray(batch.data["action"])[np.asarray(batch.mask)] / 4 + 0.1
    np.testing.assert_allclose(rewards, np.stack([expected, -expected], 1), rtol=1e-6)


@pytest.mark.sweep
def test_so_it_may_in_processes():
    with ProcessCollector(
        functools.partial(Several, 1), policy, processes=1, envs_per_process=2, mode="sync"
    ) as collector:
        state = fbuf.init(collector.item, 300, **collector.options)
        state = collector.collect(state, 20)
    rewards = np.asarray(fbuf.rows(state).data["reward"])
    assert rewards.any()
    np.testing.assert_array_equal(rewards[:, 0], -rewards[:, 1])


def test_a_vector_that_is_not_told_of_is_refused():
    class Untold(SeveralVector):
        def __init__(self, makes):
            super().__init__(makes, autoreset_mode=AutoresetMode.SAME_STEP)
            del self.reward_space

    collector = Collector(Untold([functools.partial(Several, 0)]), policy)
    with pytest.raises(CollectorError, match="say so with the environments' attribute reward_spa"):
        collector.collect(fbuf.init(collector.item, 9, **collector.options), 3)


class Renamed(gymnasium.vector.VectorWrapper):
    """Calls final observations otherwise, or does not return them."""

    def __init__(self, envs, name):
        super().__init__(envs)
        self.name = name

    def step(self, action):
        *rest, info = self.env.step(action)
        final = info.pop("final_obs", None)
        if self.name and final is not None:
            info[self.name] = final
        return *rest, info


@pytest.mark.sweep
def test_old_environments_call_it_final_observation():
    with Collector(Renamed(vector("same_step"), "final_observation"), policy) as collector:
        state = fbuf.init(collector.item, 300, next_of="observation", **collector.options)
        state = collector.collect(state, 30)
    batch = fbuf.rows(state, view=fbuf.Transition())
    mask = np.asarray(batch.mask)
    here = np.asarray(batch.data.item["observation"])[mask]
    np.testing.assert_array_equal(
        np.asarray(batch.data.next_observation)[mask], here + np.array([0, 0, 1])
    )


@pytest.mark.sweep
@pytest.mark.parametrize("background", few([False, True], False))
def test_without_them_rows_without_next_observations_are_stored(background):
    envs = Renamed(vector("same_step"), None)
    with Collector(envs, policy, background=background, chunk=8) as collector:
        state = fbuf.init(collector.item, 300, **collector.options)
        take = functools.partial(collector.drain, at_least=30) if background else None
        state = take(state) if take else collector.collect(state, 30)
        assert int(fbuf.size(state)) >= 90
        kept = fbuf.init(collector.item, 300, next_of="observation", **collector.options)
        with pytest.raises(CollectorError, match=r"info has no 'final_obs'.*without next_of"):
            take(kept) if take else collector.collect(kept, 30)


class Dicts(VectorEnv):
    """As Gymnasium before 1.0: `final_info` is a dict for each environment that ended."""

    num_envs, single_action_space = 2, spaces.Discrete(1000)
    single_observation_space = spaces.Box(0, 99, (1,), np.float32)

    def __init__(self):
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return np.zeros((2, 1), np.float32), {}

    def step(self, action):
        self.at += 1
        observation = np.full((2, 1), self.at, np.float32)
        ended = np.array([False, self.at % 3 == 0])
        info = {"n": np.array([self.at, -1 if ended[1] else self.at]), "_n": ~ended | True}
        if ended[1]:
            info["final_obs"] = observation.copy()
            info["final_info"] = np.array([None, {"n": self.at}], object)
        return observation, np.zeros(2), ended, ended & False, info


@pytest.mark.sweep
def test_final_info_may_be_dicts():
    with Collector(Dicts(), lambda o: np.zeros(2, int), info={"n": np.int32(0)}) as collector:
        state = fbuf.init(collector.item, 60, **collector.options)
        state = collector.collect(state, 9)
    steps = np.asarray(fbuf.rollout(state).data["n"])
    np.testing.assert_array_equal(steps[:, :9], np.tile(np.arange(1, 10), (2, 1)))
    assert jnp.issubdtype(state.storage.item["n"].dtype, jnp.integer)


class Huge(Walk):
    """Its rewards are larger than 32 bits hold."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 1e300, *rest


def test_a_reward_that_32_bits_cannot_hold_is_an_error():
    collector = Collector(vector("same_step", Huge), policy)
    state = fbuf.init(collector.item, 60, **collector.options)
    with pytest.raises(ValueError, match=r"reward holds 1e\+300, which float32 cannot hold"):
        collector.collect(state, 3)


def test_the_item_is_known_after_the_close():
    with Collector(vector("same_step"), policy) as collector:
        item = collector.item
    assert collector.item == item
    never = Collector(vector("same_step"), policy)
    never.close()
    with pytest.raises(CollectorError, match="closed"):
        _ = never.item


class OfTheStep(VectorEnv):
    """As Isaac Lab's: info is of the step just made, and there is no `final_info`."""

    num_envs, single_action_space = 2, spaces.Discrete(1000)
    single_observation_space = spaces.Box(-100, 100, (1,), np.int8)

    def __init__(self, step=1):
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.by = step

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return np.zeros((2, 1), np.int64), {"n": np.zeros(2, np.int64)}

    def step(self, action):
        self.at += self.by
        ended = np.array([False, self.at % 3 == 0])
        info = {"n": np.array([self.at, self.at])}
        return np.full((2, 1), self.at), np.zeros(2), ended, ended & False, info


@pytest.mark.sweep
def test_without_final_info_an_entry_is_of_the_step():
    with Collector(OfTheStep(), lambda o: np.zeros(2, int), info=("n",)) as collector:
        state = fbuf.init(collector.item, 60, **collector.options)
        state = collector.collect(state, 9)
    steps = np.asarray(fbuf.rollout(state).data["n"])
    np.testing.assert_array_equal(steps[:, :9], np.tile(np.arange(1, 10), (2, 1)))


class Nothing(OfTheStep):
    """Its info holds None for the first, as Gymnasium's arrays of objects do."""

    def step(self, action):
        rest = super().step(action)[:4]
        return *rest, {"n": np.array([None, self.at if self.at % 2 else None], object)}


def test_none_is_no_entry():
    info = {"n": np.int32(-1)}
    with Collector(Nothing(), lambda o: np.zeros(2, int), info=info) as collector:
        state = fbuf.init(collector.item, 60, **collector.options)
        state = collector.collect(state, 5)
    steps = np.asarray(fbuf.rollout(state).data["n"])[:, :5]
    np.testing.assert_array_equal(steps, [[-1] * 5, [1, -1, 3, -1, 5]])


def test_an_observation_that_its_space_cannot_hold_is_an_error():
    collector = Collector(OfTheStep(50), lambda o: np.zeros(2, int))
    state = fbuf.init(collector.item, 60, **collector.options)
    state = collector.collect(state, 2)  # 50 and 100
    with pytest.raises(ValueError, match="observation holds 150, which int8 cannot hold"):
        collector.collect(state, 2)
