"""What `fbuf plan` says of rows on the host, and what a store has."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from fbuf_adapters.host import HostStore

import fbuf
from fbuf.command import plan

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
    on_disk = sum(len(file) for rows in (store._rows, store._kept) if rows for file in rows.maps)
    assert on_disk == (rows if in_files else 0)
