"""JAX arrays as PyTorch tensors and back: over DLPack, and safe.

The two libraries can read each other's memory, and neither tells the other what it does with it:
JAX takes arrays to be immutable, runs after the call has returned, and writes into donated memory;
PyTorch writes wherever it likes. So what could go wrong silently is refused here with an
`InteropError`, before the other library is called.
"""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

import fbuf

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError("fbuf_adapters.pytorch needs PyTorch: pip install 'fbuf[torch]'") from error

__all__ = ["InteropError", "add_from_torch", "from_torch", "to_torch"]

# The dtypes that both libraries have; all but bool carry the same name in each.
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): jnp.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
}
_JAX_DTYPES = frozenset(_DTYPES.values())

_NARROWER = {
    torch.int64: torch.int32,
    torch.uint64: torch.uint32,
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
}
"""What JAX makes of 64-bit dtypes, unless they are turned on."""

_BITS = {torch.bfloat16: torch.uint16} | {
    dtype: torch.uint8 for dtype in _DTYPES if str(dtype).startswith("torch.float8")
}
"""Dtypes for which `Tensor.numpy` fails, and those to read their bits by."""

_QUICK = frozenset(_DTYPES) - {*_NARROWER, *_BITS}
"""Dtypes that NumPy has and JAX keeps."""

_SOMETHING = torch.zeros(1, device="cpu")

_ALIGNMENT = 64
"""Where memory must start, in bytes, for JAX to use it."""


class InteropError(TypeError):
    """A leaf cannot cross as asked: the message names it, says why, and what to do.

    Examples:
        >>> from fbuf_adapters import pytorch
        >>> pytorch.to_torch({"reward": 1.0})
        Traceback (most recent call last):
        ...
        fbuf_adapters.pytorch.InteropError: fbuf_adapters.pytorch.to_torch: tree['reward'] (float) \
is no JAX array; make it one with jnp.asarray
    """


def to_torch(tree: Any, *, copy: bool = False) -> Any:
    """Hand JAX arrays to PyTorch, in the same memory.

    What PyTorch writes into such a tensor changes the array, which JAX takes to be immutable: write
    only when all that JAX computes from the array is ready, and do not use the array afterwards.
    Never donate it.

    On a GPU nobody waits: PyTorch's current stream goes on when the array is ready. When the last
    tensor on it is dropped, the memory is kept until the work has run that this stream had been
    given by then, or the one that is current then; have these wait for any third stream.

    Of a buffer only what `fbuf.sample` returns may be shared. The arrays of a `fbuf.State` may
    not, and a state is refused: with a tensor alive on its memory the next `fbuf.add` copies the
    whole buffer (on CPU) or fails (on GPU), and what PyTorch writes there changes stored rows.
    An array taken out of a state by hand (`state.storage.words`) cannot be told from others;
    give `copy=True` for it.

    Args:
        tree: Any pytree of JAX arrays, a `fbuf.Sample` for one. Each array must lie on one device,
            CPU or GPU; a dtype must be one that PyTorch has too.
        copy: Give PyTorch memory of its own. Then anything goes, states included.

    Returns:
        The same tree with tensors as leaves.

    Raises:
        InteropError: If a leaf is no array, traced, deleted or donated, a PRNG key, of a dtype
            that PyTorch lacks, on several devices or on one PyTorch cannot reach; or belongs to
            a state.

    Cost: a few microseconds a leaf; with `copy`, the copy.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> from fbuf_adapters import pytorch
        >>> state = fbuf.add(fbuf.init({"x": jnp.zeros(2)}, capacity=4), {"x": jnp.ones((3, 2))})
        >>> batch = pytorch.to_torch(fbuf.sample(state, jax.random.key(0), 2))
        >>> batch.data["x"]
        tensor([[1., 1.],
                [1., 1.]])
    """
    _forget_finished()
    is_leaf = None if copy else _is_part_of_a_state
    return _convert("to_torch", {"tree": tree}, lambda leaf: _export(leaf, copy), is_leaf)["tree"]


