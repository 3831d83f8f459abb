"""Buffers with brax's methods: the same rows as brax's, in place, and loud where it matters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters.brax import PrioritizedSamplingQueue, Queue, ReplayBufferState
from fbuf_adapters.brax import UniformSamplingQueue as Uniform

import fbuf

KEY = jax.random.PRNGKey(0)
ROW = {"image": jnp.zeros((2,), jnp.uint8), "step": jnp.int32(0), "reward": 0.0}


def rows(first, count):
    step = steps(first, count)
    image = (step % 256).astype(jnp.uint8)[:, None].repeat(2, axis=1)
    return {"image": image, "step": step, "reward": step.astype(jnp.float32)}


def steps(first, count):
    return jnp.arange(first, first + count, dtype=jnp.int32)


@pytest.mark.parametrize("kind", [Uniform, PrioritizedSamplingQueue, Queue])
def test_a_row_comes_back_as_it_was_in_its_own_dtypes(kind):
    buffer = kind(8, ROW, 4)
    state = buffer.insert(buffer.init(KEY), rows(2**24 + 1, 4))
    _, batch = buffer.sample(state)
    data = batch.data if kind is PrioritizedSamplingQueue else batch
    assert jax.tree.map(lambda leaf: leaf.dtype, data) == {
        "image": jnp.uint8,
        "step": jnp.int32,
        "reward": jnp.float32,
    }
    assert set(np.asarray(data["step"]).tolist()) <= set(range(2**24 + 1, 2**24 + 5))
    assert (data["image"][:, 0].astype(jnp.int32) == data["step"] % 256).all()


def test_draws_are_uniform_over_the_newest_rows_and_differ_from_call_to_call():
    buffer = Uniform(8, jnp.int32(0), 4000)
    state = buffer.insert(buffer.insert(buffer.init(KEY), steps(0, 6)), steps(6, 6))
    state, first = buffer.sample(state)
    _, second = buffer.sample(state)
    counts = np.bincount(first, minlength=12)
    assert counts[:4].sum() == 0
    assert np.abs(counts[4:] - 500).max() < 5 * np.sqrt(500)
    assert (first != second).any()
    assert int(buffer.size(state)) == 8


@pytest.mark.parametrize("cyclic", [False, True])
@pytest.mark.parametrize("size", [7, 8])
def test_a_queue_hands_out_what_a_list_would(cyclic, size):
    """Inserts and reads of several sizes, beside a list of Python."""
    buffer = Queue(size, jnp.int32(0), 3, cyclic=cyclic)
    insert, sample = jax.jit(buffer.insert), jax.jit(buffer.sample)
    state, stored, place, written = buffer.init(KEY), [], 0, 0
    for turn, count in enumerate([3, 2, 5, 1, 7, 4, 1, 1, 6] * 3):
        state = insert(state, steps(written, count))
        lost = max(0, len(stored) + count - size)
        stored = [*stored, *range(written, written + count)][-size:]
        place, written = max(0, place - lost), written + count
        assert int(buffer.size(state)) == len(stored) - (0 if cyclic else place)
        if turn % 3 == 2 or int(buffer.size(state)) < 3:
            continue
        state, batch = sample(state)
        expected = [stored[(place + i) % len(stored)] for i in range(3)]
        assert batch.tolist() == expected
        place = (place + 3) % len(stored) if cyclic else place + 3
        assert int(state.sample_position) == place


def test_a_queue_in_jit_gives_zeros_for_rows_that_are_not_there_and_loses_none():
    buffer = Queue(8, jnp.int32(0), 4)
    state = buffer.insert(buffer.init(KEY), steps(1, 3))
    state, batch = jax.jit(buffer.sample)(state)
    assert batch.tolist() == [1, 2, 3, 0]
    state = buffer.insert(state, steps(4, 4))
    assert buffer.sample(state)[1].tolist() == [4, 5, 6, 7]


def test_priorities_are_the_sizes_of_td_errors():
    sampler = fbuf.Prioritized(alpha=1.0, eps=0.0, beta=1.0)
    buffer = PrioritizedSamplingQueue(8, jnp.int32(0), 4000, sampler=sampler)
    state = buffer.insert(buffer.init(KEY), steps(0, 4))
    ids = fbuf.newest_ids(state.buffer, 4)
    state = buffer.update_priority(state, ids, jnp.array([-3.0, 1.0, 0.0, 4.0]))
    state, batch = buffer.sample(state)
    share = np.bincount(batch.data, minlength=4) / 4000
    np.testing.assert_allclose(share, [3 / 8, 1 / 8, 0, 4 / 8], atol=0.04)
    np.testing.assert_allclose(batch.weight * batch.probability * 8, 1.0, rtol=1e-5)


def test_a_loss_without_weights_cannot_take_a_prioritised_batch():
    buffer = PrioritizedSamplingQueue(8, {"reward": 0.0}, 2)
    state = buffer.insert(buffer.init(KEY), {"reward": jnp.ones(4)})
    _, batch = buffer.sample(state)
    with pytest.raises(TypeError, match="not subscriptable"):
        batch["reward"]
    assert batch.data["reward"].shape == batch.weight.shape == (2,)


def trained(buffer, state, count):
    """The loop of brax's trainers: insert, sample, and priorities where there are any."""

    def step(state, key):
        new = jax.tree.map(lambda leaf: leaf[None].repeat(4, axis=0), jnp.zeros(16))
        state = buffer.insert(state, new + jax.random.normal(key, (4, 1)))
        state, batch = buffer.sample(state)
        if isinstance(buffer, PrioritizedSamplingQueue):
            state = buffer.update_priority(state, batch.ids, batch.data[:, 0])
            batch = batch.data
        return state, (batch.sum(), buffer.size(state))

    return jax.lax.scan(step, state, jax.random.split(KEY, count))


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", [Uniform, PrioritizedSamplingQueue, Queue])
def test_a_scanned_loop_copies_no_rows(kind):
    def temporary(size):
        buffer = kind(size, jnp.zeros(16), 4)
        run = jax.jit(functools.partial(trained, buffer, count=8), donate_argnums=0)
        state = jax.eval_shape(buffer.init, KEY)
        return run.lower(state).compile().memory_analysis().temp_size_in_bytes

    assert temporary(100_000) < temporary(1_000) + 1_000


