"""TensorDicts in TensorDicts keep their batch sizes and names on every way out of a buffer."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from fbuf_adapters import pytorch
from fbuf_adapters.tensordict import TensorDictReplayBuffer, from_torchrl
from tensordict import TensorDict

import fbuf

AGENTS, ARMS = 3, 2


def rows(*lead, first=0):
    """Rows of several agents, each of which has several arms; names for the agents alone."""
    number = torch.arange(first, first + torch.Size(lead).numel()).reshape(lead).float()
    wide = number.reshape(*lead, 1, 1).expand(*lead, AGENTS, 4).clone()
    arm = TensorDict({"angle": number.reshape(*lead, 1, 1).expand(*lead, AGENTS, ARMS).clone()})
    arm.batch_size = [*lead, AGENTS, ARMS]
    agents = TensorDict({"obs": wide, "arm": arm}, batch_size=[*lead, AGENTS])
    info = TensorDict({"time": number.clone()}, batch_size=lead)
    end = (number % 4 == 3).unsqueeze(-1)
    following = TensorDict({"terminated": end, "agents": agents.clone()}, batch_size=lead)
    whole = TensorDict({"agents": agents, "info": info, "next": following}, batch_size=lead)
    for named in (whole["agents"], whole["next", "agents"]):
        named.names = [*[None] * len(lead), "agent"]  # in another TensorDict it would lose them
    return whole


def check(batch, *lead):
    """The shapes of `rows`, in rows of these leading axes; all numbers of a row are equal."""
    assert batch.batch_size == lead
    for agents in (batch["agents"], batch["next", "agents"]):
        assert agents.batch_size == (*lead, AGENTS)
        assert list(agents.names) == [*[None] * len(lead), "agent"]
        assert agents["arm"].batch_size == (*lead, AGENTS, ARMS)
        flat = agents.flatten(0, len(lead))
        assert flat.batch_size == (torch.Size(lead).numel() * AGENTS,)
        number = batch["info", "time"].reshape(-1, 1, 1)
        assert (agents["obs"].reshape(-1, AGENTS, 4) == number).all()
    assert batch["info"].batch_size == batch["next"].batch_size == lead


def filled(**options):
    rb = TensorDictReplayBuffer(32, batch_size=8, seed=0, **options)
    rb.extend(rows(16) if options.get("num_envs") is None else rows(2, 8))
    return rb


def test_batches_rows_and_episodes():
    rb = filled()
    check(rb.sample(), 8)
    check(rb[:], 16)
    check(rb[torch.tensor([[0, 3], [2, 1]])], 2, 2)
    check(rb[5])
    check(next(rb.episodes()), 4)
    rb.add(rows())
    check(rb[16])


def test_environments_and_lists():
    check(filled(num_envs=2).sample(), 8)
    check(filled(num_envs=2)[:], 2, 8)
    rb = TensorDictReplayBuffer(32, batch_size=8)
    rb.extend([rows(first=number) for number in range(8)])
    check(rb.sample(), 8)


def test_transforms_see_them():
    """A transform reads the agents' axis, and one that writes has it, too."""
    seen = []
    rb = filled(transform=lambda batch: seen.append(batch["agents"].batch_size) or batch)
    check(rb.sample(), 8)
    assert seen == [(8, AGENTS)]


@pytest.mark.parametrize("slices", ["flat", "padded"])
def test_slices(slices):
    boundary = {"flat": "stop", "padded": "pad"}[slices]
    window = 2 if slices == "flat" else 1
    rb = filled(
        sampler=fbuf.Uniform(window=window),
        view=fbuf.Sequence(2, boundary=boundary),
        slices=slices,
    )
    check(rb.sample(), 8)


