"""JAX and PyTorch on one memory.

Where something can go wrong, the test first lets it go wrong with the bare libraries. So a change
of the libraries shows. Then the test shows that the adapter does not go wrong.
"""

import collections
import dataclasses
import gc
import warnings
import weakref

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import InteropError, ReplayBuffer, add_from_torch, from_torch, to_torch  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.crossing import _dlpack, _inputs, _lifetime, _tensors, _to_torch  # noqa: E402 (after the skip)
from support.buffers import (  # noqa: E402 (after the skip)
    BATCH,
    DEVICE,
    HANDED_OUT,
    Tensors,
    empty,
    flags,
    of_jax,
    rows,
    stored,
)
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402 (after the skip)

FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
NARROW = [
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64", *FLOAT8),
]
WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
SHAPES = [(32, 3), (), (0,), (3, 0, 2)]

shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)
both = pytest.mark.parametrize("copy", [False, True], ids=["shared", "copied"])


def bits_in(shape, name):
    """NumPy bytes of `shape` for a dtype: all bit patterns, but for bool, where only two are."""
    size = jnp.dtype(name).itemsize
    pattern = np.arange(np.prod(shape, dtype=int) * size, dtype=np.uint8).reshape(*shape, size)
    return pattern % 2 if name == "bool" else pattern


def array_of(shape, name):
    return jnp.asarray(bits_in(shape, name).view(jnp.dtype(name)).reshape(shape))


def tensor_of(shape, name, device="cpu"):
    pattern = torch.from_numpy(bits_in(shape, name))
    return pattern.view(getattr(torch, name)).reshape(shape).to(device).clone()


def bits(x):
    """The bytes of an array or tensor, without going through DLPack."""
    if isinstance(x, torch.Tensor):
        return x.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.asarray(x).reshape(-1).view(np.uint8)


def assert_same(array, tensor):
    """Equal in shape, dtype and every bit."""
    assert isinstance(array, jax.Array)
    assert isinstance(tensor, torch.Tensor)
    assert array.shape == tuple(tensor.shape)
    assert f"torch.{array.dtype}" == str(tensor.dtype)
    np.testing.assert_array_equal(bits(array), bits(tensor))


def same_memory(array, tensor):
    return array.unsafe_buffer_pointer() == tensor.data_ptr()


def refused(function, leaf, *words, **options):
    """The call is refused, and the message says where, and what these words say."""
    with pytest.raises(InteropError) as caught:
        function({"a": [leaf]}, **options)
    message = str(caught.value)
    assert message.startswith(f"fbuf_adapters.pytorch.{function.__name__}: tree['a'][0] (")
    for word in words:
        assert word in message
    return message


def refused_to_add(state, items, *words, **options):
    """The same for `add_from_torch`; and the buffer is as it was, and not consumed."""
    with pytest.raises(InteropError) as caught:
        add_from_torch(state, items, **options)
    assert str(caught.value).startswith("fbuf_adapters.pytorch.add_from_torch: ")
    for word in words:
        assert word in str(caught.value)
    assert int(fbuf.size(state)) == 0
    return str(caught.value)


# Arrays and tensors that cross.


@shapes
@pytest.mark.parametrize("name", NARROW)
def test_every_dtype_crosses_to_torch(name, shape):
    array = array_of(shape, name)
    shared, copied = to_torch(array), to_torch(array, copy=True)
    assert_same(array, shared)
    assert_same(array, copied)
    if array.size:
        assert same_memory(array, shared)
        assert not same_memory(array, copied)


@shapes
@pytest.mark.parametrize("name", NARROW)
def test_every_dtype_crosses_from_torch(name, shape):
    tensor = tensor_of(shape, name, DEVICE)
    shared, copied = from_torch(tensor, copy=False), from_torch(tensor)
    assert_same(shared, tensor)
    assert_same(copied, tensor)
    if tensor.numel():
        assert same_memory(shared, tensor)
        assert not same_memory(copied, tensor)


@pytest.mark.parametrize("name", WIDE)
def test_64_bits_cross_when_jax_has_them(name):
    with jax.enable_x64(True):
        array, tensor = array_of((8, 3), name), tensor_of((8, 3), name)
        assert_same(array, to_torch(array))
        assert same_memory(array, to_torch(array))
        assert_same(from_torch(tensor, copy=False), tensor)
        assert same_memory(from_torch(tensor, copy=False), tensor)
        assert_same(from_torch(tensor), tensor)
        assert_same(from_torch(tensor, narrow=True), tensor)


@pytest.mark.sweep
def test_64_bits_are_added_when_jax_has_them():
    with jax.enable_x64(True):
        tensors = {name: tensor_of((8, 3), name) for name in WIDE}
        state = fbuf.init({name: np.zeros(3, name) for name in WIDE}, 8)
        found = stored(add_from_torch(state, tensors))
        for name, tensor in tensors.items():
            assert_same(found[name], tensor)


Pair = collections.namedtuple("Pair", ["left", "right"])


def test_trees_keep_their_type():
    tree = {"pair": Pair(jnp.ones(2), [jnp.zeros(3)]), "none": None, "empty": ()}
    out = to_torch(tree)
    assert jax.tree.structure(out) == jax.tree.structure(tree)
    assert isinstance(out["pair"], Pair)
    back = from_torch(out)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    assert_same(back["pair"].right[0], out["pair"].right[0])


