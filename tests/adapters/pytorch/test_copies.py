"""Copies and pickles of a buffer within an agent, and buffers that are made of a state."""

from __future__ import annotations

import copy
import io
import pickle

import jax
import jax.numpy as jnp
import pytest
import torch
from fbuf_adapters.pytorch import InteropError, ReplayBuffer
from fbuf_adapters.tensordict import TensorDictReplayBuffer
from tensordict import TensorDict

import fbuf
from fbuf.host import HostStore

ITEM = {"x": torch.zeros(2), "n": torch.tensor(0)}


def rows(first, count=6):
    numbers = torch.arange(first, first + count)
    return {"x": numbers[:, None].expand(count, 2).float(), "n": numbers}


def doubled(batch):
    """A transform that a pickle can name."""
    batch.data["x"] *= 2
    return batch


class Agent:
    """An agent of somebody's: it has a network, its buffer, and a transform of its own."""

    def __init__(self, **options):
        self.net = torch.nn.Linear(2, 2)
        self.scale = 3.0
        self.buffer = ReplayBuffer(16, batch_size=4, seed=7, transform=self.scaled, **options)

    def scaled(self, batch):
        batch.data["x"] *= self.scale
        return batch


class Derived(ReplayBuffer):
    """A class of a user, with other arguments and an attribute of its own."""

    def __init__(self, name):
        super().__init__(16, batch_size=4, item=ITEM)
        self.name = name


def saved(agent):
    file = io.BytesIO()
    torch.save(agent, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda agent: pickle.loads(pickle.dumps(agent)),
    "torch.save": saved,
}


@pytest.mark.parametrize("how", COPIES)
def test_an_agent_with_a_buffer(how):
    agent = Agent(sampler=fbuf.Prioritized(), prefetch=2)
    agent.buffer.extend(rows(0))
    agent.buffer.sample()
    other = COPIES[how](agent)
    other.scale = -1.0  # its transform is its own
    for _ in range(3):
        one, two = agent.buffer.sample(), other.buffer.sample()
        assert torch.equal(one.data["n"], two.data["n"])
    assert torch.equal(two.data["x"][:, 0], -two.data["n"].float())
    other.buffer.extend(rows(6))
    assert (len(agent.buffer), len(other.buffer)) == (6, 12)


