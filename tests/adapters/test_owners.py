"""Every object that has a buffer, in every place that takes one: it works, or refuses in words."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("torch")
pytest.importorskip("tensordict")
pytest.importorskip("stable_baselines3")

import torch
from fbuf_adapters import brax, sb3
from fbuf_adapters.datasets import from_arrays, to_npz
from fbuf_adapters.gymnasium import Collector
from fbuf_adapters.pytorch import ReplayBuffer
from fbuf_adapters.tensordict import TensorDictReplayBuffer
from gymnasium import spaces
from jax.sharding import Mesh
from support.environments import policy, vector
from tensordict import TensorDict

import fbuf
from fbuf.adapter_api import TRUNCATED, Asked, Holder, owner_of, resumed
from fbuf.host import HostStore

ROWS = {
    "observation": np.arange(12, dtype=np.float32).reshape(4, 3),
    "action": np.arange(4, dtype=np.int32),
    "reward": np.arange(4, dtype=np.float32),
}
ITEM = jax.tree.map(lambda leaf: leaf[0], ROWS)
TENSORS = {name: torch.tensor(rows) for name, rows in ROWS.items()}


@dataclasses.dataclass
class Mine:
    """An object of somebody else, which one line makes known."""

    state: Any
    lock: Any = dataclasses.field(default_factory=threading.Lock)


Holder.register(Mine, lambda mine, function: mine.state)


def plain(item=ITEM, **options):
    return fbuf.init(item, 8, **options)


def host(item=ITEM, **options):
    return HostStore(item, 8, **options)


def sharded(item=ITEM, **options):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    return fbuf.sharded.init(item, 8, mesh=mesh, shards=2, **options)


def tensors(**options):
    buffer = ReplayBuffer(8, **options)
    buffer.extend(TENSORS)
    return buffer


def tensors_on_host():
    return tensors(host=True)


def tensordicts():
    buffer = TensorDictReplayBuffer(8)
    buffer.extend(TensorDict(TENSORS, [4]))
    return buffer


def stable():
    box = spaces.Box(-9, 99, (3,), np.float32)
    buffer = sb3.ReplayBuffer(8, box, spaces.Discrete(9), "cpu")
    for row in ROWS["observation"]:
        zero = np.zeros(1)
        buffer.add(row[None], row[None] + 3, np.zeros((1, 1), np.int64), zero, zero, [{}])
    return buffer


def scanned():
    buffer = brax.UniformSamplingQueue(8, ITEM, 2)
    return buffer.insert(buffer.init(jax.random.PRNGKey(0)), ROWS)


def mine():
    return Mine(fbuf.add(plain(), ROWS))


WHOLE = {plain: fbuf.State, host: HostStore, sharded: fbuf.sharded.ShardedState}
"""Buffers that others change: what makes one, and its class."""

HOLDERS = {
    tensors: ReplayBuffer,
    tensors_on_host: ReplayBuffer,
    tensordicts: TensorDictReplayBuffer,
    stable: sb3.ReplayBuffer,
    scanned: brax.ReplayBufferState,
    mine: Mine,
}
"""Objects that change their buffer themselves."""


def collect(buffer, path):
    with Collector(vector(2), policy) as collector:
        return collector.collect(buffer, 3)


def load(buffer, path):
    ends = np.arange(4) == 3
    return from_arrays(ROWS, buffer, terminated=ends, truncated=~ends & ends)


def write(buffer, path):
    to_npz(buffer, path)
    return buffer


def go_on(buffer, path):
    return resumed(buffer, "end", "fbuf.load")


USES = {
    collect: "state must be a fbuf.State, a fbuf.sharded.ShardedState or a HostStore",
    load: "into must be a fbuf.State or a HostStore",
    write: "state must be a fbuf.State or a HostStore",
    go_on: "state must be a fbuf.State",
}
"""Places that take a buffer, and the buffers that each of them says it takes."""


def test_the_tables_have_every_class_that_is_registered():
    known = {kind for kind in owner_of.registry if kind.__module__.startswith("fbuf")}
    assert {*WHOLE.values(), *HOLDERS.values()} == {*known, Mine}


@pytest.mark.parametrize("make", HOLDERS)
def test_a_report_on_an_object(make):
    assert fbuf.report(make()).figures["rows"] == 4


@pytest.mark.parametrize("make", WHOLE)
def test_a_collector_fills_a_buffer_and_a_loaded_one_ends_its_episodes(make, tmp_path):
    with Collector(vector(2), policy) as collector:
        buffer = collector.collect(make(collector.item, **collector.options), 2)
    report = fbuf.report(buffer)
    assert report.figures["rows"] >= 2
    flags = [np.asarray(state.ring.flags) & TRUNCATED > 0 for state in states_of(buffer)]
    buffer = go_on(buffer, tmp_path)
    ended = [np.asarray(state.ring.flags) & TRUNCATED > 0 for state in states_of(buffer)]
    assert np.sum(ended) > np.sum(flags)


def states_of(buffer):
    return owner_of(buffer, Asked("test")).whole()


@pytest.mark.parametrize("make", [plain, host])
def test_a_data_set_goes_into_a_buffer_and_out_of_it(make, tmp_path):
    buffer = write(load(make(), None), tmp_path / "rows.npz")
    assert fbuf.report(buffer).figures["rows"] == 4
    with np.load(tmp_path / "rows.npz") as file:
        for name, rows in ROWS.items():
            np.testing.assert_array_equal(file[name], rows)


REFUSED = [(use, make) for use in USES for make in HOLDERS] + [(load, sharded), (write, sharded)]


@pytest.mark.parametrize(("use", "make"), REFUSED)
def test_a_place_refuses_what_it_cannot_change(use, make, tmp_path):
    buffer = make()
    name = (WHOLE | HOLDERS)[make].__name__
    with pytest.raises(TypeError, match=f"{USES[use]}, got {name}") as raised:
        use(buffer, tmp_path / "rows.npz")
    # The rows of other objects may have another form inside: only these have such a state.
    has_state = make in (tensors, mine)
    assert ("give its state, as in collector.state" in str(raised.value)) == has_state
    if make in HOLDERS:
        assert fbuf.report(buffer).figures["rows"] == 4  # nothing has changed


def test_a_report_holds_the_lock():
    buffer = mine()

    class Waits(Mine):
        @property
        def state(self):
            assert buffer.lock.locked()
            return buffer.state

        @state.setter
        def state(self, state):
            pass

    assert fbuf.report(Waits(None, buffer.lock)).figures["rows"] == 4
    assert not buffer.lock.locked()


@pytest.mark.parametrize("use", [lambda buffer, path: fbuf.report(buffer), *USES])
def test_what_is_no_buffer(use):
    with pytest.raises(TypeError, match="got dict"):
        use({}, "rows.npz")
    with pytest.raises(TypeError, match="got tuple; give the state alone"):
        use((plain(), 3), "rows.npz")
