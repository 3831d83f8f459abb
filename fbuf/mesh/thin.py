"""Drawing a small batch from a large one of a buffer over a mesh."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fbuf._arrays import Array, PRNGKey
from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.dispatch.call import operation
from fbuf.mesh import per_device
from fbuf.mesh.call import OVER_MESH
from fbuf.mesh.sample import require_multiple
from fbuf.ops.sample import is_key
from fbuf.ops.thin import DrawnRows, check_axes, drawn_rows, reweighed
from fbuf.sharded_state import ShardedIds, ShardedSample, ShardedState
from fbuf.storage import words
from fbuf.storage.ids import NO_SLOT
from fbuf.views.protocol import Data
from fbuf.xla.across import summed
from fbuf.xla.varying import varying


def _is_sharded_sample(function: str, argument: str, value: Any) -> Any:
    """Return a batch of a buffer over a mesh; refuse any other value."""
    if isinstance(value, ShardedSample):
        return value
    raise TypeError(
        f"fbuf.{function}: {argument} must be a fbuf.sharded.ShardedSample, got "
        f"{type(value).__name__}; give what fbuf.sample returns, or use fbuf.thin"
    )


@operation(
    state_type=OVER_MESH,
    prefix="sharded.",
    static=("count",),
    checks={"batch": _is_sharded_sample, "key": is_key, "count": check.integer},
    typed=("batch", "key"),
)
def thin(
    state: ShardedState[Any],
    batch: ShardedSample[Data],
    key: PRNGKey,
    count: int,
    error: Array,
) -> ShardedSample[Data]:
    """Draw some rows of a large batch, with replacement, in proportion to their errors.

    As `fbuf.thin`, for a batch of `fbuf.sample`. The rows are drawn from the parts of all
    devices together, and the result is the same on any number of devices. It lies on the mesh as
    `batch` does.

    Args:
        state: The buffer of `batch`, for its mesh; never consumed.
        batch: As for `fbuf.thin`. Inside `shard_map` it is the part of this device.
        key: As for `fbuf.thin`. If processes give different keys, that of the first one counts.
        count: As for `fbuf.thin`, of all devices together; a multiple of them.
        error: As for `fbuf.thin`; real `[B]`, lying as `batch.mask` does.

    Returns:
        As `fbuf.thin`.

    Raises:
        ValueError: When traced, as `fbuf.thin`; also if `count` is no multiple of the devices.
        TypeError: As `fbuf.thin`, for a `fbuf.sharded.ShardedSample`.
        RuntimeError: If `state` has been consumed.

    Cost: one `all_gather` of 8 bytes for each row of `batch`, and one `reduce_scatter` of `count`
    rows. A device draws all `count` rows, and keeps its own ones.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh, shards=2)
        >>> state = fbuf.add(state, jnp.arange(4.0))
        >>> large = fbuf.sample(state, jax.random.key(0), 64)
        >>> small = fbuf.sharded.thin(state, large, jax.random.key(1), 4, error=large.data)
        >>> bool((small.data > 0).all()), small.ids.slot.shape
        (True, (4,))
    """
    require_multiple("sharded.thin", state, count, "count")
    size = jnp.shape(batch.ids.slot)[0]
    check_axes("sharded.thin", dataclasses.replace(batch, fault=None), size)
    error = parse.priorities("sharded.thin", error, (size,), "batch.ids.slot", "error")

    def run(state: ShardedState[Any], batch: Any, key: Any, error: jax.Array) -> Any:
        every = lax.all_gather(words.packed([error, batch.mask]), state.axis, tiled=True)
        specs = [jax.ShapeDtypeStruct(of.shape, of.dtype) for of in (error, batch.mask)]
        errors, mask = words.unpacked(every, specs)
        rows = drawn_rows(errors, mask, _of_first(state, key), count)
        cut = _fetched(state, batch, rows.numbers)
        part = count // state.num_devices
        first = per_device.device_number(state) * part
        own = DrawnRows(*(lax.dynamic_slice_in_dim(leaf, first, part) for leaf in rows))
        ids = ShardedIds(
            shard=jnp.where(own.mask, cut.ids.shard, NO_SLOT),
            slot=jnp.where(own.mask, cut.ids.slot, NO_SLOT),
            generation=jnp.where(own.mask, cut.ids.generation, 0),
        )
        return reweighed(dataclasses.replace(cut, ids=ids, fault=batch.fault), own)

    layout = jax.tree.map(lambda _: state.spec, batch)
    layout = dataclasses.replace(layout, fault=PartitionSpec())
    specs = (layout, PartitionSpec(), state.spec)
    return per_device.on_devices("sharded.thin", run, state, (batch, key, error), specs, layout)


def _of_first(state: ShardedState[Any], key: jax.Array) -> jax.Array:
    """Return the key of the first device, so that all processes draw the same rows."""
    data, is_first = jax.random.key_data(key), per_device.device_number(state) == 0
    data = varying(summed(jnp.where(is_first, data, 0), (state.axis,)))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def _fetched(state: ShardedState[Any], batch: Any, numbers: jax.Array) -> Any:
    """Return this device's part of the drawn rows, which other devices send."""
    leaves, tree = jax.tree.flatten(dataclasses.replace(batch, fault=None))
    here = batch.mask.shape[0]
    place = numbers - per_device.device_number(state) * here
    own = (place >= 0) & (place < here)
    sent = words.packed(leaves)[jnp.where(own, place, 0)]
    # For each row, all devices but one send zeros.
    got = lax.psum_scatter(jnp.where(own[:, None], sent, 0), state.axis, tiled=True)
    specs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    return jax.tree.unflatten(tree, words.unpacked(got, specs))