def from_torch(tree: Any, *, copy: bool = True, narrow: bool = False) -> Any:
    """Hand PyTorch tensors to JAX.

    By default JAX gets memory of its own, so that the tensors may be written to at once, as a
    simulator does that reuses its outputs. To add rows to a buffer, `add_from_torch` is faster.

    Args:
        tree: Any pytree of tensors, on CPU or GPU.
        copy: With False, share the memory, or fail. It is then on you not to write to a tensor
            before everything computed from its array is ready (`jax.block_until_ready`: JAX runs
            after the call has returned), never to donate the array, and to see to it that a bool
            tensor's bytes are 0 or 1 (those of `uint8_tensor.view(torch.bool)` need not be).
        narrow: Cast 64-bit tensors to 32 bits where JAX has no 64-bit types (`jax_enable_x64`), if
            every value fits: integers exactly, and finite floats stay finite. Always a copy.

    Returns:
        The same tree with arrays as leaves. They are committed to their device, so a compiled
        function that has met only uncommitted arrays compiles once more for them.

    Raises:
        InteropError: If a leaf is no tensor, requires grad, is 64-bit where JAX is not (see
            `narrow`), of a dtype that JAX lacks, not strided (sparse, quantised, nested), without
            memory (meta, fake, inside `torch.func`), or on a device that JAX cannot reach. With
            `copy=False` also if it is not contiguous, does not start at a multiple of 64 bytes,
            is lazily conjugated or negated, or pinned.

    Cost: about 30 microseconds a leaf, and the copy.

    Examples:
        >>> import torch
        >>> from fbuf_adapters import pytorch
        >>> pytorch.from_torch({"action": torch.tensor([1, 2])}, narrow=True)
        {'action': Array([1, 2], dtype=int32)}
    """
    _check_torch("from_torch")
    return _convert("from_torch", {"tree": tree}, lambda leaf: _import(leaf, copy, narrow))["tree"]


def add_from_torch(
    state: fbuf.State[Any],
    items: Any,
    *,
    terminated: Any = None,
    truncated: Any = None,
    next_observation: Any = None,
    priority: Any = None,
    mask: Any = None,
    time_major: bool = False,
    alpha: Any = None,
    narrow: bool = False,
) -> fbuf.State[Any]:
    """Write rows given as tensors: `fbuf.add`, after which the tensors are yours again.

    The tensors are read where they are. On CPU the call returns when the rows have been written;
    if all that is given is on a GPU it returns at once, and PyTorch's current stream waits for
    them. So a tensor may be written to right afterwards. (From another stream, wait for the current
    one first, as always.)

    Args:
        state: The buffer; always consumed: to keep it, copy it first.
        items: As for `fbuf.add`, with tensors for arrays. Tensors on a GPU need a buffer on that
            GPU; those on CPU go anywhere. Leaves that are no tensors go to `fbuf.add` as they
            are, here and below.
        terminated: As for `fbuf.add`.
        truncated: As for `fbuf.add`.
        next_observation: As for `fbuf.add`.
        priority: As for `fbuf.add`.
        mask: As for `fbuf.add`.
        time_major: As for `fbuf.add`.
        alpha: As for `fbuf.add`.
        narrow: As for `from_torch`.

    Returns:
        The buffer with the rows in it.

    Raises:
        InteropError: If `state` is no `fbuf.State`, if anything is traced, or if a tensor cannot
            be handed over, see `from_torch`; strides, alignment and lazy bits do not matter. The
            buffer is then unchanged, and not consumed.
        ValueError: As `fbuf.add`.
        TypeError: As `fbuf.add`.
        RuntimeError: As `fbuf.add`.

    Cost: that of `fbuf.add`, waiting for it, and 2 microseconds a leaf on CPU.

    Examples:
        >>> import fbuf, jax.numpy as jnp, torch
        >>> from fbuf_adapters import pytorch
        >>> state = fbuf.init({"x": jnp.zeros(2)}, capacity=4)
        >>> observation = torch.ones(3, 2)
        >>> state = pytorch.add_from_torch(state, {"x": observation})
        >>> observation.zero_().sum(), float(state.storage.rows()["x"].sum())
        (tensor(0.), 6.0)
    """
    _check_torch("add_from_torch")
    _check_state(state)
    given = {
        "items": items,
        "terminated": terminated,
        "truncated": truncated,
        "next_observation": next_observation,
        "priority": priority,
        "mask": mask,
        "alpha": alpha,
    }
    fed = _convert("add_from_torch", given, lambda leaf: _feed(leaf, narrow, state))
    added = fbuf.add(state, **fed, time_major=time_major)
    _refuse_traced(added)
    if all(_on_gpu(leaf) for leaf in jax.tree.leaves(given)):
        _let_torch_wait_for(added)
        return added
    return jax.block_until_ready(added)


