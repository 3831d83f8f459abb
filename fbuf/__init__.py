"""fbuf: replay memory for reinforcement learning in JAX.

The state of a buffer is one immutable pytree; `add`, `sample` and `update_priority` are pure
functions of it that compile into the training step.
"""

from fbuf import sharded as sharded
from fbuf._exported import register as _register_with_export
from fbuf._versions import VERSION as __version__  # noqa: F401 (public)
from fbuf._versions import warn_if_left_out as _warn_if_left_out
from fbuf.disk.errors import CheckpointError as CheckpointError
from fbuf.door.opaque import opaque_all as _opaque_all
from fbuf.pace import Pace as Pace
from fbuf.pace import PaceCounter as PaceCounter
from fbuf.samplers import Fifo as Fifo
from fbuf.samplers import Mixture as Mixture
from fbuf.samplers import Prioritized as Prioritized
from fbuf.samplers import Shuffled as Shuffled
from fbuf.samplers import Uniform as Uniform
from fbuf.state import Batch as Batch
from fbuf.state import Sample as Sample
from fbuf.state import State as State
from fbuf.storage.faults import Fault as Fault
from fbuf.storage.ids import Ids as Ids
from fbuf.verbs.add import add as add
from fbuf.verbs.after import after as after
from fbuf.verbs.can_sample import can_sample as can_sample
from fbuf.verbs.capacity_for import capacity_for as capacity_for
from fbuf.verbs.check_finite import NotFiniteError as NotFiniteError
from fbuf.verbs.check_finite import check_finite as check_finite
from fbuf.verbs.check_in_place import check_in_place as check_in_place
from fbuf.verbs.clear import clear as clear
from fbuf.verbs.end_episode import end_episode as end_episode
from fbuf.verbs.extend import extend as extend
from fbuf.verbs.ids_at import ids_at as ids_at
from fbuf.verbs.init import init as init
from fbuf.verbs.load import Checkpoint as Checkpoint
from fbuf.verbs.load import load as load
from fbuf.verbs.nbytes import nbytes as nbytes
from fbuf.verbs.newest_ids import newest_ids as newest_ids
from fbuf.verbs.pop import pop as pop
from fbuf.verbs.probability import probability as probability
from fbuf.verbs.raise_on_fault import raise_on_fault as raise_on_fault
from fbuf.verbs.read import read as read
from fbuf.verbs.remove import remove as remove
from fbuf.verbs.resize import resize as resize
from fbuf.verbs.rollout import rollout as rollout
from fbuf.verbs.rows import rows as rows
from fbuf.verbs.sample import sample as sample
from fbuf.verbs.sample_mixed import MixedSample as MixedSample
from fbuf.verbs.sample_mixed import sample_mixed as sample_mixed
from fbuf.verbs.save import save as save
from fbuf.verbs.save import wait as wait
from fbuf.verbs.sequence_priority import sequence_priority as sequence_priority
from fbuf.verbs.size import size as size
from fbuf.verbs.space import space as space
from fbuf.verbs.split import split as split
from fbuf.verbs.stats import stats as stats
from fbuf.verbs.unread import unread as unread
from fbuf.verbs.update_priority import update_priority as update_priority
from fbuf.verbs.write import write as write
from fbuf.views import FrameStack as FrameStack
from fbuf.views import Hindsight as Hindsight
from fbuf.views import HindsightStep as HindsightStep
from fbuf.views import Item as Item
from fbuf.views import NStep as NStep
from fbuf.views import NStepTransition as NStepTransition
from fbuf.views import ReturnToGo as ReturnToGo
from fbuf.views import ReturnToGoStep as ReturnToGoStep
from fbuf.views import Sequence as Sequence
from fbuf.views import SequenceSteps as SequenceSteps
from fbuf.views import Transition as Transition
from fbuf.views import TransitionStep as TransitionStep

__all__ = [
    "Batch",
    "Checkpoint",
    "CheckpointError",
    "Fault",
    "Fifo",
    "FrameStack",
    "Hindsight",
    "HindsightStep",
    "Ids",
    "Item",
    "MixedSample",
    "Mixture",
    "NStep",
    "NStepTransition",
    "NotFiniteError",
    "Pace",
    "PaceCounter",
    "Prioritized",
    "ReturnToGo",
    "ReturnToGoStep",
    "Sample",
    "Sequence",
    "SequenceSteps",
    "Shuffled",
    "State",
    "Transition",
    "TransitionStep",
    "Uniform",
    "add",
    "after",
    "can_sample",
    "capacity_for",
    "check_finite",
    "check_in_place",
    "clear",
    "end_episode",
    "extend",
    "ids_at",
    "init",
    "load",
    "nbytes",
    "newest_ids",
    "pop",
    "probability",
    "raise_on_fault",
    "read",
    "remove",
    "resize",
    "rollout",
    "rows",
    "sample",
    "sample_mixed",
    "save",
    "sequence_priority",
    "size",
    "space",
    "split",
    "stats",
    "unread",
    "update_priority",
    "wait",
    "write",
]

_opaque_all(globals()[name] for name in __all__)
_warn_if_left_out()
_register_with_export()
