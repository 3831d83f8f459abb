"""JAX environments are collected as they step one by one, under jit, vmap and from Python."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

# brax says on import that it is not developed any further.
pytestmark = pytest.mark.filterwarnings("ignore:Brax System:UserWarning")

NUM_ENVS = 3


def need(library):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"without {library}")


@pytest.fixture(autouse=True)
def _promotion_of_the_environments():
    """Those of gymnax and brax mix their types and ranks; what is ours is strict elsewhere."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def gymnax_collector(policy, **options):
    need("gymnax")
    import gymnax
    from fbuf_adapters.gymnax import Collector

    env, env_params = gymnax.make("CartPole-v1")
    env_params = env_params.replace(max_steps_in_episode=13)
    more = {"num_envs": NUM_ENVS, "key": jax.random.key(3), "env_params": env_params, **options}
    return Collector(env, policy, jnp.array(0.2), **more)


def brax_collector(policy, **options):
    need("brax")
    from brax import envs
    from fbuf_adapters.brax import Collector

    env = envs.get_environment("inverted_pendulum", backend="positional")  # "fast" observes zeros
    more = {"num_envs": NUM_ENVS, "key": jax.random.key(3), "episode_length": 13, **options}
    return Collector(env, policy, jnp.array(0.2), **more)


COLLECTORS = [gymnax_collector, pytest.param(brax_collector, marks=pytest.mark.sweep)]


def policy(params, observation, key):
    del key
    first = observation.reshape(observation.shape[0], -1).sum(axis=1)
    action = (first > params).astype(jnp.int32)
    return action, {"first": first}


def for_brax(params, observation, key):
    action, extras = policy(params, observation, key)
    return action[:, None].astype(jnp.float32), extras


def made(make, **options):
    return make(for_brax if make is brax_collector else policy, **options)


def buffer(collector, **options):
    item = collector.item | {"next_observation": collector.item["observation"]}
    return fbuf.init(item, 60 * NUM_ENVS, **collector.options, **options)


def one_by_one(collector, steps):
    """The fields and flags of each step, stepped without a buffer."""
    carry = collector.begin(jax.random.key(3))
    step = jax.jit(collector._row)
    rows = []
    for _ in range(steps):
        carry, there, flags = step(jnp.array(0.2), carry)
        rows.append({**there, **flags})
    return jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *rows)


@pytest.mark.sweep
@pytest.mark.parametrize("make", COLLECTORS)
def test_every_step_is_in_the_buffer(make):
    collector = made(make)
    state = collector.collect(buffer(collector, next_of="observation", max_ends=90), 17)
    state = collector.collect(state, 23)
    whole = one_by_one(collector, 40)
    batch = fbuf.rows(state, view=fbuf.Transition())
    found = jax.tree.map(lambda leaf: np.asarray(leaf)[:, -40:], batch)
    assert found.mask.all()
    # An environment's own arithmetic may differ by rounding, in two programs.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    for name, stored in found.data.item.items():
        close(stored, whole[name], err_msg=name)
    close(found.data.next_observation, whole["next_observation"])
    for flag in ("terminated", "truncated"):
        np.testing.assert_array_equal(getattr(found, flag), whole[flag])
    ended = whole["terminated"] | whole["truncated"]
    assert ended.any()
    # At an end the next observation is not the one that the next episode begins with.
    begins, ends = whole["observation"][:, 1:], ended[:, :-1]
    assert (whole["next_observation"][:, :-1][~ends] == begins[~ends]).all()
    assert (whole["next_observation"][:, :-1][ends] != begins[ends]).any(axis=-1).all()
    stats = collector.stats()
    assert (stats["steps"], stats["episodes"]) == (40 * NUM_ENVS, ended.sum())
    lengths = [np.diff(np.flatnonzero(lane), prepend=-1) for lane in ended]
    assert stats["mean_length"] == pytest.approx(np.concatenate(lengths).mean())


@pytest.mark.sweep
@pytest.mark.parametrize("make", COLLECTORS)
def test_fields_that_are_written_later(make):
    collector = made(make, blank={"advantage": 0.0, "more": [jnp.ones((2,), bool)]})
    state = collector.collect(buffer(collector), 7)
    batch = fbuf.rollout(state)
    assert batch.mask.sum() == 7 * NUM_ENVS
    assert not np.any(batch.data["advantage"])
    assert not np.any(batch.data["more"][0])
    assert batch.data["more"][0].shape == (*batch.mask.shape, 2)
    state = fbuf.write(state, batch.ids, {"advantage": batch.data["first"]})
    found = fbuf.rollout(collector.collect(state, 7)).data
    np.testing.assert_array_equal(found["advantage"][:, :7], found["first"][:, :7])
    assert not np.any(found["advantage"][:, 7:])
    with pytest.raises(ValueError, match="'first', which is filled already"):
        made(make, blank={"first": 0.0})


def same_but_for_rounding(one, two):
    """Under `vmap` XLA rounds the environment's own physics in another way on some processors."""
    exact = not np.issubdtype(one.dtype, np.floating)
    np.testing.assert_allclose(one, two, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-6)


@pytest.mark.sweep
def test_many_seeds_in_a_jit_of_your_own():
    collector = made(gymnax_collector)
    state = buffer(collector)

    @jax.jit
    def run(key):
        return collector.scan(collector.begin(key), state, jnp.array(0.2), steps=20)[1]

    keys = jax.random.split(jax.random.key(0), 2)
    many = jax.vmap(run)(keys)
    for number, key in enumerate(keys):
        alone = fbuf.rows(run(key)).data
        mine = fbuf.rows(jax.tree.map(lambda leaf, n=number: leaf[n], many)).data
        jax.tree.map(same_but_for_rounding, mine, alone)


@pytest.mark.sweep
def test_new_weights_and_other_collectors():
    collector = made(gymnax_collector)
    state = collector.collect(buffer(collector), 5)
    collector.publish(jnp.array(1e9))
    state = collector.collect(state, 5)
    assert not fbuf.rows(state).data["action"][:, -5:].any()
    state = made(gymnax_collector).collect(state, 5)  # begins with a reset
    assert np.asarray(fbuf.rows(state).truncated)[:, -6].all()


@pytest.mark.sweep
def test_what_cannot_be():
    with pytest.raises(ValueError, match="extra called 'reward'"):
        gymnax_collector(lambda p, o, k: (jnp.zeros(3, int), {"reward": jnp.zeros(3)}))
    with pytest.raises(ValueError, match=r"'value'.* must be of shape \(3, ...\).*got \(5,\)"):
        gymnax_collector(lambda p, o, k: (jnp.zeros(3, int), {"value": jnp.zeros(5)}))
    collector = made(gymnax_collector)
    with pytest.raises(ValueError, match="num_envs=None, and the environments need num_envs=3"):
        collector.collect(fbuf.init(collector.item, 60), 5)
    with pytest.raises(ValueError, match="a field 'x', which nobody fills"):
        collector.collect(fbuf.init(collector.item | {"x": 0.0}, 60, **collector.options), 5)


def test_brax_environments_that_are_wrapped():
    need("brax")
    from brax import envs
    from fbuf_adapters.brax import Collector

    wrapped = envs.create("fast", batch_size=NUM_ENVS)
    with pytest.raises(ValueError, match="is wrapped in a"):
        Collector(wrapped, policy, None, num_envs=NUM_ENVS, key=jax.random.key(0))
