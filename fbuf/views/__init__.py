"""Views: what a drawn row turns into. One file a view."""

from typing import Any

from fbuf.views.frame_stack import FrameStack as FrameStack
from fbuf.views.hindsight import Hindsight as Hindsight
from fbuf.views.hindsight import HindsightStep as HindsightStep
from fbuf.views.item import Item as Item
from fbuf.views.n_step import NStep as NStep
from fbuf.views.n_step import NStepTransition as NStepTransition
from fbuf.views.protocol import Reading as Reading
from fbuf.views.protocol import Request as Request
from fbuf.views.protocol import View as View
from fbuf.views.reader import Reader as Reader
from fbuf.views.return_to_go import ReturnToGo as ReturnToGo
from fbuf.views.return_to_go import ReturnToGoStep as ReturnToGoStep
from fbuf.views.sequence import Sequence as Sequence
from fbuf.views.sequence import SequenceSteps as SequenceSteps
from fbuf.views.transition import Transition as Transition
from fbuf.views.transition import TransitionStep as TransitionStep
from fbuf.views.window import Window as Window
from fbuf.views.window import WindowStep as WindowStep


def __getattr__(name: str) -> Any:
    """Refuse a name of an earlier version."""
    if name == "Look":
        # An AttributeError would lose this text in `from fbuf.views import Look`.
        raise ImportError("fbuf.views.Look is named fbuf.views.Request since version 0.3")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
