"""Data sets into buffers and out of them, such as Minari, LeRobot, D4RL, parquet, npz and arrays.

Minari, Gymnasium, h5py, pyarrow and Pillow are imported by the functions that need them, when they
are called.
"""

from fbuf_adapters.datasets._arrays import from_arrays as from_arrays
from fbuf_adapters.datasets._d4rl import from_d4rl as from_d4rl
from fbuf_adapters.datasets._errors import DatasetError as DatasetError
from fbuf_adapters.datasets._lerobot import from_lerobot as from_lerobot
from fbuf_adapters.datasets._lerobot_metadata import LeRobotMetadata as LeRobotMetadata
from fbuf_adapters.datasets._lerobot_metadata import VideoFrames as VideoFrames
from fbuf_adapters.datasets._lerobot_metadata import lerobot_metadata as lerobot_metadata
from fbuf_adapters.datasets._loading import load as load
from fbuf_adapters.datasets._minari import from_minari as from_minari
from fbuf_adapters.datasets._npz import from_npz as from_npz
from fbuf_adapters.datasets._npz import to_npz as to_npz
from fbuf_adapters.datasets._ogbench import from_ogbench as from_ogbench
from fbuf_adapters.datasets._rlds import from_rlds as from_rlds
from fbuf_adapters.datasets._source import Block as Block
from fbuf_adapters.datasets._source import RowFlags as RowFlags
from fbuf_adapters.datasets._source import Source as Source
from fbuf_adapters.datasets._tables import from_pandas as from_pandas
from fbuf_adapters.datasets._tables import from_parquet as from_parquet
from fbuf_adapters.datasets._to_minari import to_minari as to_minari

__all__ = [
    "Block",
    "DatasetError",
    "LeRobotMetadata",
    "RowFlags",
    "Source",
    "VideoFrames",
    "from_arrays",
    "from_d4rl",
    "from_lerobot",
    "from_minari",
    "from_npz",
    "from_ogbench",
    "from_pandas",
    "from_parquet",
    "from_rlds",
    "lerobot_metadata",
    "load",
    "to_minari",
    "to_npz",
]
__dir__ = __all__.copy  # `dir` shows the public names alone
