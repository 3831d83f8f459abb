"""Views make the data of a batch from drawn rows. One file a view.

The names of this module are the stable ones for authors of views: `docs/know/extending.md`.
"""

from typing import Any

from fbuf.storage.layout import Layout as Layout
from fbuf.storage.ring import DUMMY as DUMMY
from fbuf.storage.ring import REMOVED as REMOVED
from fbuf.storage.ring import TERMINATED as TERMINATED
from fbuf.storage.ring import TRUNCATED as TRUNCATED
from fbuf.views.protocol import Reading as Reading
from fbuf.views.protocol import Request as Request
from fbuf.views.protocol import View as View
from fbuf.views.public import *  # noqa: F403 (each name is written once, there)
from fbuf.views.reader import Reader as Reader
from fbuf.views.steps import Steps as Steps
from fbuf.views.steps import following as following
from fbuf.views.steps import preceding as preceding


def __getattr__(name: str) -> Any:
    """Refuse a name of an earlier version."""
    if name == "Look":
        # An AttributeError would lose this text in `from fbuf.views import Look`.
        raise ImportError("fbuf.views.Look is named fbuf.views.Request since version 0.4")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
