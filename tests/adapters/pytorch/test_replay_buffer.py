"""The buffer of tensors alone; tests of both buffers are in `test_buffers.py`."""

from __future__ import annotations

import collections
import dataclasses
import gc
import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import InteropError, ReplayBuffer  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.batches import _numpy_draws  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.crossing import _unpack  # noqa: E402 (after the skip)
from support.buffers import (  # noqa: E402 (after the skip)
    BATCH,
    CAPACITY,
    COUNT,
    DEVICE,
    EXACT,
    HANDED_OUT,
    PAIRS,
    Tensors,
    assert_same,
    bits,
    empty,
    flags,
    of_jax,
    rows,
    shaped,
    stored,
)
from support.few import few  # noqa: E402 (after the skip)


def buffer_of(count: int = COUNT, capacity: int = CAPACITY, **options: Any) -> ReplayBuffer:
    """A buffer with so many rows."""
    buffer = Tensors().make(capacity, **{"int64": False, **options})
    if count:
        buffer.extend(rows(count))
    return buffer


def one(number: int) -> dict[str, Any]:
    return jax.tree.map(lambda leaf: leaf[0], rows(1, number))


def contents(buffer: ReplayBuffer) -> list[int]:
    """Return the stored rows, slot by slot."""
    return stored(buffer.state)["number"].tolist()


def full(value: float) -> torch.Tensor:
    return torch.full((BATCH,), value, device=DEVICE)


# The item.


@pytest.mark.parametrize(
    "item",
    [
        {"number": torch.tensor(0), "next": {"reward": torch.zeros(1)}},
        {"number": jnp.int32(0), "next": {"reward": jax.ShapeDtypeStruct((1,), jnp.float32)}},
        {"number": np.int64(0), "next": {"reward": torch.zeros(1, device="meta")}},
    ],
    ids=["tensors", "specs", "mixed"],
)
def test_an_item_that_is_given(item):
    buffer = buffer_of(0, item=item)
    assert buffer.state.capacity == CAPACITY
    with pytest.raises(RuntimeError, match=r"ReplayBuffer\.sample: the buffer is empty"):
        buffer.sample()
    buffer.extend(rows())
    assert contents(buffer)[:COUNT] == list(range(COUNT))


@pytest.mark.sweep
def test_a_first_add_that_fails_leaves_no_trace():
    buffer = ReplayBuffer(CAPACITY, device=DEVICE, next_of="obs")
    with pytest.raises(ValueError, match="next_of names 'obs'"):
        buffer.add({"x": torch.ones(2, device=DEVICE)})
    more = torch.ones(COUNT, 3, device=DEVICE)
    with pytest.raises(ValueError, match="terminated must be of shape"):
        buffer.extend({"obs": more}, next_observation=more, terminated=True)
    new = torch.ones(COUNT, 5, device=DEVICE)
    buffer.extend({"obs": new}, next_observation=new)
    assert len(buffer) == COUNT


@pytest.mark.parametrize("flag", [{}, {"terminated": False}], ids=str)
def test_a_python_bool_is_a_flag_or_a_leaf(flag):
    buffer = ReplayBuffer(CAPACITY)
    for done in (True, False):
        buffer.add({"done": torch.tensor(done)}, **flag)
        buffer.add({"done": not done}, **flag)
    assert buffer["done"].tolist() == [True, False, False, True]


def vector(count: int | None = None, start: int = 0) -> dict[str, Any]:
    """An item with an axis of its own, or so many of them."""
    shape = (3,) if count is None else (count, 3)
    return {"obs": start + torch.zeros(shape, device=DEVICE), "of": {"act": torch.zeros(shape)}}


@pytest.mark.parametrize("envs", [None, 2])
def test_add_takes_one_item_and_extend_a_batch(envs):
    lead = () if envs is None else (envs,)
    put = lambda *axes: {"obs": torch.zeros(*lead, *axes, 3, device=DEVICE)}
    buffer = ReplayBuffer(20, num_envs=envs, device=DEVICE)
    buffer.add(put())
    before, known = bits(buffer.state), len(buffer)
    for call, wrong, match in (
        (buffer.add, put(5), r"add: item\['obs'\] .*looks like a batch; use extend\(\)"),
        (buffer.add, put(1), "this looks like a batch"),
        (buffer.extend, put(), r"extend: items\['obs'\] .*looks like one item; use add\(\)"),
    ):
        with pytest.raises(InteropError, match=match):
            call(wrong)
        assert len(buffer) == known
        for x, y in zip(before, bits(buffer.state), strict=True):
            np.testing.assert_array_equal(x, y)
    buffer.add(put())
    buffer.extend(put(3))
    assert len(buffer) == 5 * known
    wrong = {"obs": torch.zeros(*lead, 4, device=DEVICE)}  # which is no batch either
    with pytest.raises(ValueError, match=r"must be .*\(3,\)|3"):
        buffer.add(wrong)


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_flags_in_a_column_are_refused_with_a_remedy(name):
    buffer = ReplayBuffer(20, num_envs=4, device=DEVICE)
    flags = torch.zeros(4, 1, dtype=torch.bool, device=DEVICE)
    with pytest.raises(ValueError, match=rf"{name} .*\(4, 1\).* column; use \.squeeze\(-1\)"):
        buffer.add({"obs": torch.zeros(4, device=DEVICE)}, **{name: flags})
    buffer.add({"obs": torch.zeros(4, device=DEVICE)}, **{name: flags.squeeze(-1)})


