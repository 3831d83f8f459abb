"""The replay buffer for PyTorch: what it stores, what it hands out, and who may use it when."""

from __future__ import annotations

import collections
import dataclasses
import gc
import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import DEVICE

import fbuf

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import InteropError, ReplayBuffer, _replay_buffer  # noqa: E402

pytestmark = pytest.mark.any_device

EXACT = fbuf.Prioritized(alpha=1.0, eps=0.0)


def rows(start: int, count: int) -> dict[str, Any]:
    """Rows that say which they are, in every leaf."""
    number = torch.arange(start, start + count, device=DEVICE)
    return {"obs": number[:, None].float().expand(count, 3), "action": number}


def one(number: int) -> dict[str, Any]:
    return {key: leaf[0] for key, leaf in rows(number, 1).items()}


def buffer_of(capacity: int = 8, count: int = 5, **options: Any) -> ReplayBuffer:
    """A buffer with so many rows."""
    buffer = ReplayBuffer(capacity, device=DEVICE, **options)
    if count:
        buffer.extend(rows(0, count))
    return buffer


def bits(tree: Any) -> list[np.ndarray]:
    """The bytes of all leaves, of arrays or tensors."""
    leaves = [x.cpu().numpy() if isinstance(x, torch.Tensor) else x for x in jax.tree.leaves(tree)]
    return [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in leaves]


def assert_same(one: Any, other: Any) -> None:
    for x, y in zip(bits(one), bits(other), strict=True):
        np.testing.assert_array_equal(x, y)


def contents(buffer: ReplayBuffer) -> list[int]:
    """What is stored, slot by slot."""
    return buffer.state.storage.rows()["action"].tolist()


# The item.


@pytest.mark.parametrize("first", ["add", "extend"])
def test_the_item_is_learned_from_what_comes_first(first):
    buffer = buffer_of(count=0)
    assert len(buffer) == 0
    assert not buffer.can_sample()
    if first == "add":
        buffer.add(one(0))
    else:
        buffer.extend(rows(0, 1))
    item = buffer.state.storage.item
    assert jax.tree.map(lambda x: (x.shape, x.dtype.name), item) == {
        "action": ((), "int32"),
        "obs": ((3,), "float32"),
    }
    buffer.extend(rows(1, 2))
    buffer.add(one(3))
    assert contents(buffer) == [0, 1, 2, 3, 0, 0, 0, 0]
    assert len(buffer) == 4
    assert buffer.can_sample()


@pytest.mark.parametrize(
    "item",
    [
        {"obs": torch.zeros(3), "action": torch.tensor(0)},
        {"obs": jax.ShapeDtypeStruct((3,), jnp.float32), "action": jnp.int32(0)},
        {"obs": torch.zeros(3, device="meta"), "action": np.int64(0)},
    ],
    ids=["tensors", "specs", "mixed"],
)
def test_an_item_that_is_given(item):
    buffer = buffer_of(count=0, item=item)
    assert buffer.state.capacity == 8
    with pytest.raises(RuntimeError, match=r"ReplayBuffer\.sample: the buffer is empty"):
        buffer.sample(2)
    buffer.extend(rows(0, 5))
    assert contents(buffer)[:5] == [0, 1, 2, 3, 4]


def test_environments():
    buffer = buffer_of(count=0, num_envs=2)
    buffer.add(rows(0, 2), terminated=torch.tensor([True, False], device=DEVICE))
    steps = {key: leaf.reshape(2, 2, *leaf.shape[1:]) for key, leaf in rows(2, 4).items()}
    buffer.extend(steps)
    buffer.extend({key: leaf.transpose(0, 1) for key, leaf in steps.items()}, time_major=True)
    expected = fbuf.init({"obs": jnp.zeros(3), "action": 0}, 8, num_envs=2)
    for lead, start in (((2,), 0), ((2, 2), 2), ((2, 2), 2)):
        number = jnp.arange(start, start + np.prod(lead), dtype=jnp.int32).reshape(lead)
        new = {"obs": jnp.broadcast_to(number[..., None].astype(float), (*lead, 3))}
        done = jnp.array([True, False]) if lead == (2,) else None
        expected = fbuf.add(expected, new | {"action": number}, terminated=done)
    assert_same(buffer.state, expected)


# Writing.


