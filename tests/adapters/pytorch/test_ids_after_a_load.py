"""Batches that were drawn ahead name their rows after a load, and no others do."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("tensordict")

import torch
from fbuf_adapters.pytorch import ReplayBuffer
from fbuf_adapters.tensordict import TensorDictReplayBuffer
from support import tags
from tensordict import TensorDict

import fbuf

OPTIONS = {"batch_size": 4, "prefetch": 2, "seed": 0, "sampler": fbuf.Prioritized()}


@pytest.fixture(autouse=True)
def _as_users_have_them():
    with tags.as_users_have_them():
        yield


def of_dicts(**options):
    buffer = ReplayBuffer(64, **OPTIONS, **options)
    return buffer, lambda: buffer.extend({"x": torch.arange(50.0)}), buffer


def on_the_host():
    return of_dicts(host=True)


def of_tensordicts():
    buffer = TensorDictReplayBuffer(64, **OPTIONS)
    rows = TensorDict({"x": torch.arange(50.0)}, [50])
    return buffer, lambda: buffer.extend(rows), buffer.buffer


def with_a_transform():
    """The ids are wherever the user has put them."""
    return of_dicts(transform=lambda batch: {"x": batch.data["x"], "more": [{"ids": batch.ids}]})


def ids_of(batch):
    if isinstance(batch, TensorDict):
        return fbuf.Ids(batch["index"].int(), batch["index_generation"])
    return batch["more"][0]["ids"] if isinstance(batch, dict) else batch.ids


@pytest.mark.first(3)
@pytest.mark.parametrize("way", ["state_dict", "directory"])
@pytest.mark.parametrize("kind", [of_dicts, on_the_host, of_tensordicts, with_a_transform])
def test_batches_drawn_ahead_name_their_rows(kind, way, tmp_path):
    old, fill, _ = kind()
    new, _, inner = kind()
    fill()
    for _ in range(2):
        old.sample()
    if way == "state_dict":
        new.load_state_dict(old.state_dict())
    elif isinstance(old, TensorDictReplayBuffer):
        old.dumps(tmp_path)
        new.loads(tmp_path)
    else:
        old.save(tmp_path)
        new.load(tmp_path)
    for _ in range(4):  # two were drawn ahead
        expected, batch = ids_of(old.sample()), ids_of(new.sample())
        assert torch.equal(expected.slot, batch.slot)
        assert not torch.equal(expected.generation, batch.generation)
        inner.update_priority(batch, torch.ones(4))
        assert not inner.stats()["fault"]
    inner.update_priority(expected, torch.ones(4))
    with pytest.raises(RuntimeError, match="before this one was loaded"):
        inner.raise_on_fault()