def test_tensordicts_are_items_and_next_observations_but_no_leaves():
    tensordict = pytest.importorskip("tensordict")
    options = {"num_envs": 2, "next_of": "obs", "view": fbuf.Transition(), "device": DEVICE}
    buffer = ReplayBuffer(8, **options)
    flags = torch.zeros(2, dtype=torch.bool, device=DEVICE)
    seen = lambda number: tensordict.TensorDict(
        {"actor": torch.full((2, 3), float(number), device=DEVICE)}, batch_size=[2]
    )
    for step in range(3):
        item = tensordict.TensorDict({"obs": seen(step)}, batch_size=[2])
        buffer.add(item, truncated=flags, next_observation=seen(step + 1))
    buffer.raise_on_fault()
    data = buffer.sample(32).data
    before, after = data.item["obs"]["actor"], data.next_observation["actor"]
    assert torch.equal(before + 1, after)
    inside = {"obs": seen(0)}
    with pytest.raises(InteropError, match=r"item\['obs'\] .*TensorDict.*use \.to_dict\(\)"):
        ReplayBuffer(8, **options).add(inside, next_observation=seen(1))


def test_flags_of_several_items_are_not_those_of_one():
    buffer = ReplayBuffer(20, device=DEVICE)
    for name in ("terminated", "truncated", "mask"):
        flags = torch.zeros(5, dtype=torch.bool, device=DEVICE)
        with pytest.raises(ValueError, match=rf"add: {name} is of shape \(5,\): this looks like a"):
            buffer.add({"obs": torch.zeros(5, 3, device=DEVICE)}, **{name: flags})
    buffer.extend({"obs": torch.zeros(5, 3, device=DEVICE)})
    assert buffer.state.storage.item["obs"].shape == (3,)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("count", [1, 10])
def test_a_list_of_items_is_a_batch(known, count):
    item = {"obs": torch.ones(3, device=DEVICE), "reward": torch.tensor(1.0, device=DEVICE)}
    items = [jax.tree.map(lambda leaf, n=n: leaf * n, item) for n in range(count)]
    buffer = ReplayBuffer(20, item=item if known else None, batch_size=4, device=DEVICE)
    buffer.extend(items, terminated=torch.ones(count, dtype=torch.bool, device=DEVICE))
    assert len(buffer) == count
    assert buffer[:]["obs"].tolist() == [[n] * 3 for n in range(count)]
    with pytest.raises(InteropError, match="items is an empty list"):
        buffer.extend([])
    with pytest.raises(InteropError, match=r"items\[1\]\['obs'\] .*differs from the same leaf"):
        buffer.extend([item, item | {"obs": torch.ones(4, device=DEVICE)}])
    with pytest.raises(InteropError, match=r"items\[1\]\['reward'\] .*is not a tensor"):
        buffer.extend([item, item | {"reward": object()}])
    with pytest.raises(InteropError, match="must have the same tree as before"):
        buffer.extend([item, {"obs": item["obs"]}])
    assert len(buffer) == count


def test_a_list_that_may_be_one_tree_is_refused():
    """Ten items of three numbers, or three rows of a list of ten: nobody can know."""
    buffer = ReplayBuffer(20, batch_size=4, device=DEVICE)
    items = [vector() for _ in range(10)]
    with pytest.raises(
        InteropError, match=r"items is a list: of 10 single items, or of the leaves"
    ):
        buffer.extend(items)
    assert buffer.stats()["size"] == 0
    agents = ReplayBuffer(20, item=[vector(), vector()], batch_size=4, device=DEVICE)
    agents.extend([vector(5), vector(5)])  # a list is this item
    assert len(agents) == 5
    agents.extend([[vector(), vector()]] * 3)  # and these are items
    assert len(agents) == 8
    pairs = ReplayBuffer(20, batch_size=4, device=DEVICE)
    pairs.extend((torch.zeros(5, 3, device=DEVICE), torch.zeros(5, 3, device=DEVICE)))
    assert len(pairs) == 5


@pytest.mark.sweep
def test_lists_of_steps_of_environments_and_of_what_follows():
    step = {"obs": torch.arange(2.0, device=DEVICE)}
    steps = [jax.tree.map(lambda leaf, n=n: leaf + 10 * n, step) for n in range(3)]
    for time_major in (False, True):
        item = {"obs": torch.tensor(0.0)}
        buffer = ReplayBuffer(20, num_envs=2, item=item, next_of="obs", device=DEVICE)
        following = [one["obs"] + 10 for one in steps]
        buffer.extend(steps, next_observation=following, time_major=time_major)
        rows = fbuf.rows(buffer.state, view=fbuf.Transition())
        assert rows.data.item["obs"][:, -3:].tolist() == [[0, 10, 20], [1, 11, 21]]
        assert rows.data.next_observation[:, -3:].tolist() == [[10, 20, 30], [11, 21, 31]]