@both
def test_a_sample_crosses_whole(copy):
    buffer = Tensors().make()
    buffer.extend(rows())
    sample = fbuf.sample(buffer.state, jax.random.key(0), BATCH)
    out = to_torch(sample, copy=copy)
    assert isinstance(out, fbuf.Sample)
    assert isinstance(out.ids, fbuf.Ids)
    pairs = list(zip(jax.tree.leaves(sample), jax.tree.leaves(out), strict=True))
    assert len(pairs) == 9
    for array, tensor in pairs:
        assert_same(array, tensor)
        assert same_memory(array, tensor) is not copy
        assert_same(from_torch(tensor), tensor)
    # and back it comes, to be used
    buffer.state = fbuf.remove(buffer.state, from_torch(out.ids))
    assert len(buffer) == 8 - len(set(out.ids.slot.tolist()))
    buffer.raise_on_fault()


@pytest.mark.parametrize("name", HANDED_OUT)
def test_all_that_is_handed_out_may_be_shared(name):
    kind = getattr(fbuf, name)
    arrays = kind(**{field.name: jnp.arange(4.0) for field in dataclasses.fields(kind)})
    tensors = to_torch({"a": [arrays]})["a"][0]
    assert type(tensors) is kind
    for array, tensor in zip(jax.tree.leaves(arrays), jax.tree.leaves(tensors), strict=True):
        assert same_memory(array, tensor)


def test_a_second_device_and_a_mesh_of_one_are_no_obstacle():
    second = jax.devices("cpu")[1]
    mesh = jax.sharding.Mesh(np.array([second]), "x")
    for sharding in (
        jax.sharding.SingleDeviceSharding(second),
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")),
    ):
        array = jax.device_put(jnp.arange(4.0), sharding)
        assert_same(array, to_torch(array))
        assert same_memory(array, to_torch(array))


# Memory that both may write to.


def test_torch_writes_into_a_shared_array_and_not_into_a_copy():
    array = jnp.zeros(8)
    torch.from_dlpack(array).add_(1)
    assert float(array.sum()) == 8  # an immutable array has changed: this is what sharing means
    to_torch(array, copy=True).add_(1)
    assert float(np.asarray(jnp.copy(array)).sum()) == 8


@pytest.mark.on_cpu
def test_a_tensor_on_a_state_makes_add_copy_the_buffer_so_states_are_refused():
    def filled():
        return fbuf.add(empty(), of_jax(rows()))

    def pointer(state):
        return state.storage.words.unsafe_buffer_pointer()

    # bare: the write is no longer in place, and nothing says so
    state = filled()
    before, view = pointer(state), torch.from_dlpack(state.storage.words)
    seen = view.clone()
    state = fbuf.add(state, of_jax(rows(8, 20)))
    assert pointer(state) != before
    assert torch.equal(view, seen)

    # ours: no tensor without a copy, so that the write stays in place
    state = filled()
    before = pointer(state)
    message = refused(to_torch, state, "fbuf.sample", "copy=True")
    assert "(State)" in message
    copied = to_torch({"a": [state]}, copy=True)["a"][0]
    assert isinstance(copied, fbuf.State)
    for array, tensor in zip(jax.tree.leaves(state), jax.tree.leaves(copied), strict=True):
        assert_same(array, tensor)
        assert not same_memory(array, tensor)
    state = fbuf.add(state, of_jax(rows(8, 20)))
    assert pointer(state) == before
    assert torch.equal(copied.storage.words, seen)
    copied.storage.words.zero_()
    assert stored(state)["number"].tolist() == [22, 23, 24, 25, 26, 27, 6, 7, 20, 21]


def test_rollouts_and_their_targets_cross():
    state = fbuf.add(fbuf.init(jnp.float32(0), 8), jnp.arange(3.0))
    batch = fbuf.rollout(state)
    found = fbuf.targets.gae(batch, batch.data, batch.data, gamma=0.9, lambda_=0.9)
    for given in (batch, found, fbuf.targets.Targets(found.target, found.mask)):
        crossed = to_torch(given)
        assert type(crossed) is type(given)
        for array, tensor in zip(jax.tree.leaves(given), jax.tree.leaves(crossed), strict=True):
            assert_same(array, tensor)
            assert same_memory(array, tensor)


@pytest.mark.parametrize("sampler", [fbuf.Uniform(), fbuf.Prioritized()], ids=["uniform", "prio"])
def test_parts_of_a_state_are_refused_too(sampler):
    state = fbuf.init(jnp.zeros(3), 8, sampler=sampler)
    refused(to_torch, state.ring, "fbuf.sample")
    if jax.tree.leaves(state.index):
        refused(to_torch, state.index, "fbuf.sample")
    assert jax.tree.leaves(to_torch(state.ring, copy=True))


def test_a_copy_by_jax_shares_memory_and_donating_it_overwrites_the_tensor():
    def double(x):
        return x * 2 + 1

    # bare: asked for a copy, jax makes none, and then writes into it
    tensor = torch.arange(64.0)
    array = jax.dlpack.from_dlpack(tensor, copy=True)
    assert same_memory(array, tensor)
    jax.jit(double, donate_argnums=0)(array).block_until_ready()
    assert torch.equal(tensor, 2 * torch.arange(64.0) + 1)

    # ours
    for copy in (True, False):
        tensor = torch.arange(64.0)
        array = from_torch(tensor, copy=copy)
        result = jax.jit(double, donate_argnums=0)(array).block_until_ready()
        assert torch.equal(tensor, torch.arange(64.0))
        assert float(result[63]) == 127


