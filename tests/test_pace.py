"""Count the gradient steps that are due."""

import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fbuf


def due(pace, added, **kwargs):
    counter, found = pace.init(), []
    for number in added:
        some, counter = pace.due(counter, number, **kwargs)
        found.append(int(some))
    return found


@pytest.mark.sweep
def test_pace_is_exact_however_long_it_counts():
    rng = np.random.default_rng(0)
    for ratio in (0.1, 1 / 3, 0.25, 3, 2.5, fractions.Fraction(7, 13), 0, np.uint8(4)):
        pace = fbuf.Pace(ratio, warmup=37)
        added = rng.integers(0, 50, 300)
        total = max(int(added.sum()) - 37, 0) * pace.fraction
        assert sum(due(pace, added)) == total.numerator // total.denominator
    assert fbuf.Pace(0.1).fraction == fractions.Fraction(1, 10)
    for below in (12_000, 15_000, 25_000, 10**6):
        assert fbuf.Pace(1 / below).fraction == fractions.Fraction(1, below)
    assert sum(due(fbuf.Pace(1 / 15_000), [100_000] * 6)) == 40
    assert due(fbuf.Pace(fractions.Fraction(1, 3)), [2**31 - 1]) == [(2**31 - 1) // 3]


def test_what_is_not_made_now_is_due_later():
    assert due(fbuf.Pace(2), [3, 0, 0, 1, 0], most=4) == [4, 2, 0, 2, 0]


def test_pace_inside_a_compiled_loop():
    pace = fbuf.Pace(0.75, warmup=4)

    @jax.jit
    def run(counter):
        def step(carry, _):
            counter, made = carry
            steps, counter = pace.due(counter, jnp.int32(8))
            return (counter, lax.fori_loop(0, steps, lambda _, n: n + 1, made)), steps

        return lax.scan(step, (counter, jnp.int32(0)), length=5)

    (_, made), each = run(pace.init())
    assert each.tolist() == [3, 6, 6, 6, 6]
    assert made == 27


def test_pace_counts_as_reverb_does():
    pace = fbuf.Pace.from_samples_per_insert(32, 256, warmup=10)
    assert pace == fbuf.Pace(fractions.Fraction(1, 8), warmup=10)
    assert pace.samples_per_insert(256) == 32


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: fbuf.Pace("1"), TypeError),
        (lambda: fbuf.Pace(True), TypeError),
        (lambda: fbuf.Pace(-1), ValueError),
        (lambda: fbuf.Pace(float("nan")), ValueError),
        (lambda: fbuf.Pace(1e-10), ValueError),
        (lambda: fbuf.Pace(10**400), ValueError),
        (lambda: fbuf.Pace(12345.678), ValueError),
        (lambda: fbuf.Pace(1).due(None, 1), TypeError),
        (lambda: fbuf.Pace(1).due(fbuf.Pace(1).init(), None), TypeError),
        (lambda: fbuf.Pace(fractions.Fraction(100_000, 99_999)), ValueError),
        (lambda: fbuf.Pace(1, warmup=-1), ValueError),
        (lambda: fbuf.Pace(1, warmup=0.5), TypeError),
        (lambda: fbuf.Pace(1).due(fbuf.Pace(1).init(), -1), ValueError),
        (lambda: fbuf.Pace(1).due(fbuf.Pace(1).init(), 0.5), TypeError),
        (lambda: fbuf.Pace(1).due(fbuf.Pace(1).init(), True), TypeError),
        (lambda: fbuf.Pace.from_samples_per_insert(1, 0), ValueError),
    ],
)
def test_misuse_of_pace(call, error):
    with pytest.raises(error, match=r"fbuf\.Pace"):
        call()
