"""Reading all rows in the order of time, for computations along it."""

from __future__ import annotations

from typing import Any

from fbuf.dispatch.call import operation
from fbuf.ops.lane_slots import oldest_slots
from fbuf.ops.read import is_view, named_rows
from fbuf.samplers.protocol.placing import refuse
from fbuf.state import Rollout, State
from fbuf.storage.ids import Ids, live_ids
from fbuf.storage.ring import Ring
from fbuf.views.item import Item
from fbuf.views.protocol import Data, View


@operation(static=("view",), checks={"view": is_view})
def rollout(state: State[Any], *, view: View[Data] = Item()) -> Rollout[Data]:
    """Read all rows of each environment, the oldest first: for advantages and returns.

    Those are in `fbuf.targets`. Unlike `fbuf.rows` the first row is the oldest one, however many
    there are. Write what you compute back with `fbuf.write(state, batch.ids, fields)`, draw epochs
    with `fbuf.Shuffled`, and `fbuf.clear` the buffer for the next rollout.

    Args:
        state: The buffer; never consumed.
        view: The view of each row, as for `fbuf.read`; static. With `fbuf.Transition` each row has
            its next observation, also at the end of an episode and of the rollout.

    Returns:
        The rows: leaves `[T, ...]`, or `[num_envs, T, ...]`. The room of an environment is `T`
        rows. The `mask` is False behind the newest row, and where a row was removed or is the dummy
        of a reset. Data is 0 where `mask` is False.

    Raises:
        ValueError: When traced, if the view leaves something to chance, or if it has
            `time_major=True` and the buffer has environments.
        TypeError: When traced, if `view` is not a view.
        RuntimeError: If `state` has been consumed.

    Cost: O(N).

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> item = {"reward": jnp.zeros(()), "return": jnp.zeros(())}
        >>> state = fbuf.init(item, capacity=8, num_envs=2)
        >>> steps = {"reward": jnp.ones((2, 3)), "return": jnp.zeros((2, 3))}
        >>> state = fbuf.add(state, steps)
        >>> batch = fbuf.rollout(state)
        >>> to_go = jnp.cumsum(batch.data["reward"][:, ::-1], axis=1)[:, ::-1]
        >>> state = fbuf.write(state, batch.ids, {"return": to_go})
        >>> fbuf.rollout(state).data["return"]
        Array([[3., 2., 1., 0.],
               [3., 2., 1., 0.]], dtype=float32)

    References:
        Schulman et al., arXiv:1707.06347 (PPO, which learns from one rollout for some epochs).
    """
    refuse("rollout", state.sampler)
    if view.is_random:
        raise ValueError(
            f"fbuf.rollout: {type(view).__name__} is random, and fbuf.rollout takes no key; use "
            "fbuf.read(state, batch.ids, view=view, key=key)"
        )
    return Rollout.of(named_rows("rollout", state, ids_in_order(state.ring), view, None))


def ids_in_order(ring: Ring) -> Ids:
    """Return the ids of all rows, oldest first: `[capacity]`, or `[num_envs, lane_length]`."""
    stored = ring.lane_steps()
    return live_ids(ring, oldest_slots(ring, stored, stored, ring.lane_length))