# Time: JAX has not finished when the call returns.

MANY, WIDTH = 2**16, 128


def add_and_reuse(add):
    """Add a large batch, overwrite the tensor at once, and count the rows that came out wrong."""
    state = fbuf.init(jnp.zeros(WIDTH), 2 * MANY, sampler=fbuf.Prioritized())
    observation = torch.ones(MANY, WIDTH)
    priority = torch.ones(MANY)
    jax.block_until_ready(state)
    state = add(state, observation, priority)
    observation.fill_(7)
    priority.fill_(7)
    found = np.asarray(stored(state))[:MANY]
    return int((found != 1).any(axis=1).sum())


@pytest.mark.sweep
def test_a_large_tensor_may_be_reused_right_after_add():
    """Large ones, at full speed; for what is certain to show, see `test_hazards.py`."""

    def bare(state, observation, priority):
        given, priority = map(jax.dlpack.from_dlpack, (observation, priority))
        return fbuf.add(state, given, priority=priority)

    def ours(state, observation, priority):
        return add_from_torch(state, observation, priority=priority)

    # bare: whether it goes wrong is a matter of time, so it is told (`pytest -rP`), not asserted
    print("wrong rows with bare DLPack:", [add_and_reuse(bare) for _ in range(2)])
    assert [add_and_reuse(ours) for _ in range(3)] == [0, 0, 0]


@pytest.mark.sweep
def test_a_tensor_may_be_reused_right_after_from_torch():
    @jax.jit
    def slow(x):
        return jax.lax.fori_loop(0, 20, lambda _, y: jnp.sin(y) + x, x)

    def wrong(convert):
        tensor = torch.ones(2**20)
        result = slow(convert(tensor))
        tensor.fill_(7)
        return bool((np.asarray(result) != right).any())

    right = np.asarray(slow(jnp.ones(2**20)))
    assert any(wrong(jax.dlpack.from_dlpack) for _ in range(10))
    assert not any(wrong(from_torch) for _ in range(3))


# Layout.

LARGE = 256 * 1024  # 1 MiB of float32: JAX makes large copies after the call has returned
VIEWS = {
    "offset": lambda base: base[1:],
    "row": lambda base: base[: 3 * 81111].view(3, 81111)[1],
    "transposed": lambda base: base.view(512, 512).t(),
    "column": lambda base: base.view(512, 512)[:, 5],
    "step": lambda base: base[::2],
    "expanded": lambda base: base[:512].expand(512, 512),
    "imaginary": lambda base: torch.view_as_complex(base.view(-1, 2)).imag,
}


def test_bare_jax_copies_a_misaligned_tensor_without_a_word():
    tensor = torch.arange(LARGE, dtype=torch.float32)[1:]
    assert not same_memory(jax.dlpack.from_dlpack(tensor), tensor)


def test_bare_jax_knows_no_strides():
    for name in ("column", "step", "expanded", "imaginary"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="striding"):
            jax.dlpack.from_dlpack(VIEWS[name](torch.arange(LARGE, dtype=torch.float32)))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_layout_is_copied_at_once(view):
    base = torch.arange(LARGE, dtype=torch.float32)
    expected = view(base).contiguous().numpy().copy()
    array = from_torch(view(base))
    base.fill_(-1)
    np.testing.assert_array_equal(np.asarray(array), expected)


@pytest.mark.sweep
def test_any_layout_is_added():
    base = torch.arange(LARGE, dtype=torch.float32)
    expected = {name: view(base).contiguous().numpy().copy() for name, view in VIEWS.items()}
    item = jax.tree.map(np.zeros_like, expected)
    state = add_from_torch(fbuf.init(item, 1), {name: view(base) for name, view in VIEWS.items()})
    base.fill_(-1)
    for name, found in stored(state).items():
        np.testing.assert_array_equal(np.asarray(found)[0], expected[name], name)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_only_compact_aligned_memory_is_shared(view):
    tensor = view(torch.arange(LARGE, dtype=torch.float32))
    remedy = ".clone()" if tensor.is_contiguous() else ".contiguous()"
    refused(from_torch, tensor, "(torch.float32 of shape", remedy, "copy=True", copy=False)
    remedied = tensor.clone() if tensor.is_contiguous() else tensor.contiguous()
    assert same_memory(from_torch(remedied, copy=False), remedied)


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(st.data())
def test_every_view_is_copied_right(data):
    tensor = torch.arange(120.0).view(2, 3, 4, 5)
    axes = data.draw(st.permutations(range(4)))
    tensor = tensor.permute(*axes)
    for axis in range(4):
        start = data.draw(st.integers(0, tensor.shape[axis]))
        step = data.draw(st.integers(1, 3))
        tensor = tensor[(slice(None),) * axis + (slice(start, None, step),)]
    np.testing.assert_array_equal(np.asarray(from_torch(tensor)), tensor.numpy())


