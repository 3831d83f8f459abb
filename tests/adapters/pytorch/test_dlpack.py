"""Memory across by functions that JAX does not publish, beside the public ones."""

from __future__ import annotations

import gc
import types
import unittest.mock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import InteropError, ReplayBuffer, add_from_torch, from_torch, to_torch  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.crossing import _dlpack, _dtypes, _from_torch, _lifetime  # noqa: E402 (after the skip)
from support.emulated_gpu import emulated_gpu  # noqa: E402

import fbuf  # noqa: E402

pytestmark = pytest.mark.on_cpu

DTYPES = [*_dtypes.DTYPES, torch.complex32, torch.quint8]

LAYOUTS = {
    "plain": lambda x: x,
    "one": lambda x: x[:1, :1],
    "scalar": lambda x: x[0, 0],
    "aligned": lambda x: torch.cat([x] * 64).view(-1)[64 * 16 :],
    "misaligned": lambda x: x.view(-1)[1:],
    "transposed": lambda x: x.T,
    "column": lambda x: x[:, 1],
    "step": lambda x: x[::2],
    "expanded": lambda x: x[:1].expand(4, 6),
    "nothing": lambda x: x[:0],
    "no columns": lambda x: x[:, :0],
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "requires grad": lambda x: x.requires_grad_(),
    "conjugated": lambda x: x.conj(),
    "negated": torch._neg_view,
    "inference": lambda x: inference(x),
    "shared": lambda x: x.share_memory_(),
    "sparse": lambda x: x.to_sparse(),
    "meta": lambda x: x.to("meta"),
    "subclass": lambda x: x.as_subclass(Sub),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1]]),
}


WITHOUT_MEMORY = {"sparse", "meta", "nested"}


class Sub(torch.Tensor):
    """A tensor of another class."""


def inference(tensor):
    with torch.inference_mode():
        return tensor.clone()


def of(dtype: torch.dtype) -> torch.Tensor:
    """Four rows of six numbers."""
    if dtype is torch.quint8:
        return torch.quantize_per_tensor(torch.ones(4, 6), 1.0, 0, dtype)
    return torch.arange(24).reshape(4, 6).to(torch.int32).remainder(2).to(dtype)


def seen(array: jax.Array, tensor: torch.Tensor) -> Any:
    """All that tells arrays on a tensor apart, and what is in it."""
    bits = np.asarray(array).reshape(-1).view(np.uint8).tolist()
    (pointer, *place), *others = _dlpack._known(array)
    return pointer == tensor.data_ptr(), place, others, bits


def outcome(call: Any, tensor: torch.Tensor) -> Any:
    """The result of a call: an array, or an error."""
    try:
        return seen(call(tensor), tensor)
    except Exception as error:
        return type(error), str(error)


@pytest.fixture
def untried(monkeypatch):
    """Nothing has crossed yet."""
    monkeypatch.setattr(_dlpack, "_exports", {})
    monkeypatch.setattr(_dlpack, "_imports", {})


def one(tensor: torch.Tensor) -> jax.Array:
    return _dlpack.to_arrays([tensor])[0]


def public(tensor: torch.Tensor) -> jax.Array:
    return jax.dlpack.from_dlpack(tensor, copy=False)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_tensors_go_in_as_by_the_public_way(x64, untried):
    with jax.enable_x64(x64):
        one(torch.ones(3))
        assert _dlpack._imports[False] in (_dlpack._import, _dlpack._import_of_kind)
        short = 0
        for dtype in DTYPES:
            for layout, make in LAYOUTS.items():
                try:
                    tensor = make(of(dtype))
                except (RuntimeError, NotImplementedError):  # torch has no such tensor
                    continue
                if layout in WITHOUT_MEMORY or dtype not in _dtypes.DTYPES:
                    assert not _dlpack.is_plain(
                        tensor
                    )  # torch may crash when it is asked to export
                    continue
                expected = outcome(public, tensor)
                assert outcome(one, tensor) == expected, (dtype, layout)
                short += _dlpack.is_plain(tensor)
        assert short >= 5 * (len(_dtypes.DTYPES) - (0 if x64 else 4))


