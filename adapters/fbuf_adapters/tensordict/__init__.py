"""TensorDicts in and out, with the names of TorchRL's replay buffers.

The package needs PyTorch and TensorDict. It needs TorchRL only for TorchRL's own objects: its
transforms, and the buffers given to `from_torchrl`.
"""

try:
    # Imported only to see whether they are installed.
    import tensordict  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as _error:
    if _error.name not in ("torch", "tensordict"):  # a package that one of the two needs
        raise
    raise ImportError(
        'fbuf_adapters.tensordict needs PyTorch and TensorDict: pip install "fbuf[tensordict]"'
    ) from _error

from fbuf.adapter_api import opaque_all as _opaque_all
from fbuf_adapters.tensordict._from_torchrl import from_torchrl as from_torchrl
from fbuf_adapters.tensordict._replay_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer

__all__ = ["TensorDictReplayBuffer", "from_torchrl"]
__dir__ = __all__.copy  # `dir` shows the public names alone

_opaque_all(globals()[name] for name in __all__)