@pytest.mark.on_cpu
def test_pinned_memory_is_copied_and_not_shared():
    class Pinned(torch.Tensor):
        """Pinning needs a GPU, so this only says so; what is made of it is a plain tensor."""

        __torch_function__ = torch._C._disabled_torch_function_impl

        def is_pinned(self):
            return True

    tensor = torch.ones(4).as_subclass(Pinned)
    with pytest.raises(TypeError, match="DLDeviceType: 3"):
        jax.dlpack.from_dlpack(tensor)  # bare, on a machine without a GPU
    refused(from_torch, tensor, "is pinned", ".clone()", copy=False)
    assert from_torch(tensor).tolist() == [1] * 4


# Values that are not what the memory says.


def test_conjugate_bit():
    tensor = torch.tensor([1 + 2j, 3 - 4j] * 8).conj()
    assert tensor.is_conj()
    with pytest.raises(BufferError):
        jax.dlpack.from_dlpack(tensor)  # bare
    refused(from_torch, tensor, ".resolve_conj()", copy=False)
    np.testing.assert_array_equal(np.asarray(from_torch(tensor)), tensor.resolve_conj().numpy())
    state = add_from_torch(fbuf.init(jnp.complex64(0), 16), tensor)
    np.testing.assert_array_equal(np.asarray(stored(state)), tensor.resolve_conj().numpy())


def test_negative_bit():
    tensor = torch._neg_view(torch.arange(16.0))
    assert tensor.is_neg()
    assert jax.dlpack.from_dlpack(tensor).tolist() == list(range(16))  # bare: the sign is lost
    refused(from_torch, tensor, ".resolve_neg()", copy=False)
    assert from_torch(tensor).tolist() == [-i for i in range(16)]
    assert from_torch(torch.tensor([1 + 2j, 3 - 4j]).conj().imag).tolist() == [-2, 4]
    state = add_from_torch(fbuf.init(0.0, 16), tensor)
    assert stored(state).tolist() == [-i for i in range(16)]


def test_bool_bytes_other_than_0_and_1():
    def odd():
        return torch.tensor([0, 1, 2, 255] * 16, dtype=torch.uint8).view(torch.bool)

    assert int(odd().sum()) == 48
    bare = jax.dlpack.from_dlpack(odd())
    assert int((bare & True).sum()) != 48  # some kernels look at the byte, some at its last bit
    for tensor in (odd(), odd()[1:], odd()[::2], odd().view(8, 8).t(), odd()[2]):
        assert set(bits(from_torch(tensor))) <= {0, 1}
        np.testing.assert_array_equal(np.asarray(from_torch(tensor)), tensor.ne(False).numpy())
    state = add_from_torch(fbuf.init(False, 64), odd(), terminated=odd())
    assert int(stored(state).sum()) == 48
    assert set(bits(stored(state))) == {0, 1}
    assert flags(state).count(1) == 48


# 64 bits.

FITS = {
    "int64": [-(2**31), 2**31 - 1],
    "uint64": [0, 2**32 - 1],
    "float64": [1e38, -1.5, float("nan"), float("inf"), -float("inf"), 1e-300],
    "complex128": [1e38 + 1j, 2j],
}
DOES_NOT_FIT = {
    "int64": [[2**31], [-(2**31) - 1], [2**33 + 5]],
    "uint64": [[2**32], [2**63 + 5]],
    "float64": [[1e300], [-1e39]],
    "complex128": [[1e300 + 0j], [1e300j]],
}


def test_bare_jax_narrows_64_bits_without_a_word():
    for options in ({}, {"copy": False}):
        assert jax.dlpack.from_dlpack(torch.tensor([2**33 + 5]), **options).tolist() == [5]
        double = torch.tensor([1e300], dtype=torch.float64)
        assert jax.dlpack.from_dlpack(double, **options).tolist() == [float("inf")]


@pytest.mark.parametrize("name", WIDE)
def test_64_bits_are_refused_or_narrowed_if_they_fit(name):
    dtype = getattr(torch, name)
    fits = torch.tensor(FITS[name], dtype=dtype)
    for copy in (True, False):
        refused(from_torch, fits, f"(torch.{name} of shape", "narrow=True", "x64", copy=copy)
    refused(from_torch, fits, "narrow=True", copy=False, narrow=True)
    narrowed = from_torch(fits, narrow=True)
    assert_same(narrowed, fits.to(getattr(torch, WIDE[name])))
    for values in DOES_NOT_FIT[name]:
        tensor = torch.tensor(values, dtype=dtype)
        refused(from_torch, tensor, f"torch.{WIDE[name]} cannot hold", "x64", narrow=True)
    assert from_torch(torch.zeros(0, dtype=dtype), narrow=True).shape == (0,)


@pytest.mark.sweep
def test_add_takes_64_bits_only_if_told_and_only_if_they_fit():
    state = fbuf.init({"action": 0}, 4)
    actions = {"action": torch.tensor([1, 2])}
    refused_to_add(state, actions, "items['action']", "torch.int64", "narrow=True")
    too_large = {"action": torch.tensor([1, 2**31])}
    refused_to_add(state, too_large, "items['action']", "cannot hold", narrow=True)
    state = add_from_torch(state, actions, narrow=True)
    assert stored(state)["action"].tolist() == [1, 2, 0, 0]

    state = fbuf.init(0, 4, sampler=fbuf.Prioritized())
    items, priority = torch.tensor([1], dtype=torch.int32), torch.tensor([1e300]).double()
    priority[0] = 1e300
    refused_to_add(state, items, "priority (torch.float64", priority=priority)
    refused_to_add(state, items, "priority (torch.float64", priority=priority, narrow=True)