def test_what_only_stands_for_a_tensor_is_not_plain():
    from torch._subclasses.fake_tensor import FakeTensorMode

    def inside(x):
        found.append(_dlpack.is_plain(x + 1))
        return x.sum()

    found: list[bool] = []
    torch.func.functionalize(inside)(torch.ones(16))
    torch.func.grad(inside)(torch.ones(16))
    torch.func.vmap(inside)(torch.ones(2, 16))
    with FakeTensorMode():
        inside(torch.ones(16))
    assert found == [False] * 4
    assert not _dlpack.is_plain(torch.ones(16).as_subclass(Sub))
    assert _dlpack.is_plain(torch.ones(16))


def test_pinned_memory_and_that_of_other_gpus_is_not_plain(monkeypatch):
    tensor = torch.ones(16)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "is_pinned", lambda self: True)
        assert not _dlpack.is_plain(tensor)
    gpu: Any = types.SimpleNamespace(is_cuda=True)
    assert _dlpack._reached(gpu) == (torch.version.hip is None)
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert not _dlpack._reached(gpu)
    assert not _dlpack._reached(torch.ones(3, device="meta"))


def test_narrowed_by_jax_tensors_are_not_taken_short(untried):
    """With 64 bits off JAX's own function narrows; the one below it makes arrays of 64."""
    long = torch.tensor([2**33 + 5])
    assert one(long).tolist() == [5]
    assert one(long).dtype == jnp.int32
    one(torch.ones(1))
    assert one(long).dtype == jnp.int32


@pytest.mark.parametrize("name", [str(d)[6:] for d in _dtypes.DTYPES])
def test_arrays_go_out_as_by_the_public_way(name, untried):
    for shape in [(4, 6), (), (1,), (0,), (3, 0)]:
        with jax.enable_x64(True):
            array = jnp.ones(shape, name)
        for _ in range(2):  # the first of all goes both ways
            tensor, other = _dlpack.to_tensor(array), torch.from_dlpack(array.__dlpack__())
            assert _dlpack._seen(tensor) == _dlpack._seen(other)
            assert tensor.view(-1).view(torch.uint8).equal(other.view(-1).view(torch.uint8))
    assert _dlpack._exports == {True: _dlpack._export}


def raising(*args: Any, **options: Any) -> Any:
    raise TypeError("incompatible function arguments")


def elsewhere(*args: Any, **options: Any) -> Any:
    return REAL.dlpack_managed_tensor_to_buffer(
        torch.utils.dlpack.to_dlpack(torch.zeros(8)), jax.devices("cpu")[0], None, False
    )


def of_another(array: Any, **options: Any) -> Any:
    other = jnp.zeros(8)
    return REAL.buffer_to_dlpack_managed_tensor(other, **options)


REAL = _dlpack._of_jax