def _convert(
    function: str,
    arguments: dict[str, Any],
    convert: Callable[[Any], Any],
    is_leaf: Callable[[Any], bool] | None = None,
) -> dict[str, Any]:
    """Map the leaves of a function's arguments, and tell which of them was refused."""
    leaves, structure = jax.tree.flatten(arguments, is_leaf)
    converted: list[Any] = []
    try:
        for leaf in leaves:
            converted.append(convert(leaf))
    except InteropError as refusal:  # only now the paths, for they cost time
        (argument, *path), leaf = jax.tree.leaves_with_path(arguments, is_leaf)[len(converted)]
        raise InteropError(
            f"fbuf_adapters.pytorch.{function}: {argument.key}{jax.tree_util.keystr(tuple(path))} "
            f"({_describe(leaf)}) {refusal}"
        ) from None
    return jax.tree.unflatten(structure, converted)


def _describe(leaf: Any) -> str:
    """A few words on what may be anything."""
    try:
        return f"{leaf.dtype} of shape {tuple(leaf.shape)}"
    except (AttributeError, RuntimeError):  # no array, or a tensor without a shape
        return type(leaf).__name__


# JAX to PyTorch.


@functools.cache
def _holds_state(kind: type) -> bool:
    """Whether a type is fbuf's own, and not one of those that `fbuf.sample` hands out."""
    package, _, module = kind.__module__.partition(".")
    handed_out = kind in (fbuf.Sample, fbuf.Ids) or module.startswith("views.")
    return issubclass(kind, fbuf.State) or (package == "fbuf" and not handed_out)


def _is_part_of_a_state(node: Any) -> bool:
    return _holds_state(type(node))


def _export(leaf: Any, copy: bool) -> torch.Tensor:
    """A tensor on the memory of an array, or on a copy of it."""
    _check_array(leaf)
    if _platform(leaf.sharding) == "cpu":
        tensor = torch.from_dlpack(leaf.__dlpack__())  # asked by torch itself, it takes longer
    else:
        tensor = torch.from_dlpack(leaf)  # tells JAX torch's stream, so that the host need not wait
        _hold(leaf, tensor)
    return tensor.clone() if copy else tensor


def _check_array(leaf: Any) -> None:
    if not isinstance(leaf, jax.Array):
        if _is_part_of_a_state(leaf):
            raise InteropError(
                "is a buffer's own memory, which fbuf.add must be free to write to; share what "
                "fbuf.sample returns, or give copy=True"
            )
        raise InteropError("is no JAX array; make it one with jnp.asarray")
    _untraced(leaf)
    if leaf.is_deleted():
        raise InteropError(
            "has been deleted, or donated to a compiled function that wrote its result there; "
            "use that result"
        )
    if leaf.dtype not in _JAX_DTYPES:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise InteropError(
                "is a PRNG key; hand over jax.random.key_data(key), and wrap what comes back with "
                "jax.random.wrap_key_data"
            )
        raise InteropError(
            "is of a dtype that PyTorch cannot take over; cast it with .astype, or hand over its "
            "bits with jax.lax.bitcast_convert_type"
        )


def _untraced(leaf: Any) -> Any:
    if isinstance(leaf, jax.core.Tracer):
        raise InteropError(
            "is traced: PyTorch cannot take part in a compiled function; return it from the "
            "function and call this outside"
        )
    return leaf


@functools.lru_cache(maxsize=256)
def _platform(sharding: jax.sharding.Sharding) -> str:
    """Where an array lies: `"cpu"` or `"gpu"`. Cached, for it takes longer than the export."""
    devices = sharding.device_set
    if len(devices) != 1:
        raise InteropError(
            f"lies on {len(devices)} devices; gather it with jax.device_put(x, jax.devices()[0]), "
            "or hand over the parts, [shard.data for shard in x.addressable_shards]"
        )
    (device,) = devices
    if device.platform == "cpu":
        return "cpu"
    if device.platform != "gpu" or not torch.cuda.is_available():
        raise InteropError(
            f"lies on {device}, which this PyTorch cannot reach; move it with "
            "jax.device_put(x, jax.devices('cpu')[0])"
        )
    if sharding.memory_kind not in (None, "device"):
        raise InteropError(
            f"lies in {sharding.memory_kind} memory, which PyTorch cannot read as such; move it "
            "with jax.device_put(x, jax.devices('cpu')[0])"
        )
    return "gpu"


# A tensor's memory goes back to JAX when its last reference goes, which may be before the kernels
# that read it have run: they have only been launched by then. So the array is kept until they have.

_finishing: collections.deque[tuple[list[torch.Event], jax.Array]] = collections.deque()
"""Arrays whose tensors are gone, with what must have happened before their memory may go too."""


