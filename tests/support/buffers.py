"""The two buffers of tensors behind one face, so that one suite can ask both the same questions.

Everything is small and has few shapes: ten rows of capacity, eight rows at a time, batches of 16.
A program compiled for one test, or for one buffer, then does for all others.
"""

from __future__ import annotations

import dataclasses
import os
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from fbuf_adapters.pytorch import ReplayBuffer

import fbuf
from fbuf.trees import sum_tree

DEVICE = os.environ.get("FBUF_TEST_DEVICE", "cpu")
"""Where tests keep arrays and tensors, `cpu` or `cuda`."""

CAPACITY, COUNT, BATCH = 10, 8, 16
EXACT = fbuf.Prioritized(alpha=1.0, beta=1.0, eps=0.0)
"""It stores the priorities that it is given."""
PAIRS = {"sampler": fbuf.Uniform(window=2), "view": fbuf.Sequence(2), "batch_size": 64}
"""Two steps of an episode in a row; so many of them that each is drawn."""


def rows(count: int = COUNT, start: int = 0, device: str = DEVICE) -> dict[str, Any]:
    """Rows that say which they are."""
    number = torch.arange(start, start + count, device=device)
    return {"number": number, "next": {"reward": number.float().unsqueeze(-1) / 8}}


def shaped(tree: dict[str, Any], *lead: int) -> dict[str, Any]:
    """The same rows, as so many steps of so many environments."""
    return jax.tree.map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), tree)


def empty(**options: Any) -> fbuf.State[Any]:
    """A buffer for such rows, made as the objects make theirs: nothing compiles twice."""
    with jax.default_device(jax.config.jax_default_device or jax.devices()[0]):
        item = {"number": jnp.int32(0), "next": {"reward": jnp.zeros(1)}}
        return fbuf.init(item, CAPACITY, **options)


def of_jax(tree: dict[str, Any]) -> dict[str, Any]:
    """The same as arrays, as they are stored."""
    narrow = {torch.int64: np.int32}
    return jax.tree.map(
        lambda x: jnp.asarray(x.cpu().numpy().astype(narrow.get(x.dtype, x.cpu().numpy().dtype))),
        tree,
    )


class Tensors:
    """`fbuf_adapters.pytorch.ReplayBuffer`: dicts of tensors."""

    flags_are_stored = False
    unmarked = types.MappingProxyType({})
    """Options of a buffer for rows that do not say where episodes end, and for its starts alone."""

    def make(self, capacity: int = CAPACITY, **options: Any) -> Any:
        options = {"device": DEVICE, "batch_size": BATCH, "int64": True, "seed": 0} | options
        return ReplayBuffer(capacity, **options)

    def core(self, buffer: Any) -> ReplayBuffer:
        return buffer

    def extend(self, buffer: Any, data: dict[str, Any], **options: Any) -> None:
        """Add rows, or steps of environments; options are flags and priorities."""
        buffer.extend(data, **options)

    def add(self, buffer: Any, data: dict[str, Any]) -> None:
        """Add the only row of `data`."""
        buffer.add(jax.tree.map(lambda leaf: leaf[0], data))

    def leaf(self, batch: Any, *key: str) -> torch.Tensor:
        """A leaf of what was stored, of the rows that were drawn."""
        found = batch.data
        for part in key:
            found = found[part]
        return found[batch.mask]

    def ids(self, batch: Any) -> fbuf.Ids:
        return batch.ids

    def weight(self, batch: Any) -> torch.Tensor:
        return batch.weight

    def leaves(self, batch: Any) -> list[torch.Tensor]:
        return jax.tree.leaves(batch)

    def sample(self, buffer: Any, beta: float | None = None) -> Any:
        return buffer.sample(beta=beta)

    def learn(self, buffer: Any, batch: Any, priority: Any, alpha: float | None = None) -> None:
        """Give the rows of a batch new priorities."""
        buffer.update_priority(batch.ids, priority, alpha=alpha)


