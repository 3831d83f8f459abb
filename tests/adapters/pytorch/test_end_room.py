"""The room for last observations grows before one is lost, or the user is told."""

from __future__ import annotations

import warnings

import pytest
import torch
from fbuf_adapters.pytorch import ReplayBuffer

import fbuf

ITEM = {"observation": torch.zeros(9000), "reward": torch.tensor(0.0)}
"""Wide enough for the default room to be a sixteenth of the capacity."""


def buffer_of(**options):
    options = {"item": ITEM, "batch_size": 64, "seed": 0, "view": fbuf.Transition()} | options
    return ReplayBuffer(256, next_of="observation", **options)


def steps(first, count, length):
    """Steps of episodes of a length: each leads half a number further at an end."""
    numbers = torch.arange(first, first + count, dtype=torch.float32)
    ends = (numbers + 1) % length == 0
    wide = numbers[:, None].expand(count, 9000)
    led_to = wide + torch.where(ends, 0.5, 1.0)[:, None]
    return {"observation": wide, "reward": numbers}, led_to, ends


def filled(buffer, length, first=0, calls=3, count=64):
    for call in range(calls):
        items, led_to, ends = steps(first + call * count, count, length)
        buffer.extend(items, next_observation=led_to, truncated=ends)
    return buffer


def check(buffer, length):
    batch = buffer.sample()
    numbers, led_to = batch.data.item["reward"], batch.data.next_observation[:, 0]
    assert batch.mask.all()
    expected = numbers + torch.where((numbers + 1) % length == 0, 0.5, 1.0)
    assert torch.equal(led_to, expected)


@pytest.mark.parametrize("length", [1, pytest.param(3, marks=pytest.mark.sweep)])
def test_no_end_is_lost(length):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer = filled(buffer_of(), length)
        ids = buffer.sample().ids  # and none is late because of the room
        filled(buffer, length, 192, calls=1, count=16)
        buffer.write(ids, {"reward": torch.zeros(64)})
        buffer.raise_on_fault()
        assert (buffer.sample().data.item["reward"] == 0).any()
        filled(buffer, length, 208, calls=9)
    check(buffer, length)


@pytest.mark.parametrize("load", ["load_state_dict", pytest.param("load", marks=pytest.mark.sweep)])
def test_a_buffer_that_has_grown_is_loaded(load, tmp_path):
    buffer = filled(buffer_of(), 1, calls=1)
    buffer.save(tmp_path / "saved")
    again = buffer_of(seed=1)
    given = tmp_path / "saved" if load == "load" else buffer.state_dict()
    getattr(again, load)(given, episodes="keep")
    check(again, 1)
    filled(again, 1, 64)
    again.raise_on_fault()


def test_ends_of_calls_for_one_step_count_too():
    buffer, one = buffer_of(), {"observation": torch.zeros(9000), "reward": torch.tensor(1.0)}
    for end in (True, False) * 40:
        buffer.add(one, terminated=end, next_observation=torch.zeros(9000))
        if not end:
            buffer.end_episode()
    buffer.raise_on_fault()
    buffer.empty()
    filled(buffer, 1)
    check(buffer, 1)


@pytest.mark.parametrize("options", [{"max_ends": 20}, {"host": True}])
def test_where_the_room_stays_a_warning_names_it(options):
    buffer = buffer_of(**options)
    with pytest.warns(UserWarning, match="larger max_ends") as told:
        filled(buffer, 1)
    assert len([one for one in told if "max_ends" in str(one.message)]) == 1
    batch = buffer.sample()
    assert 0 < batch.mask.sum() < 64
    own = batch.data.item["reward"]
    led_to = batch.data.next_observation[:, 0]
    assert torch.equal(led_to, torch.where(batch.mask, own + 0.5, own))


def test_rows_that_a_mask_leaves_out_need_no_room():
    buffer = buffer_of(max_ends=20)
    items, led_to, _ = steps(0, 64, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.extend(
            items, next_observation=led_to, truncated=torch.ones(64, dtype=torch.bool),
            mask=torch.arange(64) < 20,
        )  # fmt: skip
    buffer.raise_on_fault()


def test_a_loaded_buffer_is_looked_at_anew():
    """The one that loads has counted fewer ends than the other has."""
    one, other = (filled(buffer_of(), 1, calls=1, count=count) for count in (1, 20))
    one.load_state_dict(other.state_dict(), episodes="keep")
    filled(one, 1, 20, calls=1, count=25)
    one.raise_on_fault()
    check(one, 1)
