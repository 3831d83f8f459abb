"""The names of the core that adapters build on: the contract between both.

An adapter imports from `fbuf`, from `fbuf.host` and from here, and nothing else of the core. So the
core may change all other names. These names are for adapters, not for programs: they may change
from one version to the next, together with the adapters of this repository.
"""

from fbuf.dispatch.call import refuse_consumed as refuse_consumed
from fbuf.dispatch.parse import can_hold as can_hold
from fbuf.dispatch.torch_compile import opaque as opaque
from fbuf.dispatch.torch_compile import opaque_all as opaque_all
from fbuf.ops.resume import Episodes as Episodes
from fbuf.ops.resume import resumed as resumed
from fbuf.ops.spec import BufferSpec as BufferSpec
from fbuf.runtime.batch_stream import BatchStream as BatchStream
from fbuf.runtime.batch_stream import Drawn as Drawn
from fbuf.runtime.interrupts import Calls as Calls
from fbuf.runtime.interrupts import at_once as at_once
from fbuf.runtime.interrupts import uninterrupted as uninterrupted
from fbuf.runtime.thread import Cancelled as Cancelled
from fbuf.samplers import Sampler as Sampler
from fbuf.storage.episodes import Autoreset as Autoreset
from fbuf.storage.ids import NO_SLOT as NO_SLOT
from fbuf.storage.ring import DUMMY as DUMMY
from fbuf.storage.ring import REMOVED as REMOVED
from fbuf.storage.ring import STANDS_IN as STANDS_IN
from fbuf.storage.ring import TERMINATED as TERMINATED
from fbuf.storage.ring import TRUNCATED as TRUNCATED
from fbuf.storage.stored_lanes import Lane as Lane
from fbuf.storage.stored_lanes import stored_lanes as stored_lanes
from fbuf.views import View as View
from fbuf.views.gather import request_rows as request_rows
