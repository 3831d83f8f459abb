"""`torch.compile` around all that is public breaks its graph there, and goes on behind it."""

from __future__ import annotations

import inspect
import operator
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")

import fbuf_adapters.pytorch  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch import ReplayBuffer  # noqa: E402 (after the skip)
from fbuf_adapters.tensordict import TensorDictReplayBuffer  # noqa: E402 (after the skip)
from tensordict import TensorDict  # noqa: E402 (after the skip)

import fbuf  # noqa: E402 (after the skip)
from fbuf.host import Batches, HostStore  # noqa: E402 (after the skip)

KEY = jax.random.key(0)
OURS = {operator.mul, operator.add}
"""The sum that the learner below computes."""


def graphs_around(call):
    """Compile a function that makes a call amid its own work: its result, and its graphs."""
    graphs = []

    def backend(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    @torch.compile(backend=backend)
    def step(x):
        y = x * 2
        found = call()
        return y + 1, found

    torch.compiler.reset()
    y, found = step(torch.ones(3))
    assert torch.equal(y, torch.full((3,), 3.0))
    return found, graphs


def looks_away(call):
    """The graphs have what is the learner's own, and nothing else."""
    found, graphs = graphs_around(call)
    assert graphs == [[operator.mul], [operator.add]]
    return found


def rows(count=8):
    return {"x": torch.arange(float(count)), "next": {"reward": torch.ones(count, 1)}}


class Of:
    """One of everything, made once; what the calls below change is made anew."""

    def __init__(self, folder):
        self.folder = folder
        self.state = fbuf.add(fbuf.init(jnp.float32(0), 16), jnp.arange(8.0))
        self.queue = fbuf.add(fbuf.init(jnp.float32(0), 16, sampler=fbuf.Fifo()), jnp.arange(8.0))
        windows = fbuf.Prioritized(window=2)
        self.prioritized = fbuf.init(jnp.float32(0), 16, sampler=windows)
        self.prioritized = fbuf.add(self.prioritized, jnp.arange(8.0))
        self.ids = fbuf.sample(self.state, KEY, 4).ids
        self.large = jax.eval_shape(lambda: fbuf.init(jnp.float32(0), 2**14))
        self.adding = jax.jit(lambda state: fbuf.add(state, jnp.ones(2)), donate_argnums=0)
        self.sequence = fbuf.sample(self.prioritized, KEY, 4, view=fbuf.Sequence(2))
        self.steps = self.sequence, self.sequence.data.item, self.sequence.data.item
        self.two = dict.fromkeys(("log_prob", "behavior_log_prob"), self.sequence.data.item)
        mesh = jax.make_mesh((1,), ("data",))
        self.sharded = fbuf.sharded.init(jnp.float32(0), 16, mesh=mesh)
        self.sharded = fbuf.sharded.add(self.sharded, jnp.arange(8.0))
        self.sharded_ids = fbuf.sharded.sample(self.sharded, KEY, 4).ids
        self.mesh = mesh
        self.tensors = ReplayBuffer(16, batch_size=4, sampler=fbuf.Prioritized())
        self.tensors.extend(rows())
        self.dicts = TensorDictReplayBuffer(16, batch_size=4, sampler=fbuf.Prioritized())
        self.dicts.extend(TensorDict(rows(), batch_size=[8]))
        self.store = HostStore(jnp.float32(0), 16, sampler=fbuf.Prioritized())
        self.store.add(np.arange(8, dtype=np.float32))
        self.batches = self.store.batches(KEY, 4)
        self.queue_store = HostStore(jnp.float32(0), 16, sampler=fbuf.Fifo())
        self.queue_store.add(np.arange(8, dtype=np.float32))
        self.sharded_per = fbuf.sharded.init(
            jnp.float32(0), 16, mesh=mesh, sampler=fbuf.Prioritized()
        )
        self.sharded_per = fbuf.sharded.add(self.sharded_per, jnp.arange(8.0))
        self.tensor_ids = self.tensors.sample().ids
        self.data, self.drawn = TensorDict(rows(), batch_size=[8]), self.dicts.sample()
        self.td_error, self.loss_mask = jnp.ones((4, 2)), jnp.ones((4, 2), bool)
        self.ones_2 = jnp.ones(2)
        self.ones_4 = jnp.ones(4)
        self.slots = jnp.arange(2)
        self.item = jnp.float32(0)
        self.number = jnp.float32(1)
        self.row = {"x": torch.tensor(1.0), "next": {"reward": torch.ones(1)}}
        self.tensor_2 = torch.ones(2)
        self.tensor_4 = torch.ones(4)
        self.index = torch.arange(2)
        self.host_2 = np.ones(2, np.float32)
        self.rows, self.data_row = rows(), self.data[0]
        self.drawn["td_error"] = torch.ones(4)
        self.tree = fbuf.add(fbuf.init({"x": 0.0}, 16), {"x": jnp.arange(8.0)})
        self.sharded_tree = fbuf.sharded.init({"x": 0.0}, 16, mesh=mesh)
        self.sharded_tree = fbuf.sharded.add(self.sharded_tree, {"x": jnp.arange(8.0)})
        self.tree_store = HostStore({"x": jnp.float32(0)}, 16)
        self.tree_store.add({"x": np.arange(8, dtype=np.float32)})
        self.fields = {"x": jnp.ones(4)}
        self.spare = fbuf.init(jnp.float32(0), 16)
        self.of_envs = fbuf.sharded.init(jnp.float32(0), 16, mesh=mesh, num_envs=2)
        self.another_state = fbuf.add(fbuf.init(jnp.float32(0), 8), jnp.arange(4.0))
        ends = jnp.arange(8) % 2 == 1
        self.ended = fbuf.add(fbuf.init(jnp.float32(0), 16), jnp.arange(8.0), terminated=ends)
        self.another, self.closed = (ReplayBuffer(16, batch_size=4) for _ in range(2))
        self.another.extend(rows())
        self.more_dicts, self.closed_dicts = (
            TensorDictReplayBuffer(16, batch_size=4) for _ in range(2)
        )
        self.another_store, self.closed_store = (HostStore(jnp.float32(0), 16) for _ in range(2))
        self.pace = fbuf.Pace(0.5)
        item, made = {"made": jnp.int32(0)}, {"made": np.arange(8, dtype=np.int32) % 2}
        samplers = {
            "fresh": fbuf.FreshFirst(),
            "limited": fbuf.Limited(max_uses=9, version="made"),
            "grouped": fbuf.Grouped("made", 2),
        }
        for name, sampler in samplers.items():
            setattr(self, name, fbuf.add(fbuf.init(item, 16, sampler=sampler), made))
            store = HostStore(item, 16, sampler=sampler)
            store.add(made)
            setattr(self, f"{name}_store", store)
        self.named = fbuf.ids_at(self.limited, self.slots)
        self.large_batch = fbuf.sample(self.state, KEY, 8)
        self.error = jnp.ones(8)
        sampler = fbuf.FreshFirst()
        self.sharded_fresh = fbuf.sharded.init(jnp.float32(0), 16, mesh=mesh, sampler=sampler)
        self.sharded_fresh = fbuf.sharded.add(self.sharded_fresh, jnp.arange(8.0))
        limited = fbuf.sharded.init(item, 16, mesh=mesh, sampler=samplers["limited"])
        self.sharded_limited = fbuf.sharded.add(limited, made)
        self.sharded_batch = fbuf.sharded.sample(self.sharded, KEY, 8)


CORE = {
    "add": lambda of: fbuf.add(of.state, of.ones_2, donate=False),
    "after": lambda of: fbuf.after(of.state, of.ids),
    "can_sample": lambda of: fbuf.can_sample(of.state),
    "capacity_for": lambda of: fbuf.capacity_for("1 MiB", of.item),
    "check_in_place": lambda of: fbuf.check_in_place(of.adding, of.large),
    "clear": lambda of: fbuf.clear(of.state, donate=False),
    "draw": lambda of: fbuf.draw(of.fresh, KEY, 4, donate=False),
    "end_episode": lambda of: fbuf.end_episode(of.state, donate=False),
    "expire": lambda of: fbuf.expire(of.limited, 1, donate=False),
    "group_ids": lambda of: fbuf.group_ids(of.grouped, 1, 2),
    "group_sizes": lambda of: fbuf.group_sizes(of.grouped),
    "neighbours": lambda of: fbuf.neighbours(of.state, of.ids, (-1, 1)),
    "thin": lambda of: fbuf.thin(of.large_batch, KEY, 4, of.error),
    "uses": lambda of: fbuf.uses(of.limited, of.named),
    "extend": lambda of: fbuf.extend(of.state, of.another_state),
    "ids_at": lambda of: fbuf.ids_at(of.state, of.slots),
    "init": lambda of: fbuf.init(of.item, 16),
    "has_checkpoint": lambda of: fbuf.has_checkpoint(of.folder / "one"),
    "load": lambda of: fbuf.load(of.folder / "one", item=of.item),
    "nbytes": lambda of: fbuf.nbytes(of.item, 16),
    "newest_ids": lambda of: fbuf.newest_ids(of.state, 2),
    "no_ids": lambda of: fbuf.no_ids(2),
    "pop": lambda of: fbuf.pop(of.queue, 2, donate=False),
    "probability": lambda of: fbuf.probability(of.state, of.ids),
    "plot": lambda of: fbuf.plot(of.state),
    "raise_on_fault": lambda of: fbuf.raise_on_fault(of.state),
    "check_finite": lambda of: fbuf.check_finite(of.state),
    "read": lambda of: fbuf.read(of.state, of.ids),
    "remove": lambda of: fbuf.remove(of.state, of.ids, donate=False),
    "report": lambda of: fbuf.report(of.state),
    "resize": lambda of: fbuf.resize(of.state, 32),
    "rollout": lambda of: fbuf.rollout(of.state),
    "rows": lambda of: fbuf.rows(of.state),
    "sample": lambda of: fbuf.sample(of.state, KEY, 4),
    "sample_mixed": lambda of: fbuf.sample_mixed(((of.tree, 0.5), (of.tree, 0.5)), KEY, 4),
    "save": lambda of: fbuf.save(of.folder / "one", of.state),
    "sequence_priority": lambda of: fbuf.sequence_priority(of.td_error, of.loss_mask),
    "size": lambda of: fbuf.size(of.state),
    "space": lambda of: fbuf.space(of.queue),
    "split": lambda of: fbuf.split(of.ended, KEY, 0.5),
    "stats": lambda of: fbuf.stats(of.state),
    "unread": lambda of: fbuf.unread(of.queue),
    "update_priority": lambda of: fbuf.update_priority(
        of.prioritized, of.ids, of.ones_4, donate=False
    ),
    "wait": lambda of: fbuf.wait(of.folder / "one"),
    "write": lambda of: fbuf.write(of.tree, of.ids, of.fields, donate=False),
}


RATES = {"gamma": 0.9, "lambda_": 0.9}
TARGETS = {
    "gae": lambda of: fbuf.targets.gae(*of.steps, **RATES),
    "lambda_returns": lambda of: fbuf.targets.lambda_returns(*of.steps, **RATES),
    "retrace": lambda of: fbuf.targets.retrace(*of.steps, **RATES, **of.two, q=of.steps[1]),
    "vtrace": lambda of: fbuf.targets.vtrace(*of.steps, **RATES, **of.two),
}


SHARDED = {
    "add": lambda of: fbuf.sharded.add(of.sharded, of.ones_2, donate=False),
    "after": lambda of: fbuf.sharded.after(of.sharded, of.sharded_ids),
    "can_sample": lambda of: fbuf.sharded.can_sample(of.sharded),
    "clear": lambda of: fbuf.sharded.clear(of.sharded, donate=False),
    "draw": lambda of: fbuf.sharded.draw(of.sharded_fresh, KEY, 4, donate=False),
    "end_episode": lambda of: fbuf.sharded.end_episode(of.sharded, donate=False),
    "expire": lambda of: fbuf.sharded.expire(of.sharded_limited, 1, donate=False),
    "thin": lambda of: fbuf.sharded.thin(of.sharded, of.sharded_batch, KEY, 4, of.error),
    "uses": lambda of: fbuf.sharded.uses(of.sharded_limited, of.sharded_ids),
    "neighbours": lambda of: fbuf.sharded.neighbours(of.sharded, of.sharded_ids, (-1, 1)),
    "init": lambda of: fbuf.sharded.init(of.item, 16, mesh=of.mesh),
    "load": lambda of: fbuf.sharded.load(of.folder / "many", mesh=of.mesh, item=of.item),
    "raise_on_fault": lambda of: fbuf.sharded.raise_on_fault(of.sharded),
    "remove": lambda of: fbuf.sharded.remove(of.sharded, of.sharded_ids, donate=False),
    "reshard": lambda of: fbuf.sharded.reshard(of.of_envs, 2),
    "sample": lambda of: fbuf.sharded.sample(of.sharded, KEY, 4),
    "save": lambda of: fbuf.sharded.save(of.folder / "many", of.sharded),
    "size": lambda of: fbuf.sharded.size(of.sharded),
    "specs": lambda of: fbuf.sharded.specs(of.sharded),
    "stats": lambda of: fbuf.sharded.stats(of.sharded),
    "update_priority": lambda of: fbuf.sharded.update_priority(
        of.sharded_per, of.sharded_ids, of.ones_4, donate=False
    ),
    "write": lambda of: fbuf.sharded.write(
        of.sharded_tree, of.sharded_ids, of.fields, donate=False
    ),
}
CROSSING = {
    "add_from_torch": lambda of: fbuf_adapters.pytorch.add_from_torch(of.spare, of.tensor_2),
    "callback": lambda of: fbuf_adapters.pytorch.callback(torch.neg, of.item)(of.number),
    "from_torch": lambda of: fbuf_adapters.pytorch.from_torch(of.tensor_2),
    "to_torch": lambda of: fbuf_adapters.pytorch.to_torch(of.sequence),
}


def one_of(iterable):
    return next(iter(iterable))


def set_state(of):
    of.tensors.state = of.tensors.state


TENSORS = {
    "__getitem__": lambda of: of.tensors[2],
    "__iter__": lambda of: one_of(of.tensors),
    "__len__": lambda of: len(of.tensors),
    "add": lambda of: of.tensors.add(of.row),
    "can_sample": lambda of: of.tensors.can_sample(),
    "close": lambda of: of.closed.close(),
    "seed": lambda of: of.tensors.seed,
    "drop_ahead": lambda of: of.tensors.drop_ahead(),
    "empty": lambda of: of.another.empty(),
    "end_episode": lambda of: of.tensors.end_episode(),
    "episodes": lambda of: one_of(of.tensors.episodes()),
    "extend": lambda of: of.tensors.extend(of.rows),
    "from_state": lambda of: ReplayBuffer.from_state(fbuf.init({"x": of.number}, 8)),
    "load": lambda of: of.tensors.load(of.folder / "tensors"),
    "load_state_dict": lambda of: of.tensors.load_state_dict(of.tensors.state_dict()),
    "lock": lambda of: of.tensors.lock,
    "raise_on_fault": lambda of: of.tensors.raise_on_fault(),
    "remove": lambda of: of.tensors.remove(of.tensor_ids),
    "sample": lambda of: of.tensors.sample(),
    "save": lambda of: of.tensors.save(of.folder / "tensors"),
    "state": set_state,
    "state_dict": lambda of: of.tensors.state_dict(),
    "stats": lambda of: of.tensors.stats(),
    "update_priority": lambda of: of.tensors.update_priority(of.tensor_ids, of.tensor_4),
    "write": lambda of: of.tensors.write(of.tensor_ids, {"x": of.tensor_4}),
}
DICTS = {
    "__getitem__": lambda of: of.dicts[2],
    "__iter__": lambda of: one_of(of.dicts),
    "__len__": lambda of: len(of.dicts),
    "add": lambda of: of.dicts.add(of.data_row),
    "end_episode": lambda of: of.dicts.end_episode(),
    "append_transform": lambda of: of.more_dicts.append_transform(lambda data: data),
    "batch_size": lambda of: of.dicts.batch_size,
    "can_sample": lambda of: of.dicts.can_sample(),
    "capacity": lambda of: of.dicts.capacity,
    "close": lambda of: of.closed_dicts.close(),
    "dump": lambda of: of.dicts.dump(of.folder / "dicts"),
    "dumps": lambda of: of.dicts.dumps(of.folder / "dicts"),
    "empty": lambda of: of.more_dicts.empty(),
    "episodes": lambda of: one_of(of.dicts.episodes()),
    "extend": lambda of: of.dicts.extend(of.data),
    "from_state": lambda of: TensorDictReplayBuffer.from_state(fbuf.init({"x": of.number}, 8)),
    "insert_transform": lambda of: of.more_dicts.insert_transform(0, lambda data: data),
    "load": lambda of: of.dicts.load(of.folder / "dicts"),
    "load_state_dict": lambda of: of.dicts.load_state_dict(of.dicts.state_dict()),
    "loads": lambda of: of.dicts.loads(of.folder / "dicts"),
    "next": lambda of: of.dicts.next(),
    "raise_on_fault": lambda of: of.dicts.raise_on_fault(),
    "sample": lambda of: of.dicts.sample(),
    "save": lambda of: of.dicts.save(of.folder / "dicts"),
    "state_dict": lambda of: of.dicts.state_dict(),
    "stats": lambda of: of.dicts.stats(),
    "update_priority": lambda of: of.dicts.update_priority(of.index, of.tensor_2),
    "update_tensordict_priority": lambda of: of.dicts.update_tensordict_priority(of.drawn),
    "write_count": lambda of: of.dicts.write_count,
    "alpha": lambda of: of.dicts.alpha,
    "beta": lambda of: of.dicts.beta,
}
STORE = {
    "add": lambda of: of.store.add(of.host_2),
    "batches": lambda of: of.store.batches(KEY, 4).close(),
    "lock": lambda of: of.store.lock,
    "can_sample": lambda of: of.store.can_sample(),
    "capacity": lambda of: of.store.capacity,
    "clear": lambda of: of.another_store.clear(),
    "close": lambda of: of.closed_store.close(),
    "draw": lambda of: of.fresh_store.draw(KEY, 4),
    "end_episode": lambda of: of.store.end_episode(),
    "expire": lambda of: of.limited_store.expire(1),
    "group_ids": lambda of: of.grouped_store.group_ids(1, 2),
    "group_sizes": lambda of: of.grouped_store.group_sizes(),
    "neighbours": lambda of: of.store.neighbours(of.ids, (-1, 1)),
    "uses": lambda of: of.limited_store.uses(of.named),
    "folder": lambda of: of.store.folder,
    "ids_at": lambda of: of.store.ids_at(of.slots),
    "item": lambda of: of.store.item,
    "load": lambda of: HostStore.load(of.folder / "store", item=of.item),
    "newest_ids": lambda of: of.store.newest_ids(2),
    "next_of": lambda of: of.store.next_of,
    "open": lambda of: HostStore.open(of.folder / "store", item=of.item),
    "pop": lambda of: of.queue_store.pop(2),
    "probability": lambda of: of.store.probability(of.ids),
    "raise_on_fault": lambda of: of.store.raise_on_fault(),
    "check_finite": lambda of: of.store.check_finite(),
    "read": lambda of: of.store.read(of.ids),
    "remove": lambda of: of.store.remove(of.ids),
    "rollout": lambda of: of.queue_store.rollout(),
    "rows": lambda of: of.store.rows(),
    "sample": lambda of: of.store.sample(KEY, 4),
    "save": lambda of: of.store.save(of.folder / "store"),
    "size": lambda of: of.store.size(),
    "space": lambda of: of.queue_store.space(),
    "stats": lambda of: of.store.stats(),
    "unread": lambda of: of.queue_store.unread(),
    "update_priority": lambda of: of.store.update_priority(of.ids, of.ones_4),
    "write": lambda of: of.tree_store.write(of.ids, of.fields),
    "__next__": lambda of: next(of.batches),
}
TABLES = {"fbuf": CORE, "targets": TARGETS, "sharded": SHARDED, "crossing": CROSSING}
TABLES |= {"tensors": TENSORS, "dicts": DICTS, "store": STORE}
CASES = [(table, name) for table, calls in TABLES.items() for name in calls]

INSIDE = {
    *("leaves", "load_checked", "load_state_checked", "owner", "read_at", "read_episodes"),
    *("change_index", "fill", "host_bytes", "index", "layouts", "place", "take_what_was_drawn"),
    *("taking", "whole"),
}
"""Methods that adapters call, and users do not."""


def functions_of(module):
    return {name for name in module.__all__ if inspect.isfunction(getattr(module, name))}


def methods_of(kind):
    """The public methods and properties of a class, and those that Python calls by operators."""
    names = {n for n in vars(kind) if not n.startswith("_")} - INSIDE
    return names | ({"__len__", "__getitem__", "__iter__", "__next__"} & vars(kind).keys())


@pytest.fixture(scope="module")
def of(tmp_path_factory):
    of = Of(tmp_path_factory.mktemp("saved"))
    for calls in TABLES.values():
        calls.get("save", lambda _: None)(of)
    yield of
    for buffer in (of.tensors, of.another, of.dicts, of.more_dicts, of.batches):
        buffer.close()


def test_every_public_entry_point_is_in_the_tables():
    """A new one is to be tried, too."""
    assert functions_of(fbuf) == CORE.keys()
    assert functions_of(fbuf.targets) == TARGETS.keys()
    assert functions_of(fbuf.sharded) == SHARDED.keys()
    assert functions_of(fbuf_adapters.pytorch) == CROSSING.keys()
    assert methods_of(ReplayBuffer) == TENSORS.keys()
    assert methods_of(TensorDictReplayBuffer) == DICTS.keys()
    assert methods_of(HostStore) | {"__next__"} == STORE.keys()
    assert methods_of(Batches) <= {"__next__", "__iter__", "close"}


def test_the_graph_breaks_around_an_add():
    state, two = fbuf.init(jnp.float32(0), 8), jnp.arange(2.0)
    looks_away(lambda: fbuf.add(state, two, donate=False))


# The calls ignore the results of saves.
@pytest.mark.filterwarnings("ignore:.*all rows are written to")
@pytest.mark.sweep
@pytest.mark.parametrize(("table", "name"), CASES, ids=lambda part: part)
def test_the_graph_breaks_and_goes_on(table, name, of):
    call = TABLES[table][name]
    looks_away(lambda: call(of))


def all_functions(owner, names):
    for name in names:
        member = inspect.getattr_static(owner, name)
        parts = (member.fget, member.fset) if isinstance(member, property) else (member,)
        yield from (getattr(part, "__func__", part) for part in parts if part is not None)


def test_all_of_them_say_so():
    """Also those of classes of data: what is written there, and not what Python makes for them."""
    found = [*all_functions(fbuf, CORE), *all_functions(fbuf.sharded, SHARDED)]
    found += all_functions(fbuf.targets, TARGETS)
    found += all_functions(ReplayBuffer, TENSORS)
    found += all_functions(fbuf.Pace, ("due", "init", "from_samples_per_insert"))
    assert all(function._torchdynamo_disable for function in found)
    assert not hasattr(fbuf.Sample.__init__, "_torchdynamo_disable")
    assert not hasattr(fbuf.Ids.__init__, "_torchdynamo_disable")


@pytest.mark.sweep
def test_pace(of):
    """Its methods compute, though it is data."""
    counter = looks_away(of.pace.init)
    due, _ = looks_away(lambda: of.pace.due(counter, 4))
    assert int(due) == 2


LATER = """
import fbuf, jax, sys
state = fbuf.add(fbuf.init(jax.numpy.float32(0), 16), jax.numpy.arange(8.0))
assert "torch" not in sys.modules
import torch
key = jax.random.key(0)
def step(x):
    y = x * 2
    batch = fbuf.sample(state, key, 4)
    return y + 1, batch
y, batch = torch.compile(step, backend="eager")(torch.ones(3))
assert y.tolist() == [3, 3, 3] and batch.mask.shape == (4,)
frames = torch._dynamo.utils.counters["frames"]
assert frames["total"] == 2, frames
"""


ASKED = """
import fbuf
from fbuf.dispatch import torch_compile as opaque
assert opaque._untold
import torch, torch._C._dynamo.eval_frame
assert fbuf.sample._torchdynamo_disable and not opaque._untold
"""


def test_torch_is_told_when_it_asks_after_fbuf():
    subprocess.run([sys.executable, "-c", ASKED], check=True)


@pytest.mark.sweep
def test_torch_may_come_after_fbuf():
    """Then it is told when it asks."""
    subprocess.run([sys.executable, "-c", LATER], check=True)


def learner_of(network):
    def learn(batch):
        value = network(batch.data["x"][:, None])[:, 0]
        error = batch.data["next"]["reward"][:, 0] - value
        return (batch.weight * error.square()).mean(), error.detach().abs()

    return learn


def trained(step_of, sizes):
    """The losses and the last batch of a run of so many steps."""
    torch.manual_seed(0)
    network = torch.nn.Linear(1, 1)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01)
    with ReplayBuffer(16, batch_size=4, sampler=fbuf.Prioritized(), seed=0) as buffer:
        buffer.extend(rows())
        step = step_of(learner_of(network), buffer, optimiser)
        return [step(size) for size in sizes]