def test_to_donate_a_state_leaves_the_key_it_was_made_with():
    buffer = Uniform(4, jnp.int32(0), 2)
    for key in (jax.random.PRNGKey(3), jax.random.key(3)):
        jax.jit(buffer.insert, donate_argnums=0)(buffer.init(key), steps(0, 3))
        assert not key.is_deleted()


@pytest.mark.parametrize("kind", [Uniform, PrioritizedSamplingQueue, Queue])
def test_outside_jit_the_state_before_stays_good(kind):
    buffer = kind(4, jnp.int32(0), 2)
    before = buffer.insert(buffer.init(KEY), steps(0, 3))
    after = buffer.insert(before, steps(3, 3))
    assert before.data[:, 0].tolist() == [0, 1, 2, 0]
    assert after.data[:, 0].tolist() == [2, 3, 4, 5]
    assert before.replace(key=KEY).insert_position == 3


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", [Uniform, PrioritizedSamplingQueue, Queue])
def test_under_vmap_and_pmap_each_buffer_is_its_own(kind):
    buffer = kind(8, jnp.int32(0), 2)
    alone = [buffer.init(key) for key in jax.random.split(KEY, 2)]
    alone = [buffer.insert(state, steps(10 * i, 4)) for i, state in enumerate(alone)]
    batches = [buffer.sample(state)[1] for state in alone]
    together = jnp.stack([steps(0, 4), steps(10, 4)])
    for mapped in (jax.vmap, functools.partial(jax.pmap, devices=jax.devices()[:2])):
        state = mapped(buffer.init)(jax.random.split(KEY, 2))
        state = mapped(buffer.insert_internal)(state, together)
        buffer.check_can_sample(state, 2)
        _, batch = mapped(buffer.sample_internal)(state)
        for i in range(2):
            jax.tree.map(
                lambda whole, one, i=i: np.testing.assert_array_equal(whole[i], one),
                batch,
                batches[i],
            )
        assert jnp.sum(jax.vmap(buffer.size)(state)) == 8


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Uniform(0, 0.0, 1), ValueError, "max_replay_size must be from 1"),
        (lambda: Uniform(8, 0.0, 1.5), TypeError, "sample_batch_size must be an int"),
        (lambda: Queue(8, 0.0, 2, cyclic=1), TypeError, "cyclic must be True or False"),
        (
            lambda: PrioritizedSamplingQueue(8, 0.0, 2, sampler=fbuf.Uniform()),
            TypeError,
            r"sampler must be a Prioritized, such as fbuf.Prioritized\(\), got Uniform",
        ),
        (
            lambda: PrioritizedSamplingQueue(8, 0.0, 2, sampler=fbuf.Prioritized(first_only=True)),
            ValueError,
            "sampler must draw every row, because insert takes no ends of episodes",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_calls_that_would_go_wrong_silently_are_refused():
    buffer, queue = Uniform(8, 0.0, 4), Queue(8, 0.0, 4)
    state = buffer.init(KEY)
    with pytest.raises(ValueError, match="Trying to sample 4 elements, but only 0 available"):
        buffer.sample(state)
    with pytest.raises(ValueError, match="sample: Trying to sample 4 elements, but only 3 av"):
        queue.sample(queue.insert(queue.init(KEY), jnp.ones(3)))
    with pytest.raises(ValueError, match="num_samples: 9, max replay size 8; insert fewer"):
        buffer.insert(state, jnp.ones(9))
    with pytest.raises(TypeError, match="must be float32, as the buffer stores it, got int32"):
        buffer.insert(state, steps(0, 2))
    for one in (jnp.float32(1), 1.0):
        with pytest.raises(
            ValueError, match=r"samples must be a batch, leaves \[B, ...\]; its fir"
        ):
            buffer.insert(state, one)
        with pytest.raises(ValueError, match=r"Queue.insert: samples must be a batch"):
            jax.jit(queue.insert_internal)(queue.init(KEY), one)
    with pytest.raises(ValueError, match=r"another shape, State\(Uniform, 0 of 8 rows\), than the"):
        Uniform(9, 0.0, 4).insert(state, jnp.ones(2))


def test_the_state_shows_its_rows_as_brax_lays_them_out():
    buffer = Uniform(4, ROW, 1)
    state = buffer.insert(buffer.init(KEY), rows(7, 3))
    expected = [[7, 7, 7, 7], [8, 8, 8, 8], [9, 9, 9, 9], [0, 0, 0, 0]]
    assert state.data.tolist() == expected
    assert state.data.dtype == jnp.float32
    assert (int(state.insert_position), int(state.sample_position)) == (3, 0)


def test_flax_saves_and_restores_a_state_with_its_key():
    from flax import serialization

    buffer = Uniform(8, ROW, 4)
    state = buffer.insert(buffer.init(KEY), rows(0, 5))
    saved = serialization.to_bytes(state)
    again = serialization.from_bytes(buffer.init(jax.random.PRNGKey(1)), saved)
    assert isinstance(again, ReplayBufferState)
    assert (buffer.sample(again)[1]["step"] == buffer.sample(state)[1]["step"]).all()
