"""fbuf: replay memory for reinforcement learning in JAX.

The state of a buffer is one immutable pytree; `add`, `sample` and `update_priority` are pure
functions of it that compile into the training step.
"""

from fbuf._add import add as add
from fbuf._end_episode import end_episode as end_episode
from fbuf._fault import Fault as Fault
from fbuf._fault import raise_on_fault as raise_on_fault
from fbuf._ids_at import ids_at as ids_at
from fbuf._init import init as init
from fbuf._init import nbytes as nbytes
from fbuf._inspect import can_sample as can_sample
from fbuf._inspect import size as size
from fbuf._inspect import stats as stats
from fbuf._ring import Ids as Ids
from fbuf._sample import sample as sample
from fbuf._sample_mixed import MixedSample as MixedSample
from fbuf._sample_mixed import sample_mixed as sample_mixed
from fbuf._sequence_priority import sequence_priority as sequence_priority
from fbuf._state import Sample as Sample
from fbuf._state import State as State
from fbuf._update import clear as clear
from fbuf._update import remove as remove
from fbuf._update import update_priority as update_priority
from fbuf._write import write as write
from fbuf.samplers import Mixture as Mixture
from fbuf.samplers import Prioritized as Prioritized
from fbuf.samplers import Shuffled as Shuffled
from fbuf.samplers import Uniform as Uniform
from fbuf.views import FrameStack as FrameStack
from fbuf.views import Hindsight as Hindsight
from fbuf.views import HindsightStep as HindsightStep
from fbuf.views import Item as Item
from fbuf.views import ItemAndNext as ItemAndNext
from fbuf.views import NStep as NStep
from fbuf.views import NStepTransition as NStepTransition
from fbuf.views import ReturnToGo as ReturnToGo
from fbuf.views import ReturnToGoStep as ReturnToGoStep
from fbuf.views import Sequence as Sequence
from fbuf.views import SequenceSteps as SequenceSteps
from fbuf.views import Transition as Transition

__version__ = "0.1.0"

__all__ = [
    "Fault",
    "FrameStack",
    "Hindsight",
    "HindsightStep",
    "Ids",
    "Item",
    "ItemAndNext",
    "MixedSample",
    "Mixture",
    "NStep",
    "NStepTransition",
    "Prioritized",
    "ReturnToGo",
    "ReturnToGoStep",
    "Sample",
    "Sequence",
    "SequenceSteps",
    "Shuffled",
    "State",
    "Transition",
    "Uniform",
    "add",
    "can_sample",
    "clear",
    "end_episode",
    "ids_at",
    "init",
    "nbytes",
    "raise_on_fault",
    "remove",
    "sample",
    "sample_mixed",
    "sequence_priority",
    "size",
    "stats",
    "update_priority",
    "write",
]
