"""Every tensor of a batch is free: to torch none has anything in common with another.

Each case of the table below asks every leaf of its batches the same questions.
"""

from __future__ import annotations

import copy
import functools
import io
import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")

from fbuf_adapters.pytorch import ReplayBuffer, to_torch  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.batches import _numpy_draws  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.crossing import _packed, _unpack  # noqa: E402 (after the skip)
from fbuf_adapters.tensordict import TensorDictReplayBuffer  # noqa: E402
from support.buffers import DEVICE  # noqa: E402
from tensordict import TensorDict, TensorDictBase  # noqa: E402

import fbuf  # noqa: E402 (after the skip)

N, B = 60, 16
OVERHEAD = 1500
"""Bytes that torch writes beside what a tensor holds."""


def rows() -> dict:
    """Rows with leaves of every kind that is packed, of others, and one that is large."""
    number = torch.arange(N)
    return {
        "observation": torch.rand(N, 3),
        "achieved_goal": torch.rand(N, 2),
        "goal": torch.rand(N, 2),
        "reward": torch.rand(N),
        "flag": number % 3 == 0,
        "image": (number[:, None, None] + torch.zeros(5, 5)).to(torch.uint8),
        "half": torch.rand(N, 3).half(),
        "brief": torch.rand(N, 2).bfloat16(),
        "number": number,
        "unsigned": number.to(torch.uint32),
        "short": number.short(),
        "large": torch.rand(N, 2100),
    }


def tensors(**options):
    """A buffer of tensors with three times as many rows as a batch."""
    options = {"device": DEVICE} | options
    buffer = ReplayBuffer(120, batch_size=B, next_of="observation", **options)
    ends = torch.arange(N) % 10 == 9
    buffer.extend(rows(), terminated=ends, next_observation=torch.rand(N, 3))
    return buffer


@pytest.fixture(autouse=True)
def _by_a_program(monkeypatch):
    """Have programs make all batches: those that NumPy makes are never packed."""
    monkeypatch.setattr(_numpy_draws, "_MOST", 0)


def tensordicts(**options):
    """The same of TensorDicts."""
    buffer = TensorDictReplayBuffer(120, batch_size=12, device=DEVICE, **options)
    data = {name: leaf for name, leaf in rows().items() if name != "brief"}
    data |= {"double": torch.rand(N, 2, dtype=torch.float64), "is_init": torch.arange(N) % 10 == 0}
    done = (torch.arange(N) % 10 == 9)[:, None]
    data["next"] = {"observation": torch.rand(N, 3), "reward": torch.rand(N, 1), "done": done}
    buffer.extend(TensorDict(data, batch_size=[N]))
    return buffer


def grids(**options):
    """Items with a batch dimension of their own."""
    options |= {"sampler": fbuf.Prioritized(), "device": DEVICE}
    buffer = TensorDictReplayBuffer(40, batch_size=4, **options)
    buffer.extend(TensorDict({"x": torch.rand(20, 3, 2)}, batch_size=[20, 3]))
    return buffer


def drawn(make, *sizes, **options):
    """Batches of a buffer of these sizes."""
    with make(**options) as buffer:
        return [buffer.sample(size) for size in sizes or (None,)]


def drawn_of_tensordicts(*sizes, **options):
    buffer = tensordicts(**options)
    batches = [buffer.sample(size) for size in sizes or (None,)]
    buffer.close()
    return batches


def read(make):
    """Rows that were read, not drawn."""
    buffer = make()
    return [buffer[3], buffer[-5:], buffer[[1, 2]], next(buffer.episodes())]


def crossed(view, **options):
    """A batch that `fbuf` has drawn, given to torch."""
    with tensors(view=view, **options) as buffer:
        return [to_torch(fbuf.sample(buffer.state, jax.random.key(0), B, view=view))]


def resumed():
    """Batches that were drawn ahead of a save."""
    with tensors(prefetch=1) as one, tensors(prefetch=1) as other:
        one.sample()
        other.load_state_dict(one.state_dict())
        return [other.sample(), other.sample()]


