"""TensorDicts in and out, with the names of TorchRL's replay buffers.

It needs PyTorch and TensorDict, and TorchRL only for what you bring along from there: its
transforms, and the buffers that `from_torchrl` takes.
"""

try:
    # Only to see whether it is there.
    import tensordict  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as error:
    if error.name not in ("torch", "tensordict"):  # both are there, and lack something themselves
        raise
    raise ImportError(
        'fbuf_adapters.tensordict needs PyTorch and TensorDict: pip install "fbuf[tensordict]"'
    ) from error

from fbuf.adapter_api import opaque_all as _opaque_all
from fbuf_adapters.tensordict._from_torchrl import from_torchrl as from_torchrl
from fbuf_adapters.tensordict._replay_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer

__all__ = ["TensorDictReplayBuffer", "from_torchrl"]
__dir__ = __all__.copy  # `dir` shows the public names alone

_opaque_all(globals()[name] for name in __all__)