OTHERS = {
    "missing": types.SimpleNamespace(),
    "nothing": None,
    "other arguments": types.SimpleNamespace(
        dlpack_managed_tensor_to_buffer=raising, buffer_to_dlpack_managed_tensor=raising
    ),
    "other memory": types.SimpleNamespace(
        dlpack_managed_tensor_to_buffer=elsewhere, buffer_to_dlpack_managed_tensor=of_another
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_where_jax_has_other_functions_the_public_ones_are_called(name, untried, monkeypatch):
    monkeypatch.setattr(_dlpack, "_of_jax", OTHERS[name])
    for number in range(3):
        tensor = torch.full((8,), float(number + 1))
        array = one(tensor)
        assert array.unsafe_buffer_pointer() == tensor.data_ptr()
        assert _dlpack.to_tensor(array).data_ptr() == tensor.data_ptr()
        assert from_torch({"a": tensor, "b": [tensor]})["b"][0].tolist() == [number + 1.0] * 8
    assert _dlpack._imports == {False: _dlpack._public_import}
    assert _dlpack._exports == {True: _dlpack._public_export}


def test_a_function_that_wants_the_kind_of_device_gets_it(untried, monkeypatch):
    kinds = []

    def newer(capsule, device, stream, copy, kind):
        kinds.append(kind)
        return REAL.dlpack_managed_tensor_to_buffer(capsule, device, stream, copy)

    like = types.SimpleNamespace(dlpack_managed_tensor_to_buffer=newer)
    monkeypatch.setattr(_dlpack, "_of_jax", like)
    tensor = torch.arange(8.0)
    for _ in range(3):
        assert seen(one(tensor), tensor) == seen(public(tensor), tensor)
    assert kinds == [1, 1, 1]


@pytest.mark.parametrize("transform", ["grad", "vmap", "functionalize"])
def test_a_first_crossing_within_a_transform_of_torch(transform, untried):
    array, found = jnp.arange(3.0), []

    def inside(x):
        found.extend(_dlpack.to_tensor(array) for _ in range(2))
        return x.sum()

    getattr(torch.func, transform)(inside)(torch.ones(2, 3))
    assert [tensor.tolist() for tensor in found] == [[0, 1, 2]] * 2
    assert _dlpack._exports == {True: _dlpack._export}


def test_memory_outlives_what_it_came_from(untried):
    for _ in range(3):
        array, tensor = one(torch.arange(1000.0)), _dlpack.to_tensor(jnp.arange(1000.0))
        gc.collect()
        for _ in range(10):  # take what had been given back
            torch.full((1000,), 7.0)
            jnp.full(1000, 7.0).block_until_ready()
        assert array.tolist() == tensor.tolist() == list(range(1000))


# Streams.


class Cuda:
    """Stands in for a GPU of JAX's, and for torch's streams on it."""

    def __init__(self, monkeypatch):
        self.said: list[Any] = []
        current = types.SimpleNamespace(name="current")

        def external(stream, device):
            wait = lambda other: self.said.append((stream, device, other))
            return types.SimpleNamespace(wait_stream=wait)

        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: (current, device))
        monkeypatch.setattr(torch.cuda, "ExternalStream", external)
        monkeypatch.setattr(_dlpack, "jax_device", lambda device: self)
        self.current = current

    def get_stream_for_external_ready_events(self):
        return 42


def test_a_stream_of_jax_waits_for_the_current_one_of_torch(monkeypatch):
    cuda = Cuda(monkeypatch)
    device = torch.device("cuda", 3)
    assert _dlpack._place(device) == (cuda, 42, 2)
    assert cuda.said == [(42, device, (cuda.current, device))]


def test_jax_waits_once_for_all_tensors_of_a_call():
    rows = {name: torch.ones(4, 3) for name in "abcd"} | {"flag": torch.ones(4, dtype=torch.bool)}
    buffer = ReplayBuffer(20, batch_size=4, sampler=fbuf.Prioritized())
    with emulated_gpu() as crossed:
        for call in (
            lambda: buffer.extend(rows, terminated=rows["flag"]),
            lambda: add_from_torch(fbuf.init({"x": jnp.zeros(3)}, 4), {"x": rows["a"]}),
            lambda: from_torch(rows),
        ):
            crossed.clear()
            call()
            assert crossed.count("wait") == 1
            assert crossed.count("in") in (6, 1, 5)
        crossed.clear()
        given = fbuf.Ids(torch.arange(4).int(), torch.zeros(4).int())
        buffer.update_priority(given, torch.ones(4))
        assert crossed.count("wait") == 1
        assert crossed.count("in") == 3


def test_kernels_that_make_a_tensor_come_before_the_wait():
    """A tensor that is narrowed or copied on the way is new; JAX may read it after the wait."""
    rows = {"a": torch.ones(4, 6)[:, 1:], "b": torch.ones(4), "c": torch.ones(8, 3)[::2]}
    buffer = ReplayBuffer(20, item=jax.tree.map(lambda leaf: leaf[0], rows))
    own = _from_torch.own
    with emulated_gpu() as crossed:
        into = lambda tensor: crossed.append("own") or own(tensor)
        with unittest.mock.patch.object(_from_torch, "own", into):
            buffer.extend(rows)
            assert crossed == ["own", "own", "wait", "in", "in", "in", "out"]
            crossed.clear()
            from_torch(rows)
    assert crossed == ["own", "own", "own", "wait", "in", "in", "in"]


@pytest.mark.filterwarnings("ignore:ComplexHalf")  # of PyTorch, once in a process
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.ones(4, requires_grad=True), r"requires grad.*\.detach"),
        (lambda: torch.ones(4).to_sparse(), "sparse"),
        (lambda: torch.ones(4, device="meta"), "no memory"),
        (lambda: torch.ones(4, dtype=torch.float64), "64-bit"),
        (lambda: torch.full((4,), 2**40), "cannot hold"),
        (lambda: torch.ones(4, dtype=torch.complex32), "dtype"),
    ],
    ids=["grad", "sparse", "meta", "double", "long", "dtype"],
)
def test_what_is_refused_on_the_host_is_refused_on_a_gpu(make, words):
    buffer = ReplayBuffer(20, item={"a": torch.ones(()), "b": torch.ones((), dtype=torch.int32)})
    with emulated_gpu(), pytest.raises(InteropError, match=words) as caught:
        buffer.extend({"a": torch.ones(4), "b": make()})
    assert "items['b']" in str(caught.value)
    assert len(buffer) == 0


