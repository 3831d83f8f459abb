"""`sample(out=batch)`: the new batch lies in the tensors of an earlier one, whole or not at all."""

from __future__ import annotations

import collections
import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import InteropError, ReplayBuffer  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.batches import _into  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.crossing._tree import map_tensors  # noqa: E402 (after the skip)

import fbuf  # noqa: E402 (after the skip)

B = 8
ROWS = {
    "x": torch.arange(30.0),
    "n": torch.arange(30),
    "wide": torch.arange(60.0).reshape(30, 2),
    "inner": {"half": torch.arange(30.0).half(), "flag": torch.arange(30) % 2 == 0},
}


def make(**options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(40, **{"batch_size": B, "seed": 1} | options)
    add(buffer)
    return buffer


def add(buffer: ReplayBuffer) -> None:
    following = ROWS["x"] + 1 if buffer.contents.spec.buffer.next_of else None
    buffer.extend(ROWS, terminated=torch.arange(30) % 10 == 9, next_observation=following)


def tensors(batch: Any) -> list[torch.Tensor]:
    """All tensors of a batch."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(batch, note)
    return found


def said(batch: Any) -> list[Any]:
    """The numbers of a batch, bit by bit."""
    return [
        (x.dtype, x.shape, x.detach().contiguous().flatten().view(torch.uint8).tolist())
        for x in tensors(batch)
    ]


def places(batch: Any) -> list[Any]:
    """The objects and the memory of a batch."""
    return [
        (id(x), x.data_ptr(), x.stride(), x.untyped_storage().data_ptr()) for x in tensors(batch)
    ]


@dataclasses.dataclass
class Made:
    """The result of a transform: no tree of JAX's, with tensors, a None and a number."""

    x: torch.Tensor
    nothing: None
    gamma: float
    more: dict[Any, Any]


def to_made(batch: Any) -> Made:
    data = batch.data
    return Made(data["x"] * 2, None, 0.5, {1: data["n"], "ids": batch.ids, (2,): [batch.weight]})


def to_parts(batch: Any) -> Any:
    """A tuple; the same tensor is there twice, and another one lies across its memory."""
    x, wide = batch.data["x"], batch.data["wide"].t().contiguous().t()
    return (x, [x, None]), collections.OrderedDict(wide=wide, weight=batch.weight)


class Own(ReplayBuffer):
    """A class of a user."""

    def sample(self, batch_size: Any = None, **options: Any) -> Any:
        return super().sample(batch_size, **options)


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priorities": {"sampler": fbuf.Prioritized(), "int64": True},
    "prefetch": {"sampler": fbuf.Prioritized(), "prefetch": 2},
    "dataclass": {"transform": to_made},
    "tuple, prefetch": {"transform": to_parts, "prefetch": 2},
    "to": {"to": "cpu", "prefetch": 1},
    "host": {"host": True},
    "one more": {"view": fbuf.Transition(), "next_of": "x"},
    "steps": {"view": fbuf.NStep(n=2, gamma=0.9, reward="x", next_observation="x")},
    "windows": {"view": fbuf.Sequence(3, boundary="pad")},
    "epochs": {"sampler": fbuf.Shuffled()},
}


