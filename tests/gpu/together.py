"""Two libraries on one GPU and in one process: who waits for whom, and what it costs.

The checks are: arrays handed over while they are computed (c), PyTorch inside a JAX program (f),
and microseconds a leaf (g). Others are of the order in which both libraries are imported and find
their devices (h, i), and of the memory each takes (j).
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import time
from collections.abc import Callable
from typing import Any

from stage import (
    ALONE,
    DANGER,
    FACT,
    LEFT,
    ONE_BY_ONE,
    POOL,
    PROMISE,
    Found,
    Stage,
    check,
    error_of,
    median,
    microseconds,
    milliseconds,
    on_gpu,
    verdict,
)

LEAVES = 8
MOST_PER_LEAF = 10.0
"""Microseconds that the adapter may take for a leaf more than the bare call."""
LIBRARIES = ("cublas", "cublasLt", "cudnn", "cudart", "nccl", "nvrtc")

# --- (c): waiting --------------------------------------------------------------------------------


@check(
    "c",
    FACT,
    "handing over what JAX is still computing does not block",
    company=ONE_BY_ONE,
    memory=POOL,
)
def nobody_waits(stage: Stage) -> Found:
    """PyTorch's stream waits for JAX's, and the host for neither; the values are right."""
    import jax
    import numpy as np
    import torch
    from fbuf_adapters import pytorch

    slow = stage.slow()
    expected = np.array(jax.block_until_ready(slow()))
    ways: dict[str, Callable[[Any], Any]] = {
        "torch.from_dlpack": torch.from_dlpack,
        "to_torch": pytorch.to_torch,
        "bare capsule": lambda array: torch.from_dlpack(array.__dlpack__()),
    }
    for way in ways.values():  # the first use of a kernel may wait for everything
        way(slow()).add(1)
    stage.wait()
    figures, right, quick = [], True, {}
    for name, way in ways.items():
        launch, export, whole = [], [], []
        for _ in range(stage.rounds):
            start = time.perf_counter()
            array = slow()
            launched = time.perf_counter()
            tensor = way(array)
            exported = time.perf_counter()
            later = tensor.add(1)
            stage.wait()
            done = time.perf_counter()
            right = right and np.allclose(later.cpu().numpy(), expected + 1, atol=1e-5)
            launch.append(launched - start)
            export.append(exported - launched)
            whole.append(done - start)
        quick[name] = median(export) < median(whole) / 10
        figures.append(f"{name} {milliseconds(median(export))}")
    text = (
        f"JAX busy for {milliseconds(median(whole))}, its call took "
        f"{milliseconds(median(launch))}; {', '.join(figures)}; values right: {right}"
    )
    return on_gpu(stage, quick["torch.from_dlpack"] and quick["to_torch"], text, right)


# --- (f): PyTorch inside a JAX program -----------------------------------------------------------


def ordered(stage: Stage, double: Callable[[Any], Any]) -> tuple[int, float]:
    """Put a function between slow JAX work and a JAX sum.

    Returns:
        How many results were wrong, and microseconds of a call of it alone.
    """
    import jax
    import jax.numpy as jnp

    slow = stage.slow()
    shape = slow().shape
    program = jax.jit(lambda y, value: double(y * 0 + value) + 1)
    wrong = 0
    for number in range(2 * stage.rounds + 1):
        result = program(slow(), jnp.float32(number))
        wrong += bool((result != 2 * number + 1).any())
    alone = jax.jit(double)
    array = jnp.ones(shape)

    taken = microseconds({"call": lambda: jax.block_until_ready(alone(array))}, stage.rounds)
    return wrong, taken["call"]


def shape_of_slow(stage: Stage) -> Any:
    import jax
    import jax.numpy as jnp

    side = 4096 if stage.gpu else 256
    return jax.ShapeDtypeStruct((side, side), jnp.float32)


@check(
    "f",
    FACT,
    "buffer_callback runs PyTorch on XLA's stream, in order",
    company=ONE_BY_ONE,
    memory=POOL,
)
def buffer_callback(stage: Stage) -> Found:
    """PyTorch reads and writes XLA's own memory inside a program, on the stream that it is told."""
    import torch
    from jax.experimental import buffer_callback as callbacks

    def double(own_stream: bool) -> Callable[[Any], Any]:
        def write(context: Any, out: Any, x: Any) -> None:
            where: Any = contextlib.nullcontext()
            if stage.gpu and not own_stream:
                where = torch.cuda.stream(torch.cuda.ExternalStream(context.stream))
            with where:
                torch.mul(torch.from_dlpack(x), 2, out=torch.from_dlpack(out))

        return callbacks.buffer_callback(write, shape_of_slow(stage), vmap_method="sequential")

    wrong, us = ordered(stage, double(own_stream=False))
    text = f"wrong {wrong} of {2 * stage.rounds + 1}; {us:,.1f} us a call"
    if stage.gpu:
        without, _ = ordered(stage, double(own_stream=True))
        text += f"; on PyTorch's stream instead: wrong {without}"
    return on_gpu(stage, wrong == 0, text, wrong == 0)


