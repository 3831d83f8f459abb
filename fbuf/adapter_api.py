"""The names of the core that adapters build on: the contract between both.

An adapter imports from `fbuf`, from `fbuf.host` and from here, and nothing else of the core. So the
core may change all other names. These names are for adapters, not for programs: they may change
from one version to the next, together with the adapters of this repository.
"""

from fbuf.checkpoint.config import made_with, unknown_item
from fbuf.checkpoint.files import make_folder
from fbuf.checkpoint.files import write as write_files
from fbuf.checkpoint.free_space import explained as explain_full_disk
from fbuf.checkpoint.free_space import require as require_free_space
from fbuf.checkpoint.paths import local as local_path
from fbuf.checkpoint.tree_json import classes as tree_classes
from fbuf.checkpoint.tree_json import encode as encode_tree
from fbuf.checks import foreign as foreign_files
from fbuf.checks import values as check
from fbuf.checks.not_arrays import of_object as object_in_words
from fbuf.checks.not_arrays import of_table as table_in_words
from fbuf.checks.warn import warn
from fbuf.dispatch.call import checked as checked_arguments
from fbuf.dispatch.call import refuse_consumed
from fbuf.dispatch.flax import register as register_with_flax
from fbuf.dispatch.parse import can_hold
from fbuf.dispatch.torch_compile import opaque, opaque_all
from fbuf.host.programs import batch_of as build_host_batch
from fbuf.host.transitions import Transitions as HostTransitions
from fbuf.host.uniform_rows import UniformRows
from fbuf.host.uniform_rows import below as below_on_host
from fbuf.ops.ends_room import free_for_ends, room_for_ends, with_room_for_ends
from fbuf.ops.load import Episodes
from fbuf.ops.sample import planned as plan_draws
from fbuf.ops.spec import BufferSpec
from fbuf.owner.owner import Asked, Holder, Owner, owner_of
from fbuf.owner.resume import check as check_episodes
from fbuf.owner.resume import resumed
from fbuf.runtime.batch_stream import BatchDrawer, BatchStream, Drawn
from fbuf.runtime.fixed_arguments import arguments as fixed_arguments
from fbuf.runtime.interrupts import Calls, at_once, of_newest, uninterrupted
from fbuf.runtime.processes import check_stays as check_stays_in_process
from fbuf.runtime.processes import stays as stays_in_process
from fbuf.runtime.thread import Cancelled
from fbuf.runtime.wait import steps as waiting_steps
from fbuf.runtime.wait import wait as wait_for
from fbuf.samplers import Ask, Draw, Sampler
from fbuf.samplers.chance.random_bits import below, bits, fold_in
from fbuf.samplers.index.priority_index import of_slots as stored_priorities
from fbuf.storage.episodes import Autoreset
from fbuf.storage.ids import NO_SLOT
from fbuf.storage.layout import Layout
from fbuf.storage.left_off import changed as changed_lanes
from fbuf.storage.left_off import nowhere, place
from fbuf.storage.ring import DUMMY, REMOVED, STANDS_IN, TERMINATED, TRUNCATED, Ring, Span
from fbuf.storage.stored_lanes import Lane, stored_lanes
from fbuf.storage.tags import of as tag_of
from fbuf.storage.tags import renewed as with_new_tag
from fbuf.views import Reader, Reading, Request, View
from fbuf.views.gather import request_rows
from fbuf.views.requests import Wanted
from fbuf.views.steps import following
from fbuf.xla.explicit import on_automatic_axes
from fbuf.xla.rows import returned as returned_batch

__all__ = [
    "DUMMY",
    "NO_SLOT",
    "REMOVED",
    "STANDS_IN",
    "TERMINATED",
    "TRUNCATED",
    "Ask",
    "Asked",
    "Autoreset",
    "BatchDrawer",
    "BatchStream",
    "BufferSpec",
    "Calls",
    "Cancelled",
    "Draw",
    "Drawn",
    "Episodes",
    "Holder",
    "HostTransitions",
    "Lane",
    "Layout",
    "Owner",
    "Reader",
    "Reading",
    "Request",
    "Ring",
    "Sampler",
    "Span",
    "UniformRows",
    "View",
    "Wanted",
    "at_once",
    "below",
    "below_on_host",
    "bits",
    "build_host_batch",
    "can_hold",
    "changed_lanes",
    "check",
    "check_episodes",
    "check_stays_in_process",
    "checked_arguments",
    "encode_tree",
    "explain_full_disk",
    "fixed_arguments",
    "fold_in",
    "following",
    "foreign_files",
    "free_for_ends",
    "local_path",
    "made_with",
    "make_folder",
    "nowhere",
    "object_in_words",
    "of_newest",
    "on_automatic_axes",
    "opaque",
    "opaque_all",
    "owner_of",
    "place",
    "plan_draws",
    "refuse_consumed",
    "register_with_flax",
    "request_rows",
    "require_free_space",
    "resumed",
    "returned_batch",
    "room_for_ends",
    "stays_in_process",
    "stored_lanes",
    "stored_priorities",
    "table_in_words",
    "tag_of",
    "tree_classes",
    "uninterrupted",
    "unknown_item",
    "wait_for",
    "waiting_steps",
    "warn",
    "with_new_tag",
    "with_room_for_ends",
    "write_files",
]