# Tensors that are no plain memory.


def test_tensors_that_require_grad():
    tensor = torch.ones(4, requires_grad=True)
    with pytest.raises(BufferError):
        jax.dlpack.from_dlpack(tensor)  # bare
    for leaf in (tensor, tensor * 2, torch.nn.Parameter(torch.ones(4))):
        refused(from_torch, leaf, ".detach()")
        refused_to_add(fbuf.init(0.0, 4), leaf, ".detach()")
    assert same_memory(from_torch(tensor.detach(), copy=False), tensor)
    frozen = torch.nn.Parameter(torch.ones(4), requires_grad=False)
    assert same_memory(from_torch(frozen, copy=False), frozen)


def quantised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only some versions of torch warn
        return torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def fake(size):
    with FakeTensorMode():
        return torch.ones(size)


BARE = (BufferError, RuntimeError, ValueError, TypeError)
STRANGE = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "to_dense()"),
    "mkldnn": (lambda: torch.ones(3).to_mkldnn(), "to_dense()"),
    "quantised": (quantised, "dequantize()"),
    "meta": (lambda: torch.ones(3, device="meta"), "no memory"),
    "uninitialised": (torch.nn.parameter.UninitializedBuffer, "no memory"),
    "complex32": (lambda: torch.zeros(3, dtype=torch.complex32), ".to"),
}


# PyTorch warns of the dtype that is refused here.
@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", STRANGE)
def test_strange_tensors(name):
    make, remedy = STRANGE[name]
    tensor = make()
    with pytest.raises(BARE) as caught:
        jax.dlpack.from_dlpack(tensor)
    assert not isinstance(caught.value, InteropError)
    for copy in (True, False):
        refused(from_torch, tensor, remedy, copy=copy)
    refused_to_add(fbuf.init(jnp.zeros(3), 4), {"b": tensor}, "items['b']", remedy)


# PyTorch warns of the tensors that are refused here.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    with pytest.raises(RuntimeError, match="sizes"):
        jax.dlpack.from_dlpack(nested())  # bare
    refused(from_torch, nested(), "(Tensor)", "nested")  # it has no shape to tell


def test_fake_tensors():
    tensor = fake(3)
    with pytest.warns(UserWarning, match="FakeTensor"):
        array = jax.dlpack.from_dlpack(tensor)
    assert array.shape == (3,)  # bare: it goes through, on whatever lies in memory
    for copy in (True, False):
        refused(from_torch, tensor, "no memory", "fake", copy=copy)
    refused_to_add(fbuf.init(0.0, 4), tensor, "no memory", "fake")
    refused(from_torch, fake(0), "no memory", "fake")
    real = torch.ones(16)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert real.numpy().ctypes.data != real.data_ptr()  # bare: again, whatever lies there
        called_inside(real)
    with FakeTensorMode():
        called_inside(real)


def called_inside(tensor):
    """Both functions refuse to work here, whatever they are given."""
    with pytest.raises(InteropError, match=r"pytorch\.from_torch: called inside torch\.func"):
        from_torch(tensor)
    with pytest.raises(InteropError, match=r"pytorch\.add_from_torch: called inside torch\.func"):
        add_from_torch(fbuf.init(0.0, 4), tensor)


def test_tensors_inside_torch_func():
    outside = torch.ones(3)

    def inside_vmap(x):
        with pytest.raises(RuntimeError):
            jax.dlpack.from_dlpack(x)  # bare
        refused(from_torch, x, "torch.func", copy=True)
        refused(from_torch, x, "torch.func", copy=False)
        refused_to_add(fbuf.init(0.0, 4), x, "torch.func")
        assert_same(from_torch(outside), outside)  # which has nothing to do with it
        return x

    def inside_grad(x):
        for tensor in (x, x.detach(), outside):
            with pytest.raises(RuntimeError, match="storage"):
                jax.dlpack.from_dlpack(tensor.detach().clone())  # bare
            called_inside(tensor)
        return x.sum()

    def inside_functionalize(x):
        y = (x + 1)[4:]
        assert y.numpy().shape == (12,)  # bare: on memory that is not there
        refused(from_torch, y, "torch.func")
        refused_to_add(fbuf.init(0.0, 4), y, "torch.func")

    torch.vmap(inside_vmap)(torch.ones(2, 3))
    torch.func.grad(inside_grad)(torch.ones(3))
    torch.func.functionalize(inside_functionalize)(torch.ones(16))


def test_a_tensor_where_jax_cannot_reach(monkeypatch):
    class OnGpu(torch.Tensor):
        """Says so only: there is none here that JAX could find."""

        is_cuda = True
        is_cpu = False

    assert _tensors.jax_has_gpu() == any(device.platform == "gpu" for device in jax.devices())
    monkeypatch.setattr(_tensors, "jax_has_gpu", lambda: False)
    refused(from_torch, torch.ones(3).as_subclass(OnGpu), "this JAX cannot reach", ".cpu()")


