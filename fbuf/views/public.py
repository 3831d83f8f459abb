"""The views of `fbuf` and their results. To add one, add its line; `fbuf` then has it, too."""

from fbuf.views.frame_stack import FrameStack as FrameStack
from fbuf.views.hindsight import Hindsight as Hindsight
from fbuf.views.hindsight import HindsightStep as HindsightStep
from fbuf.views.item import Item as Item
from fbuf.views.n_step import NStep as NStep
from fbuf.views.n_step import NStepTransition as NStepTransition
from fbuf.views.return_to_go import ReturnToGo as ReturnToGo
from fbuf.views.return_to_go import ReturnToGoStep as ReturnToGoStep
from fbuf.views.sequence import Sequence as Sequence
from fbuf.views.sequence import SequenceSteps as SequenceSteps
from fbuf.views.transition import Transition as Transition
from fbuf.views.transition import TransitionStep as TransitionStep
from fbuf.views.window import Window as Window
from fbuf.views.window import WindowStep as WindowStep