def whole_step(learn, buffer, optimiser):
    def step(size):
        batch = buffer.sample(size)
        loss, priority = learn(batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        buffer.update_priority(batch.ids, priority)
        return loss.item()

    return step


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # torch's, of its own
@pytest.mark.parametrize(
    "sizes",
    [pytest.param([4, 4, 4], marks=pytest.mark.sweep), [4, 5, 6, 7, 4]],
    ids=["one", "changing"],
)
def test_a_compiled_step_learns_what_a_plain_one_learns(sizes):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    plain = trained(whole_step, sizes)
    compiled = trained(lambda *of: torch.compile(whole_step(*of), backend="eager"), sizes)
    assert compiled == pytest.approx(plain, rel=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 12


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # torch's, of its own
def test_batches_that_are_written_into_the_same_tensors():
    def of_one_place(learn, buffer, optimiser):
        batch = buffer.sample()
        for tensor in batch.data["x"], batch.data["next"]["reward"], batch.weight:
            torch._dynamo.mark_static_address(tensor)

        def step(_):
            assert buffer.sample(out=batch) is batch
            loss, priority = learn(batch)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            buffer.update_priority(batch.ids, priority)
            return loss.item()

        return step

    torch.compiler.reset()
    plain = trained(of_one_place, [4] * 4)
    assert len(set(plain)) == 4
    compiled = trained(lambda *of: torch.compile(of_one_place(*of), backend="eager"), [4] * 4)
    assert compiled == pytest.approx(plain, rel=1e-5)


@pytest.mark.sweep
def test_the_learner_alone_is_one_graph():
    torch.compiler.reset()

    def step_of(learn, *others):
        return whole_step(torch.compile(learn, backend="aot_eager", fullgraph=True), *others)

    sizes = [4, 4, 6, 8]
    assert trained(step_of, sizes) == pytest.approx(trained(whole_step, sizes), rel=1e-5)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")  # of torch's, about its own
def test_with_the_compiler_that_torch_takes_by_default():
    torch.compiler.reset()
    sizes = [4, 4, 4]
    compiled = trained(lambda *of: torch.compile(whole_step(*of)), sizes)
    assert compiled == pytest.approx(trained(whole_step, sizes), rel=1e-4)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # torch's, of its own
def test_a_compiled_loop_goes_through_episodes():
    torch.compiler.reset()
    with ReplayBuffer(16) as buffer:
        buffer.extend({"x": torch.arange(10.0)}, terminated=torch.arange(10) % 3 == 2)

        def total(y):
            for episode in buffer.episodes():
                y = y + episode["x"].sum()
            return y

        compiled = torch.compile(total, backend="eager")
        assert float(compiled(torch.zeros(()))) == 45