@pytest.mark.sweep
def test_a_list_of_tensordicts_is_a_batch():
    tensordict = pytest.importorskip("tensordict")
    items = [tensordict.TensorDict({"obs": torch.full((3,), float(n))}) for n in range(4)]
    for first in (True, False):
        buffer = ReplayBuffer(20, batch_size=4)
        if not first:
            buffer.add(items[0])
        buffer.extend(items)
        assert buffer[-4:]["obs"][:, 0].tolist() == [0, 1, 2, 3]
        assert isinstance(buffer.sample().data, tensordict.TensorDict)
    with pytest.raises(InteropError, match="cannot be stacked"):
        buffer.extend([items[0], tensordict.TensorDict({"other": torch.zeros(3)})])


# Writing.


def test_it_is_fbuf_behind_it():
    """The same calls lead to the same state, bit by bit."""
    buffer = buffer_of(0, sampler=EXACT)
    done = torch.tensor([0, 1, 0, 0, 1, 0, 0, 0], device=DEVICE).bool()
    priority = torch.arange(1.0, COUNT + 1, device=DEVICE)
    mask = torch.tensor([1, 1, 0, 1, 1, 1, 1, 1], device=DEVICE).bool()
    told = {"terminated": done, "truncated": ~done, "priority": priority, "mask": mask}
    buffer.extend(rows(), **told)
    buffer.add(one(9), terminated=True, priority=2.0, alpha=0.5)

    state = fbuf.add(empty(sampler=EXACT), of_jax(rows()), **of_jax(told))
    state = fbuf.add(state, of_jax(one(9)), terminated=True, priority=2.0, alpha=0.5)
    assert_same(buffer.state, state)

    batch = buffer.sample()
    ids = fbuf.Ids(*of_jax([batch.ids.slot, batch.ids.generation]))
    mask, priority = mask.repeat(2), torch.arange(1.0, BATCH + 1, device=DEVICE)
    number = torch.arange(BATCH, device=DEVICE)
    buffer.update_priority(batch.ids, priority, mask=mask, alpha=2.0)
    state = fbuf.update_priority(state, ids, of_jax(priority), mask=of_jax(mask), alpha=2.0)
    assert_same(buffer.state, state)
    mask = mask.cpu().numpy()  # which goes another way than tensors do
    buffer.write(batch.ids, {"number": number}, mask=mask)
    state = fbuf.write(state, ids, {"number": of_jax(number)}, mask=mask)
    assert_same(buffer.state, state)
    buffer.remove(batch.ids, mask=mask)
    state = fbuf.remove(state, ids, mask=mask)
    assert_same(buffer.state, state)
    buffer.end_episode()
    state = fbuf.end_episode(state)
    assert_same(buffer.state, state)
    buffer.raise_on_fault()
    assert buffer.stats() == {name: x.item() for name, x in fbuf.stats(state).items()}
    buffer.empty()
    assert_same(buffer.state, fbuf.clear(state))


@pytest.mark.sweep
def test_environments_step_by_step_and_time_major():
    buffer = buffer_of(0, num_envs=2)
    done = torch.tensor([True, False], device=DEVICE)
    buffer.end_episode(done)  # the first reset comes before the first row
    buffer.add(rows(2), terminated=done)
    assert contents(buffer) == [0, 1, *[0] * 8]
    assert flags(buffer.state) == [1, *[0] * 9]
    buffer.extend(shaped(rows(COUNT, 10), 4, 2), time_major=True)
    assert contents(buffer) == [0, 1, *range(10, 18)]
    buffer.end_episode(done)
    assert flags(buffer.state) == [1, *[0] * 7, 2, 0]


@pytest.mark.sweep
def test_what_follows_is_given_apart():
    buffer = ReplayBuffer(
        CAPACITY, device=DEVICE, next_of="obs", view=fbuf.Transition("obs"), batch_size=BATCH
    )
    number = torch.arange(COUNT, device=DEVICE).float()
    new = {"obs": number[:, None].expand(COUNT, 3), "action": number.int()}
    ends = torch.tensor([0, 1, 0, 0, 0, 0, 0, 0], device=DEVICE).bool()
    buffer.extend(new, next_observation=new["obs"] + 0.5, truncated=ends)
    batch = buffer.sample()
    # within an episode what follows is the following row; at its end what was given
    last = (batch.data.item["action"] == 1) | (batch.data.item["action"] == COUNT - 1)
    assert set(last.tolist()) == {True, False}
    wanted = batch.data.item["obs"] + torch.where(last, 0.5, 1.0)[:, None]
    assert torch.equal(jax.tree.leaves(batch.data.next_observation)[0], wanted)


# 64 bits.


