"""The samplers of `fbuf`, a line each. To add one, add its line; `fbuf` then has it, too."""

from fbuf.samplers.evict_lowest import EvictLowest as EvictLowest
from fbuf.samplers.fifo import Fifo as Fifo
from fbuf.samplers.fresh_first import FreshFirst as FreshFirst
from fbuf.samplers.grouped import Grouped as Grouped
from fbuf.samplers.limited import Limited as Limited
from fbuf.samplers.mixture import Mixture as Mixture
from fbuf.samplers.prioritized import Prioritized as Prioritized
from fbuf.samplers.reservoir import Reservoir as Reservoir
from fbuf.samplers.shuffled import Shuffled as Shuffled
from fbuf.samplers.uniform import Uniform as Uniform
