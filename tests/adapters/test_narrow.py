"""Casts to narrower dtypes."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters._narrow import Misfit, narrow


@pytest.mark.parametrize(
    ("array", "dtype", "expected"),
    [
        (np.array([[-(2**31), 2**31 - 1]]), "int32", [[-(2**31), 2**31 - 1]]),
        (np.array([0, 2**32 - 1], np.uint64), "uint32", [0, 2**32 - 1]),
        (np.array([True, False]), "int8", [1, 0]),
        (np.array([np.inf, -np.inf, 1e-300]), "float32", [np.inf, -np.inf, 0]),
        (np.array([2**24 + 1]), "float32", [2**24]),
        (np.zeros((0, 3), np.int64), "int8", np.zeros((0, 3))),
        (np.array([-8, 7]), "int4", [-8, 7]),
        (np.array([500.0, np.inf]), "float8_e5m2", [512, np.inf]),
        (np.array([1 - 2j, np.inf]), "complex64", [1 - 2j, np.inf]),
    ],
)
def test_numbers_that_fit_are_cast(array, dtype, expected):
    found = narrow(array, jnp.dtype(dtype))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)


def test_an_array_of_the_dtype_is_not_copied():
    array = np.zeros(3, np.float32)
    assert narrow(array, array.dtype) is array


@pytest.mark.parametrize(
    ("array", "dtype", "index"),
    [
        (np.array([[0, 1], [2**31, 2**31]]), "int32", (1, 0)),
        (np.array([0, -1]), "uint8", (1,)),
        (np.array([1, 2**63], np.uint64), "int32", (1,)),
        (np.array([np.inf, 1.0, -1e39]), "float32", (2,)),
        (np.array(1e300), "float32", ()),
        (np.array([2**63], np.uint64), "int64", (0,)),
        (np.array([1, -1]), "uint64", (1,)),
        (np.array([7, 8]), "int4", (1,)),
        (np.array([0.0, 1e39]), "bfloat16", (1,)),
        (np.array([0, 1e39j]), "complex64", (1,)),
        (np.array([0, 70_000]), "float16", (1,)),
    ],
)
def test_the_first_number_that_does_not_fit_is_named(array, dtype, index):
    with pytest.raises(Misfit, match=re.escape(f"{array[index]} does not fit")) as raised:
        narrow(array, jnp.dtype(dtype))
    assert raised.value.index == index
    assert raised.value.value == array[index]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_exact_refuses_an_integer_that_a_float_rounds(dtype, kind):
    bits = jnp.finfo(dtype).nmant + 1
    exact = np.array([0, 2**bits - 1, 2**bits], kind)
    np.testing.assert_array_equal(narrow(exact, jnp.dtype(dtype), exact=True), exact)
    for too_fine in (2**bits + 1, np.iinfo(kind).max):
        with pytest.raises(Misfit, match=f"^{too_fine} does not fit"):
            narrow(np.array([1, too_fine], kind), jnp.dtype(dtype), exact=True)
