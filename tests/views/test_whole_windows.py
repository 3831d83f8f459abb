"""Windows that the sampler knows to be whole: of their steps no view reads more than it must."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf import testing
from fbuf.testing.case import Case, draw, equal, histories

SWEEP = pytest.mark.sweep
VIEWS = {
    "sequence": fbuf.Sequence(2, burn_in=1),
    "time major": fbuf.Sequence(1, bootstrap=2, time_major=True),
    "next": fbuf.Sequence(3, next_of="observation", state="reward"),
    "window": fbuf.Window({"observation": (0, 2), "reward": (-1, 1)}, pad="zero"),
    "n steps": fbuf.NStep(3, gamma=0.9, next_of="observation"),
}
SAMPLERS = {
    "uniform": fbuf.Uniform(window=3),
    "prioritised": fbuf.Prioritized(1.0, eps=0.0, window=3),
    "longer": fbuf.Uniform(window=4, stride=2),
    "by episode": fbuf.Uniform(window=3, by="episode"),
    "first": fbuf.Uniform(window=3, first_only=True),
    "fresh": fbuf.FreshFirst(fbuf.Uniform(window=3), most=5),
    "limited": fbuf.Limited(fbuf.Prioritized(1.0, eps=0.0, window=3), max_age=8),
    "shuffled": fbuf.Shuffled(window=3),
    "mixture": fbuf.Mixture(priorities=fbuf.Prioritized(window=3)),
    "grouped": fbuf.Grouped("number", 2, window=3),
}
QUICK = {("uniform", "sequence"), ("prioritised", "time major"), ("fresh", "sequence"),
         ("longer", "n steps"), ("limited", "next"), ("mixture", "window")}  # fmt: skip
PAIRS = [
    pytest.param(*pair, marks=() if pair in QUICK else SWEEP)
    for pair in ((sampler, view) for sampler in SAMPLERS for view in VIEWS)
]


def test_rows_named_by_ids_need_begin_no_whole_window():
    state = fbuf.init(jnp.int32(0), 8, sampler=fbuf.Uniform(window=3))
    state = fbuf.add(state, jnp.arange(1, 6, dtype=jnp.int32), truncated=jnp.arange(5) == 2)
    ids = fbuf.ids_at(state, jnp.arange(6))
    found = fbuf.read(state, ids, view=fbuf.Sequence(3))
    valid = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(found.data.valid, np.array(valid, bool))
    np.testing.assert_array_equal(
        found.data.item, [[1, 2, 3], [2, 3, 0], [3, 0, 0], [4, 5, 0], [5, 0, 0], [0, 0, 0]]
    )


def test_shorter_episodes_end_where_a_sampler_draws_them_too():
    sampler = fbuf.Uniform(window=3, strict=False)
    state = fbuf.init(jnp.int32(0), 8, sampler=sampler)
    state = fbuf.add(state, jnp.arange(1, 6, dtype=jnp.int32), truncated=jnp.arange(5) == 1)
    view = fbuf.Sequence(3, boundary="pad")
    batch = fbuf.sample(state, jax.random.key(0), 64, view=view)
    short = np.asarray(batch.data.item[:, 0]) == 1
    assert 0 < short.sum() < 64
    np.testing.assert_array_equal(batch.data.item[short], [[1, 2, 0]] * short.sum())


@dataclasses.dataclass(frozen=True)
class Behind(fbuf.Sequence):
    """A sequence that begins a row behind the drawn one: a view may ask for any rows."""

    def request(self, reader, slots, key):
        return super().request(reader, reader.ring.later(slots, 1), key)


def test_steps_from_another_row_than_the_drawn_one_may_reach_an_end():
    state = fbuf.init(jnp.int32(0), 8, sampler=fbuf.Uniform(window=3))
    state = fbuf.add(state, jnp.arange(1, 4, dtype=jnp.int32), truncated=jnp.arange(3) == 2)
    state = fbuf.add(state, jnp.int32([4]))
    batch = fbuf.sample(state, jax.random.key(0), 2, view=Behind(3))
    np.testing.assert_array_equal(batch.data.item, [[2, 3, 0]] * 2)


@dataclasses.dataclass(frozen=True)
class Boastful(fbuf.Uniform):
    """Says that three steps follow every row, and draws all rows."""

    @property
    def min_window(self):
        return 3


def test_a_sampler_that_promises_longer_windows_than_it_draws_is_found():
    options = {"shapes": [(None, 12)], "seeds": [0], "operations": 3, "in_place": False}
    with pytest.raises(AssertionError, match="min_window"):
        testing.check_sampler(Boastful(), **options)


@pytest.mark.parametrize(("sampler", "view"), PAIRS)
def test_a_drawn_window_is_the_one_that_is_read_by_its_id(sampler, view):
    """A read by ids looks at the flags of every step."""
    by, of = SAMPLERS[sampler], VIEWS[view]

    @jax.jit
    def both(state, key):
        _, batch = draw(state, key, 32, view=of)
        return batch, fbuf.read(state, batch.ids, view=of)

    case, options = Case("windows", of), {"make": _rows, "next_of": "observation"}
    drawn = 0
    for number, (here, pair, _) in enumerate(histories(case, by, None, range(2), 8, **options)):
        batch, read = jax.device_get(both(pair.state, jax.random.key(number)))
        axis = 1 if of.time_major else 0
        flags = ("terminated", "truncated")
        one, other = (
            jax.tree.leaves(of_rows.data) + [getattr(of_rows, name) for name in flags]
            for of_rows in (batch, read)
        )
        here.require((batch.mask == read.mask).all(), "a drawn row is masked where it is read")
        for x, y in zip(one, other, strict=True):
            at = axis if x.ndim > axis else 0
            x, y = (np.moveaxis(leaf, at, 0)[batch.mask] for leaf in (x, y))
            here.require(equal(x, y), f"{x.tolist()} is drawn, and {y.tolist()} read")
        drawn += batch.mask.sum()
    assert drawn > 300


def _rows(numbers):
    return testing.rows(numbers) | {"number": np.asarray(numbers, np.int32) % 2}