@pytest.mark.parametrize(
    "options", [{}, {"item": ITEM}, {"host": True, "item": ITEM}], ids=["new", "empty", "host"]
)
def test_buffers_of_any_age_and_kind(options):
    buffer = ReplayBuffer(16, batch_size=4, transform=doubled, **options)
    for other in (copy.copy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert (len(other), other.seed) == (0, buffer.seed)
        other.extend(rows(0))
        batch = other.sample()
        assert torch.equal(batch.data["x"][:, 0], 2 * batch.data["n"].float())
    buffer.extend(rows(0), terminated=torch.zeros(6, dtype=torch.bool))
    buffer.extend(rows(6))
    assert torch.equal(copy.deepcopy(buffer)[:]["n"], torch.arange(12).int())


def test_open_episodes_go_on_in_a_copy_and_end_in_a_pickle():
    buffer = ReplayBuffer(16, batch_size=4)
    buffer.extend(rows(0))
    for other, number in ((copy.deepcopy(buffer), 1), (pickle.loads(pickle.dumps(buffer)), 2)):
        other.extend(rows(6))
        assert len(list(other.episodes())) == number


def test_a_derived_class_keeps_its_own_attributes():
    one = Derived("mine")
    one.extend(rows(0))
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert (type(other), other.name, len(other)) == (Derived, "mine", 6)


def test_an_attribute_that_is_not_there_yet():
    buffer = ReplayBuffer(16)
    assert not hasattr(buffer, "state")
    with pytest.raises(RuntimeError, match="nothing has been added yet"):
        _ = buffer.state
    buffer.add(ITEM)
    assert hasattr(buffer, "state")
    assert not hasattr(ReplayBuffer(16, item=ITEM, host=True), "state")
    buffer.close()
    assert getattr(buffer, "state", None) is None


# Buffers made of a state.


def state_of(capacity=16, **options):
    state = fbuf.init({"x": jnp.zeros(2), "n": jnp.int32(0)}, capacity, **options)
    numbers = jnp.arange(12, dtype=jnp.int32)
    given = {"x": jnp.tile(numbers[:, None], 2).astype(jnp.float32), "n": numbers}
    if options.get("num_envs"):
        given = jax.tree.map(lambda leaf: leaf.reshape(2, 6, *leaf.shape[1:]), given)
    more = {"next_observation": given["n"]} if options.get("next_of") else {}
    return fbuf.add(state, given, **more)


def test_a_state_becomes_a_buffer(tmp_path):
    state = state_of(sampler=fbuf.Prioritized())
    fbuf.save(tmp_path / "saved", fbuf.update_priority(
        jax.tree.map(jnp.copy, state), fbuf.ids_at(state, jnp.arange(12)), jnp.arange(12.0)
    ))  # fmt: skip
    for kind in (ReplayBuffer, TensorDictReplayBuffer):
        buffer = kind.from_state(fbuf.load(tmp_path / "saved").state, batch_size=64, seed=1)
        assert len(buffer) == 12
        batch = buffer.sample()
        number = batch["n"] if kind is TensorDictReplayBuffer else batch.data["n"]
        assert set(number.tolist()) <= set(range(1, 12))  # the first one has no priority
        assert torch.equal(buffer[:]["n"], torch.arange(12).int())
        buffer.extend(rows(12) if kind is ReplayBuffer else TensorDict(rows(12), batch_size=[6]))
        assert sorted(buffer[:]["n"].tolist()) == list(range(2, 18))
    one, two = fbuf.split(state_of(num_envs=2), None, 0.5)
    for part, of in ((one, range(6)), (two, range(6, 12))):
        assert sorted(ReplayBuffer.from_state(part)[:]["n"].reshape(-1).tolist()) == list(of)


def test_an_empty_state_and_a_store():
    empty = ReplayBuffer.from_state(fbuf.init({"x": jnp.zeros(2), "n": jnp.int32(0)}, 16))
    with pytest.raises(RuntimeError, match="the buffer is empty"):
        empty.sample(4)
    empty.extend(rows(0))
    assert len(empty) == 6
    for kind in (ReplayBuffer, TensorDictReplayBuffer):
        store = HostStore({"x": jnp.zeros(2), "n": jnp.int32(0)}, 16)
        store.add({"x": jnp.ones((3, 2)), "n": jnp.arange(3, dtype=jnp.int32)})
        buffer = kind.from_state(store, batch_size=4)
        assert len(buffer) == 3
        buffer.sample()
    assert len(ReplayBuffer.from_state(state_of(), host=True)) == 12


def test_what_a_state_was_made_with_stands():
    with pytest.raises(ValueError, match=r"capacity=20, but the state has 16; leave out"):
        ReplayBuffer.from_state(state_of(), capacity=20)
    with pytest.raises(ValueError, match=r"sampler=Shuffled.* the state has Unif.*num_envs=3"):
        TensorDictReplayBuffer.from_state(state_of(), sampler=fbuf.Shuffled(), num_envs=3)
    same = ReplayBuffer.from_state(state_of(next_of="n", max_ends=3), max_ends=3, next_of="n")
    assert len(same) == 12
    with pytest.raises(ValueError, match="next_of='n', which this class lacks"):
        TensorDictReplayBuffer.from_state(state_of(next_of="n"))
    with pytest.raises(InteropError, match="got tuple; give the state alone"):
        ReplayBuffer.from_state((state_of(),))
    with pytest.raises(InteropError, match=r"must be a fbuf\.State or a HostStore, got dict"):
        ReplayBuffer.from_state({})
    with pytest.raises(InteropError, match="not dicts of dicts"):
        TensorDictReplayBuffer.from_state(fbuf.init(jnp.zeros(2), 4))
    consumed = state_of()
    fbuf.add(consumed, {"x": jnp.zeros((1, 2)), "n": jnp.zeros(1, jnp.int32)})
    with pytest.raises(RuntimeError, match="consumed"):
        ReplayBuffer.from_state(consumed)
    many = jax.vmap(lambda _: fbuf.init(jnp.zeros(2), 4))(jnp.arange(3))
    with pytest.raises(InteropError, match=r"a batch of \(3,\) buffers"):
        ReplayBuffer.from_state(many)


def test_the_room_for_ends_of_a_state_grows():
    item = {"observation": jnp.zeros(()), "reward": jnp.zeros(())}
    buffer = ReplayBuffer.from_state(
        fbuf.init(item, 64, next_of="observation", max_ends=2),
        batch_size=32, view=fbuf.Transition(),
    )  # fmt: skip
    numbers = torch.arange(40.0)
    given = {"observation": numbers, "reward": numbers}
    buffer.extend(given, next_observation=numbers, terminated=torch.ones(40, dtype=torch.bool))
    buffer.raise_on_fault()
    assert buffer.sample().mask.all()
