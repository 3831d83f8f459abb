"""JAX arrays as PyTorch tensors and back, and a replay buffer of tensors: over DLPack, and safe.

The two libraries can read each other's memory, but do not tell each other what they do with it. JAX
takes arrays to be immutable, runs after the call has returned, and writes into donated memory.
PyTorch writes wherever it likes. So these functions refuse what could go wrong silently, with an
`InteropError`, before they call the other library.
"""

try:
    # Only to see whether it is there.
    import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as _error:
    if _error.name != "torch":  # it is there, and lacks something itself
        raise
    raise ImportError('fbuf_adapters.pytorch needs PyTorch: pip install "fbuf[torch]"') from _error

from fbuf.adapter_api import opaque_all as _opaque_all
from fbuf_adapters.pytorch._replay_buffer import ReplayBuffer as ReplayBuffer
from fbuf_adapters.pytorch.crossing._add import add_from_torch as add_from_torch
from fbuf_adapters.pytorch.crossing._callback import callback as callback
from fbuf_adapters.pytorch.crossing._error import InteropError as InteropError
from fbuf_adapters.pytorch.crossing._from_torch import from_torch as from_torch
from fbuf_adapters.pytorch.crossing._to_torch import to_torch as to_torch

__all__ = ["InteropError", "ReplayBuffer", "add_from_torch", "callback", "from_torch", "to_torch"]
__dir__ = __all__.copy  # `dir` shows the public names alone

_opaque_all(globals()[name] for name in __all__)