@pytest.mark.parametrize("asked", [False, True])
def test_int64_is_stored_in_32_bits_and_comes_back_when_asked_for(asked):
    buffer, dtype = buffer_of(int64=asked), torch.int64 if asked else torch.int32
    batch = buffer.sample()
    assert batch.data["number"].dtype == dtype
    assert batch.ids.slot.dtype == dtype
    assert torch.equal(batch.data["number"] / 8, batch.data["next"]["reward"][:, 0])
    buffer.write(batch.ids, {"number": -batch.data["number"]})  # in either dtype
    drawn = set(batch.ids.slot.tolist())
    wanted = [-slot if slot in drawn else slot for slot in range(COUNT)]
    assert contents(buffer)[:COUNT] == wanted


@pytest.mark.sweep
def test_with_64_bit_types_on_nothing_is_narrowed():
    with jax.enable_x64(True):
        buffer = ReplayBuffer(CAPACITY, device=DEVICE, int64=True, batch_size=BATCH)
        large = torch.tensor([2**40, -(2**40)], device=DEVICE)
        buffer.extend({"i": large, "f": large.double() + 0.25})
        batch = buffer.sample()
        assert batch.data["i"].dtype == batch.ids.slot.dtype == torch.int64
        assert torch.equal(batch.data["i"].double() + 0.25, batch.data["f"])
        buffer.write(batch.ids, {"i": batch.data["i"] + 1})  # whose ids are of 64 bits now
        assert stored(buffer.state)["i"][:2].tolist() == [2**40 + 1, -(2**40) + 1]


# Refusals.


def grad() -> Any:
    return torch.ones(COUNT, requires_grad=True)