def test_a_buffer_on_a_gpu_is_one_on_the_host():
    """The same rows, batches and priorities, whichever way all of it goes."""

    def run():
        buffer = ReplayBuffer(50, batch_size=8, seed=3, sampler=fbuf.Prioritized(), int64=True)
        found = []
        for step in range(4):
            number = torch.arange(10) + 10 * step
            rows = {
                "x": torch.stack([number, -number], 1).float(),
                "odd": number % 2 == 1,
                "n": number,
                "half": number.bfloat16(),
                "strided": torch.stack([number, number], 1).float()[:, 0],
                "large": number[:, None].float().expand(10, 4000),
            }
            buffer.extend(rows, terminated=number % 5 == 4)
            buffer.add(jax.tree.map(lambda leaf: leaf[0], rows))
            for size in (None, 5):
                batch = buffer.sample(size)
                buffer.update_priority(batch.ids, batch.data["n"].float().abs() + 1)
                found.append(jax.tree.map(lambda leaf: leaf.float().tolist(), batch))
        return found

    expected = run()
    with emulated_gpu() as crossed:
        assert run() == expected
    assert {"in", "out", "wait"} == set(crossed)


@pytest.mark.parametrize("known", [False, True])
def test_jax_is_told_the_stream_of_torch(known, monkeypatch):
    """And None has the host wait: a stream that is lost would hold it up each time."""
    told: list[Any] = []

    def export(array: Any, stream: Any) -> Any:
        told.append(stream)
        return torch.utils.dlpack.to_dlpack(torch.ones(2))

    like = types.SimpleNamespace(buffer_to_dlpack_managed_tensor=export)
    monkeypatch.setattr(_dlpack, "_of_jax", like)
    way = _dlpack._export if known else _dlpack._public_export
    monkeypatch.setattr(_dlpack, "_exports", dict.fromkeys((True, False), way))
    array: Any = types.SimpleNamespace(
        addressable_data=lambda _: array, __dlpack__=lambda stream: export(array, stream)
    )
    for stream in (None, 7):
        assert _dlpack.to_tensor(array, stream).tolist() == [1, 1]
    assert told == [None, 7]


def test_arrays_of_one_call_go_out_over_one_stream():
    with (
        emulated_gpu() as crossed,
        unittest.mock.patch.object(_lifetime, "HandOver", wraps=_lifetime.HandOver) as made,
    ):
        to_torch({"a": jnp.ones(2), "b": jnp.ones(3)})
    assert crossed == ["out", "out"]
    assert made.call_count == 1
