"""Reading rows of a buffer of TensorDicts by position, and whole episodes."""

import threading

import pytest

import fbuf

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")
pytest.importorskip("torchrl")

import numpy as np  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.buffer import _reading  # noqa: E402 (after the skip)
from fbuf_adapters.tensordict import TensorDictReplayBuffer  # noqa: E402 (after the skip)
from tensordict import TensorDict  # noqa: E402 (after the skip)
from torchrl.data import LazyTensorStorage  # noqa: E402 (after the skip)
from torchrl.data import TensorDictReplayBuffer as Theirs  # noqa: E402 (after the skip)

CAPACITY = 10


def rows(count, start=0):
    t = torch.arange(start, start + count)
    data = {"t": t, "wide": t.double().unsqueeze(-1) / 3, "next": {"done": (t % 4 == 3)[:, None]}}
    return TensorDict(data, batch_size=[count])


def both(count):
    mine, peer = TensorDictReplayBuffer(CAPACITY), Theirs(storage=LazyTensorStorage(CAPACITY))
    for rb in (mine, peer):
        rb.extend(rows(count))
    return mine, peer


INDICES = (
    *(3, -1, slice(None), slice(-5, None), slice(2, 6, 3), slice(4, 2)),
    *(torch.tensor([1, 1, 4]), torch.tensor([[0, 2], [-1, 1]]), [2, 0], np.array([5, 1])),
    *(torch.arange(6) % 2 == 0, "t", ("next", "done")),
)


def assert_same(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
        return
    assert one.batch_size == other.batch_size
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    for key in one.keys(True, True):
        assert one[key].dtype == other[key].dtype, key
        assert torch.equal(one[key], other[key]), key


@pytest.mark.sweep
def test_rows_are_read_by_position_as_from_torchrl():
    mine, peer = both(6)
    for index in INDICES:
        assert_same(mine[index], peer[index])
    for index in (6, -7, torch.tensor([6])):
        with pytest.raises(IndexError):
            mine[index]
    mine, peer = both(13)  # around the end: positions are slots
    assert_same(mine[:], peer[:])
    assert mine[:]["t"].tolist() == [10, 11, 12, *range(3, 10)]
    assert mine[2]["t"] == 12


def test_what_is_read_is_the_callers():
    mine, _ = both(6)
    mine[:].zero_()
    assert mine[:]["t"].tolist() == list(range(6))


def test_rows_cannot_be_written_by_position():
    mine, _ = both(6)
    with pytest.raises(TypeError, match=r"extend\(\).*buffer\.write"):
        mine[0] = mine[1]


def test_transforms_are_applied_to_what_is_read():
    mine, peer = both(6)
    for rb in (mine, peer):
        rb.append_transform(lambda data: data.set("twice", data["t"] * 2))
        assert rb[3]["twice"] == 6
        assert rb[:]["twice"].tolist() == list(range(0, 12, 2))


def test_removed_rows_are_not_read():
    mine, _ = both(6)
    mine.buffer.remove(fbuf.ids_at(mine.buffer.state, np.array([2], np.int32)))
    assert mine[:]["t"].tolist() == mine[:]["index"].tolist() == [0, 1, 3, 4, 5]
    with pytest.raises(IndexError, match="slot 2 was removed"):
        mine[2]
    assert [episode["t"].tolist() for episode in mine.episodes()] == [[0, 1], [3], [4, 5]]


def test_episodes_come_whole_and_in_order():
    mine, _ = both(13)
    found = list(mine.episodes())
    assert [episode["t"].tolist() for episode in found] == [[3], [4, 5, 6, 7], [8, 9, 10, 11], [12]]
    assert found[2]["wide"].dtype == torch.float64
    assert found[2]["index"].tolist() == [8, 9, 0, 1]
    told = []
    for episode in mine.episodes():
        told.append(episode["t"].tolist())
        if len(told) == 1:
            mine.extend(rows(3, 13))  # which replaces the next one
    assert told == [[3], [8, 9, 10, 11], [12]]


@pytest.mark.sweep
def test_environments():
    rb = TensorDictReplayBuffer(CAPACITY, num_envs=2)
    for start in (0, 4):
        t = torch.arange(start, start + 4).expand(2, 4) + torch.tensor([[0], [100]])
        done = (t % 100 == 2).unsqueeze(-1)
        rb.extend(TensorDict({"t": t, "next": {"done": done}}, batch_size=[2, 4]))
    assert rb[:]["t"].tolist() == [[5, 6, 7, 3, 4], [105, 106, 107, 103, 104]]
    assert rb[1]["t"].tolist() == [105, 106, 107, 103, 104]
    assert rb[0, -1]["t"] == 4
    assert [episode["t"].tolist() for episode in rb.episodes()] == [
        [3, 4, 5, 6, 7],
        [103, 104, 105, 106, 107],
    ]


def test_rows_become_tensors_in_the_callers_thread(monkeypatch):
    """The stream that waits for rows on a GPU is that of the thread that makes tensors of them."""
    threads, to_torch = [], _reading.to_torch

    def noted(tree):
        threads.append(threading.current_thread())
        return to_torch(tree)

    monkeypatch.setattr(_reading, "to_torch", noted)
    mine, _ = both(6)
    assert len(mine[:]) == 6
    assert [len(episode) for episode in mine.episodes()] == [4, 2]
    assert threads == [threading.current_thread()] * 3


def test_nothing_to_read():
    rb = TensorDictReplayBuffer(CAPACITY)
    with pytest.raises(RuntimeError, match="nothing has been added"):
        rb[:]
    rb.extend(rows(2))
    rb.empty()
    assert len(rb[:]) == 0
    assert list(rb.episodes()) == []
