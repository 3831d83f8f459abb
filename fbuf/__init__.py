"""fbuf: replay memory for reinforcement learning in JAX.

The state of a buffer is one immutable pytree; `add`, `sample` and `update_priority` are pure
functions of it that compile into the training step.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fbuf import sharded as sharded
from fbuf import targets as targets
from fbuf._exported import register as _register_with_export
from fbuf._versions import VERSION as _VERSION
from fbuf._versions import warn_if_left_out as _warn_if_left_out
from fbuf.checkpoint.errors import CheckpointError as CheckpointError
from fbuf.dispatch.torch_compile import opaque_all as _opaque_all
from fbuf.doctor.finding import Finding as Finding
from fbuf.doctor.finding import Report as Report
from fbuf.doctor.picture import plot as plot
from fbuf.doctor.report import report as report
from fbuf.ops.add import add as add
from fbuf.ops.after import after as after
from fbuf.ops.can_sample import can_sample as can_sample
from fbuf.ops.capacity_for import capacity_for as capacity_for
from fbuf.ops.check_finite import NotFiniteError as NotFiniteError
from fbuf.ops.check_finite import check_finite as check_finite
from fbuf.ops.check_in_place import check_in_place as check_in_place
from fbuf.ops.clear import clear as clear
from fbuf.ops.draw import draw as draw
from fbuf.ops.end_episode import end_episode as end_episode
from fbuf.ops.expire import expire as expire
from fbuf.ops.extend import extend as extend
from fbuf.ops.group_ids import group_ids as group_ids
from fbuf.ops.group_sizes import group_sizes as group_sizes
from fbuf.ops.has_checkpoint import has_checkpoint as has_checkpoint
from fbuf.ops.ids_at import ids_at as ids_at
from fbuf.ops.init import init as init
from fbuf.ops.load import Checkpoint as Checkpoint
from fbuf.ops.load import load as load
from fbuf.ops.nbytes import nbytes as nbytes
from fbuf.ops.neighbours import neighbours as neighbours
from fbuf.ops.newest_ids import newest_ids as newest_ids
from fbuf.ops.no_ids import no_ids as no_ids
from fbuf.ops.pop import pop as pop
from fbuf.ops.probability import probability as probability
from fbuf.ops.raise_on_fault import raise_on_fault as raise_on_fault
from fbuf.ops.read import read as read
from fbuf.ops.remove import remove as remove
from fbuf.ops.resize import resize as resize
from fbuf.ops.rollout import rollout as rollout
from fbuf.ops.rows import rows as rows
from fbuf.ops.sample import sample as sample
from fbuf.ops.sample_mixed import MixedSample as MixedSample
from fbuf.ops.sample_mixed import sample_mixed as sample_mixed
from fbuf.ops.save import save as save
from fbuf.ops.save import wait as wait
from fbuf.ops.sequence_priority import sequence_priority as sequence_priority
from fbuf.ops.size import size as size
from fbuf.ops.space import space as space
from fbuf.ops.split import split as split
from fbuf.ops.stats import stats as stats
from fbuf.ops.thin import thin as thin
from fbuf.ops.unread import unread as unread
from fbuf.ops.update_priority import update_priority as update_priority
from fbuf.ops.uses import uses as uses
from fbuf.ops.write import write as write
from fbuf.pace import Pace as Pace
from fbuf.pace import PaceCounter as PaceCounter
from fbuf.samplers.public import *  # noqa: F403 (each name is written once, there)
from fbuf.state import Batch as Batch
from fbuf.state import Rollout as Rollout
from fbuf.state import Sample as Sample
from fbuf.state import State as State
from fbuf.storage.faults import Fault as Fault
from fbuf.storage.ids import Ids as Ids
from fbuf.views.public import *  # noqa: F403 (each name is written once, there)

if TYPE_CHECKING:
    from fbuf import host as host
    from fbuf import testing as testing

__version__ = _VERSION

# All that is imported above and that fbuf defines: the functions and the classes.
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    name
    for name, thing in globals().items()
    if name[0] != "_" and getattr(thing, "__module__", "").startswith("fbuf.")
)


def __dir__() -> list[str]:
    return [*__all__, "host", "sharded", "targets", "testing"]


if not TYPE_CHECKING:  # there every name would do

    def __getattr__(name: str) -> Any:
        if name in ("host", "testing"):  # their modules import this one
            return importlib.import_module(f"fbuf.{name}")
        raise AttributeError(f"module 'fbuf' has no attribute {name!r}")


_opaque_all(globals()[name] for name in __all__)
_warn_if_left_out()
_register_with_export()
