"""Samplers: which rows may be drawn, and with what probability. One file a sampler."""

import sys

from fbuf.samplers.chance import random_bits as random_bits
from fbuf.samplers.chance import shards as shards
from fbuf.samplers.evict_lowest import EvictLowest as EvictLowest
from fbuf.samplers.fifo import Fifo as Fifo
from fbuf.samplers.fresh_first import FreshFirst as FreshFirst
from fbuf.samplers.grouped import Grouped as Grouped
from fbuf.samplers.index import group_index, lives, priority_index, segments, start_index, versions
from fbuf.samplers.limited import Limited as Limited
from fbuf.samplers.mixture import Mixture as Mixture
from fbuf.samplers.prioritized import Prioritized as Prioritized
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
from fbuf.samplers.reservoir import Reservoir as Reservoir
from fbuf.samplers.shuffled import Shuffled as Shuffled
from fbuf.samplers.uniform import Uniform as Uniform

# Pickled states of earlier versions name their classes by the modules of that time.
for _module in (group_index, lives, priority_index, segments, start_index, versions):
    sys.modules.setdefault(f"{__name__}.{_module.__name__.rpartition('.')[2]}", _module)