def as_on_a_gpu(make, **options):
    """A batch drawn on a device that is not the CPU goes by DLPack alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_unpack, "torch_device", lambda _: torch.device("cuda"))
        return drawn(make, None, 5, **options)


WINDOW = fbuf.Prioritized(window=4)
EPISODES = fbuf.Uniform(window=3, by="episode")
SHORT = fbuf.Uniform(window=3, by="episode", strict=False)
PADDED = fbuf.Sequence(3, boundary="pad")


def reward(achieved, goal):
    return -((achieved - goal) ** 2).sum(-1)


of_tensors = functools.partial(functools.partial, drawn, tensors)
of_dicts = functools.partial(functools.partial, drawn_of_tensordicts)
slow = functools.partial(pytest.param, marks=pytest.mark.sweep)

TABLE = {
    "uniform": of_tensors(),
    "sizes": of_tensors(None, 5, 7, 30),
    "prioritized": of_tensors(sampler=fbuf.Prioritized(), int64=True),
    "mixture": of_tensors(sampler=fbuf.Mixture()),
    "shuffled": of_tensors(None, 5, 50, sampler=fbuf.Shuffled()),
    "transition": of_tensors(view=fbuf.Transition()),
    "n_step": of_tensors(view=fbuf.NStep(2, gamma=0.9), sampler=WINDOW),
    "sequence": of_tensors(None, 5, view=fbuf.Sequence(3), sampler=WINDOW),
    "padded": of_tensors(view=PADDED),
    "time_major": of_tensors(
        *(None, 5), view=fbuf.Sequence(2, burn_in=1, bootstrap=1, time_major=True), sampler=WINDOW
    ),
    "state": of_tensors(view=fbuf.Sequence(3, state="observation"), sampler=WINDOW),
    "frames": of_tensors(view=fbuf.FrameStack(2)),
    "return_to_go": of_tensors(view=fbuf.ReturnToGo(0.9)),
    "hindsight": of_tensors(view=fbuf.Hindsight(reward)),
    "prefetch": of_tensors(None, 5, None, prefetch=1),
    "prefetch, saved": resumed,
    "host": of_tensors(None, 5, host=True),
    "host, prefetch": of_tensors(host=True, prefetch=1, view=fbuf.Transition()),
    "read": functools.partial(read, tensors),
    "to_torch": functools.partial(crossed, fbuf.Transition()),
    "to_torch, windows": functools.partial(crossed, fbuf.Sequence(3), sampler=WINDOW),
    "gpu": functools.partial(as_on_a_gpu, tensors),
    "dicts": of_dicts(),
    "dicts, prioritized": of_dicts(None, 5, sampler=fbuf.Prioritized()),
    "dicts, prefetch": of_dicts(None, None, prefetch=1),
    "dicts, host": of_dicts(host=True),
    "dicts, read": functools.partial(read, tensordicts),
    "dicts, dims": lambda: [(grid := grids()).sample(), grid[:3], grid[2]],
    "slices": of_dicts(view=fbuf.Sequence(3), sampler=EPISODES),
    "slices, prioritized": of_dicts(view=fbuf.Sequence(4), sampler=WINDOW),
    "slices, short": of_dicts(view=PADDED, sampler=SHORT),
    "slices, padded": of_dicts(view=PADDED, sampler=SHORT, slices="padded"),
    "slices, nested": of_dicts(view=fbuf.Sequence(3), sampler=EPISODES, slices="nested"),
}
SWEEP = {
    *(
        "prioritized",
        "mixture",
        "padded",
        "state",
        "frames",
        "return_to_go",
        "host, prefetch",
        "to_torch, windows",
    ),
    *("dicts", "dicts, host", "slices", "slices, nested", "dicts, prefetch"),
    *(
        "transition",
        "hindsight",
        "shuffled",
        "sequence",
        "uniform",
        "n_step",
        "prefetch, saved",
        "prefetch",
    ),
    *("to_torch", "slices, prioritized", "dicts, read", "sizes"),
    *("slices, padded", "host"),
}


def test_the_table_names_what_it_leaves_to_the_sweep():
    assert TABLE.keys() > SWEEP


def flat(batch) -> dict[str, torch.Tensor]:
    """The tensors of a batch, by name."""
    if isinstance(batch, TensorDictBase):
        return {str(key): leaf for key, leaf in batch.items(True, True)}
    found = jax.tree.leaves_with_path(batch)
    return {jax.tree_util.keystr(path): leaf for path, leaf in found}


def nbytes(tensor) -> int:
    return tensor.numel() * tensor.element_size()


def ascending(leaves):
    """Where each leaf starts and ends."""
    places = ((x.data_ptr(), x.data_ptr() + nbytes(x)) for x in leaves if x.numel())
    return sorted(places)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "case", [slow(case) if case in SWEEP else pytest.param(case) for case in TABLE]
)
def test_every_tensor_of_a_batch_is_free(case):
    for batch in TABLE[case]():
        leaves = flat(batch)
        assert len(leaves) >= 2
        of_its_own(leaves)
        survives_saving(leaves, batch)
        can_be_written_to(leaves)
        takes_gradients(leaves)
        moves_alone(leaves)


def of_its_own(leaves):
    """Storage, base, and memory."""
    for name, leaf in leaves.items():
        assert leaf._base is None, name
        assert leaf.is_contiguous(), name
        assert leaf.untyped_storage().nbytes() == nbytes(leaf), name
        assert leaf.storage_offset() == 0, name
        assert not leaf.requires_grad, name
    places = ascending(leaves.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


def survives_saving(leaves, batch):
    """`torch.save`, `pickle` and `deepcopy`, of all, of one, and of the batch as it is."""
    whole = sum(map(nbytes, leaves.values()))
    file = io.BytesIO()
    torch.save(leaves, file)
    assert file.tell() < whole + OVERHEAD * (len(leaves) + 1)
    again = torch.load(io.BytesIO(file.getvalue()))
    assert len(pickle.dumps(batch)) < whole + OVERHEAD * (len(leaves) + 4)
    # of torch's own tensors, too, pickle cannot read these
    known = {name: leaf for name, leaf in leaves.items() if leaf.dtype is not torch.uint32}
    for other in (again, pickle.loads(pickle.dumps(known)), copy.deepcopy(leaves)):
        assert all(torch.equal(leaf, leaves[name]) for name, leaf in other.items())
        assert not set(ascending(leaves.values())) & set(ascending(other.values()))
    for name, leaf in leaves.items():
        assert len(pickle.dumps(leaf)) < nbytes(leaf) + OVERHEAD, name


def can_be_written_to(leaves):
    """In place, and nothing else knows of it."""
    before = {name: leaf.clone() for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        versions = {other: x._version for other, x in leaves.items()}
        if leaf.dtype is torch.uint32:  # torch computes little with it
            leaf.copy_(torch.ones_like(before[name]))
        else:
            leaf.logical_not_() if leaf.dtype is torch.bool else leaf.mul_(2)
        versions[name] += 1
        assert versions == {other: x._version for other, x in leaves.items()}, name
        others = {other: x for other, x in leaves.items() if other != name}
        assert all(torch.equal(x, before[other]) for other, x in others.items()), name
        leaf.copy_(before[name])


def takes_gradients(leaves):
    """Ask gradients of one leaf, write to the others, and detach each again."""
    floats = {name: x for name, x in leaves.items() if x.is_floating_point() and x.numel()}
    for name, leaf in floats.items():
        parameter = torch.ones((), requires_grad=True)
        weight = torch.full_like(leaf, 2).requires_grad_()
        saved = (leaf * weight).sum()
        others = [x for other, x in leaves.items() if other != name and x.is_floating_point()]
        for other in others:
            other.add_(0)
        saved.backward()
        assert torch.equal(weight.grad, leaf), name
        leaf.requires_grad_()
        assert not any(other.requires_grad for other in others), name
        if others:
            others[0].mul_(parameter)  # which makes it part of a graph
            assert not leaf.grad_fn, name
        (leaf.float() ** 2).sum().backward()
        assert torch.equal(leaf.grad, (2 * leaf.detach().float()).to(leaf.dtype)), name
        leaf.detach_()
        if others:
            others[0].detach_()


def moves_alone(leaves):
    """`share_memory_` moves a leaf, and no other."""
    for name, leaf in leaves.items():
        before, places = leaf.clone(), {k: x.data_ptr() for k, x in leaves.items() if k != name}
        leaf.share_memory_()
        assert leaf.is_shared()
        assert torch.equal(leaf, before), name
        assert places == {k: x.data_ptr() for k, x in leaves.items() if k != name}, name
        if nbytes(leaf) > _unpack._LITTLE:  # each costs a file
            break


@pytest.fixture(scope="module")
def buffer():
    with tensors(sampler=fbuf.Prioritized()) as buffer:
        yield buffer


def test_a_loss_may_be_followed_by_a_write_to_the_reward(buffer):
    network = torch.nn.Linear(3, 1, device=DEVICE)
    batch = buffer.sample()
    data = batch.data
    batch.weight.div_(batch.weight.max())
    value = network(data["observation"])[:, 0]
    data["reward"].clamp_(-1, 1)
    data["flag"].logical_or_(torch.tensor(True))
    (batch.weight * (value - data["reward"]).square()).mean().backward()
    assert network.weight.grad.abs().sum() > 0


def test_a_gradient_is_not_lost_when_another_leaf_is_written_to(buffer):
    data = buffer.sample().data
    hidden, parameter = data["goal"].requires_grad_(), torch.ones((), requires_grad=True)
    data["reward"].mul_(parameter)
    (hidden.sum() + data["reward"].sum()).backward()
    assert hidden.grad is not None
    assert parameter.grad is not None
    assert not data["observation"].requires_grad
    hidden.detach_()


@pytest.mark.sweep
def test_a_loss_of_torchrl_may_be_followed_by_a_bonus():
    objectives = pytest.importorskip("torchrl.objectives")
    modules = pytest.importorskip("torchrl.modules")
    rb = TensorDictReplayBuffer(100, batch_size=32, sampler=fbuf.Prioritized())
    step = {"observation": torch.rand(50, 4), "reward": torch.rand(50, 1)}
    ends = {"done": torch.zeros(50, 1, dtype=torch.bool)}
    data = {"observation": torch.rand(50, 4), "action": torch.randint(2, (50,))}
    data["next"] = step | ends | {"terminated": ends["done"].clone()}
    rb.extend(TensorDict(data, batch_size=[50]))
    network = modules.QValueActor(
        torch.nn.Linear(4, 2), in_keys=["observation"], action_space="categorical"
    )
    loss = objectives.DQNLoss(network, action_space="categorical", delay_value=False)
    loss.make_value_estimator(gamma=0.9)
    batch = rb.sample()
    found = loss(batch)["loss"]
    batch["next", "reward"] += 1
    batch["_weight"].div_(2)
    found.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    rb.update_tensordict_priority(batch)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_inference_mode_makes_what_it_makes_of_other_tensors(prefetch):
    with tensors(prefetch=prefetch) as buffer:
        with torch.no_grad():
            leaves = flat(buffer.sample())
        assert not any(leaf.is_inference() for leaf in leaves.values())
        takes_gradients(leaves)
        if not prefetch:
            with torch.inference_mode():
                leaves = flat(buffer.sample())
                other = torch.from_numpy(np.zeros(3))
            assert all(leaf.is_inference() == other.is_inference() for leaf in leaves.values())
            copies = {name: leaf.clone() for name, leaf in leaves.items()}
            takes_gradients(copies)
            survives_saving(copies, copies)


def packed(*leaves):
    """Leaves as a program packs them, the layout, and the tensors that come out."""
    layout = _packed.layout(list(leaves))
    arrays = jax.jit(functools.partial(_packed.pack, layout))(list(leaves))
    return arrays, _unpack.Unpack(layout)


@pytest.mark.on_cpu
def test_a_small_tensor_does_not_keep_the_memory_of_a_large_batch():
    """Each keeps so many bytes, or so many times its own, and no more."""
    arrays, unpack = packed(jnp.ones(2**14), jnp.ones(2**14), jnp.ones(2**12), jnp.arange(8))
    begin = arrays[0].unsafe_buffer_pointer()
    within = [begin <= leaf.data_ptr() < begin + arrays[0].nbytes for leaf in unpack(arrays)]
    assert within == [True, True, True, False]
    arrays, unpack = packed(jnp.ones(2**10), jnp.arange(8))
    assert unpack(arrays)[1].data_ptr() == arrays[0].unsafe_buffer_pointer() + 2**12


@pytest.mark.on_cpu
def test_an_array_is_split_once_for_each_dtype(monkeypatch):
    kinds = ("float32", "int32", "bool", "float32", "uint32", "int32", "uint8", "bool", "float32")
    given = [jnp.arange(20 + n).astype(kind) for n, kind in enumerate(kinds)]
    arrays, unpack = packed(*given)
    split, calls = torch.unsafe_split_with_sizes, []
    count = lambda *args: calls.append(args) or split(*args)
    monkeypatch.setattr(torch, "unsafe_split_with_sizes", count)
    monkeypatch.setattr(_unpack, "torch_device", lambda _: torch.device("cuda"))
    found = unpack(arrays)
    assert [leaf.tolist() for leaf in found] == [leaf.tolist() for leaf in given]
    assert [str(leaf.dtype) for leaf in found] == [f"torch.{kind}" for kind in kinds]
    assert len(calls) == 5


def test_each_tensor_keeps_its_memory_by_itself():
    for number in range(3):
        arrays, unpack = packed(jnp.arange(1000), jnp.ones(1000), jnp.ones(100, bool))
        kept, expected = unpack(arrays)[number], (range(1000), [1] * 1000, [True] * 100)[number]
        del arrays, unpack
        for _ in range(20):  # which would take the memory if it was free
            jnp.full(2100, -7).block_until_ready()
        assert kept.tolist() == list(expected)


@pytest.mark.on_cpu
@pytest.mark.parametrize("shape", [(0,), (3, 0), (), (1,), (1, 1)])
@pytest.mark.parametrize("name", ["float32", "bool", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_shapes_of_one_and_of_nothing(shape, name, device, monkeypatch):
    monkeypatch.setattr(_unpack, "torch_device", lambda _: torch.device(device))
    arrays, unpack = packed(jnp.ones(shape, name), jnp.ones(5), jnp.zeros(shape, name))
    one, five, zero = unpack(arrays)
    assert one.shape == zero.shape == shape
    assert str(one.dtype) == f"torch.{name}"
    assert torch.equal(one, torch.ones_like(one))
    assert torch.equal(zero, torch.zeros_like(zero))
    of_its_own({"one": one, "five": five, "zero": zero})


@pytest.mark.sweep
def test_nothing_warns(recwarn):
    """NumPy's views of JAX's arrays are to read only, of which torch would warn."""
    with tensors(sampler=fbuf.Prioritized()) as buffer:
        buffer.sample()
        buffer.sample(5)
        assert buffer[0]["reward"].numpy().flags.writeable
    assert not [warning for warning in recwarn if "writable" in str(warning.message)]


@pytest.mark.parametrize("through", ["tensors", "tensordicts", "host"])
def test_a_batch_may_be_drawn_within_a_transform_of_a_function(through):
    """There a tensor is a wrapper, and torch shows its memory to nobody."""
    data = {"x": torch.arange(40.0).reshape(10, 4), "n": torch.arange(10, dtype=torch.int32)}

    def make():
        if through == "tensordicts":
            rb = TensorDictReplayBuffer(10, batch_size=8, seed=0)
            rb.extend(TensorDict(data, [10]))
            return lambda: rb.sample()["x"]
        buffer = ReplayBuffer(10, batch_size=8, seed=0, host=through == "host")
        buffer.extend(data)
        return lambda: buffer.sample().data["x"]

    weight = torch.ones(4)
    drawn, expected = make(), make()
    for transform in (torch.func.grad, torch.func.jacrev):
        found = transform(lambda w: (drawn() @ w).sum())(weight)
        torch.testing.assert_close(found, expected().sum(0))
    twice = torch.func.grad(
        lambda w: torch.func.grad(lambda v: ((drawn() @ v) ** 2).sum())(w).sum()
    )
    x = expected()
    torch.testing.assert_close(twice(weight), 2 * (x.T @ x).sum(0))