def test_views():
    rb = filled(sampler=fbuf.Uniform(window=2), view=fbuf.Sequence(2), slices="nested")
    agents = rb.sample()["item", "agents"]
    assert agents.batch_size == (8, 2, AGENTS)
    assert list(agents.names) == [None, None, "agent"]
    assert agents["arm"].batch_size == (8, 2, AGENTS, ARMS)
    rb = filled(view=fbuf.Window({"agents.obs": (0, 1)}))
    item = rb.sample()["item"]
    assert item["agents"].batch_size == (8,)
    assert item["next", "agents"].batch_size == (8, AGENTS)
    rb = filled(view=fbuf.Item(fields=("next.agents",)))
    assert rb.sample()["next.agents"].batch_size == (8, AGENTS)


def test_copies_and_files(tmp_path):
    rb = filled(prefetch=2)
    rb.sample()
    rb.dumps(tmp_path / "saved")
    again = TensorDictReplayBuffer(32, batch_size=8, prefetch=2)
    again.loads(tmp_path / "saved", episodes="keep")
    state = torch.load(saved(rb.state_dict(), tmp_path / "state.pt"))
    loaded = TensorDictReplayBuffer(32, batch_size=8, prefetch=2)
    loaded.load_state_dict(state, episodes="keep")
    for copied in (again, loaded, copy.deepcopy(rb), pickle.loads(pickle.dumps(rb))):
        assert len(copied.buffer.contents.stream.waiting()[0]) == 2
        for _ in range(3):  # those drawn ahead come first
            check(copied.sample(), 8)
        check(copied[:], 16)


def saved(tree, path):
    torch.save(tree, path)
    return path


def test_a_buffer_of_torchrl():
    data = pytest.importorskip("torchrl.data")
    for storage in (data.LazyTensorStorage, data.ListStorage):
        theirs = data.TensorDictReplayBuffer(storage=storage(32), batch_size=8)
        theirs.extend(rows(16))
        check(from_torchrl(theirs).sample().exclude("_weight"), 8)
        check(from_torchrl(theirs)[:], 16)


def test_rows_held_back_by_a_transform():
    from fbuf_adapters.tensordict import _pending
    from torchrl.envs.transforms import MultiStepTransform

    step = MultiStepTransform(n_steps=3, gamma=0.9)
    step._buffer = rows(1, 4)
    held = _pending.saved([step])
    _pending.load([step], held, "keep")
    check(step._buffer, 1, 4)


def test_items_of_the_buffer_of_tensors(tmp_path):
    buffer = pytorch.ReplayBuffer(32, batch_size=8)
    buffer.extend(rows(16))
    check(buffer.sample().data, 8)
    check(buffer[:], 16)
    check(next(buffer.episodes()), 16)
    buffer.save(tmp_path / "saved")
    for load in ("load", "load_state_dict"):
        again = pytorch.ReplayBuffer(32, batch_size=8)
        getattr(again, load)(tmp_path / "saved" if load == "load" else buffer.state_dict())
        check(again.sample().data, 8)
    steps = pytorch.ReplayBuffer(32, batch_size=8, num_envs=2)
    steps.add(rows(2))
    check(steps.sample().data, 8)
    of_item = pytorch.ReplayBuffer(32, item=rows(), batch_size=8)
    of_item.extend(rows(16))
    check(of_item.sample().data, 8)


def test_an_item_with_axes_of_its_own():
    data = rows(8, 5)
    data.names = [None, "time"]
    buffer, rb = pytorch.ReplayBuffer(8, batch_size=4), TensorDictReplayBuffer(8, batch_size=4)
    buffer.extend(data)
    rb.extend(data)
    for batch in (buffer.sample().data, rb.sample()):
        assert list(batch.names) == [None, "time"]
        check_names = batch["agents"]
        assert check_names.batch_size == (4, 5, AGENTS)
        assert batch["info"].batch_size == (4, 5)


def test_an_older_checkpoint_learns_them_from_the_next_rows():
    rb = filled()
    state = rb.state_dict()
    del state["nodes"]
    old = TensorDictReplayBuffer(32, batch_size=8)
    old.load_state_dict(state)
    assert old.sample()["agents"].batch_size == (8,)
    old.extend(rows(4, first=16))
    check(old.sample(), 8)