def _hold(array: jax.Array, tensor: torch.Tensor) -> None:
    """Keep an array for as long as any tensor on its memory lives, and a little longer."""
    stream = torch.cuda.current_stream(tensor.device)
    weakref.finalize(tensor.untyped_storage(), _finish, array, stream).atexit = False


def _finish(array: jax.Array, stream: torch.cuda.Stream) -> None:
    """Keep it until the streams that may have been given work on it are done with that."""
    streams = {stream, torch.cuda.current_stream(stream.device)}
    _finishing.append(([stream.record_event() for stream in streams], array))


def _forget_finished() -> None:
    """Let go of the arrays that no kernel can need any more, oldest first."""
    while _finishing:
        events, array = _finishing.popleft()
        if not all(event.query() for event in events):
            _finishing.appendleft((events, array))
            return


# PyTorch to JAX.


def _import(leaf: Any, copy: bool, narrow: bool) -> jax.Array:
    """An array on the memory of a tensor, or on memory nobody else knows."""
    _check_tensor(leaf)
    if not copy:
        _check_dtype(leaf)
        obstacle = _obstacle(leaf)
        if obstacle is not None:
            raise InteropError(f"{obstacle}, or give copy=True")
        return _alias(leaf)
    array = _alias(_own(_fit(leaf, narrow)))
    # A donated array is written to: harmless in that copy, but on GPU XLA may abort the process
    # when asked to take over memory that is not its own.
    return jnp.copy(array) if leaf.is_cuda else array


def _feed(leaf: Any, narrow: bool, state: fbuf.State[Any]) -> Any:
    """What a compiled function reads a leaf from: where it is, if at all possible."""
    if not isinstance(leaf, torch.Tensor):
        return _untraced(leaf)  # fbuf.add looks after it
    quick = _quickly_as_numpy(leaf)
    if quick is not None:
        return quick
    _check_tensor(leaf)
    tensor = _fit(leaf, narrow)
    if not tensor.is_cuda:
        return _as_numpy(tensor)
    shared = tensor.dtype != torch.bool and _obstacle(tensor) is None
    array = _alias(tensor if shared else _own(tensor))
    if array.sharding.device_set != state.fault.sharding.device_set:
        raise InteropError(
            f"lies on {tensor.device}, and the buffer does not: move it with .cpu(), or the buffer "
            "with jax.device_put"
        )
    return array


def _quickly_as_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any] | None:
    """A NumPy array on the memory of a tensor, if that is all there is to it.

    Most tensors are like that, and to ask each for everything that it might be takes longer than
    the rest of adding it. `Tensor.numpy` asks as well, and refuses.
    """
    if type(tensor) is not torch.Tensor or tensor.dtype not in _QUICK:
        return None
    try:
        if tensor.untyped_storage().data_ptr() == 0:  # a stand-in, of which NumPy would make junk
            return None
        array = tensor.numpy()
    except (RuntimeError, TypeError):
        return None
    return array.view(np.uint8) != 0 if tensor.dtype is torch.bool else array  # bool: see _own


def _check_tensor(leaf: Any) -> None:
    """Whether there is memory to read, holding what the tensor says, that JAX can reach."""
    if not isinstance(leaf, torch.Tensor):
        raise InteropError("is no tensor; make it one with torch.as_tensor")
    if leaf.layout != torch.strided or leaf.is_nested:
        raise InteropError(
            "is sparse or nested; make it a plain tensor with .to_dense(), or pad it"
        )
    if leaf.is_quantized:
        raise InteropError("is quantised; take .dequantize(), or .int_repr() for the integers")
    if leaf.is_meta or not _has_memory(leaf):
        raise InteropError(
            "has no memory to read: it is a meta or fake tensor, or belongs to torch.func; take "
            "one with values, outside"
        )
    if leaf.requires_grad:
        raise InteropError("requires grad, which JAX would not track; hand over .detach()")
    if leaf.dtype not in _DTYPES:
        raise InteropError("is of a dtype that JAX cannot take over; cast it with .to")
    if not (leaf.is_cpu or (leaf.is_cuda and _jax_has_gpu())):
        raise InteropError(
            f"lies on {leaf.device}, which this JAX cannot reach; move it with .cpu()"
        )


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one, and not a stand-in for one while torch traces or transforms."""
    kind: Any = type(tensor)
    plain: Any = torch.Tensor
    if kind.__torch_dispatch__ is not plain.__torch_dispatch__:
        return False
    try:
        return tensor.untyped_storage().data_ptr() != 0 or tensor.numel() == 0
    except (RuntimeError, ValueError):  # there is no storage, or not yet
        return False


def _check_torch(function: str) -> None:
    """Whether torch computes here; if not, even plain tensors yield stand-ins, or junk."""
    try:
        computes = _has_memory(_SOMETHING.detach())
    except AssertionError:  # FakeTensorMode wants no real tensors
        computes = False
    if not computes:
        raise InteropError(
            f"fbuf_adapters.pytorch.{function}: called inside torch.func, FakeTensorMode or the "
            "like, where tensors have no memory to read; call it outside"
        )


def _jax_has_gpu() -> bool:
    """Also lets JAX choose its current GPU before torch does: doing so later would undo torch's."""
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False


