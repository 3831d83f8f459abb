"""Arrays of NumPy, Python numbers and names, as users of PyTorch bring them along."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from fbuf_adapters.pytorch import InteropError, ReplayBuffer

import fbuf

ROWS = {"obs": torch.zeros(6, 3), "action": torch.arange(6), "reward": torch.arange(6.0)}


def filled(**options):
    buffer = ReplayBuffer(16, batch_size=4, **options)
    buffer.extend(ROWS)
    return buffer


def test_arrays_and_numbers_are_taken():
    frozen = np.arange(6, dtype=np.float32)
    frozen.flags.writeable = False
    buffer = ReplayBuffer(16)
    buffer.extend({"obs": np.zeros((6, 3), np.float32), "action": np.arange(6), "reward": frozen})
    buffer.add({"obs": np.ones(3, np.float32), "action": 7, "reward": np.float64(0.5)})
    buffer.add({"obs": np.ones(3, np.float32), "action": np.int64(8), "reward": 1})
    assert buffer["action"].tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
    assert buffer["reward"].tolist() == [0, 1, 2, 3, 4, 5, 0.5, 1]
    new = ReplayBuffer(16)
    new.add({"n": 3, "x": 0.5, "done": True})
    found = {name: leaf.dtype for name, leaf in new[:].items()}
    assert found == {"n": torch.int32, "x": torch.float32, "done": torch.bool}


def test_an_array_is_its_owners_again():
    buffer, rows = ReplayBuffer(4), np.ones(2, np.float32)
    buffer.extend({"x": rows})
    rows[:] = -1
    assert buffer["x"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"action": 2**40}, r"item\['action'\] \(torch.int64 of shape \(\)\)"),
        ({"reward": 1e300}, r"item\['reward'\] \(torch.float64 of shape \(\)\) is 64-bit"),
        ({"action": 0.5}, r"item\['action'\] must be int32, .* got float32"),
        ({"obs": np.zeros(3)}, r"item\['obs'\] \(torch.float64 of shape \(3,\)\) is 64-bit"),
        ({"obs": np.zeros(3, ">f4")}, r"item\['obs'\] \(>f4 of shape \(3,\)\) is not a tensor"),
        ({"obs": "text"}, r"item\['obs'\] \(str\) is not a tensor"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_name(item, message):
    buffer = filled()
    good = {"obs": torch.zeros(3), "action": 1, "reward": 0.0}
    with pytest.raises((TypeError, ValueError), match=message.replace("item", "items?")):
        buffer.add({**good, **item})
    assert len(buffer) == 6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.extend(ROWS, terminated=torch.zeros(6)), r"terminated .*with \.bool\(\)"),
        (lambda b: b.extend(ROWS, terminated=[True] * 6), r"extend: .*use torch\.as_tensor"),
        (
            lambda b: b.extend({**ROWS, "reward": torch.arange(6)}),
            r"ReplayBuffer\.extend: .*\.to\(torch\.float32\)",
        ),
        (
            lambda b: b.remove(b.sample().ids, mask=torch.ones(4)),
            r"ReplayBuffer\.remove: mask must be bool.*\.bool\(\)",
        ),
        (
            lambda b: b.update_priority(b.sample().ids, torch.ones(4, 1)),
            r"ReplayBuffer\.update_priority: priority must be of shape \(4,\)",
        ),
    ],
)  # fmt: skip
def test_messages_speak_torch(call, message):
    with pytest.raises((TypeError, ValueError), match=message) as told:
        call(filled(sampler=fbuf.Prioritized()))
    assert "astype" not in str(told.value)


def test_rows_by_name_by_position_and_backwards():
    buffer = filled()
    assert buffer["reward"].tolist() == [0, 1, 2, 3, 4, 5]
    assert buffer[::-1]["reward"].tolist() == [5, 4, 3, 2, 1, 0]
    assert buffer[4:1:-2]["reward"].tolist() == [4, 2]
    assert buffer[-1]["reward"] == 5
    assert buffer[9:]["reward"].tolist() == []
    for position in (6, -7):
        with pytest.raises(IndexError, match=f"position {position} .*the buffer holds 6 rows"):
            buffer[position]
    with pytest.raises(KeyError, match="called 'x'; there are 'action', 'obs', 'reward'"):
        buffer["x"]
    deep = ReplayBuffer(4)
    deep.extend({"next": {"reward": torch.ones(2)}, "x": torch.zeros(2)})
    assert deep["next", "reward"].tolist() == [1, 1]
    assert deep["next"].keys() == {"reward"}
    with pytest.raises(KeyError, match=r"called \('next', 'x'\); there are 'reward'"):
        deep["next", "x"]
    bare = ReplayBuffer(4)
    bare.extend(torch.arange(3.0))
    with pytest.raises(KeyError, match="it has no fields"):
        bare["x"]
    with pytest.raises(InteropError, match="not a tensor"):
        bare.add("x")


def test_a_load_names_what_differs_in_the_sampler(tmp_path):
    filled(sampler=fbuf.Prioritized(alpha=0.5)).save(tmp_path)
    buffer = ReplayBuffer(16, sampler=fbuf.Prioritized())
    with pytest.raises(
        ValueError, match=r"Prioritized of the checkpoint has alpha=0\.5, and .* 0\.6;"
    ):
        buffer.load(tmp_path)