def test_it_is_fbuf_behind_it():
    """The same calls lead to the same state, bit by bit."""
    buffer = buffer_of(count=0, sampler=EXACT)
    flags = torch.tensor([0, 1, 0, 0, 1], device=DEVICE).bool()
    priority = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=DEVICE)
    mask = torch.tensor([1, 1, 0, 1, 1], device=DEVICE).bool()
    buffer.extend(rows(0, 5), terminated=flags, truncated=~flags, priority=priority, mask=mask)
    buffer.add(one(9), terminated=True, priority=2.0, alpha=0.5)

    state = fbuf.init({"obs": jnp.zeros(3), "action": 0}, 8, sampler=EXACT)
    array = jax.tree.map(lambda x: jnp.asarray(x.cpu().numpy()), rows(0, 5))
    array["action"] = array["action"].astype(jnp.int32)
    done = jnp.array([0, 1, 0, 0, 1], bool)
    state = fbuf.add(
        state, array, terminated=done, truncated=~done, priority=jnp.arange(1.0, 6),
        mask=jnp.array([1, 1, 0, 1, 1], bool),
    )  # fmt: skip
    item = {"obs": jnp.full(3, 9.0), "action": jnp.int32(9)}
    state = fbuf.add(state, item, terminated=True, priority=2.0, alpha=0.5)
    assert_same(buffer.state, state)

    batch = buffer.sample(4)
    ids = jax.tree.map(lambda x: jnp.asarray(x.cpu().numpy()), batch.ids)
    given = torch.arange(1.0, 5.0, device=DEVICE)
    buffer.update_priority(batch.ids, given, mask=mask[:4], alpha=2.0)
    state = fbuf.update_priority(state, ids, jnp.arange(1.0, 5), mask=jnp.asarray([1, 1, 0, 1], bool), alpha=2.0)  # fmt: skip # noqa: E501
    assert_same(buffer.state, state)
    buffer.write(batch.ids, {"action": torch.tensor([5, 6, 7, 8], device=DEVICE)})
    state = fbuf.write(state, ids, {"action": jnp.arange(5, 9, dtype=jnp.int32)})
    assert_same(buffer.state, state)
    buffer.remove(batch.ids, mask=mask[:4])
    state = fbuf.remove(state, ids, mask=jnp.asarray([1, 1, 0, 1], bool))
    assert_same(buffer.state, state)
    buffer.end_episode()
    state = fbuf.end_episode(state)
    assert_same(buffer.state, state)
    buffer.raise_on_fault()
    assert buffer.stats() == {name: x.item() for name, x in fbuf.stats(state).items()}
    buffer.empty()
    assert_same(buffer.state, fbuf.clear(state))


def test_what_follows_is_given_apart():
    buffer = ReplayBuffer(8, device=DEVICE, next_of="obs", view=fbuf.Transition("obs"))
    new = rows(0, 4)
    ends = torch.tensor([0, 1, 0, 0], device=DEVICE).bool()
    buffer.extend(new, next_observation=new["obs"] + 0.5, truncated=ends)
    batch = buffer.sample(32)
    assert set(batch.data.item["action"].tolist()) == {0, 1, 2, 3}
    # within an episode what follows is the following row; at its end what was given
    last = (batch.data.item["action"] == 1) | (batch.data.item["action"] == 3)
    led_to = batch.data.item["obs"] + torch.where(last, 0.5, 1.0)[:, None]
    assert torch.equal(jax.tree.leaves(batch.data.next)[0], led_to)


def test_tensors_are_their_owners_again():
    buffer = ReplayBuffer(2**16, device=DEVICE)
    observation = torch.ones(2**16, 64, device=DEVICE)
    buffer.extend({"obs": observation})
    observation.fill_(7)
    assert bool((buffer.state.storage.rows()["obs"] == 1).all())


# 64 bits.


def test_int64_is_stored_in_32_bits_and_comes_back_when_asked_for():
    for asked, dtype in ((False, torch.int32), (True, torch.int64)):
        buffer = buffer_of(int64=asked)
        batch = buffer.sample(16)
        assert batch.data["action"].dtype == dtype
        assert batch.ids.slot.dtype == dtype
        assert torch.equal(batch.data["action"].float(), batch.data["obs"][:, 0])
        buffer.write(batch.ids, {"action": -batch.data["action"]})  # in either dtype
        assert contents(buffer)[:5] == [0, -1, -2, -3, -4]