def test_a_tensor_on_another_device_than_the_buffer(monkeypatch):
    class OnGpu(torch.Tensor):
        is_cuda = True
        is_cpu = False

    # Stand in for the GPU and for the way to it: what is on trial is what happens then.
    elsewhere = jax.devices("cpu")[1]
    monkeypatch.setattr(_tensors, "jax_has_gpu", lambda: True)
    monkeypatch.setattr(_dlpack, "jax_device", lambda device: elsewhere)
    monkeypatch.setattr(_inputs, "let_torch_wait", lambda fault: None)
    monkeypatch.setattr(
        _dlpack,
        "to_arrays",
        lambda tensors: [jax.device_put(jnp.ones(x.shape), elsewhere) for x in tensors],
    )
    tensor = torch.ones(3).as_subclass(OnGpu)
    refused_to_add(fbuf.init(0.0, 4), {"b": tensor}, "items['b']", "the buffer does not", ".cpu()")
    state = add_from_torch(jax.device_put(fbuf.init(0.0, 4), elsewhere), tensor)
    assert stored(state).tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("leaf", [1.0, "text", np.ones(3), jnp.ones(3)], ids=type)
def test_leaves_that_are_no_tensors(leaf):
    refused(from_torch, leaf, "not a tensor", "torch.as_tensor")


# Arrays that are no plain memory.


@both
@pytest.mark.parametrize("leaf", [1.0, True, "text", np.ones(3), torch.ones(3)], ids=type)
def test_leaves_that_are_no_arrays(leaf, copy):
    refused(to_torch, leaf, "not a JAX array", "jnp.asarray", copy=copy)


@both
def test_deleted_and_donated_arrays(copy):
    array = jnp.ones(16)
    array.delete()
    with pytest.raises(TypeError, match="NoneType"):
        torch.from_dlpack(array)  # bare
    refused(to_torch, array, "(float32 of shape (16,))", "deleted", copy=copy)
    array = jnp.ones(16)
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    refused(to_torch, array, "donated", copy=copy)


@both
def test_arrays_on_several_devices(copy):
    first, second = jax.devices("cpu")[:2]
    mesh = jax.sharding.Mesh(np.array([first, second]), "x")
    for spec in ("x", None):  # split, and replicated
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(spec))
        array = jax.device_put(jnp.arange(4.0), sharding)
        with pytest.raises(BufferError):
            torch.from_dlpack(array)  # bare
        refused(to_torch, array, "2 devices", "jax.device_put", copy=copy)
        whole = jax.device_put(array, first)
        assert to_torch(whole, copy=copy).tolist() == [0, 1, 2, 3]
        parts = to_torch([shard.data for shard in array.addressable_shards])
        assert len(parts) == 2


@both
def test_prng_keys(copy):
    key = jax.random.key(0)
    with pytest.raises((RuntimeError, TypeError)):
        torch.from_dlpack(key)  # bare
    refused(to_torch, key, "PRNG key", "jax.random.key_data", copy=copy)
    data = to_torch(jax.random.key_data(key), copy=copy)
    back = jax.random.wrap_key_data(from_torch(data))
    assert bool((jax.random.bits(back, (4,)) == jax.random.bits(key, (4,))).all())


@both
@pytest.mark.parametrize("name", ["int4", "uint2", "float8_e3m4", "float4_e2m1fn"])
def test_dtypes_that_torch_lacks(name, copy):
    array = jnp.zeros(8, name)
    with pytest.raises((BufferError, jax.errors.JaxRuntimeError)):
        torch.from_dlpack(array)  # bare
    refused(to_torch, array, f"({name} of shape (8,))", ".astype", copy=copy)


def test_tracers():
    array = jnp.ones(4)
    with pytest.raises(AttributeError):
        jax.jit(torch.from_dlpack)(array)  # bare
    for copy in (True, False):
        jax.jit(lambda x, copy=copy: refused(to_torch, x, "traced", copy=copy) and x)(array)
        jax.vmap(lambda x, copy=copy: refused(to_torch, x, "traced", copy=copy) and x)(array)

    @jax.jit
    def add(state):
        with pytest.raises(InteropError, match="state is traced"):
            add_from_torch(state, torch.ones(1))
        return state

    add(fbuf.init(0.0, 4))

    @jax.jit
    def prioritise(priority):
        with pytest.raises(InteropError, match=r"priority \(float32.* is traced"):
            add_from_torch(state, torch.ones(1), priority=priority)
        return priority

    state = fbuf.init(0.0, 4, sampler=fbuf.Prioritized())
    prioritise(jnp.ones(1))

    @jax.jit
    def add_to_a_constant(x):
        with pytest.raises(InteropError, match="called inside a compiled function"):
            add_from_torch(state, torch.ones(1))
        return x

    add_to_a_constant(array)
    assert int(fbuf.size(add_from_torch(state, torch.ones(1)))) == 1


class Sharding:
    """Stands in for where an array lies on machines that have more than a CPU."""

    def __init__(self, platform, memory_kind):
        fields = ["platform", "local_hardware_id"]
        self.device_set = {dataclasses.make_dataclass("Device", fields, frozen=True)(platform, 3)}
        self.memory_kind = memory_kind


