"""Samplers choose the rows of a batch, and say with what probability. One file a sampler.

The names of this module are the stable ones for authors of samplers: `docs/know/extending.md`.
"""

import sys

from fbuf.samplers.chance import random_bits as random_bits
from fbuf.samplers.chance import shards as shards
from fbuf.samplers.index import group_index, lives, priority_index, segments, start_index, versions
from fbuf.samplers.protocol.placing import PlacingSampler as PlacingSampler
from fbuf.samplers.protocol.planned import Picked as Picked
from fbuf.samplers.protocol.planned import Plan as Plan
from fbuf.samplers.protocol.planned import PlannedSampler as PlannedSampler
from fbuf.samplers.protocol.queues import QueueSampler as QueueSampler
from fbuf.samplers.protocol.sampler import Ask as Ask
from fbuf.samplers.protocol.sampler import Draw as Draw
from fbuf.samplers.protocol.sampler import Given as Given
from fbuf.samplers.protocol.sampler import Origin as Origin
from fbuf.samplers.protocol.sampler import Sampler as Sampler
from fbuf.samplers.protocol.windows import WindowedSampler as WindowedSampler
from fbuf.samplers.protocol.wrapper import Wrapper as Wrapper
from fbuf.samplers.public import *  # noqa: F403 (each name is written once, there)
from fbuf.storage.ring import DUMMY as DUMMY
from fbuf.storage.ring import REMOVED as REMOVED
from fbuf.storage.ring import TERMINATED as TERMINATED
from fbuf.storage.ring import TRUNCATED as TRUNCATED
from fbuf.storage.ring import Ring as Ring
from fbuf.storage.ring import Span as Span
from fbuf.xla.duplicates import last_of_each as last_of_each
from fbuf.xla.tie import tie as tie

# Pickled states of earlier versions name their classes by the modules of that time.
for _module in (group_index, lives, priority_index, segments, start_index, versions):
    sys.modules.setdefault(f"{__name__}.{_module.__name__.rpartition('.')[2]}", _module)