def test_an_integer_that_does_not_fit_changes_nothing():
    buffer = buffer_of()
    before = bits(buffer.state)
    too_large = rows(5, 2)
    too_large["action"] = too_large["action"] + 2**31
    with pytest.raises(InteropError, match=r"ReplayBuffer\.extend: items\['action'\].*int32 does"):
        buffer.extend(too_large)
    for x, y in zip(before, bits(buffer.state), strict=True):
        np.testing.assert_array_equal(x, y)
    empty = buffer_of(count=0)
    with pytest.raises(InteropError, match=r"items\['action'\]"):
        empty.extend(too_large)
    empty.extend({"obs": torch.ones(2, 7, device=DEVICE)})  # nothing was learned from it


def test_with_64_bit_types_on_nothing_is_narrowed():
    with jax.enable_x64(True):
        buffer = ReplayBuffer(4, device=DEVICE)
        large = torch.tensor([2**40, -(2**40)], device=DEVICE)
        buffer.extend({"i": large, "f": large.double() + 0.25})
        batch = buffer.sample(8)
        assert batch.data["i"].dtype == torch.int64
        assert torch.equal(batch.data["i"].double() + 0.25, batch.data["f"])
        ranked = ReplayBuffer(4, device=DEVICE, sampler=EXACT, int64=True)
        ranked.extend({"i": large})
        ids = ranked.sample(8).ids
        assert ids.slot.dtype == torch.int64
        ranked.update_priority(ids, torch.full((8,), 3.0, device=DEVICE))
        assert ranked.stats()["priority_total"] == 6.0


# Refusals.


def grad() -> Any:
    return torch.ones(2, 3, requires_grad=True)