def test_arrays_where_torch_cannot_reach(monkeypatch):
    for cuda, platform, memory_kind in (
        (False, "gpu", "device"),
        (True, "tpu", "device"),
        (True, "gpu", "pinned_host"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        with pytest.raises(InteropError, match=r"jax\.device_put"):
            _to_torch.torch_device(Sharding(platform, memory_kind))
    assert _to_torch.torch_device(Sharding("gpu", "device")) == torch.device("cuda", 3)


# Adding.


def as_jax(tensor):
    return jnp.asarray(bits(tensor).view(jnp.dtype(str(tensor.dtype)[6:])).reshape(tensor.shape))


def assert_same_state(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(bits(x), bits(y))


OPTIONS = {
    "terminated": torch.tensor([0, 1, 0, 0, 0]).bool(),
    "truncated": torch.tensor([0, 0, 0, 0, 1]).bool(),
    "priority": torch.tensor([1.0, 2.0, 0.0, 4.0, 5.0]),
    "mask": torch.tensor([1, 1, 0, 1, 1]).bool(),
    "alpha": torch.tensor(0.5),
}


@pytest.mark.sweep
def test_add_from_torch_is_add():
    items = {name: tensor_of((5, 3), name, DEVICE) for name in NARROW}
    given = {"items": items, **{name: x.to(DEVICE) for name, x in OPTIONS.items()}}
    empty = {name: np.zeros(3, jnp.dtype(name)) for name in NARROW}
    ours = add_from_torch(fbuf.init(empty, 7, sampler=fbuf.Prioritized()), **given)
    theirs = fbuf.add(
        fbuf.init(empty, 7, sampler=fbuf.Prioritized()), **jax.tree.map(as_jax, given)
    )
    assert_same_state(ours, theirs)
    assert int(fbuf.size(ours)) == 4
    assert flags(ours) == [0, 1, 0, 2, 0, 0, 0]


@pytest.mark.sweep
def test_add_from_torch_takes_one_item_and_no_options():
    item = {name: tensor_of((), name) for name in ("bool", "bfloat16", "float32")}
    given = {"items": item, "terminated": torch.tensor(True), "priority": torch.tensor(3.0)}
    ours, theirs = (
        fbuf.init(jax.tree.map(as_jax, item), 3, sampler=fbuf.Prioritized()) for _ in range(2)
    )
    for arguments in ({"items": item}, given):
        ours = add_from_torch(ours, **arguments)
        theirs = fbuf.add(theirs, **jax.tree.map(as_jax, arguments))
        assert_same_state(ours, theirs)


@pytest.mark.sweep
def test_add_from_torch_takes_what_add_takes_too():
    state = fbuf.init({"a": 0.0, "b": jnp.zeros(2), "c": 0}, 4, sampler=fbuf.Prioritized())
    items = {"a": torch.ones(()), "b": np.ones(2, np.float32), "c": 1}
    state = add_from_torch(state, items, truncated=True, priority=jnp.float32(2), alpha=0.5)
    assert jax.tree.map(lambda x: x[0].tolist(), stored(state)) == {
        "a": 1,
        "b": [1, 1],
        "c": 1,
    }
    assert flags(state) == [2, 0, 0, 0]
    with pytest.raises(TypeError, match=r"fbuf\.add: items\['c'\]"):
        add_from_torch(state, items | {"c": "text"})


def test_add_from_torch_consumes_the_state_and_nothing_else():
    state = fbuf.init(jnp.zeros(16), 4)
    items = torch.ones(2, 16)
    before = state.storage.words.unsafe_buffer_pointer()
    added = add_from_torch(state, items)
    assert added.storage.words.unsafe_buffer_pointer() == before
    assert state.storage.words.is_deleted()
    assert torch.equal(items, torch.ones(2, 16))
    with pytest.raises(RuntimeError, match="consumed"):
        add_from_torch(state, items)


def test_add_from_torch_leaves_errors_of_shape_to_add():
    state = fbuf.init({"x": jnp.zeros(3)}, 4)
    with pytest.raises(ValueError, match=r"fbuf.add: items\['x'\]"):
        add_from_torch(state, {"x": torch.ones(2, 4)})
    with pytest.raises(TypeError, match=r"fbuf.add: items\['x'\] must be float32"):
        add_from_torch(state, {"x": torch.ones(2, 3, dtype=torch.float16)})
    with pytest.raises(InteropError, match=r"state must be a fbuf\.State, got dict"):
        add_from_torch({}, {"x": torch.ones(2, 3)})
    assert int(fbuf.size(add_from_torch(state, {"x": torch.ones(2, 3)}))) == 2


def test_add_from_torch_compiles_once(caplog):
    state = fbuf.init({"wide": jnp.zeros(11), "half": jnp.zeros(11, jnp.bfloat16)}, 13)
    with jax.log_compiles():
        for _ in range(4):
            items = {"wide": torch.ones(2, 11), "half": torch.ones(2, 11, dtype=torch.bfloat16)}
            state = add_from_torch(state, items, terminated=torch.zeros(2, dtype=torch.bool))
    compiled = [r for r in caplog.records if "Finished XLA compilation" in r.getMessage()]
    assert len(compiled) == 1


# Lifetime.


@pytest.mark.on_cpu
def test_a_tensor_outlives_its_array_and_the_other_way_round():
    tensor = to_torch(jnp.arange(1000.0))
    array = from_torch(torch.arange(1000.0))
    shared = from_torch(torch.arange(1000.0), copy=False)
    gc.collect()
    for _ in range(10):  # take what had been given back
        jnp.full(1000, 7.0).block_until_ready()
        torch.full((1000,), 7.0)
    np.testing.assert_array_equal(tensor.numpy(), np.arange(1000))
    np.testing.assert_array_equal(np.asarray(array), np.arange(1000))
    np.testing.assert_array_equal(np.asarray(shared), np.arange(1000))


class Stream:
    """Stands in for a CUDA stream, whose work takes until it is said to be done."""

    device = "cuda:0"

    def __init__(self):
        self.done = False
        self.recorded = 0

    def record_event(self):
        self.recorded += 1
        return self

    def query(self):
        return self.done


@pytest.fixture
def handing_over(monkeypatch):
    """Has torch make streams of the class above current, and give an array to torch."""
    monkeypatch.setattr(_lifetime, "_taking", set())

    def make(*arrays, stream):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
        hand_over = _lifetime.HandOver(stream.device)
        tensors = [torch.from_dlpack(array) for array in arrays]
        for array, tensor in zip(arrays, tensors, strict=True):
            hand_over.keep(array, tensor)
        return tensors

    return make


@pytest.mark.on_cpu
def test_memory_of_a_gpu_is_kept_until_its_kernels_have_run(monkeypatch, handing_over):
    exporting, dropping, learning = Stream(), Stream(), Stream()
    _lifetime.taken_on(learning)
    array = jnp.ones(8)
    alive = weakref.ref(array)
    (tensor,) = handing_over(array, stream=exporting)
    weight = torch.ones(8, requires_grad=True)
    loss = (tensor[2:] * weight[2:]).sum()  # autograd keeps the tensor
    del array, tensor
    gc.collect()
    _lifetime.forget_finished()
    assert alive() is not None
    assert exporting.recorded == 0

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: dropping)
    del loss
    gc.collect()
    assert (exporting.recorded, dropping.recorded, learning.recorded) == (1, 1, 1)
    for stream in (dropping, learning, exporting):
        _lifetime.forget_finished()
        gc.collect()
        assert alive() is not None
        stream.done = True
    later = handing_over(jnp.ones(1), stream=learning)  # the next call sweeps
    gc.collect()
    assert alive() is None
    assert not _lifetime._finishing
    assert len(later) == 1


@pytest.mark.on_cpu
def test_tensors_that_go_together_wait_for_one_event_and_the_others_for_the_next_call(handing_over):
    stream = Stream()
    arrays = [jnp.full(8, float(number)) for number in range(5)]
    alive = [weakref.ref(array) for array in arrays]
    tensors = handing_over(*arrays, stream=stream)
    del arrays, tensors[3:]
    gc.collect()
    assert stream.recorded == 0  # their kernels may come until the next call
    assert all(one() is not None for one in alive)
    _lifetime.forget_finished()
    assert stream.recorded == 1
    stream.done = True
    _lifetime.forget_finished()
    gc.collect()
    assert [one() is None for one in alive] == [False] * 3 + [True] * 2

    stream.done = False
    tensors.clear()
    gc.collect()
    assert stream.recorded == 2  # nothing is left to wait for
    assert all(one() is not None for one in alive[:3])
    stream.done = True
    _lifetime.forget_finished()
    gc.collect()
    assert all(one() is None for one in alive)
    assert not _lifetime._finishing
    assert not any(one._gone for one in _lifetime._partly_gone)


@pytest.mark.on_cpu
def test_tensors_dropped_in_a_cuda_graph_wait_for_the_next_call(monkeypatch, handing_over):
    stream, array = Stream(), jnp.ones(8)
    alive = weakref.ref(array)
    tensors = handing_over(array, stream=stream)
    del array
    with monkeypatch.context() as captured:
        captured.setattr(_lifetime, "captures_graph", lambda: True)
        tensors.clear()
    assert stream.recorded == 0
    _lifetime.forget_finished()
    assert stream.recorded == 1

    def raising():
        raise RuntimeError("a graph is captured")

    monkeypatch.setattr(stream, "query", raising)
    with pytest.raises(RuntimeError, match="is captured"):
        _lifetime.forget_finished()
    monkeypatch.undo()
    assert alive() is not None
    stream.done = True
    _lifetime.forget_finished()
    gc.collect()
    assert alive() is None


def test_nothing_is_called_while_a_cuda_graph_is_captured(monkeypatch):
    buffer, state = ReplayBuffer(10, batch_size=2), fbuf.init(jnp.float32(0), 4)
    buffer.extend(torch.arange(4.0))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for call in (lambda: from_torch(torch.ones(1)), lambda: add_from_torch(state, torch.ones(1))):
        with pytest.raises(InteropError, match="while a CUDA graph is captured"):
            call()
    buffer.sample()  # all of it is on the CPU, where nothing is captured
    object.__setattr__(buffer.contents.spec, "uses_gpu", True)
    for call in (buffer.sample, lambda: buffer.extend(torch.ones(1)), lambda: len(buffer)):
        with pytest.raises(InteropError, match="while a CUDA graph is captured"):
            call()


def test_the_error_is_a_type_error():
    assert issubclass(InteropError, TypeError)
