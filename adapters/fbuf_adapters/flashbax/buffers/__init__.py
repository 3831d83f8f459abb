"""The buffers, a file each, by flashbax's names."""

from fbuf_adapters.flashbax.buffers.flat_buffer import make_flat_buffer as make_flat_buffer
from fbuf_adapters.flashbax.buffers.item_buffer import make_item_buffer as make_item_buffer
from fbuf_adapters.flashbax.buffers.mixer import make_mixer as make_mixer
from fbuf_adapters.flashbax.buffers.prioritised_flat_buffer import (
    make_prioritised_flat_buffer as make_prioritised_flat_buffer,
)
from fbuf_adapters.flashbax.buffers.prioritised_item_buffer import (
    make_prioritised_item_buffer as make_prioritised_item_buffer,
)
from fbuf_adapters.flashbax.buffers.prioritised_trajectory_buffer import (
    make_prioritised_trajectory_buffer as make_prioritised_trajectory_buffer,
)
from fbuf_adapters.flashbax.buffers.trajectory_buffer import (
    make_trajectory_buffer as make_trajectory_buffer,
)
from fbuf_adapters.flashbax.buffers.trajectory_queue import (
    make_trajectory_queue as make_trajectory_queue,
)