REFUSED = {
    "grad": (lambda: {"obs": grad()}, r"items\['obs'\].*requires grad.*detach"),
    "graph": (lambda: {"obs": grad() * 2}, r"items\['obs'\].*requires grad.*detach"),
    "float64": (lambda: {"obs": torch.ones(2, 3).double()}, r"items\['obs'\].*64 bits.*\.float"),
    "numpy": (lambda: {"obs": np.ones((2, 3))}, r"items\['obs'\] \(float64.*no tensor.*as_tensor"),
    "list": (lambda: {"obs": [1.0, 2.0]}, r"items\['obs'\]\[0\] is new.*items\['obs'\] is missing"),
    "text": (lambda: {"obs": "x"}, r"items\['obs'\] \(str\) is no tensor"),
    "meta": (lambda: {"obs": torch.ones(2, 3, device="meta")}, r"items\['obs'\].*no memory"),
    "sparse": (lambda: {"obs": torch.eye(2, 3).to_sparse()}, r"items\['obs'\].*to_dense"),
    "missing": (lambda: {"obs": None}, r"same tree as before: items\['obs'\] is missing"),
    "new": (lambda: {"more": torch.ones(2)}, r"same tree as before: items\['more'\] is new"),
    "nested": (lambda: {"obs": {"a": torch.ones(2, 3)}}, r"items\['obs'\]\['a'\] is new.*missing"),
    "array": (lambda: {"obs": jnp.ones((2, 3))}, r"items\['obs'\].*no tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_added(name):
    make, message = REFUSED[name]
    buffer = buffer_of()
    before = contents(buffer)
    with pytest.raises(InteropError, match=message):
        buffer.extend(rows(5, 2) | make())
    assert contents(buffer) == before
    buffer.extend(rows(5, 2))
    assert len(buffer) == 7


def test_shapes_and_dtypes_are_told_by_fbuf():
    buffer = buffer_of()
    with pytest.raises(ValueError, match=r"fbuf\.add: items\['obs'\]"):
        buffer.extend(rows(0, 2) | {"obs": torch.ones(2, 4, device=DEVICE)})
    with pytest.raises(TypeError, match=r"fbuf\.add: items\['obs'\] must be float32"):
        buffer.extend(rows(0, 2) | {"obs": torch.ones(2, 3, device=DEVICE).half()})
    with pytest.raises(InteropError, match=r"extend: item.* has no axis for the items.*call add"):
        ReplayBuffer(4, device=DEVICE).extend(torch.tensor(1.0))
    assert len(buffer) == 5


def test_a_first_add_that_fails_leaves_no_trace():
    buffer = ReplayBuffer(8, device=DEVICE, next_of="obs")
    with pytest.raises(ValueError, match="next_of names 'obs'"):
        buffer.add({"x": torch.ones(2, device=DEVICE)})
    more = torch.ones(4, 3, device=DEVICE)
    with pytest.raises(ValueError, match="terminated must be of shape"):
        buffer.extend({"obs": more}, next_observation=more, terminated=True)
    new = torch.ones(4, 5, device=DEVICE)
    buffer.extend({"obs": new}, next_observation=new)
    assert len(buffer) == 4


@pytest.mark.parametrize("flags", [{}, {"terminated": False}], ids=str)
def test_a_python_bool_is_a_flag_and_no_leaf(flags):
    buffer = ReplayBuffer(8, device=DEVICE)
    for _ in range(2):
        buffer.add({"done": torch.tensor(True, device=DEVICE)}, **flags)
        with pytest.raises(InteropError, match=r"item\['done'\] \(bool\) is no tensor"):
            buffer.add({"done": True}, **flags)
    assert len(buffer) == 2


def test_other_arguments_are_refused_by_name_too():
    buffer = buffer_of(sampler=EXACT)
    ids = buffer.sample(2).ids
    with pytest.raises(InteropError, match=r"update_priority: priority \(.*requires grad"):
        buffer.update_priority(ids, torch.ones(2, requires_grad=True))
    with pytest.raises(InteropError, match=r"write: fields\['obs'\] \(.*requires grad"):
        buffer.write(ids, {"obs": grad()})
    with pytest.raises(InteropError, match=r"extend: priority \(.*64 bits"):
        buffer.extend(rows(0, 2), priority=torch.ones(2).double())
    with pytest.raises(TypeError, match=r"fbuf\.remove: ids must be"):
        buffer.remove(torch.tensor([1, 2]))


def test_constructor():
    with pytest.raises(ValueError, match=r"fbuf\.init: capacity"):
        ReplayBuffer(0)
    with pytest.raises(ValueError, match=r"capacity must be a multiple of num_envs"):
        ReplayBuffer(7, num_envs=2)
    with pytest.raises(ValueError, match=r"prefetch must be at least 0"):
        ReplayBuffer(4, prefetch=-1)
    with pytest.raises(ValueError, match=r"prefetch draws .* say of what batch_size"):
        ReplayBuffer(4, prefetch=1)
    with pytest.raises(ValueError, match=r"seed"):
        ReplayBuffer(4, seed=-1)
    with pytest.raises(InteropError, match=r"device cuda:99 cannot be reached"):
        ReplayBuffer(4, device="cuda:99")
    if not torch.cuda.is_available():
        with pytest.raises(InteropError, match=r"pin_memory is for .* a GPU"):
            ReplayBuffer(4, pin_memory=True)


# Drawing.


def test_batches_are_views_of_what_jax_drew(monkeypatch):
    drawn: list[Any] = []

    def spy(*arguments: Any, **options: Any) -> Any:
        drawn.append(draw(*arguments, **options))
        return drawn[-1]

    draw = _replay_buffer._draw
    monkeypatch.setattr(_replay_buffer, "_draw", spy)
    batch = buffer_of().sample(16)
    pairs = list(zip(jax.tree.leaves(drawn[0]), jax.tree.leaves(batch), strict=True))
    assert len(pairs) == 9
    for array, tensor in pairs:
        assert tensor.data_ptr() == array.unsafe_buffer_pointer()


def test_the_seed_says_what_is_drawn():
    def draws(seed: int) -> list[list[int]]:
        buffer = buffer_of(64, 40, seed=seed, batch_size=8)
        return [buffer.sample().data["action"].tolist() for _ in range(4)]

    torch.manual_seed(0)
    first = draws(3)
    torch.manual_seed(1)
    assert draws(3) == first
    assert draws(4) != first
    assert len({tuple(batch) for batch in first}) == 4


def test_beta_and_batch_size():
    buffer = buffer_of(sampler=EXACT, batch_size=4)
    batch = buffer.sample(64)
    buffer.update_priority(batch.ids, batch.data["obs"][:, 0] + 1)
    assert set(buffer.sample(64, beta=0.0).weight.tolist()) == {1.0}
    assert len(set(buffer.sample(64, beta=1.0).weight.tolist())) == 5
    assert buffer.sample().mask.shape == (4,)
    with pytest.raises(ValueError, match=r"sample: batch_size is given neither here"):
        buffer_of().sample()


def test_an_empty_buffer_says_so():
    buffer = buffer_of(count=0, batch_size=2)
    with pytest.raises(RuntimeError, match=r"sample: nothing has been added yet"):
        buffer.sample()
    buffer.extend(rows(0, 5))
    buffer.sample()
    buffer.empty()
    assert len(buffer) == 0
    with pytest.raises(RuntimeError, match=r"sample: the buffer is empty"):
        buffer.sample()
    buffer.add(one(7))
    assert set(buffer.sample().data["action"].tolist()) == {7}


def test_nothing_to_draw_is_masked():
    buffer = buffer_of(8, 2, sampler=fbuf.Uniform(window=3), view=fbuf.Sequence(3))
    assert not buffer.can_sample()
    batch = buffer.sample(4)
    assert not batch.mask.any()
    buffer.add(one(2))
    assert buffer.sample(4).mask.all()


@pytest.mark.parametrize("prefetch", [0, 3])
def test_iteration(prefetch):
    endless = buffer_of(batch_size=2, prefetch=prefetch)
    assert len([batch for batch, _ in zip(endless, range(20), strict=False)]) == 20
    shuffled = buffer_of(16, 10, sampler=fbuf.Shuffled(), batch_size=4, prefetch=prefetch)
    shuffled.sample()  # an epoch has begun; the next loop has one of its own
    epochs = [
        [x for batch in shuffled for x in batch.data["action"][batch.mask].tolist()]
        for _ in range(3)
    ]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    with pytest.raises(ValueError, match="batch_size is not given"):
        next(iter(buffer_of(sampler=fbuf.Shuffled())))


# Ahead of time.


def test_batches_drawn_ahead_come_in_order_and_once():
    """Each is what was drawn so many calls before, from the buffer as it was then."""
    ahead = buffer_of(64, 8, batch_size=8, prefetch=3, seed=5)
    plain = buffer_of(64, 8, batch_size=8, seed=5)
    given, expected = [], [plain.sample() for _ in range(3)]
    for step in range(12):
        given.append(ahead.sample())
        expected.append(plain.sample())
        for buffer in (ahead, plain):
            buffer.extend(rows(8 + 4 * step, 4))
    for one_batch, other in zip(given, expected, strict=False):
        assert_same(one_batch, other)


def test_priorities_may_be_updated_meanwhile():
    buffer = buffer_of(8, 8, sampler=EXACT, batch_size=4, prefetch=2)
    for step in range(10):
        batch = buffer.sample()
        buffer.extend(rows(8 * step, 8))  # all that was drawn has gone by now
        buffer.update_priority(batch.ids, torch.full((4,), 100.0, device=DEVICE))
    assert buffer.stats()["priority_total"] == 8.0  # what is stale has changed nothing
    with pytest.raises(RuntimeError, match="overwritten"):
        fbuf.raise_on_fault(buffer.state, ignore=fbuf.Fault(0))


def test_what_is_gone_is_not_given_out_of_what_was_drawn_ahead():
    buffer = buffer_of(8, 8, batch_size=64, prefetch=2)
    batch = buffer.sample()
    buffer.remove(jax.tree.map(lambda x: x[batch.data["action"] == 3], batch.ids))
    assert 3 not in buffer.sample().data["action"].tolist()
    buffer.empty()
    buffer.add(one(50))
    assert set(buffer.sample().data["action"].tolist()) == {50}


def test_a_batch_of_another_size_is_refused_when_batches_are_drawn_ahead():
    buffer = buffer_of(batch_size=4, prefetch=1)
    with pytest.raises(ValueError, match="batches of 4 have been drawn ahead"):
        buffer.sample(5)
    assert buffer.sample(4).mask.shape == (4,)


def test_making_batches_ahead_takes_no_time_from_the_learner():
    """The transform of the next batch runs while the learner has this one."""
    slow = threading.Event()
    begun: list[int] = []

    def transform(batch: Any) -> Any:
        begun.append(1)
        if len(begun) > 1:
            slow.wait(10)
        return batch

    buffer = buffer_of(batch_size=2, prefetch=1, transform=transform)
    buffer.sample()  # is there, though the transform of the next one is not done
    deadline = time.monotonic() + 10
    while len(begun) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(begun) == 2
    slow.set()
    buffer.sample()
    buffer.close()


def test_an_error_of_the_transform_reaches_the_learner_and_passes():
    numbers = iter(range(100))

    def transform(batch: Any) -> Any:
        if next(numbers) == 1:
            raise KeyError("of the transform")
        return batch

    for prefetch in (0, 2):
        numbers = iter(range(100))
        buffer = buffer_of(batch_size=2, prefetch=prefetch, transform=transform)
        buffer.sample()
        with pytest.raises(KeyError, match="of the transform"):
            buffer.sample()
        buffer.sample()
        buffer.close()


def prefetching() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("fbuf-prefetch")}


def test_a_closed_buffer_says_so():
    before = prefetching()
    with buffer_of(batch_size=2, prefetch=2, sampler=EXACT) as buffer:
        batch = buffer.sample()
        assert prefetching() - before
    kept = bits(batch)
    assert not prefetching() - before
    ids = batch.ids
    for call in (
        buffer.sample,
        lambda: buffer.add(one(0)),
        lambda: buffer.extend(rows(0, 2)),
        lambda: buffer.update_priority(ids, torch.ones(2, device=DEVICE)),
        lambda: buffer.write(ids, {}),
        lambda: buffer.remove(ids),
        lambda: len(buffer),
        lambda: next(iter(buffer)),
        lambda: buffer.state,
        lambda: setattr(buffer, "state", None),
        *(buffer.empty, buffer.can_sample, buffer.stats, buffer.state_dict, buffer.end_episode),
        lambda: buffer.load_state_dict({}),
    ):
        with pytest.raises(RuntimeError, match=r"this buffer is closed"):
            call()
    buffer.close()  # again, which does nothing
    for x, y in zip(kept, bits(batch), strict=True):  # it stays valid
        np.testing.assert_array_equal(x, y)


def test_closing_wakes_who_waits_for_a_batch():
    hold = threading.Event()
    buffer = buffer_of(batch_size=2, prefetch=3, transform=lambda batch: hold.wait(10) and batch)
    errors: list[BaseException] = []

    def learner() -> None:
        try:
            while True:
                buffer.sample()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=learner)
    thread.start()
    time.sleep(0.1)
    closing = threading.Thread(target=buffer.close)
    closing.start()
    hold.set()
    for waiting in (thread, closing):
        waiting.join(10)
        assert not waiting.is_alive()
    assert "closed" in str(errors[0])


