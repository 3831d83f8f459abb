"""`fbuf plan` of rows on the host, beside a store's own bytes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fbuf
from fbuf.checks import sizes
from fbuf.command import plan
from fbuf.host import HostStore

ITEM = {
    "obs": jax.ShapeDtypeStruct((9, 9, 2), np.uint8),
    "action": jax.ShapeDtypeStruct((), np.int8),
    "reward": jax.ShapeDtypeStruct((), np.float32),
}


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_envs": 4, "sampler": fbuf.Prioritized(window=3), "next_of": "obs"},
        {"num_envs": 4, "next_of": "obs", "max_ends": 20, "lockstep": False},
        {"sampler": fbuf.Uniform(window=2, by="episode")},
    ],
)
def test_a_store_takes_what_is_planned(options, in_files, tmp_path):
    capacity = 400
    index, rows = plan.apart(jax.eval_shape(lambda: fbuf.init(ITEM, capacity, **options)))
    store = HostStore(ITEM, capacity, files=tmp_path if in_files else None, **options)
    found = store.stats()
    assert (found["bytes"], found["host_bytes"]) == (index, rows)
    assert index + rows == fbuf.nbytes(ITEM, capacity, **options)
    on_disk = sum(
        len(file)
        for rows in (store.contents.rows, store.contents.kept)
        if rows
        for file in rows.maps
    )
    assert on_disk == (rows if in_files else 0)


@pytest.mark.sweep
def test_a_store_that_is_opened_takes_what_is_planned(tmp_path):
    options = {"num_envs": 4, "next_of": "obs", "max_ends": 20}
    like = jax.eval_shape(lambda: fbuf.init(ITEM, 400, **options))
    HostStore(ITEM, 400, **options).save(tmp_path)
    store, _ = HostStore.open(tmp_path)
    found, few = store.stats(), store.contents.rows._changed.nbytes  # room for what will change
    _, lines = plan.tiers(like)
    (line,) = [line for line in lines if "open" in line[0]]
    assert line[1:3] == [
        sizes.in_words(int(n)) for n in (found["bytes"], found["host_bytes"] - few)
    ]