@check(
    "f, adapter",
    PROMISE,
    "callback runs a PyTorch function in a program, in order",
    company=ONE_BY_ONE,
    memory=POOL,
)
def adapter_callback(stage: Stage) -> Found:
    """The same with a plain function of tensors."""
    from fbuf_adapters import pytorch

    if not hasattr(pytorch, "callback"):
        return {"verdict": LEFT, "text": "fbuf_adapters.pytorch has no callback"}
    double = pytorch.callback(lambda x: x * 2, shape_of_slow(stage))
    wrong, us = ordered(stage, double)
    text = f"wrong {wrong} of {2 * stage.rounds + 1}; {us:,.1f} us a call"
    return on_gpu(stage, wrong == 0, text, wrong == 0)


# --- (g): what it costs --------------------------------------------------------------------------


@check(
    "g",
    PROMISE,
    f"to_torch adds at most {MOST_PER_LEAF:g} us a leaf to torch.from_dlpack",
    company=ALONE,
)
def cost(stage: Stage) -> Found:
    """Microseconds a leaf, for 8 leaves of 8 kB."""
    import jax
    import jax.numpy as jnp
    import torch
    from fbuf_adapters import pytorch

    arrays = {f"leaf {i}": jnp.full(2048, float(i)) for i in range(LEAVES)}
    jax.block_until_ready(arrays)
    tensors = {name: torch.zeros(2048, device=stage.device) for name in arrays}
    stage.wait()
    ways: dict[str, Callable[[], Any]] = {
        "torch.from_dlpack": lambda: {k: torch.from_dlpack(x) for k, x in arrays.items()},
        "to_torch": lambda: pytorch.to_torch(arrays),
        "jax.dlpack.from_dlpack": lambda: {
            k: jax.dlpack.from_dlpack(x) for k, x in tensors.items()
        },
        "from_torch": lambda: pytorch.from_torch(tensors),
    }
    us = {k: each / LEAVES for k, each in microseconds(ways, 2 * stage.rounds + 1).items()}
    text = ", ".join(f"{name} {each:.1f} us" for name, each in us.items()) + " a leaf"
    return on_gpu(stage, us["to_torch"] - us["torch.from_dlpack"] <= MOST_PER_LEAF, text)


# --- (h), (i), (j): two libraries in one process -------------------------------------------------


def cold(stage: Stage, bring: Callable[[Any], Any]) -> Found:
    """Bring a tensor over before JAX has looked for devices."""
    import torch

    tensor = torch.arange(1000.0, device=stage.device)
    device = torch.cuda.current_device() if stage.gpu else 0
    found: list[Any] = []
    raised = error_of(lambda: found.append(bring(tensor)))
    if raised:
        return verdict(False, raised)
    (array,) = found
    right = float(array.sum()) == 499500.0
    same = not stage.gpu or torch.cuda.current_device() == device
    works = float(tensor.add(1).sum()) == 500500.0
    (where,) = array.devices()
    there = where.platform == ("gpu" if stage.gpu else "cpu")
    text = f"on {where}, values right: {right}, PyTorch's device as before: {same}"
    return on_gpu(stage, same and there, text, right and works)


@check("h", FACT, "a bare import works before JAX has looked for devices")
def cold_bare(stage: Stage) -> Found:
    """JAX chooses its current GPU when it first looks, which could undo PyTorch's choice."""
    import jax

    return cold(stage, jax.dlpack.from_dlpack)


@check("h, adapter", PROMISE, "from_torch works before JAX has looked for devices")
def cold_from_torch(stage: Stage) -> Found:
    """It looks first."""
    from fbuf_adapters import pytorch

    return cold(stage, pytorch.from_torch)