def test_a_buffer_that_is_forgotten_leaves_no_thread():
    before = prefetching()
    buffer = buffer_of(batch_size=2, prefetch=2)
    buffer.sample()
    alive = weakref.ref(buffer)
    (thread,) = prefetching() - before
    del buffer
    gc.collect()
    assert alive() is None
    thread.join(10)
    assert not thread.is_alive()


# Where batches go.


class Pinned(torch.Tensor):
    """Pinning needs a GPU, so this only says so."""

    def is_pinned(self, *_: Any) -> bool:
        return True


@pytest.fixture
def can_pin(monkeypatch):
    """As if there was a GPU to pin memory for."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(
            torch.Tensor, "pin_memory", lambda self: self.clone().as_subclass(Pinned)
        )


@dataclasses.dataclass
class Mine:
    """A container that neither JAX nor torch knows."""

    observation: Any
    name: str
    inner: Any = None


Pair = collections.namedtuple("Pair", ["left", "right"])

CONTAINERS = {
    "none": None,
    "dict": lambda batch: {"a": [batch.data["obs"]], "b": (batch.ids, batch.weight), "n": 3},
    "dataclass": lambda batch: Mine(batch.data["obs"], "x", Mine(batch.ids, "y")),
    "ordered": lambda batch: collections.OrderedDict({1: batch.weight, "a": [batch.ids]}),
    "namedtuple": lambda batch: Pair(batch.data["obs"] * 2, SimpleNamespace),
}


TENSORS = {"none": 9, "dict": 4, "dataclass": 3, "ordered": 3, "namedtuple": 1}
"""How many there are in each."""


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
def test_every_tensor_is_pinned_whatever_holds_it(name, prefetch, can_pin, monkeypatch):
    monkeypatch.setattr(_replay_buffer._handover, "stream_for", lambda *devices: None)
    buffer = ReplayBuffer(
        8, batch_size=4, prefetch=prefetch, pin_memory=True, transform=CONTAINERS[name]
    )
    buffer.extend({key: leaf.cpu() for key, leaf in rows(0, 5).items()})
    for _ in range(3):
        found = tensors_in(buffer.sample())
        assert (
            len(found)
            == {"none": 9, "dict": 4, "dataclass": 3, "ordered": 3, "namedtuple": 1}[name]
        )
        assert all(tensor.is_pinned() for tensor in found)
    buffer.close()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_tensordicts_are_pinned_whatever_they_say_of_their_device(device, can_pin):
    tensordict = pytest.importorskip("tensordict")

    def transform(batch: Any) -> Any:
        inner = {"obs": batch.data["obs"], "next": {"w": batch.weight}, "ids": batch.ids.slot}
        return tensordict.TensorDict(inner, batch_size=[4], device=device)

    buffer = ReplayBuffer(8, batch_size=4, pin_memory=True, transform=transform)
    buffer.extend({key: leaf.cpu() for key, leaf in rows(0, 5).items()})
    batch = buffer.sample()
    found = list(batch.values(include_nested=True, leaves_only=True))
    assert len(found) == 3
    assert all(tensor.is_pinned() for tensor in found)
    assert batch.device == (None if device is None else torch.device(device))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_go_to_another_device_and_what_is_learned_comes_back(prefetch, monkeypatch):
    """Moving to `meta` shows that every tensor is moved, ids and all, without a GPU."""
    buffer = buffer_of(batch_size=4, prefetch=prefetch, to="meta", sampler=EXACT)
    batch = buffer.sample()
    assert {leaf.device.type for leaf in jax.tree.leaves(batch)} == {"meta"}
    # And back: as if these were the values.
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, device: torch.zeros(self.shape, dtype=self.dtype)
    )
    buffer.update_priority(
        fbuf.Ids(batch.ids.slot[:1], batch.ids.generation[:1]), torch.ones(1, device="meta") * 9
    )
    assert buffer.stats()["priority_total"] == 4.0  # row 0 had 1, and was given 0
    buffer.close()


# Threads.


def test_writers_and_learners_at_once():
    """No batch has half a row, and every row of every writer gets there."""
    buffer = ReplayBuffer(256, device=DEVICE, batch_size=64, prefetch=2, sampler=EXACT)
    first = torch.zeros(4, 32, device=DEVICE)
    buffer.extend({"same": first, "twice": first[:, 0] * 2})
    steps, errors = 60, []

    def guarded(work: Any) -> Any:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # or nobody would hear of it
                errors.append(error)

        return run

    def writer(number: int) -> Any:
        def work() -> None:
            memory = torch.zeros(4, 32, device=DEVICE)
            for step in range(steps):
                memory.fill_(number * 1000 + step)
                buffer.extend({"same": memory, "twice": memory[:, 0] * 2})

        return work

    def learner() -> None:
        for _ in range(steps):
            batch = buffer.sample()
            same, twice = batch.data["same"], batch.data["twice"]
            assert bool((same == same[:, :1]).all())
            assert bool((same[:, 0] * 2 == twice).all())
            assert bool(batch.mask.all())
            buffer.update_priority(batch.ids, torch.rand(64, device=DEVICE))
            same.fill_(-1)  # a batch is its owner's

    work = [writer(1), writer(2), learner, learner]
    threads = [threading.Thread(target=guarded(each)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    buffer.raise_on_fault()
    assert len(buffer) == 256
    stored = set(buffer.state.storage.rows()["twice"].astype(int).tolist())
    newest = {2 * (number * 1000 + step) for number in (1, 2) for step in range(steps)}
    assert stored <= newest
    assert {2 * (1000 + steps - 1), 2 * (2000 + steps - 1)} & stored
    buffer.close()


# The state.


def test_the_state_in_compiled_code():
    buffer = buffer_of(batch_size=4)

    @jax.jit
    def step(state: Any) -> Any:
        return fbuf.add(state, {"obs": jnp.full(3, 8.0), "action": jnp.int32(8)})

    buffer.state = step(buffer.state)
    assert contents(buffer)[:6] == [0, 1, 2, 3, 4, 8]

    taken = buffer.state
    after = jax.jit(step, donate_argnums=0)(taken)
    for call in (buffer.sample, lambda: buffer.add(one(1)), lambda: len(buffer), buffer.empty):
        with pytest.raises(RuntimeError, match=r"taken out, and consumed .*buffer\.state ="):
            call()
    buffer.state = after
    assert len(buffer) == 7
    for other in (fbuf.init(0.0, 8), buffer_of(16).state, buffer_of(sampler=EXACT).state, None):
        with pytest.raises(InteropError, match="must be a state of this buffer"):
            buffer.state = other
    with pytest.raises(RuntimeError, match="nothing has been added yet"):
        buffer_of(count=0).state  # noqa: B018
    with pytest.raises(RuntimeError, match="nothing has been added yet"):
        buffer_of(count=0).state = after


def test_a_new_state_drops_what_was_drawn_ahead():
    buffer = buffer_of(8, 4, batch_size=16, prefetch=2)
    buffer.sample()
    empty = fbuf.clear(buffer.state, donate=False)
    buffer.state = fbuf.add(empty, {"obs": jnp.ones((1, 3)), "action": jnp.array([77])})
    assert set(buffer.sample().data["action"].tolist()) == {77}


def test_several_calls_become_one_with_the_lock():
    buffer = buffer_of()
    with buffer.lock, buffer.lock:
        buffer.state = fbuf.add(buffer.state, {"obs": jnp.ones(3), "action": jnp.int32(1)})
    assert len(buffer) == 6


# Saving.


def saved(buffer: ReplayBuffer, path: Any) -> Any:
    torch.save(buffer.state_dict(), path)
    return torch.load(path)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    "view",
    [fbuf.Item(), fbuf.NStep(2, 0.9, reward="obs", next_observation="obs")],
    ids=["item", "n"],
)
def test_a_run_goes_on_where_it_was(tmp_path, prefetch, view):
    def made(seed: int) -> ReplayBuffer:
        options = {"sampler": fbuf.Prioritized(), "batch_size": 4, "int64": True, "view": view}
        return ReplayBuffer(8, device=DEVICE, seed=seed, prefetch=prefetch, **options)

    def step(buffer: ReplayBuffer, number: int) -> Any:
        # the reward of the n-step view is one number
        new = {"obs": rows(number, 3)["obs"][:, 0], "action": rows(number, 3)["action"]}
        buffer.extend(new, terminated=torch.tensor([False, number % 2 == 0, False], device=DEVICE))
        batch = buffer.sample()
        buffer.update_priority(batch.ids, torch.arange(1.0, 5.0, device=DEVICE) * (number % 5))
        return batch

    buffer = made(1)
    for number in range(7):  # around the end of the ring
        step(buffer, number)
    state_dict = saved(buffer, tmp_path / "buffer.pt")
    expected = [step(buffer, number) for number in range(7, 14)]
    for resumed in (made(2), made(1)):
        resumed.load_state_dict(state_dict)
        for number, batch in zip(range(7, 14), expected, strict=True):
            assert_same(step(resumed, number), batch)
        assert_same(resumed.state, buffer.state)


def test_what_is_saved_is_a_copy_both_ways(tmp_path):
    buffer = buffer_of(batch_size=4)
    state_dict = buffer.state_dict()
    before = bits(state_dict["state"])
    other = buffer_of(count=0, batch_size=4)
    other.load_state_dict(state_dict)
    for each in (buffer, other):
        each.extend(rows(100, 8))
    for x, y in zip(before, bits(state_dict["state"]), strict=True):
        np.testing.assert_array_equal(x, y)
    for tensor in state_dict["state"].values():
        tensor.zero_()
    assert contents(other) == contents(buffer)
    assert 107 in contents(other)


def test_what_cannot_be_loaded():
    state_dict = buffer_of(batch_size=4).state_dict()
    buffer = buffer_of(batch_size=4, count=2)
    before = bits(buffer.state)
    for broken, message in (
        ({k: v for k, v in state_dict.items() if k != "key"}, r"not whole: it lacks \['key'\]"),
        (state_dict | {"version": 99}, "version 99"),
        (buffer_of(16).state_dict(), "made with.*'capacity': 16.*same arguments"),
        (buffer_of(sampler=EXACT).state_dict(), "made with.*Prioritized"),
        (
            state_dict | {"state": {name: x.double() for name, x in state_dict["state"].items()}},
            "found torch.float64",
        ),
        (state_dict | {"state": dict(list(state_dict["state"].items())[1:])}, "found nothing"),
    ):
        with pytest.raises(ValueError, match=message):
            buffer.load_state_dict(broken)
        assert_same(buffer.state, before)
    with pytest.raises(RuntimeError, match="state_dict: nothing has been added"):
        buffer_of(count=0).state_dict()


def test_an_emptied_buffer_is_saved_as_one():
    buffer = buffer_of(batch_size=4)
    buffer.empty()
    other = buffer_of(count=0, batch_size=4)
    other.load_state_dict(buffer.state_dict())
    with pytest.raises(RuntimeError, match="the buffer is empty"):
        other.sample()
