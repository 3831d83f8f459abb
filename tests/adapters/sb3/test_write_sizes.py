"""The programs that write staged steps: few of them, and few calls."""

from __future__ import annotations

import pytest
from fbuf_adapters.sb3._write_sizes import WriteSizes


def written(sizes, count, room=1024):
    """The sizes of the calls that write so many steps."""
    calls = []
    while count > 0:
        calls.append(sizes.fitting(count, room))
        count -= calls[-1]
    return calls


@pytest.mark.parametrize(
    ("first", "then", "calls"),
    [
        (100, 4, ([4] * 25, [4])),  # a warm-up, and an agent that learns at every fourth step
        (100, 1, ([4] * 25, [4])),  # SAC: the steps after the first are padded
        (1000, 4, ([16] * 63, [16])),
        (1, 4, ([1], [1] * 4)),
        (4, 1024, ([4], [16] * 64)),
        (1024, 1, ([16] * 64, [16])),
        (64, 64, ([4] * 16, [4] * 16)),
    ],
)
def test_one_program_serves_the_warm_up_and_the_steps_after_it(first, then, calls):
    sizes = WriteSizes()
    assert written(sizes, first) == calls[0]
    assert written(sizes, then) == calls[1]


def test_a_program_more_is_compiled_once_it_would_have_spared_many_calls():
    sizes = WriteSizes()
    calls = [len(written(sizes, 64)) for _ in range(300)]
    assert calls[:125] == [16] * 125
    assert calls[-1] == 1
    assert sum(calls) < 2000 + 400
    assert written(sizes, 1) == [1]  # nor are single steps padded for ever


@pytest.mark.parametrize("room", [2, 4])
def test_no_size_is_larger_than_the_staged_steps(room):
    sizes = WriteSizes()
    for count in [1, 2, *([room, 1] * 4)]:
        assert sum(sizes.fitting(count, room) for _ in range(1)) <= max(room, 4)
    assert sizes.fitting(1, 2) == 1
