"""Drawing a batch from all shards."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fbuf._arrays import PRNGKey
from fbuf.dispatch import read_before_write
from fbuf.mesh import exchange, per_device
from fbuf.mesh.any_rows import read_any
from fbuf.mesh.gather_totals import gather_totals
from fbuf.ops.read import recorded
from fbuf.ops.sample import place_in_epoch, refuse_noting, require_step
from fbuf.samplers.chance import random_bits
from fbuf.samplers.protocol.planned import Picked, Plan, PlannedSampler
from fbuf.samplers.protocol.sampler import Ask
from fbuf.sharded_state import ShardedIds, ShardedSample, ShardedState
from fbuf.state import State
from fbuf.storage.faults import Fault, bits_where
from fbuf.storage.ids import NO_SLOT
from fbuf.views.gather import gather
from fbuf.views.item import Item
from fbuf.views.protocol import Data, View
from fbuf.views.reader import BatchPart
from fbuf.views.sequence import Sequence, SequenceSteps
from fbuf.xla.across import summed
from fbuf.xla.varying import varying

_ANYWHERE = 4
"""The number folded into the key of a batch for any rows; samplers and views have 1 to 3."""


def sample(
    state: ShardedState[Any],
    key: PRNGKey,
    batch_size: int,
    *,
    view: View[Data] = Item(),
    beta: Any = None,
    step: Any = None,
    count: None = None,
) -> ShardedSample[Data]:
    """Draw a batch from the rows of all shards; see `fbuf.sample`."""
    require_step("sample", state.blocks.sampler, step)
    refuse_noting("sample", state.blocks.sampler)
    require_multiple("sample", state, batch_size)

    def run(state: ShardedState[Any], key: Any, beta: Any, step: Any) -> ShardedSample[Any]:
        return drawn(state, key, beta, step, batch_size, view)[0]

    out, same = layout_of_batch(state, view), PartitionSpec()
    batch = per_device.on_devices("sample", run, state, (key, beta, step), (same, same, same), out)
    read_before_write.note_read(state, batch.ids.slot)
    return batch


def require_multiple(
    function: str, state: ShardedState[Any], size: int, argument: str = "batch_size"
) -> None:
    """Refuse a batch that cannot be divided among the devices."""
    devices = state.num_devices
    if size % devices:
        raise ValueError(
            f"fbuf.{function}: {argument} must be a multiple of the {devices} devices "
            f"along {state.axis!r}, got {size}; take {-(-size // devices) * devices}"
        )


def layout_of_batch(state: ShardedState[Any], view: View) -> Any:
    """Return the layout of a batch on the mesh."""
    rows: Any = state.spec
    steps: Any = PartitionSpec(None, state.axis) if view.time_major else rows
    data = steps
    if isinstance(view, Sequence) and view.time_major and view.state is not None:
        # The state is of the first steps alone, and has no axis of steps.
        data = SequenceSteps[Any, Any](steps, steps, steps, steps, rows, steps, time_major=True)
    return ShardedSample[Any](
        data=data,
        ids=rows,
        mask=rows,
        terminated=steps,
        truncated=steps,
        probability=rows,
        weight=rows,
        fault=cast(Any, PartitionSpec()),
    )


def _anywhere(
    state: ShardedState[Any], view: View, key: jax.Array, batch_size: int
) -> list[jax.Array]:
    """Read the random rows of all shards that a view wants, for all draws of the batch."""
    wanted = view.leaves_of_any(state.blocks.storage.layout)
    if wanted is None or state.num_shards == 1:
        return []
    copies, leaves = wanted
    shape = (batch_size,) if copies is None else (batch_size, copies)
    return read_any(state, random_bits.fold_in(key, _ANYWHERE), shape, leaves)


def _settled(
    state: ShardedState[Any], sampler: PlannedSampler, totals: Any, plan: Plan, batch_size: int
) -> tuple[Any, Plan]:
    """Have each shard check its own picks, and return the plan with the allowed ones."""

    def one(shard: State[Any], number: jax.Array) -> jax.Array:
        own = plan.shards == number
        return own & sampler.allowed(shard.index, shard.ring, plan.picks, own)

    each = per_device.in_shards(one, state, per_device.shard_numbers(state))
    allowed = summed(each.sum(axis=0, dtype=jnp.int32), (state.axis,)) > 0
    return sampler.settled(totals, plan, varying(allowed, each), batch_size)


def _turned(batch: Any, view: View) -> Any:
    """Swap the steps and the draws of a batch or sample, if the view puts steps first."""
    if not view.time_major:
        return batch
    parts = {name: getattr(batch, name) for name in ("data", "terminated", "truncated")}
    state = None
    if isinstance(batch.data, SequenceSteps):
        state, parts["data"] = batch.data.state, dataclasses.replace(batch.data, state=None)
    parts = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), parts)
    if state is not None:
        parts["data"] = dataclasses.replace(parts["data"], state=state)
    return dataclasses.replace(batch, **parts)


def drawn(
    state: ShardedState[Any], key: Any, beta: Any, step: Any, batch_size: int, view: View
) -> tuple[ShardedSample[Any], Plan, jax.Array]:
    """Draw this device's part of a batch.

    Also return the plan of the whole batch, and a mask of its draws, bool `[B]`.
    """
    sampler = cast(PlannedSampler, state.blocks.sampler)
    given = step if isinstance(step, tuple) else () if step is None else (step,)
    given = tuple(jnp.asarray(number, jnp.int32) for number in given)
    powers = () if beta is None else (jnp.asarray(beta, jnp.float32),)
    totals, key, given, alike = gather_totals(state, sampler, key, given, powers)
    place = None
    if given:
        numbered = given[0] if len(given) == 1 else given
        place = place_in_epoch(sampler.size_of_epoch(totals), numbered, batch_size)
    # A single shard uses the values; several shards use only the shapes.
    one = per_device.shards_of(state) if state.num_shards == 1 else state.shard
    ask = Ask(key, batch_size, beta, place)
    plan = sampler.plan(one.index, one.ring, totals, ask)
    if sampler.refuses_picks:
        totals, plan = _settled(state, sampler, totals, plan, batch_size)
    view_key = random_bits.fold_in(key, 1) if view.is_random else None
    anywhere = _anywhere(state, view, key, batch_size)

    def read(shard: State[Any], numbers: jax.Array, there: jax.Array) -> Any:
        picks = jax.tree.map(lambda leaf: leaf[..., numbers], plan.picks)
        slots, aux = sampler.pick(shard.index, shard.ring, picks)
        reads = (*jax.tree.leaves(aux), *anywhere)
        own = BatchPart(numbers, batch_size, anywhere)
        batch = gather(shard, slots, there, view, view_key, reads, part=own)
        return _turned(recorded(shard, batch), view), aux

    def is_there(numbers: jax.Array) -> jax.Array:
        """Return a mask of the draws; it does not depend on the rows."""
        slots, aux = jax.eval_shape(sampler.pick, one.index, one.ring, plan.picks)
        slots, aux = jax.tree.map(lambda of: jnp.zeros(of.shape, of.dtype), (slots, aux))
        return sampler.weigh(totals, Picked(slots, aux, numbers), ask).mask

    part = batch_size // state.num_devices
    exists = is_there(jnp.arange(batch_size, dtype=jnp.int32))
    routes = exchange.routes(state, plan.shards, exists)
    (batch, aux), come = exchange.fetched(state, part, routes, read)
    numbers = per_device.device_number(state) * part + jnp.arange(part, dtype=jnp.int32)
    picked = Picked(batch.ids.slot, aux, numbers, (state.axis,))
    draw = sampler.weigh(totals, picked, ask)
    there = draw.mask & come & alike
    mask = batch.mask & there
    flags = mask.reshape(-1, *(1,) * (batch.terminated.ndim - 1))
    mine = plan.shards[numbers]
    made = ShardedSample(
        data=batch.data,
        ids=ShardedIds(
            shard=jnp.where(mask, mine, NO_SLOT),
            slot=jnp.where(mask, batch.ids.slot, NO_SLOT),
            generation=jnp.where(mask, batch.ids.generation, 0),
        ),
        mask=mask,
        terminated=batch.terminated & flags,
        truncated=batch.truncated & flags,
        probability=jnp.where(there, draw.probability, 0),
        weight=jnp.where(mask, draw.weight, 0),
        fault=bits_where(~alike, Fault.CALLS_DIFFER),
    )
    return _turned(made, view), plan, exists & alike