class TensorDicts(Tensors):
    """`fbuf_adapters.tensordict.TensorDictReplayBuffer`: TensorDicts."""

    flags_are_stored = True
    unmarked = types.MappingProxyType({"traj_key": False, "end_keys": (), "slices": "nested"})

    def make(self, capacity: int = CAPACITY, **options: Any) -> Any:
        from fbuf_adapters.tensordict import TensorDictReplayBuffer

        options = {"device": DEVICE, "batch_size": BATCH, "seed": 0} | options
        return TensorDictReplayBuffer(capacity, **options)

    def core(self, buffer: Any) -> ReplayBuffer:
        return buffer.buffer

    def extend(self, buffer: Any, data: dict[str, Any], **options: Any) -> None:
        from tensordict import TensorDict

        lead = jax.tree.leaves(data)[0].shape[: 2 if "terminated" in options else 1]
        given = TensorDict(data, batch_size=lead)
        for name, option in options.items():
            key = "td_error" if name == "priority" else ("next", name)
            given[key] = option.unsqueeze(-1)
        buffer.extend(given)

    def add(self, buffer: Any, data: dict[str, Any]) -> None:
        from tensordict import TensorDict

        buffer.add(TensorDict(data, batch_size=[1])[0])

    def leaf(self, batch: Any, *key: str) -> torch.Tensor:
        return batch[key]

    def ids(self, batch: Any) -> fbuf.Ids:
        return fbuf.Ids(batch["index"], batch["index_generation"])

    def weight(self, batch: Any) -> torch.Tensor:
        return batch["_weight"]

    def leaves(self, batch: Any) -> list[torch.Tensor]:
        return [leaf for _, leaf in sorted(batch.flatten_keys(".").items())]

    def sample(self, buffer: Any, beta: float | None = None) -> Any:
        buffer.beta = beta
        return buffer.sample()

    def learn(self, buffer: Any, batch: Any, priority: Any, alpha: float | None = None) -> None:
        buffer.alpha = alpha
        batch["td_error"] = priority
        buffer.update_tensordict_priority(batch)
        buffer.alpha = None


KINDS = {"tensors": Tensors(), "tensordicts": TensorDicts()}


def _is_handed_out(kind: Any) -> bool:
    """Whether JAX looks into it, as it does into all that fbuf's functions return."""
    if not dataclasses.is_dataclass(kind) or kind is fbuf.State:
        return False
    return not jax.tree_util.all_leaves([object.__new__(kind)])


HANDED_OUT = sorted(name for name in fbuf.__all__ if _is_handed_out(getattr(fbuf, name)))
"""The containers that fbuf hands out, but for states."""


# The contents of a buffer.


def stored(state: Any) -> Any:
    """The items of all slots, in the order of the slots."""
    return state.storage.read(jnp.arange(state.capacity))


def flags(state: Any) -> list[int]:
    """1 where an episode terminated, 2 where it was truncated, slot by slot."""
    return (state.ring.flags & 3).tolist()


_values = jax.jit(sum_tree.values)


def priorities(state: Any) -> list[float]:
    """Return the priorities stored for each slot."""
    index = state.index
    tree = index.priorities.tree if hasattr(index, "priorities") else index.tree
    return _values(tree, jnp.arange(state.capacity)).tolist()


def bits(tree: Any) -> list[np.ndarray]:
    """The bytes of all leaves, of arrays or tensors: of a float they say more than its value."""
    leaves = [
        x.detach()
        .cpu()
        .reshape(-1)
        .clone(memory_format=torch.contiguous_format)
        .view(torch.uint8)
        .numpy()
        if isinstance(x, torch.Tensor)
        else np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        for x in jax.tree.leaves(tree)
    ]
    return [np.array(leaf) for leaf in leaves]


def assert_same(one: Any, other: Any) -> None:
    """Equal in every bit of every leaf."""
    for x, y in zip(bits(one), bits(other), strict=True):
        np.testing.assert_array_equal(x, y)
