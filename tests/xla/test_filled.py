"""New arrays: without a program, and in memory of their own."""

import jax
import numpy as np
import pytest
from support import compiles

import fbuf
from fbuf.xla.filled import copied, filled

ITEM = {"obs": np.zeros(3, np.float32), "action": np.int8(0)}
SAMPLERS = [
    fbuf.Uniform(),
    fbuf.Uniform(window=3),
    fbuf.Prioritized(window=2),
    fbuf.Shuffled(),
    fbuf.FreshFirst(),
    fbuf.Limited(max_uses=2),
    fbuf.Fifo(),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_init_compiles_nothing(sampler):
    options = {} if isinstance(sampler, fbuf.Shuffled) else {"num_envs": 7, "next_of": "obs"}
    with compiles.counted() as programs:
        fbuf.init(ITEM, 7 * 13, sampler=sampler, **options)
    assert programs == []


@pytest.mark.parametrize("sampler", [fbuf.EvictLowest(), fbuf.Reservoir()], ids=str)
def test_neither_where_slots_are_chosen(sampler):
    with compiles.counted() as programs:
        fbuf.init(ITEM, 91, sampler=sampler)
    assert programs == []


@pytest.mark.parametrize("size", [1, 5, 1000, 70_001])
@pytest.mark.parametrize("dtype", [np.uint8, bool, np.float32])
def test_is_written_in_place(size, dtype):
    first = jax.jit(lambda array: array.at[0].set(array[0]), donate_argnums=0)
    for made in (filled(size, -0.0, dtype), copied(np.zeros(size, dtype))):
        place = made.unsafe_buffer_pointer()
        assert first(made).unsafe_buffer_pointer() == place


@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, np.inf])
def test_has_the_bits_of_the_number(value):
    made = np.asarray(filled((3, 5), value, np.float32))
    assert made.tobytes() == np.full((3, 5), value, np.float32).tobytes()


def test_is_traced_inside_a_program():
    text = jax.jit(lambda: filled(7, 3, np.int32)).lower().as_text()
    assert "dense<3>" in text
