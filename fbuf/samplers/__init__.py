"""Samplers: which rows may be drawn, and with what probability. One file a sampler."""

from fbuf.samplers.evict_lowest import EvictLowest as EvictLowest
from fbuf.samplers.fifo import Fifo as Fifo
from fbuf.samplers.fresh_first import FreshFirst as FreshFirst
from fbuf.samplers.grouped import Grouped as Grouped
from fbuf.samplers.limited import Limited as Limited
from fbuf.samplers.mixture import Mixture as Mixture
from fbuf.samplers.placing import PlacingSampler as PlacingSampler
from fbuf.samplers.planned import Plan as Plan
from fbuf.samplers.planned import PlannedSampler as PlannedSampler
from fbuf.samplers.prioritized import Prioritized as Prioritized
from fbuf.samplers.protocol import Draw as Draw
from fbuf.samplers.protocol import Sampler as Sampler
from fbuf.samplers.queues import QueueSampler as QueueSampler
from fbuf.samplers.reservoir import Reservoir as Reservoir
from fbuf.samplers.shuffled import Shuffled as Shuffled
from fbuf.samplers.uniform import Uniform as Uniform
from fbuf.samplers.windows import WindowedSampler as WindowedSampler
from fbuf.samplers.wrapper import Wrapper as Wrapper