def _check_dtype(tensor: torch.Tensor) -> None:
    narrower = _NARROWER.get(tensor.dtype)
    if narrower is not None and not _x64():
        raise InteropError(
            f"would silently become {narrower}, as JAX's 64-bit types are off; give narrow=True "
            "(and copy) to cast it if every value fits, or turn them on "
            "(jax.config.update('jax_enable_x64', True))"
        )


def _x64() -> bool:
    return jax.dtypes.canonicalize_dtype(np.int64) == np.int64


def _fit(tensor: torch.Tensor, narrow: bool) -> torch.Tensor:
    """The tensor in a dtype that JAX keeps."""
    narrower = _NARROWER.get(tensor.dtype)
    if narrower is None:
        return tensor
    if not narrow or _x64():
        _check_dtype(tensor)
        return tensor
    small = tensor.to(narrower)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        fits = torch.equal(small.isfinite(), tensor.isfinite())
    else:
        fits = torch.equal(small.to(tensor.dtype), tensor)
    if not fits:
        raise InteropError(
            f"holds a value that {narrower} does not, so that narrow=True cannot cast it; scale or "
            "clamp it, or turn JAX's 64-bit types on (jax.config.update('jax_enable_x64', True))"
        )
    return small


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy with every bit where it is said to be.

    Not JAX's own copy: on CPU `jax.dlpack.from_dlpack(x, copy=True)` makes none.
    """
    if tensor.dtype == torch.bool:  # whose bytes may be other than 0 and 1, which XLA relies on
        return tensor.view(torch.uint8).ne(0).contiguous()
    return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _obstacle(tensor: torch.Tensor) -> str | None:
    """Why JAX cannot share a tensor's memory, and what to do about it."""
    if tensor.is_conj() or tensor.is_neg():
        return "is conjugated or negated lazily; take .resolve_conj().resolve_neg()"
    if not tensor.is_contiguous():
        return "is not contiguous; take .contiguous()"
    if tensor.numel() > 0 and tensor.data_ptr() % _ALIGNMENT != 0:
        return f"does not start at a multiple of {_ALIGNMENT} bytes; take .clone()"
    if tensor.is_pinned():
        return "is pinned, which JAX takes for memory of the GPU; take .clone()"
    return None


def _alias(tensor: torch.Tensor) -> jax.Array:
    """An array on the tensor's memory."""
    if not tensor.is_cuda:
        return jax.dlpack.from_dlpack(tensor, copy=False)
    with torch.cuda.device(tensor.device):  # torch exports from its current device only
        return jax.dlpack.from_dlpack(tensor, copy=False)


def _as_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A NumPy array on the memory of a CPU tensor; into `jit` it goes faster than by DLPack."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    dtype = tensor.dtype
    if dtype in _BITS:
        return tensor.view(_BITS[dtype]).numpy().view(_DTYPES[dtype])
    if dtype is torch.bool:  # see _own
        return tensor.numpy().view(np.uint8) != 0
    return tensor.numpy()


def _check_state(state: Any) -> None:
    if not isinstance(state, fbuf.State):
        raise InteropError(
            "fbuf_adapters.pytorch.add_from_torch: state must be a fbuf.State, got "
            f"{type(state).__name__}; make one with fbuf.init"
        )
    _refuse_traced(state)


def _refuse_traced(state: fbuf.State[Any]) -> None:
    if isinstance(state.fault, jax.core.Tracer):
        raise InteropError(
            "fbuf_adapters.pytorch.add_from_torch: state is traced, or this was called inside a "
            "compiled function, in which PyTorch cannot take part; call it outside"
        )


def _on_gpu(leaf: Any) -> bool:
    """Whether a stream of torch's looks after who reads and writes the leaf, and in what order."""
    return isinstance(leaf, torch.Tensor) and leaf.is_cuda


def _let_torch_wait_for(state: fbuf.State[Any]) -> None:
    """Let torch's stream, not the host, wait until the state has been computed.

    To export one of its arrays does that; nobody needs the tensor.
    """
    torch.from_dlpack(state.fault)
