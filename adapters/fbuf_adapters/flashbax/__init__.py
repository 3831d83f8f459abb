"""flashbax's functions on buffers of `fbuf`: change the import, and nothing else.

    from fbuf_adapters import flashbax as fbx

The arguments, the shapes and the meaning are those of flashbax 0.1.3, which need not be installed.
One thing differs: no gradient goes through a buffer, so rows that are differentiated are refused.
`state.buffer` is the `fbuf.State`, for `fbuf.save`, `fbuf.stats` and the like.
"""

from fbuf_adapters.flashbax import buffers as buffers
from fbuf_adapters.flashbax import utils as utils
from fbuf_adapters.flashbax.buffers import flat_buffer as flat_buffer
from fbuf_adapters.flashbax.buffers import item_buffer as item_buffer
from fbuf_adapters.flashbax.buffers import make_flat_buffer as make_flat_buffer
from fbuf_adapters.flashbax.buffers import make_item_buffer as make_item_buffer
from fbuf_adapters.flashbax.buffers import make_mixer as make_mixer
from fbuf_adapters.flashbax.buffers import (
    make_prioritised_flat_buffer as make_prioritised_flat_buffer,
)
from fbuf_adapters.flashbax.buffers import (
    make_prioritised_item_buffer as make_prioritised_item_buffer,
)
from fbuf_adapters.flashbax.buffers import (
    make_prioritised_trajectory_buffer as make_prioritised_trajectory_buffer,
)
from fbuf_adapters.flashbax.buffers import make_trajectory_buffer as make_trajectory_buffer
from fbuf_adapters.flashbax.buffers import make_trajectory_queue as make_trajectory_queue
from fbuf_adapters.flashbax.buffers import mixer as mixer
from fbuf_adapters.flashbax.buffers import prioritised_flat_buffer as prioritised_flat_buffer
from fbuf_adapters.flashbax.buffers import prioritised_item_buffer as prioritised_item_buffer
from fbuf_adapters.flashbax.buffers import (
    prioritised_trajectory_buffer as prioritised_trajectory_buffer,
)
from fbuf_adapters.flashbax.buffers import trajectory_buffer as trajectory_buffer
from fbuf_adapters.flashbax.buffers import trajectory_queue as trajectory_queue

__all__ = [
    "buffers",
    "flat_buffer",
    "item_buffer",
    "make_flat_buffer",
    "make_item_buffer",
    "make_mixer",
    "make_prioritised_flat_buffer",
    "make_prioritised_item_buffer",
    "make_prioritised_trajectory_buffer",
    "make_trajectory_buffer",
    "make_trajectory_queue",
    "mixer",
    "prioritised_flat_buffer",
    "prioritised_item_buffer",
    "prioritised_trajectory_buffer",
    "trajectory_buffer",
    "trajectory_queue",
    "utils",
]
__dir__ = __all__.copy  # `dir` shows the public names alone