REFUSED = {
    "float64": (lambda: {"number": torch.ones(COUNT).double()}, r"'number'\].*64-bit.*\.float"),
    "numpy": (lambda: {"number": np.ones(COUNT)}, r"'number'\] \(torch\.float64.*64-bit.*\.float"),
    "array": (lambda: {"number": jnp.ones(COUNT)}, r"'number'\].*not a tensor"),
    "list": (lambda: {"number": [1, 2]}, r"'number'\]\[0\] is new.*\['number'\] is missing"),
    "text": (lambda: {"number": "x"}, r"'number'\] \(str\) is not a tensor"),
    "sparse": (lambda: {"number": torch.eye(COUNT).to_sparse()}, r"'number'\].*to_dense"),
    "none": (lambda: {"number": None}, r"same tree as before: items\['number'\] is missing"),
    "nested": (lambda: {"number": {"a": grad().detach()}}, r"\['number'\]\['a'\] is new.*missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_added(name):
    make, message = REFUSED[name]
    buffer = buffer_of()
    with pytest.raises(InteropError, match=message):
        buffer.extend(rows() | make())
    assert contents(buffer) == [*range(COUNT), 0, 0]
    buffer.extend(rows(COUNT, COUNT))
    assert len(buffer) == CAPACITY


def test_dtypes_and_axes_are_told():
    buffer = buffer_of()
    with pytest.raises(TypeError, match=r"extend: items\['number'\] must be int32"):
        buffer.extend(rows() | {"number": torch.ones(COUNT, device=DEVICE)})
    with pytest.raises(
        InteropError, match=r"extend: item.* lacks the leading axis of the items.*call add"
    ):
        ReplayBuffer(4, device=DEVICE).extend(torch.tensor(1.0))
    assert len(buffer) == COUNT


def test_other_arguments_are_refused_by_name_too():
    buffer = buffer_of(sampler=EXACT)
    ids = buffer.sample().ids
    with pytest.raises(InteropError, match=r"update_priority: priority \(.*requires grad"):
        buffer.update_priority(ids, torch.ones(BATCH, requires_grad=True))
    with pytest.raises(InteropError, match=r"write: fields\['number'\] \(.*requires grad"):
        buffer.write(ids, {"number": grad()})
    with pytest.raises(InteropError, match=r"extend: priority \(.*64-bit"):
        buffer.extend(rows(), priority=torch.ones(COUNT).double())
    with pytest.raises(TypeError, match=r"ReplayBuffer\.remove: ids must be"):
        buffer.remove(torch.tensor([1, 2]))


def test_constructor():
    with pytest.raises(ValueError, match=r"ReplayBuffer\.__init__: capacity"):
        ReplayBuffer(0)
    with pytest.raises(ValueError, match=r"capacity must be a multiple of num_envs"):
        ReplayBuffer(7, num_envs=2)
    with pytest.raises(ValueError, match=r"prefetch must be from 0"):
        ReplayBuffer(4, prefetch=-1)
    with pytest.raises(ValueError, match=r"prefetch needs a batch_size"):
        ReplayBuffer(4, prefetch=1)
    with pytest.raises(ValueError, match=r"seed"):
        ReplayBuffer(4, seed=-1)
    with pytest.raises(InteropError, match=r"device cuda:99 must be one that both libraries reach"):
        ReplayBuffer(4, device="cuda:99")
    if not torch.cuda.is_available():
        with pytest.warns(UserWarning, match=r"pin_memory=True does nothing, because .* no GPU"):
            ReplayBuffer(4, pin_memory=True)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_closed_buffer_says_so(prefetch):
    with buffer_of(prefetch=prefetch, sampler=EXACT) as buffer:
        ids = buffer.sample().ids
    for call in (
        lambda: buffer.write(ids, {}),
        lambda: buffer.remove(ids),
        lambda: buffer.update_priority(ids, full(1.0)),
        lambda: buffer.state,
        lambda: setattr(buffer, "state", None),
        buffer.end_episode,
        lambda: buffer.load_state_dict({}),
    ):
        with pytest.raises(RuntimeError, match=r"this buffer is closed"):
            call()


# Drawing.


def test_batches_are_views_of_what_jax_drew(monkeypatch):
    drawn: list[Any] = []
    monkeypatch.setattr(_numpy_draws, "_MOST", 0)  # by the program

    def spy(on: Any, name: str) -> None:
        plain = getattr(on, name)
        monkeypatch.setattr(on, name, lambda *args: drawn.append(args[-1]) or plain(*args))

    spy(_unpack, "on_cpu")
    spy(_unpack.Aliases, "of")
    leaves = jax.tree.leaves(buffer_of().sample())
    assert len(leaves) == 9
    assert len(drawn) == 2  # of words, and of bytes
    begins = [array.unsafe_buffer_pointer() for array in drawn]
    ends = [begin + array.nbytes for begin, array in zip(begins, drawn, strict=True)]
    for tensor in leaves:
        assert any(a <= tensor.data_ptr() < b for a, b in zip(begins, ends, strict=True))


@pytest.mark.sweep
def test_a_batch_size_of_the_call_and_of_the_buffer():
    assert buffer_of().sample().mask.shape == (BATCH,)
    assert buffer_of(batch_size=4).sample(BATCH).mask.shape == (BATCH,)
    without = buffer_of(batch_size=None)
    assert without.sample(BATCH).mask.shape == (BATCH,)
    with pytest.raises(ValueError, match=r"sample: batch_size is None, and the buffer has none"):
        without.sample()


@pytest.mark.sweep
def test_nothing_to_draw_is_masked():
    buffer = buffer_of(1, **PAIRS)
    assert not buffer.can_sample()
    assert not buffer.sample().mask.any()
    buffer.extend(rows(COUNT, 1))
    assert buffer.sample().mask.all()


# Where batches go.


@dataclasses.dataclass
class Mine:
    """A container that neither JAX nor torch knows."""

    observation: Any
    name: str
    inner: Any = None


Pair = collections.namedtuple("Pair", ["left", "right"])

CONTAINERS = {
    "none": (9, None),
    "dict": (4, lambda b: {"a": [b.data["number"]], "b": (b.ids, b.weight), "n": 3}),
    "dataclass": (3, lambda b: Mine(b.data["next"], "x", Mine(b.ids, "y"))),
    "ordered": (3, lambda b: collections.OrderedDict({1: b.weight, "a": [b.ids]})),
    "namedtuple": (1, lambda b: Pair(b.data["number"] * 2, SimpleNamespace)),
}
"""The number of tensors in each, and how it is made."""


def tensors_in(tree: Any) -> list[Any]:
    """All tensors, found in another way than the buffer does it."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return tensors_in(list(tree.values()))
    if isinstance(tree, (list, tuple)):
        return [tensor for part in tree for tensor in tensors_in(part)]
    if dataclasses.is_dataclass(tree):
        return tensors_in(list(vars(tree).values()))
    return []


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("name", CONTAINERS)
def test_every_tensor_is_pinned_whatever_holds_it(name, prefetch, can_pin):
    count, transform = CONTAINERS[name]
    options = {"prefetch": prefetch, "pin_memory": True, "transform": transform}
    buffer = buffer_of(0, device="cpu", **options)
    buffer.extend(jax.tree.map(torch.Tensor.cpu, rows()))
    for _ in range(2):
        found = tensors_in(buffer.sample())
        assert len(found) == count
        assert all(tensor.is_pinned() for tensor in found)
    buffer.close()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_tensordicts_are_pinned_whatever_they_say_of_their_device(device, can_pin):
    tensordict = pytest.importorskip("tensordict")

    def transform(batch: Any) -> Any:
        inner = {"x": batch.data["number"], "next": {"w": batch.weight}, "ids": batch.ids.slot}
        return tensordict.TensorDict(inner, batch_size=[BATCH], device=device)

    buffer = buffer_of(0, device="cpu", pin_memory=True, transform=transform)
    buffer.extend(jax.tree.map(torch.Tensor.cpu, rows()))
    batch = buffer.sample()
    found = list(batch.values(include_nested=True, leaves_only=True))
    assert len(found) == 3
    assert all(tensor.is_pinned() for tensor in found)
    assert batch.device == (None if device is None else torch.device(device))


# The state.


@pytest.mark.sweep
def test_the_state_in_compiled_code():
    buffer = buffer_of(sampler=EXACT)

    @jax.jit
    def step(state: Any) -> Any:
        return fbuf.add(state, of_jax(one(20)))

    buffer.state = step(buffer.state)
    assert contents(buffer) == [*range(COUNT), 20, 0]

    taken = buffer.state
    after = jax.jit(step, donate_argnums=0)(taken)
    for call in (buffer.sample, lambda: buffer.add(one(1)), lambda: len(buffer), buffer.empty):
        with pytest.raises(
            RuntimeError, match=r"function consumed buffer\.state; .*buffer\.state ="
        ):
            call()
    buffer.state = after
    assert len(buffer) == CAPACITY
    for other, said in (
        (fbuf.init(0.0, CAPACITY), "differs in item, "),
        (buffer_of().state, "differs in sampler"),
        (jax.vmap(lambda _: after)(jnp.zeros(2)), "differs in axes: "),
        (None, "got NoneType"),
        (3, "got int"),
        (buffer, "got ReplayBuffer"),
    ):
        with pytest.raises(InteropError, match=f"must be a state of this buffer.*; .*{said}"):
            buffer.state = other
    with pytest.raises(RuntimeError, match="nothing has been added yet"):
        buffer_of(0).state  # noqa: B018 (to read it is what raises)
    with pytest.raises(RuntimeError, match="nothing has been added yet"):
        buffer_of(0).state = after


# Saving.


@pytest.mark.parametrize("prefetch", few([0, 2], 2))
def test_batches_of_a_view_are_saved_as_such(prefetch, tmp_path):
    buffer, resumed = (buffer_of(0, **PAIRS, seed=s, prefetch=prefetch) for s in (1, 2))
    buffer.extend(rows())
    buffer.sample()
    torch.save(buffer.state_dict(), tmp_path / "buffer.pt")
    resumed.load_state_dict(torch.load(tmp_path / "buffer.pt"), episodes="keep")
    for _ in range(1 + prefetch):
        batch, again = buffer.sample(), resumed.sample()
        assert type(batch.data) is type(again.data) is fbuf.SequenceSteps
        assert_same(batch, again)


@pytest.mark.parametrize("name", HANDED_OUT)
def test_torch_load_knows_what_batches_are_made_of(name, tmp_path):
    kind = getattr(fbuf, name)
    batch = kind(**{field.name: torch.ones(2) for field in dataclasses.fields(kind)})
    torch.save(batch, tmp_path / "batch.pt")
    again = torch.load(tmp_path / "batch.pt", weights_only=True)
    assert type(again) is kind
    assert_same(batch, again)


def test_a_state_that_is_not_whole_is_not_loaded():
    state_dict = buffer_of().state_dict()
    buffer = buffer_of(1)
    before = bits(buffer.state)
    for broken, message in (
        ({k: v for k, v in state_dict.items() if k != "key"}, r"incomplete: it lacks \['key'\]"),
        (
            state_dict | {"state": {name: x.double() for name, x in state_dict["state"].items()}},
            "found torch.float64",
        ),
        (state_dict | {"state": dict(list(state_dict["state"].items())[1:])}, "found nothing"),
    ):
        with pytest.raises(ValueError, match=message):
            buffer.load_state_dict(broken)
        for x, y in zip(before, bits(buffer.state), strict=True):
            np.testing.assert_array_equal(x, y)


# Life before the first row, and in other processes.


@pytest.mark.sweep
def test_before_the_first_row_there_are_figures_and_a_state_dict():
    buffer, resumed = (ReplayBuffer(8, batch_size=4, sampler=EXACT, seed=s) for s in (1, 2))
    assert buffer.stats()["size"] == 0
    assert buffer.stats()["capacity"] == 8
    resumed.load_state_dict(buffer.state_dict(), episodes="keep")
    with pytest.raises(RuntimeError, match=r"nothing has been added yet"):
        resumed.sample()
    for one in (buffer, resumed):
        one.extend({"n": torch.arange(6)})
    assert_same(buffer.sample(), resumed.sample())
    resumed.load_state_dict(ReplayBuffer(8, batch_size=4, sampler=EXACT).state_dict())
    assert len(resumed) == 0
    assert len(resumed.state.storage.item) == 1  # it knows its item still


def test_where_the_rows_lie_is_one_of_a_few():
    for host in (None, 1, 0.0):
        with pytest.raises(TypeError, match="host must be True, False, a directory or a HostStore"):
            ReplayBuffer(8, host=host)


# Python, JAX and torch warn of what is tried here.
@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*fork.*")
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(len, marks=pytest.mark.sweep),
        ReplayBuffer.sample,
        pytest.param(ReplayBuffer.state_dict, marks=pytest.mark.sweep),
    ],
)
def test_a_process_that_was_forked_off_gets_an_error(call):
    buffer = ReplayBuffer(4, batch_size=2)
    buffer.extend({"n": torch.arange(3)})
    child = os.fork()
    if child == 0:
        try:
            call(buffer)
        except RuntimeError as error:
            os._exit(7 if "num_workers=0" in str(error) else 8)
        finally:
            os._exit(9)
    deadline = time.monotonic() + 20
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(done[1]) == 7


@pytest.mark.sweep
def test_a_wrong_shape_is_named_as_it_was_given():
    """And not as it is after it was padded."""
    buffer = buffer_of(sampler=EXACT)
    wrong = rows(5) | {"number": torch.zeros(5, 2, dtype=torch.int64)}
    with pytest.raises(ValueError, match=r"got \(5, 2\)"):
        buffer.extend(wrong)
    ids = buffer.sample().ids
    buffer.update_priority(ids, torch.ones(BATCH))
    with pytest.raises(ValueError, match=r"got .*\(3,\)"):
        buffer.update_priority(fbuf.Ids(ids.slot[:5], ids.generation[:5]), torch.ones(3))
    for _ in range(2):  # also when it is not the first size
        with pytest.raises(ValueError, match=r"empty batch"):
            buffer.extend(rows(0))
        buffer.extend(rows(3))


@pytest.mark.parametrize("beta", [-1.0, float("nan"), 1e39, torch.tensor(0.5)])
def test_what_is_no_exponent_is_refused(beta):
    with pytest.raises((ValueError, TypeError), match=r"sample: beta"):
        buffer_of(sampler=EXACT).sample(beta=beta)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"sampler": "uniform"}, "sampler must be a Sampler"),
        ({"view": fbuf.Item}, r"view must be a View.*call it: Item\(...\)"),
        ({"batch_size": 4.0}, "batch_size must be an int"),
        ({"prefetch": 1.5}, "prefetch must be an int"),
        ({"seed": "a"}, "seed must be an int"),
    ],
)
def test_wrong_arguments_of_the_constructor_are_named(options, error):
    with pytest.raises(TypeError, match=error):
        ReplayBuffer(4, **options)


@pytest.mark.sweep
def test_a_resumed_run_has_the_sizes_of_the_first_one():
    one, other = (buffer_of(batch_size=None, sampler=EXACT, seed=s) for s in (1, 2))
    one.sample(7)
    other.load_state_dict(one.state_dict(), episodes="keep")
    assert_same(one.sample(5), other.sample(5))
    assert_same(one.sample(7), other.sample(7))


@pytest.mark.sweep
def test_memory_is_freed():
    def live() -> int:
        gc.collect()
        return sum(x.nbytes for x in jax.live_arrays())

    item = {"x": torch.zeros(250_000)}  # ten rows are 10 MB
    before, buffer = live(), ReplayBuffer(10, item=item, batch_size=1)
    buffer.add(item)
    for _ in range(3):
        buffer.load_state_dict(buffer.state_dict())
        buffer.sample()
    assert live() - before < 15e6
    buffer.close()
    assert live() - before < 2e6


@pytest.mark.sweep
@pytest.mark.parametrize("prefetch", [0, 2])
def test_another_thread_that_drops_batches_doubles_none(prefetch):
    count = 400
    with ReplayBuffer(count, sampler=fbuf.Shuffled(), batch_size=4, prefetch=prefetch) as buffer:
        buffer.extend({"n": torch.arange(count)})
        ids, over = buffer.sample().ids, threading.Event()
        buffer.state = fbuf.clear(buffer.state)
        buffer.extend({"n": torch.arange(count)})
        thread = threading.Thread(
            target=lambda: [buffer.remove(ids, mask=False) for _ in iter(over.is_set, True)]
        )
        thread.start()
        try:
            seen = [n for _ in range(3) for batch in buffer for n in batch.data["n"].tolist()]
        finally:
            over.set()
            thread.join()
    for epoch in range(3):
        assert len(set(seen[epoch * count : (epoch + 1) * count])) == count


# Reading rows.


@pytest.mark.sweep
def test_rows_are_read_by_position():
    buffer = buffer_of(0, capacity=6)
    for start in (0, 4):  # around the end: positions are slots
        buffer.extend(rows(4, start))
    numbers = [6, 7, 2, 3, 4, 5]
    assert buffer[:]["number"].tolist() == numbers
    assert buffer[3]["number"].item() == 3
    assert buffer[-2:]["number"].tolist() == numbers[-2:]
    assert buffer[torch.tensor([True, False] * 3)]["number"].tolist() == numbers[::2]
    assert buffer[[0, 0, 5]]["next"]["reward"].shape == (3, 1)
    buffer[:]["number"].zero_()  # it is a copy
    assert buffer[0]["number"].item() == 6
    with pytest.raises(IndexError):
        buffer[6]
    with pytest.raises(TypeError, match=r"write\(ids, fields\)"):
        buffer[0] = buffer[1]
    buffer.remove(fbuf.ids_at(buffer.state, np.int32([1])))
    assert buffer[:]["number"].tolist() == [6, 2, 3, 4, 5]
    with pytest.raises(IndexError, match="slot 1 was removed"):
        buffer[1]


def test_episodes_come_one_by_one():
    buffer = buffer_of(0)
    ends = torch.tensor([False, False, True, False, True, False])
    buffer.extend(rows(6), terminated=ends)
    found = [episode["number"].tolist() for episode in buffer.episodes()]
    assert found == [[0, 1, 2], [3, 4], [5]]


def test_it_says_what_it_is():
    buffer = buffer_of(3, sampler=fbuf.Uniform(), batch_size=4)
    assert repr(buffer).startswith(f"ReplayBuffer(3 of {CAPACITY} rows, sampler=Uniform(window=1")
    buffer.close()
    assert "closed" in repr(buffer)
    assert repr(ReplayBuffer(4)).startswith("ReplayBuffer(0 of 4 rows")


@pytest.mark.sweep
def test_tensordicts_and_tensorclasses_come_back_as_such():
    tensordict = pytest.importorskip("tensordict")

    @tensordict.tensorclass
    class Step:
        obs: torch.Tensor
        action: torch.Tensor

    for items in (
        Step(torch.arange(6.0).reshape(3, 2), torch.arange(3).int(), batch_size=[3]),
        tensordict.TensorDict({"obs": torch.ones(3, 2), "a": {"b": torch.arange(3).int()}}, [3]),
    ):
        buffer = ReplayBuffer(8, batch_size=5)
        buffer.extend(items)
        batch = buffer.sample()
        assert type(batch.data) is type(items)
        assert batch.data.batch_size == (5,)
        stored = buffer[:]
        assert type(stored) is type(items)
        assert (stored == items).all()


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["state_dict", "directory"])
def test_tensordicts_come_back_as_such_after_a_load(way, tmp_path):
    tensordict = pytest.importorskip("tensordict")
    buffer, resumed, other = (ReplayBuffer(8, batch_size=5) for _ in range(3))
    buffer.extend(tensordict.TensorDict({"obs": torch.arange(3).int()}, [3]))
    if way == "directory":
        buffer.save(tmp_path)
        resumed.load(tmp_path)
    else:
        saved = buffer.state_dict()
        resumed.load_state_dict(saved)
        saved.pop("tensordict", None)  # older ones do not say so
        other.load_state_dict(saved)
        assert type(other.sample().data) is dict
    assert type(resumed.sample().data) is type(resumed[:]) is tensordict.TensorDict
    assert (resumed[:] == buffer[:]).all()


def test_what_has_another_item_says_which_call_was_refused():
    buffer, other = ReplayBuffer(8, item=torch.zeros(())), ReplayBuffer(8, item=torch.zeros(2))
    with pytest.raises(ValueError, match=r"ReplayBuffer\.load_state_dict: what was saved has"):
        buffer.load_state_dict(other.state_dict())


@pytest.mark.sweep
def test_nested_tuples_are_items():
    buffer = ReplayBuffer(8, batch_size=5)
    buffer.extend((torch.ones(3, 2), (torch.arange(3).int(), {"r": torch.zeros(3)})))
    data = buffer.sample().data
    assert data[0].shape == (5, 2)
    assert data[1][1]["r"].shape == (5,)
    assert buffer[2][1][0].item() == 2


def test_rows_that_are_read_once_are_not_for_an_object_that_draws():
    with pytest.raises(ValueError, match=r"fbuf\.pop"):
        ReplayBuffer(8, sampler=fbuf.Fifo())


def test_a_loop_that_loads_nothing_is_told_where_all_rows_are_written_again(tmp_path):
    buffer = ReplayBuffer(20, batch_size=4)
    buffer.extend({"x": torch.arange(9.0)})
    before = buffer.state_dict()
    buffer.save(tmp_path)
    buffer.load_state_dict(before)  # it does not descend from the checkpoint
    with pytest.warns(UserWarning, match="all rows are written to") as told:
        buffer.save(tmp_path)
    assert [warning.filename for warning in told] == [__file__]


def test_a_directory_saved_before_the_first_row_takes_the_rows_that_come(tmp_path):
    buffer = ReplayBuffer(20, batch_size=4)
    buffer.save(tmp_path)
    buffer.extend({"x": torch.arange(3.0)})
    buffer.save(tmp_path)
    again = ReplayBuffer(20, batch_size=4)
    again.load(tmp_path)
    assert sorted(again[:]["x"].tolist()) == [0, 1, 2]
    other = ReplayBuffer(20, batch_size=4)
    other.load(tmp_path)
    with pytest.raises(InteropError, match="x"):
        other.extend({"y": torch.arange(3.0)})
    with pytest.raises(fbuf.CheckpointError, match="save to another directory"):
        fbuf.save(tmp_path, fbuf.init(jnp.int32(0), 20))  # any other item is refused as before


@pytest.mark.parametrize(
    "sampler",
    [fbuf.Grouped("info.of", 2), fbuf.Limited(version="info.of")],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_sampler_that_looks_at_a_field_waits_for_the_first_row(tmp_path, sampler):
    """Figures and checkpoints before that, too."""
    buffer, again = (ReplayBuffer(20, batch_size=4, sampler=sampler, seed=0) for _ in range(2))
    assert buffer.stats()["num_starts" if isinstance(sampler, fbuf.Grouped) else "live"] == 0
    buffer.save(tmp_path)
    again.load(tmp_path)
    for one in (buffer, again):
        group = torch.tensor([0, 1, 1], dtype=torch.int32)
        one.extend({"x": torch.arange(3.0), "info": {"of": group}})
    assert_same(buffer.sample(), again.sample())
    again.save(tmp_path)
    third = ReplayBuffer(20, batch_size=4, sampler=sampler)
    with pytest.raises(ValueError, match=r"names 'info\.of'.* no such field"):
        third.extend({"x": torch.arange(3.0)})
    third.load(tmp_path)
    assert third[:]["x"].tolist() == [0, 1, 2]