def pairs_of(one: Any, other: Any, times: int = 5, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Draw from two buffers alike, from the first into the same tensors."""
    out = one.sample(**options)
    other.sample(**options)
    where = places(out)
    for number in range(times):
        new = one.sample(**options, out=out)
        assert new is out
        assert places(out) == where
        yield out, other.sample(**options)
        if number == 2:
            add(one)
            add(other)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_batches_in_the_same_tensors(form):
    options = FORMS[form]
    seen = []
    with make(**options) as one, make(**options) as other:
        for out, expected in pairs_of(one, other):
            assert said(out) == said(expected)
            seen.append(said(out))
    assert any(batch != seen[0] for batch in seen)


@pytest.mark.parametrize("size", [5, B, 13])
def test_sizes_and_beta(size):
    one, other = (make(sampler=fbuf.Prioritized()) for _ in range(2))
    for out, expected in pairs_of(one, other, batch_size=size, beta=0.7):
        assert said(out) == said(expected)


def test_a_class_of_a_user_and_its_loop():
    own, other = Own(40, batch_size=B, seed=1), make()
    add(own)
    for out, expected in pairs_of(own, other, times=2):
        assert said(out) == said(expected)
    kept = [batch for batch, _ in zip(own, range(3), strict=False)]
    assert len({x for batch in kept for x in places(batch)}) == 3 * len(places(out))


def test_masked_batches():
    one, other = (make(sampler=fbuf.Uniform(window=20), view=fbuf.Sequence(20)) for _ in range(2))
    for out, expected in pairs_of(one, other, times=2):
        assert not out.mask.any()
        assert said(out) == said(expected)


def test_single_tensors_and_containers():
    tensordict = pytest.importorskip("tensordict")

    @tensordict.tensorclass
    class Row:
        x: torch.Tensor
        inner: Any

    inner = {"n": torch.arange(20), "deep": {"y": torch.ones(20, 2)}}
    rows = {"x": torch.arange(20.0), "inner": inner}
    for items in (
        torch.arange(20.0),
        tensordict.TensorDict(rows, batch_size=[20]).auto_batch_size_(),
        Row(torch.arange(20.0), tensordict.TensorDict(inner, batch_size=[20]), batch_size=[20]),
    ):
        one, other = (ReplayBuffer(40, batch_size=B, seed=1) for _ in range(2))
        for buffer in (one, other):
            buffer.extend(items)
        out = one.sample()
        other.sample()
        for _ in range(2):
            assert one.sample(out=out) is out
            expected = other.sample()
            assert said(out) == said(expected)
            assert type(out.data) is type(expected.data)


# --- refusals ------------------------------------------------------------------------------------


def with_data(out: Any, **leaves: Any) -> Any:
    return dataclasses.replace(out, data=out.data | leaves)


def without(out: Any, name: str) -> Any:
    return dataclasses.replace(out, data={k: v for k, v in out.data.items() if k != name})


def in_inference(out: Any) -> Any:
    with torch.inference_mode():
        return with_data(out, x=torch.zeros(B))


def fake(out: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return with_data(out, x=torch.zeros(B))


def on_shared_memory(out: Any) -> Any:
    memory = np.zeros(B + 1, np.float32)
    parts = torch.from_numpy(memory[:-1]), torch.from_numpy(memory[1:])
    return dataclasses.replace(with_data(out, x=parts[0]), weight=parts[1])


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no batch": (lambda out: 5, r"out is a int of another form .* a Sample"),
    "the data alone": (lambda out: out.data, "out is a dict of another form"),
    "a tensor": (lambda out: torch.zeros(B), "out is a Tensor of another form"),
    "another size": (
        lambda out: map_tensors(out, lambda x: x[:4].clone()),
        r"out.* is torch.* of shape \(4.*, and that of the new batch is torch.* of shape \(8",
    ),
    "a field less": (lambda out: without(out, "n"), r"out\.data\['n'\] is not there"),
    "a field more": (
        lambda out: with_data(out, td_error=torch.zeros(B)),
        r"out\.data\['td_error'\] is there, .* elsewhere",
    ),
    "None": (lambda out: dataclasses.replace(out, weight=None), r"out\.weight is not there"),
    "another dtype": (
        lambda out: with_data(out, x=torch.zeros(B, dtype=torch.float64)),
        r"out\.data\['x'\] is torch.float64 of shape \(8,\) on cpu, and .* torch.float32",
    ),
    "another shape": (
        lambda out: with_data(out, wide=torch.zeros(2 * B)),
        r"out\.data\['wide'\] .*\(16,\)",
    ),
    "another device": (
        lambda out: with_data(out, x=torch.zeros(B, device="meta")),
        r"out\.data\['x'\] .* on meta",
    ),
    "fake": (fake, r"out\.data\['x'\] has no memory"),
    "requires grad": (
        lambda out: with_data(out, x=torch.zeros(B, requires_grad=True)),
        r"out\.data\['x'\] requires grad",
    ),
    "of a gradient": (
        lambda out: with_data(out, x=torch.zeros(B, requires_grad=True) * 2),
        r"out\.data\['x'\] requires grad",
    ),
    "inference": (in_inference, r"out\.data\['x'\] was made in torch.inference_mode"),
    "sparse": (
        lambda out: with_data(out, wide=torch.zeros(B, 2).to_sparse()),
        r"out\.data\['wide'\] is sparse",
    ),
    "negated": (
        lambda out: with_data(out, x=torch.zeros(B, dtype=torch.complex64).conj().imag),
        r"out\.data\['x'\] is lazily",
    ),
    "one place": (
        lambda out: with_data(out, x=torch.zeros(1).expand(B)),
        r"out\.data\['x'\] has several places",
    ),
    "windows of one memory": (
        lambda out: with_data(out, wide=torch.zeros(B + 1).unfold(0, 2, 1)),
        r"out\.data\['wide'\] has several places",
    ),
    "one tensor twice": (
        lambda out: dataclasses.replace(out, weight=out.data["x"]),
        r"out\.\w+ shares its memory with another tensor",
    ),
    "columns of one matrix": (
        lambda out: dataclasses.replace(
            out, **dict(zip(("weight", "probability"), torch.zeros(B, 2).unbind(1), strict=True))
        ),
        r"out\.\w+ shares its memory with another tensor",
    ),
    "arrays of one memory": (on_shared_memory, r"out\.weight shares its memory"),
    "an array": (
        lambda out: with_data(out, x=np.zeros(B, np.float32)),
        r"out\.data\['x'\] is ndarray, .* only tensors can be written to",
    ),
    "a list": (lambda out: with_data(out, x=[torch.zeros(B)]), r"out\.data\['x'\]"),
}


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_written_if_something_does_not_fit(name, prefetch):
    change, message = REFUSED[name]
    with make(prefetch=prefetch) as buffer:
        first = buffer.sample()
        before = said(first)
        out = change(first)
        with pytest.raises(
            InteropError, match=rf"^fbuf_adapters.pytorch.ReplayBuffer.sample: {message}"
        ):
            buffer.sample(out=out)
        assert said(first) == before
        assert buffer.sample(out=first) is first  # it goes on
        assert said(first) != before


def test_the_new_batch_must_fit_too():
    """A transform may return what cannot be written, once there is something to write to."""
    given: dict[str, Any] = {}
    buffer = make(transform=lambda batch: {**batch.data, **given})
    out = buffer.sample()
    x = torch.zeros(B)
    for leaf, message in (
        (torch.ones(B, requires_grad=True), "requires grad"),
        (x[:4], "of shape"),
        (out["wide"][:, 0], "shares its memory"),
        (out["x"].flip(0).expand(B).view(2, 4).t().reshape(B)[:7], "of shape"),
        (None, r"out\['x'\] is a Tensor of another form than that of the new batch, a NoneType"),
        ({"x": x}, "of another form|is dict"),
        (3, "only tensors can be written to"),
    ):
        given["x"] = leaf
        before = said(out)
        with pytest.raises(InteropError, match=message):
            buffer.sample(out=out)
        assert said(out) == before
    del given["x"]
    assert buffer.sample(out=out) is out


BOTH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "requires grad": lambda x: x.clone().requires_grad_(),
    "is sparse": lambda x: x.to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "quantised": lambda x: torch.quantize_per_tensor(x, 1.0, 0, torch.qint8),
    "is lazily conjugated": lambda x: torch.complex(x, x).conj(),
    "or negated": lambda x: torch.complex(x, x).conj().imag,
    "has several places": lambda x: x[:1].expand(B),
}


@pytest.mark.filterwarnings("ignore:.*(nested|quantized):UserWarning")
@pytest.mark.parametrize("message", BOTH)
def test_tensors_of_one_kind_that_cannot_be_written_to(message):
    """A transform makes each batch of them, so nothing differs."""
    buffer = make(transform=lambda batch: (BOTH[message](batch.data["x"]), batch.weight))
    out = buffer.sample()
    out[1].fill_(7)
    with pytest.raises(InteropError, match=rf"out\[0\] .*{message}"):
        buffer.sample(out=out)
    assert bool((out[1] == 7).all())


def test_parts_of_one_tensor_that_lie_apart():
    one, other = make(), make()
    weight, probability = torch.zeros(2, B)
    out = dataclasses.replace(one.sample(), weight=weight, probability=probability)
    other.sample()
    for turned in (False, True):
        if turned:  # across memory
            wide = torch.zeros(2, 2 * B).t()
            out = with_data(out, wide=wide[:B])
        assert said(one.sample(out=out)) == said(other.sample())


def test_what_is_no_tensor_must_be_equal():
    numbers = iter([0.5, 0.5, 0.6])
    buffer = make(transform=lambda batch: (batch.data["x"], next(numbers), "name", torch.sum))
    out = buffer.sample()
    assert buffer.sample(out=out) is out
    before = said(out)
    with pytest.raises(InteropError, match=r"out\[1\] is 0.5, and that of the new batch is 0.6"):
        buffer.sample(out=out)
    assert said(out) == before


def test_objects_that_hold_tensors_are_refused():
    class Holder:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

    buffer = make(transform=lambda batch: Holder(batch.data["x"]))
    with pytest.raises(InteropError, match=r"out is Holder, .* only tensors can be written to"):
        buffer.sample(out=buffer.sample())


def test_a_transform_with_tensors_of_its_own():
    """They are new already, wherever `out` has them; others must not lie across them."""
    own = torch.zeros(B)
    buffer = make(transform=lambda batch: (own.copy_(batch.data["x"]), batch.data["x"]))
    out = buffer.sample()
    buffer.sample(out=out)
    assert out[0] is own
    assert torch.equal(*out)
    apart = make(transform=lambda batch: (own.copy_(batch.data["x"]), own[:4]))
    with pytest.raises(InteropError, match="shares its memory"):
        apart.sample(out=apart.sample())


def test_the_batch_itself_is_no_harm():
    """A transform may keep batches, and the next one drawn ahead is given as `out`."""
    seen: list[Any] = []

    def keep(batch: Any) -> Any:
        seen.append(batch)
        return batch

    twin = make()
    twin.sample()
    with make(transform=keep, prefetch=1) as buffer:
        buffer.sample()
        while len(seen) < 2:
            time.sleep(0.001)
        assert buffer.sample(out=seen[1]) is seen[1]
        assert said(seen[1]) == said(twin.sample())


def test_in_inference_mode():
    buffer, twin = make(), make()
    for out, expected in pairs_of(buffer, twin, times=1):
        with torch.inference_mode():
            assert said(buffer.sample(out=out)) == said(twin.sample())
            inside = buffer.sample()
            twin.sample()
            assert said(buffer.sample(out=inside)) == said(twin.sample())
        assert expected is not out
    with pytest.raises(InteropError, match="inference_mode"):
        buffer.sample(out=inside)


def test_autograd_notices_that_a_batch_was_overwritten():
    buffer, weight = make(), torch.ones(B, requires_grad=True)
    out = buffer.sample()
    loss = (weight * out.data["x"]).sum()
    buffer.sample(out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_within_torch_func_and_a_capture(monkeypatch):
    buffer = make()
    out = buffer.sample()
    before, twin = said(out), make()
    twin.sample()
    with pytest.raises(InteropError, match=r"ReplayBuffer.sample: called inside torch.func"):
        torch.func.grad(lambda x: buffer.sample(out=out).data["x"].sum() + x.sum())(torch.ones(2))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(InteropError, match="while a CUDA graph is captured"):
        buffer.sample(out=out)
    monkeypatch.undo()
    assert said(out) == before
    assert said(buffer.sample(out=out)) == said(twin.sample())  # no batch was lost


def test_pinned_memory_waits_for_the_gpu(monkeypatch, can_pin):
    waited: list[Any] = []
    one, other = (make(pin_memory=True) for _ in range(2))
    out = one.sample()
    other.sample()
    before = said(out)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(said(out)))
    one.sample(out=out)
    assert waited == [before]
    assert said(out) == said(other.sample())
    ordinary = make()
    ordinary.sample(out=ordinary.sample())
    assert len(waited) == 1


# --- saved runs, signals -------------------------------------------------------------------------


def test_saved_runs_keep_their_batches():
    """Batches drawn ahead are in a `state_dict`, which has memory of its own."""
    with make(prefetch=2) as buffer, make(prefetch=2) as loaded:
        buffer.sample()
        saved = buffer.state_dict()
        kept = [said(batch) for batch in saved["ahead"]]
        loaded.load_state_dict(saved, episodes="keep")
        outs = [loaded.sample() for _ in range(2)]  # those that were drawn ahead
        for _ in range(3):
            for out in outs:
                loaded.sample(out=out)
        assert [said(batch) for batch in saved["ahead"]] == kept
        assert [said(buffer.sample()) for _ in range(2)] == kept


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_broken_call_writes_all_or_nothing_and_loses_no_batch(interrupted, prefetch):
    rng, hit = random.Random(4), 0
    options: dict[str, Any] = {"transform": to_made, "prefetch": prefetch}
    with make(**options) as buffer, make(**options) as twin:
        out = buffer.sample()
        twin.sample()
        expected, returned = said(twin.sample()), list[Any]()
        keep = lambda: returned.append(buffer.sample(out=out))
        begin = time.perf_counter()
        buffer.sample(out=out)
        longest = 2 * (time.perf_counter() - begin)
        expected = said(twin.sample())
        while hit < 50:
            before = said(out)
            hit += not interrupted(keep, rng.uniform(0, longest))[0]
            if returned:  # in the same instruction as the call returns
                assert said(out) == expected
                expected = said(twin.sample())
                returned.clear()
            else:
                assert said(out) in (before, expected)


# --- dtypes --------------------------------------------------------------------------------------

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32),
    *(torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
]


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (4, 3)])
def test_every_bit_of_every_dtype(shape):
    generator = np.random.default_rng(0)

    def bits(dtype: torch.dtype) -> torch.Tensor:
        made = torch.zeros(shape, dtype=dtype)
        most = 2 if dtype == torch.bool else 256
        raw = generator.integers(0, most, made.nbytes, dtype=np.uint8)
        made.flatten().view(torch.uint8).copy_(torch.from_numpy(raw))
        return made

    new, out = ({str(dtype): bits(dtype) for dtype in DTYPES} for _ in range(2))
    turned = (
        {name: torch.empty_like(x.t().contiguous().t()) for name, x in out.items()}
        if len(shape) == 2
        else out
    )
    versions = [x._version for x in turned.values()]
    assert said(new) != said(out) or 0 in shape
    _into.write("here:", turned, new)
    assert said(turned) == said(new)
    assert all(x._version > then for x, then in zip(turned.values(), versions, strict=True))


def test_usual_batches_take_no_closer_look():
    """It takes as long as the draw, and comes to the same."""
    td = pytest.importorskip("tensordict").TensorDict
    for transform in (None, lambda batch: td({"a": batch.data, "b": batch.weight}, [B])):
        with make(transform=transform, sampler=fbuf.Prioritized(), int64=True) as buffer:
            out, batch = buffer.sample(), buffer.sample()
            found = _into._at_a_glance(out, batch)
            assert found is not None
            of = lambda lists: {(id(a), id(b)) for a, b in zip(*lists, strict=True)}
            assert of(found) == of(_into._closely("here:", out, batch))
            for kind in {
                x.dtype for each in _into._by_dtype(*found) for some in each for x in some
            }:
                assert kind in _into._COPIED_AS_THEY_ARE