def loaded() -> dict[str, set[str]]:
    """The files of CUDA libraries in this process."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    files = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
    return {
        name: {file for file in files if pathlib.Path(file).name.startswith(f"lib{name}.so")}
        for name in LIBRARIES
    }


def compute_in_both(stage: Stage, first: str) -> Found:
    """Import in an order, then multiply matrices and convolve in both libraries."""
    for module in (first, {"jax": "torch", "torch": "jax"}[first]):
        library = importlib.import_module(module)
        if module == "jax":
            library.devices()
        elif stage.gpu:
            library.zeros(1, device="cuda")
    import jax
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((512, 512), np.float32)
    image = rng.standard_normal((8, 16, 32, 32), np.float32)
    kernel = rng.standard_normal((16, 16, 3, 3), np.float32)
    in_torch = [torch.from_numpy(x).to(stage.device) for x in (matrix, image, kernel)]
    products = [
        np.asarray(jax.numpy.asarray(matrix) @ matrix),
        (in_torch[0] @ in_torch[0]).cpu().numpy(),
    ]
    convolved = [
        np.asarray(jax.lax.conv(jax.numpy.asarray(image), kernel, (1, 1), "VALID")),
        torch.nn.functional.conv2d(in_torch[1], in_torch[2]).cpu().numpy(),
    ]
    # Both may round the inputs to 10 bits.
    right = all(np.allclose(*pair, atol=0.5) for pair in (products, convolved))
    there = jax.devices()[0].platform == ("gpu" if stage.gpu else "cpu")
    files = loaded()
    once = all(len(paths) <= 1 for paths in files.values())
    # Names say enough of what is there once; of what is there twice, one must know from where.
    names = sorted(
        pathlib.Path(path).name if len(paths) == 1 else path
        for paths in files.values()
        for path in paths
    )
    text = (
        f"same results: {right}; JAX on {jax.devices()[0]}; loaded: {', '.join(names) or 'none'}; "
        f"each once: {once}; cuDNN {torch.backends.cudnn.version()}, CUDA {torch.version.cuda}"
    )
    return on_gpu(stage, there and once, text, right)


@check("i, jax first", FACT, "both compute if JAX is imported first")
def jax_first(stage: Stage) -> Found:
    """The library that is imported first chooses the copy of cuBLAS and cuDNN that both use."""
    return compute_in_both(stage, "jax")


@check("i, torch first", FACT, "both compute if PyTorch is imported first")
def torch_first(stage: Stage) -> Found:
    """The other order."""
    return compute_in_both(stage, "torch")


def taken_by_jax(stage: Stage, least: float, most: float, fits: bool) -> Found:
    """Look at JAX's memory at its first use, and whether PyTorch then gets 40 % of the memory."""
    import jax
    import jax.numpy as jnp
    import torch

    if not stage.gpu:
        jax.block_until_ready(jnp.zeros(1))
        return on_gpu(stage, False, "nothing is taken beforehand")
    free, total = torch.cuda.mem_get_info()
    jax.block_until_ready(jnp.zeros(1))
    share = (free - torch.cuda.mem_get_info()[0]) / total
    refused = error_of(lambda: torch.empty(int(0.4 * total), dtype=torch.uint8, device="cuda"))
    text = (
        f"{free / 1e9:.1f} of {total / 1e9:.1f} GB were free, JAX took {share:.0%} of all; "
        f"PyTorch asks for 40 %: {refused[:60] or 'it gets them'}"
    )
    return verdict(least <= share <= most and (not refused) == fits, text)


@check("j", DANGER, "JAX takes 75 % of the memory at its first use", company=ALONE, memory=())
def preallocation(stage: Stage) -> Found:
    """PyTorch has the rest."""
    return taken_by_jax(stage, 0.7, 0.8, fits=False)


@check(
    "j, fraction",
    FACT,
    "XLA_PYTHON_CLIENT_MEM_FRACTION=.3 leaves PyTorch its share",
    company=ALONE,
    memory=(("XLA_PYTHON_CLIENT_MEM_FRACTION", ".3"),),
)
def memory_fraction(stage: Stage) -> Found:
    """A pool of a fixed size."""
    return taken_by_jax(stage, 0.25, 0.35, fits=True)


@check(
    "j, on demand", FACT, "XLA_PYTHON_CLIENT_PREALLOCATE=false takes what is needed", company=ALONE
)
def memory_on_demand(stage: Stage) -> Found:
    """A pool that grows."""
    return taken_by_jax(stage, 0.0, 0.05, fits=True)
